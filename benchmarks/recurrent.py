"""Measures a character LSTM against torch: training steps and generation.

python benchmarks/recurrent.py [--json=FILE] [--case=train] [--case=generate] [--tiny]

The peer of `train` is torch.nn.LSTM, whose layers are fused kernels, in the same shapes. Both sides
carry the state, and update float32 weights by AdamW. The peer of `generate` is the usual loop: one
token a call, drawn from the softmax. The weights are random, and both write as many tokens.
benchmarks/peers.py says how to install torch.
"""

import functools
import os
from collections.abc import Callable

# The peers use the GPU's memory, too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np
from harness import main, sides, tokens_beside
from steps import random_params, stepping

from transformer_jax.config import experiment
from transformer_jax.data import tokenizers
from transformer_jax.tasks.causal_lm import CausalLM

CHARACTERS = "".join(map(chr, range(32, 127)))
VOCABULARY = 128
# Width, layers, rows and tokens of a row.
SIZES = {"2 x 256": (256, 2, 64, 64), "2 x 512": (512, 2, 64, 64)}
TINY = {"2 x 32": (32, 2, 4, 8)}


def train(tiny: bool):
    """Forward, backward and update over rows that continue those of the update before."""
    for name, (width, layers, rows, length) in (TINY if tiny else SIZES).items():
        model = dict(width=width, layers=layers)
        makers = {
            "ours": ("jax", functools.partial(our_step, rows, length, **model)),
            "torch.nn.LSTM": ("torch", functools.partial(peer_step, rows, length, **model)),
        }
        spent = sides(makers, 2 if tiny else 9)
        case = f"training, LSTM {name}, {rows} rows of {length}"
        yield from tokens_beside(case, spent, rows * length)


def generate(tiny: bool):
    """One text, and as many as a training batch has rows."""
    for name, (width, layers, rows, _) in (TINY if tiny else SIZES).items():
        for texts in (1, rows):
            model = dict(width=width, layers=layers)
            count = 8 if tiny else 256
            makers = {
                "ours": ("jax", functools.partial(our_texts, texts, count, **model)),
                "torch's loop": ("torch", functools.partial(peer_texts, texts, count, **model)),
            }
            spent = sides(makers, 2 if tiny else 5)
            case = f"generation, LSTM {name}, {texts} texts of {count}"
            yield from tokens_beside(case, spent, texts * count)


def task_of(rows: int, length: int, *, width: int, layers: int) -> CausalLM:
    config = experiment(
        model=dict(name="lstm", vocab_size=VOCABULARY, d_model=width, num_layers=layers),
        task=dict(name="causal_lm", length=length, carry=True),
        train=dict(batch=rows),
        optimizer=dict(name="adamw", learning_rate=1e-4, weight_decay=0.01, clip_norm=0.0),
        decode=dict(batch=rows),
    )
    return CausalLM(config, None, length, carry=True)


def random_tokens(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, (rows, length + 1))


def our_step(rows: int, length: int, **model: int) -> Callable[[], None]:
    tokens = random_tokens(rows, length)
    ones, zeros = np.ones((rows, length)), np.zeros((rows, length))
    batch = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:], "weights": ones, "restarts": zeros}
    return stepping(task_of(rows, length, **model), [batch])


def peer_step(rows: int, length: int, **model: int) -> Callable[[], None]:
    import recurrent_peer

    tokens = random_tokens(rows, length)
    return recurrent_peer.train_step(tokens, vocab_size=VOCABULARY, **model)


def our_texts(texts: int, count: int, **model: int) -> Callable[[], None]:
    task = task_of(texts, 64, **model)
    task.tokenizer = tokenizers.train([CHARACTERS], "characters", VOCABULARY)
    task.tokenizer.eos_id = -1  # without an end, both write the same number of tokens
    params = random_params(task)
    prompts = [chr(97 + row % 26) for row in range(texts)]
    return lambda: list(task.generate(params, prompts, max_tokens=count))


def peer_texts(texts: int, count: int, **model: int) -> Callable[[], None]:
    import recurrent_peer

    return recurrent_peer.generation(rows=texts, count=count, vocab_size=VOCABULARY, **model)


if __name__ == "__main__":
    main(__doc__, {"train": train, "generate": generate}, ("jax", "flax"), releases=True)
