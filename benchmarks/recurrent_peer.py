"""The peer of recurrent.py: a language model of torch.nn.LSTM, trained and sampled as usual.

benchmarks/peers.py says how to install torch.
"""

import os
from collections.abc import Callable

import numpy as np
import torch

torch.set_num_threads(len(os.sched_getaffinity(0)))

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class LanguageModel(torch.nn.Module):
    """Tokens (B, L) and a state -> logits (B, L, V) and the state after them."""

    def __init__(self, *, vocab_size: int, width: int, layers: int):
        super().__init__()
        self.embed = torch.nn.Embedding(vocab_size, width)
        self.lstm = torch.nn.LSTM(width, width, layers, batch_first=True)
        self.project = torch.nn.Linear(width, vocab_size)

    def forward(self, tokens, state=None):
        hidden, state = self.lstm(self.embed(tokens), state)
        return self.project(hidden), state


def train_step(tokens: np.ndarray, **sizes: int) -> Callable[[], None]:
    """Returns a function that makes an update on rows (B, L + 1). The state is carried."""
    model = LanguageModel(**sizes).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    rows = torch.tensor(tokens, device=DEVICE).long()
    labels = rows[:, 1:].reshape(-1)
    state = None

    def step():
        nonlocal state
        optimizer.zero_grad(set_to_none=True)
        logits, after = model(rows[:, :-1], state)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels)
        loss.backward()
        optimizer.step()
        state = tuple(part.detach() for part in after)
        _synchronise()

    return step


def generation(*, rows: int, count: int, **sizes: int) -> Callable[[], None]:
    """Returns a function that draws `count` tokens after one token in each row, in a loop."""
    model = LanguageModel(**sizes).to(DEVICE).eval()

    @torch.inference_mode()
    def generate():
        tokens, state, drawn = torch.full((rows, 1), 2, device=DEVICE), None, []
        for _ in range(count):
            logits, state = model(tokens, state)
            tokens = torch.multinomial(torch.softmax(logits[:, -1], dim=-1), 1)
            drawn.append(tokens)
        torch.cat(drawn, dim=1).cpu()

    return generate


def _synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
