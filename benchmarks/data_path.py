"""How fast the data path alone is: from the token store to NumPy batches, on one core.

python benchmarks/data_path.py [--json=FILE] [--case=packed|windows|pairs] [--tiny]
"""

import os
import statistics
import tempfile
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if hasattr(os, "sched_setaffinity"):
    # one core, TensorStore's threads included
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

from harness import main

from transformer_jax.config import experiment
from transformer_jax.runs.resolve import make_task


def translation(length: int, pairs: int, batches: int, cache: str) -> dict:
    """Packed translation rows: source and target tokens (padding not counted) a second, median of
    several passes.
    """
    config = experiment(
        model=dict(name="encoder_decoder", vocab_size=8000),
        task=dict(name="translation", source_length=length, target_length=length),
        data=dict(corpus="grammar", corpus_size=pairs, cache=cache),
        train=dict(batch=64),
    )
    rows, rates = make_task(config).rows().train, []
    for start in range(0, 5 * batches, batches):
        began, tokens = time.perf_counter(), 0
        for step in range(start, start + batches):
            batch = rows.batch(step, range(64))
            tokens += int(
                (batch["source_segment_ids"] > 0).sum() + (batch["target_segment_ids"] > 0).sum()
            )
        rates.append(tokens / (time.perf_counter() - began))
    return {
        "case": f"translation, packed rows of {length}+{length}",
        "ours": round(statistics.median(rates)),
        "unit": "tokens/s",
    }


def packed(tiny: bool):
    pairs, batches = (300, 2) if tiny else (30_000, 40)
    with tempfile.TemporaryDirectory() as cache:
        yield from (translation(length, pairs, batches, cache) for length in (128, 256))


def windows(tiny: bool):
    """Windows of 1,024 tokens of the standard library's sources: tokens a second, median of several
    passes.
    """
    with tempfile.TemporaryDirectory() as cache:
        config = experiment(
            model=dict(name="gpt", vocab_size=300 if tiny else 8000),
            task=dict(name="causal_lm", length=1024),
            data=dict(corpus="python", tokenizer="byte_bpe", cache=cache),
            train=dict(batch=64),
        )
        rows, batches = make_task(config).rows().train, 2 if tiny else 100
        rates = []
        for start in range(0, 5 * batches, batches):
            began = time.perf_counter()
            tokens = sum(
                rows.batch(step, range(64))["tokens"].size for step in range(start, start + batches)
            )
            rates.append(tokens / (time.perf_counter() - began))
        yield {
            "case": "language model, windows of 1024",
            "ours": round(statistics.median(rates)),
            "unit": "tokens/s",
        }


def pairs(tiny: bool):
    """BERT's rows of 128 tokens, two texts each, with fresh masks, of the standard library's
    documentation strings: rows a second, median of several passes.
    """
    with tempfile.TemporaryDirectory() as cache:
        config = experiment(
            model=dict(name="bert", vocab_size=300 if tiny else 8000),
            task=dict(name="masked_lm"),
            data=dict(corpus="pydoc", tokenizer="wordpiece", cache=cache),
            train=dict(batch=256),
        )
        rows, batches = make_task(config).rows().train, 2 if tiny else 40
        rates = []
        for start in range(0, 5 * batches, batches):
            began = time.perf_counter()
            count = sum(
                len(rows.batch(step, range(256))["tokens"])
                for step in range(start, start + batches)
            )
            rates.append(count / (time.perf_counter() - began))
        yield {
            "case": "BERT, pairs of 128 with their masks",
            "ours": round(statistics.median(rates)),
            "unit": "rows/s",
        }


if __name__ == "__main__":
    main(
        __doc__,
        {"packed": packed, "windows": windows, "pairs": pairs},
        ("numpy", "tensorstore", "grain"),
    )
