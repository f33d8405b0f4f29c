"""Measures training steps of RoBERTa and ELECTRA on random rows against torch, as train_step.py.

python benchmarks/encoder_steps.py [--json=FILE] [--case=roberta] [--case=electra] [--tiny]

The peer of RoBERTa is Hugging Face's. For ELECTRA, Hugging Face has the two models, and peers.py
joins them: its generator computes the logits of the masked positions alone, as ours does.
"""

import numpy as np
from harness import main
from steps import Peer, quiet
from train_step import against_torch

from transformer_jax.data.masking import NUM_DRAWS
from transformer_jax.tasks.masked_lm import MaskedLM
from transformer_jax.tasks.replaced_tokens import ReplacedTokens

ROBERTA = dict(layers=4, width=512, vocab_size=50_265, rows=16, length=128, masked=20)
ELECTRA = dict(
    layers=12, width=256, embed=128, vocab_size=30_522, rows=16, length=128, masked=19
)  # small
TINY = dict(layers=2, rows=2, length=32, masked=5)


def roberta(tiny: bool):
    """A RoBERTa of BERT-small's size.

    In the first variant both sides compute the logits of all positions, as Hugging Face's model
    does. In the second, ours computes those of the masked positions only.
    """
    sizes = ROBERTA | (TINY if tiny else {})
    variants = {
        ", all positions": sizes | {"predicted": sizes["length"]},
        ", ours masked alone": sizes | {"predicted": sizes["masked"]},
    }
    name = f"RoBERTa-small, {sizes['rows']} rows of {sizes['length']}"
    peer = Peer("roberta", _peer_sizes(sizes))
    yield from against_torch(name, roberta_rows, variants, peer, tiny)


def electra(tiny: bool):
    """ELECTRA small, as published: generator and discriminator in one step."""
    sizes = ELECTRA | (TINY if tiny else {})
    name = f"ELECTRA-small, {sizes['rows']} rows of {sizes['length']}"
    peer = Peer("electra", _peer_sizes(sizes) | {"d_embed": sizes["embed"]})
    yield from against_torch(name, electra_rows, {"": sizes}, peer, tiny)


def _peer_sizes(sizes: dict[str, int]) -> dict[str, int]:
    return dict(
        vocab_size=sizes["vocab_size"],
        d_model=sizes["width"],
        num_layers=sizes["layers"],
        num_heads=sizes["width"] // 64,
        length=sizes["length"],
    )


def _masked_rows(rows: int, length: int, masked: int, vocab_size: int):
    """Returns random tokens (rows, length), masked positions (rows, masked), and our batch."""
    random = np.random.default_rng(0)
    tokens = random.integers(5, vocab_size, (rows, length))
    masked_positions = np.sort(np.argsort(random.random((rows, length)))[:, :masked])
    read = tokens.copy()
    np.put_along_axis(read, masked_positions, 4, axis=1)
    batch = {
        "tokens": read,
        "token_types": np.zeros_like(tokens),
        "segment_ids": np.ones_like(tokens),
        "masked_positions": masked_positions,
        "masked_labels": np.take_along_axis(tokens, masked_positions, axis=1),
        "masked_weights": np.ones_like(masked_positions),
    }
    return tokens, masked_positions, batch


def roberta_rows(
    *,
    rows: int,
    length: int,
    masked: int,
    predicted: int,
    layers: int,
    width: int,
    vocab_size: int,
    **model,
):
    """Returns the task, a batch of random rows, and the same rows for the peer.

    The head computes the logits of `predicted` positions: the masked ones or all.
    """
    tokens, masked_positions, batch = _masked_rows(rows, length, masked, vocab_size)
    is_masked = np.zeros_like(tokens)
    np.put_along_axis(is_masked, masked_positions, 1, axis=1)
    if predicted == length:
        positions = np.broadcast_to(np.arange(length), tokens.shape)
        batch |= {
            "masked_positions": positions,
            "masked_labels": tokens,
            "masked_weights": is_masked,
        }
    shape = dict(
        name="roberta",
        vocab_size=vocab_size,
        num_layers=layers,
        d_model=width,
        num_heads=width // 64,
        max_length=length,
    )
    config = quiet(rows, shape, dict(name="masked_lm", next_sentence=0.0), **model)
    task = MaskedLM(config, None, phases=((1.0, length, predicted),), next_sentence=0.0)
    labels = np.where(is_masked, tokens, -100)
    return task, batch, {"input_ids": batch["tokens"], "labels": labels}


def electra_rows(
    *,
    rows: int,
    length: int,
    masked: int,
    layers: int,
    width: int,
    embed: int,
    vocab_size: int,
    **model,
):
    """Returns the task, a batch of random rows, and the same rows for the peer."""
    _, masked_positions, batch = _masked_rows(rows, length, masked, vocab_size)
    draws = np.random.default_rng(1).integers(NUM_DRAWS, size=masked_positions.shape)
    shape = dict(
        name="electra",
        vocab_size=vocab_size,
        num_layers=layers,
        d_model=width,
        d_embed=embed,
        num_heads=width // 64,
        max_length=length,
    )
    config = quiet(rows, shape, dict(name="replaced_tokens"), **model)
    task = ReplacedTokens(config, None, phases=((1.0, length, masked),))
    peer_batch = {
        "input_ids": batch["tokens"],
        "masked_positions": masked_positions,
        "labels": batch["masked_labels"],
    }
    return task, batch | {"masked_draws": draws}, peer_batch


if __name__ == "__main__":
    main(__doc__, {"roberta": roberta, "electra": electra}, ("jax", "flax"), releases=True)
