"""How fast the data path alone is: from the token store to NumPy batches, on one core.

python benchmarks/data_path.py [--json=FILE] [--tiny]
"""
import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from importlib import metadata

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, TensorStore's threads included

from transformer_jax.config import experiment
from transformer_jax.workdir import make_task


def translation(length: int, pairs: int, batches: int, cache: str) -> dict:
    """Packed translation rows: source and target tokens (padding not counted) a second, median of several passes."""
    config = experiment(
        model=dict(name="encoder_decoder", vocab_size=8000), task=dict(name="translation", source_length=length, target_length=length),
        data=dict(corpus="grammar", corpus_size=pairs, cache=cache), train=dict(batch=64))
    rows, rates = make_task(config).rows().train, []
    for start in range(0, 5 * batches, batches):
        began, tokens = time.perf_counter(), 0
        for step in range(start, start + batches):
            batch = rows.batch(step, range(64))
            tokens += int((batch["source_segment_ids"] > 0).sum() + (batch["target_segment_ids"] > 0).sum())
        rates.append(tokens / (time.perf_counter() - began))
    return {"case": f"translation, packed rows of {length}+{length}", "ours": round(statistics.median(rates)), "unit": "tokens/s"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write machine, versions, command and rows to this file")
    parser.add_argument("--tiny", action="store_true", help="a few rows, to try the script")
    arguments = parser.parse_args()
    pairs, batches = (300, 2) if arguments.tiny else (30_000, 40)
    with tempfile.TemporaryDirectory() as cache:
        results = [translation(length, pairs, batches, cache) for length in (128, 256)]
    for row in results:
        print(f"{row['case']:40} {row['ours']:>14,} {row['unit']}")
    if arguments.json:
        record = {"machine": f"{platform.machine()}, 1 of {os.cpu_count()} cores", "versions": {name: metadata.version(name) for name in ("numpy", "tensorstore", "grain")}, "command": sys.argv, "rows": results}
        with open(arguments.json, "w") as out:
            json.dump(record, out, indent=2)


if __name__ == "__main__":
    main()
