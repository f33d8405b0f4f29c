"""Measures the data path alone, from the token store to NumPy batches, on one core.

python benchmarks/data_path.py [--json=FILE] [--case=packed|windows|pairs] [--tiny]
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if hasattr(os, "sched_setaffinity"):
    # This limits TensorStore's threads, too.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

from harness import main

from transformer_jax.config import experiment
from transformer_jax.runs.spec import make_task


def rate(config, batches: int, count: Callable[[dict], int]) -> int:
    """Returns how many of `count(batch)` are read in a second, the median of five passes."""
    rows = make_task(config).rows().train
    rates = []
    for first in range(0, 5 * batches, batches):
        start = time.perf_counter()
        total = sum(
            count(rows.batch(step, range(config.train.batch)))
            for step in range(first, first + batches)
        )
        rates.append(total / (time.perf_counter() - start))
    return round(statistics.median(rates))


def packed(tiny: bool):
    """Packed translation rows: source and target tokens per second, without padding."""
    pairs, batches = (300, 2) if tiny else (30_000, 40)

    def tokens(batch):
        return int(
            (batch["source_segment_ids"] > 0).sum() + (batch["target_segment_ids"] > 0).sum()
        )

    with tempfile.TemporaryDirectory() as cache:
        for length in (128, 256):
            config = experiment(
                model=dict(name="encoder_decoder", vocab_size=8000),
                task=dict(name="translation", source_length=length, target_length=length),
                data=dict(corpus="grammar", corpus_size=pairs, cache=cache),
                train=dict(batch=64),
            )
            yield {
                "case": f"translation, packed rows of {length}+{length}",
                "ours": rate(config, batches, tokens),
                "unit": "tokens/s",
            }


def windows(tiny: bool):
    """Windows of 1,024 tokens of the standard library's sources: tokens per second."""
    with tempfile.TemporaryDirectory() as cache:
        config = experiment(
            model=dict(name="gpt", vocab_size=300 if tiny else 8000),
            task=dict(name="causal_lm", length=1024),
            data=dict(corpus="python", tokenizer="byte_bpe", cache=cache),
            train=dict(batch=64),
        )
        yield {
            "case": "language model, windows of 1024",
            "ours": rate(config, 2 if tiny else 100, lambda batch: batch["tokens"].size),
            "unit": "tokens/s",
        }


def pairs(tiny: bool):
    """BERT's rows of 128 tokens: two texts of pydoc each, masked anew: rows per second."""
    with tempfile.TemporaryDirectory() as cache:
        config = experiment(
            model=dict(name="bert", vocab_size=300 if tiny else 8000),
            task=dict(name="masked_lm"),
            data=dict(corpus="pydoc", tokenizer="wordpiece", cache=cache),
            train=dict(batch=256),
        )
        yield {
            "case": "BERT, pairs of 128 with their masks",
            "ours": rate(config, 2 if tiny else 40, lambda batch: len(batch["tokens"])),
            "unit": "rows/s",
        }


if __name__ == "__main__":
    main(
        __doc__,
        {"packed": packed, "windows": windows, "pairs": pairs},
        ("numpy", "tensorstore", "grain"),
    )
