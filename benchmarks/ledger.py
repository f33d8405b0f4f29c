"""Keeps the ledger of predictions: what an update should take, and what it took once it was run.

python benchmarks/ledger.py predict [NAME ...]   compiles the updates for TPUs and GPUs
python benchmarks/ledger.py measure [NAME ...]   predicts and measures on this machine's CPU
python benchmarks/ledger.py page                 writes docs/ledger.md

Rows are kept in results/ledger.json, each with its date and revision, and one that exists is only
replaced if it is named. `predict` needs the compilers of the extras `tpu` and `gpu`, and takes
about a minute a row. What was measured on GPUs is read from results/accelerator.

On a CPU, no table knows the rates. They are measured with the model cut to one layer and to two, or
to two and four if it has more than four: the difference is the time of a layer, and the rest is
that of everything else. The prediction for all layers is thus made before the whole model is run.
Nothing else may run meanwhile.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import comparison
from harness import machine

from transformer_jax.cli import use_huge_pages

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
FILE = RESULTS / "ledger.json"
PAGE = ROOT / "docs/ledger.md"
TEMPLATE = pathlib.Path(__file__).with_suffix(".md")
UPDATES, SECONDS = 7, 5.0  # measured at least, and the median counts


class Planned(NamedTuple):
    """An update on TPUs or GPUs, and where its measurement is."""

    config: str
    topology: str
    keys: dict
    measured: tuple[str, str] | None = None  # a file of results/accelerator, and a case in it


class OnCPU(NamedTuple):
    """An update on this machine, and the keys that count the layers."""

    config: str
    keys: dict
    layers: tuple[str, ...] = ("model.num_layers",)


BF16 = {"model.dtype": "bfloat16"}
NO_DROPOUT = {"model.dropout": 0.0, "model.attention_dropout": 0.0}
INLINE = {"model.unroll": 12}
GPT2 = BF16 | {"train.batch": 32, "train.accumulation": 1}
PLANNED = {
    "GPT-2 124M, h200": Planned(
        "gpt/gpt2:124m",
        "h200:1",
        GPT2 | NO_DROPOUT | INLINE,
        ("gpt2_124m_nvidia_h200.json", "inline"),
    ),
    "GPT-2 124M, h200, scanned": Planned(
        "gpt/gpt2:124m",
        "h200:1",
        GPT2 | NO_DROPOUT | {"model.unroll": 1},
        ("gpt2_124m_nvidia_h200.json", "scanned"),
    ),
    "GPT-2 124M, h100": Planned("gpt/gpt2:124m", "h100:1", GPT2 | NO_DROPOUT | INLINE),
    "GPT-2 124M, 8 h100": Planned(
        "gpt/gpt2:124m", "h100:8", GPT2 | NO_DROPOUT | INLINE | {"train.batch": 256}
    ),
    "GPT-2 124M, v5e": Planned("gpt/gpt2:124m", "v5e:2x4", GPT2 | NO_DROPOUT | {"train.batch": 64}),
    "GPT-2 355M, h100": Planned("gpt/gpt2:355m", "h100:1", GPT2 | NO_DROPOUT | {"train.batch": 16}),
    "BERT large, h100": Planned("bert/large", "h100:1", BF16 | {"train.batch": 32}),
    "Transformer big, h100": Planned("wmt/big:en-de", "h100:1", BF16),
    "Transformer big, 8 h100": Planned("wmt/big:en-de", "h100:8", BF16),
}
SHORT = {"train.batch": 4, "task.length": 256, **NO_DROPOUT}
ON_CPU = {
    "gpt/quickstart": OnCPU("gpt/quickstart", {}),
    "decoder/quickstart": OnCPU("decoder/quickstart", {}),
    "chat/quickstart": OnCPU("chat/quickstart", {}),
    "GPT-2 124M, 4 rows of 256": OnCPU("gpt/gpt2:124m", SHORT | {"data.corpus": "python"}),
    "BERT mini, 16 rows of 128": OnCPU(
        "bert/small:mini",
        {
            "train.batch": 16,
            "data.corpus": "pydoc",
            "task.phases": ((1.0, 128, 20),),
            "model.vocab_size": 8192,
        },
    ),
    "BERT base, 4 rows of 128": OnCPU(
        "bert/base",
        {
            "train.batch": 4,
            "data.corpus": "pydoc",
            "task.phases": ((1.0, 128, 20),),
            "model.vocab_size": 8192,
        },
    ),
    "Transformer base, 8 rows of 64": OnCPU(
        "wmt/base:en-de",
        {
            "train.batch": 8,
            "train.accumulation": 1,
            "data.corpus": "grammar",
            "data.tfds_name": "none",
            "task.source_length": 64,
            "task.target_length": 64,
            "model.vocab_size": 2048,
        },
        ("model.num_encoder_layers", "model.num_decoder_layers"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["predict", "measure", "page", "update"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--keys", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "page":
        PAGE.write_text(page(json.loads(FILE.read_text())))
        return
    use_huge_pages()  # as the programs do
    if arguments.what == "update":  # in a process of its own, so that its memory is its own
        print(json.dumps(seconds_of_update(arguments.names[0], json.loads(arguments.keys))))
        return
    known, make = (PLANNED, predicted) if arguments.what == "predict" else (ON_CPU, on_cpu)
    rows = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in arguments.names or [name for name in known if name not in rows]:
        rows[name] = make(known[name]) | {
            "date": datetime.date.today().isoformat(),
            "revision": comparison.revision(),
        }
        print(name, json.dumps(rows[name]), flush=True)
        ordered = {each: rows[each] for each in (*PLANNED, *ON_CPU) if each in rows}
        FILE.write_text(json.dumps(ordered, indent=1) + "\n")


def predicted(case: Planned) -> dict:
    """Returns the row of an update that is compiled for other hardware."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "transformer_jax.dry_run",
            f"--config={case.config}",
            f"--topology={case.topology}",
            f"--config.data.cache={folder}",
            *(f"--config.{key}={value}" for key, value in case.keys.items()),
        ]
        env = os.environ | {"JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=env)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    roofline = found["roofline"] or {}
    times = [roofline[key] for key in ("compute_s", "memory_s", "network_s") if key in roofline]
    return {
        "config": case.config,
        "machine": case.topology,
        "keys": {key: str(value) for key, value in case.keys.items()},
        "predicted_gb": (found["bytes_per_device"]["peak"] or 0) / 1e9,
        "predicted_seconds": max(times, default=None),
        "bound": roofline.get("bound"),
    }


def on_cpu(case: OnCPU) -> dict:
    """Returns the row of an update on this machine, predicted from two cut models."""
    from transformer_jax import config as configs

    with tempfile.TemporaryDirectory() as folder:
        keys = case.keys | {"data.cache": folder, "train.num_steps": 1000}
        whole = configs.get(configs.read(case.config), case.layers[0])

        def run(layers: int) -> dict:
            cut = dict.fromkeys(case.layers, layers) | {"model.unroll": layers}
            given = json.dumps({key: str(value) for key, value in (keys | cut).items()})
            command = [sys.executable, __file__, "update", case.config, "--keys", given]
            env = os.environ | {"JAX_PLATFORMS": "cpu"}
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=env)
            return json.loads(done.stdout.strip().splitlines()[-1])

        # Deep models are cut less: layers that share the caches with few others are faster.
        few = 1 if whole <= 4 else 2
        small, double = run(few), run(2 * few)
        layer = {key: (double[key] - small[key]) / few for key in small}
        guess = {key: small[key] + (whole - few) * layer[key] for key in small}
        measured = run(whole)
    return {
        "config": case.config,
        "machine": machine(),
        "keys": {key: str(value) for key, value in case.keys.items()},
        "layers": whole,
        "predicted_gb": guess["gb"],
        "predicted_seconds": guess["seconds"],
        "bound": f"{layer['seconds'] * 1e3:.0f} ms a layer",
        "measured_gb": measured["gb"],
        "measured_seconds": measured["seconds"],
    }


def seconds_of_update(config: str, keys: dict) -> dict[str, float]:
    """Returns the seconds of an update, and the memory of its program in GB."""
    import jax

    from transformer_jax.planning import estimate
    from transformer_jax.runs import spec
    from transformer_jax.runs.train import loop_of
    from transformer_jax.training.step import Program

    run = spec.resolve(config, overrides=keys)
    task = run.task()
    state, step, batch_of = loop_of(run, task)
    times = []
    # The first two compile and touch the memory. Short updates are repeated for five seconds.
    while len(times) < UPDATES + 2 or sum(times[2:]) < SECONDS:
        number = len(times)
        batch = jax.block_until_ready(batch_of(number))
        began = time.perf_counter()
        state = jax.block_until_ready(step(state, batch))
        times.append(time.perf_counter() - began)
    peak = estimate.estimate(run.config, task, Program.of(run.config, task)).peak
    return {"seconds": statistics.median(times[2:]), "gb": peak / 1e9}


# ----------------------------------------------------------------------------------------- the page


def page(rows: dict[str, dict]) -> str:
    """Returns the page, with the measurements of GPUs beside their predictions."""
    lines = [_line(name, row | _measured(name)) for name, row in rows.items()]
    names = ["update", "machine", "memory", "measured", "error", "seconds", "measured", "error"]
    table = comparison.markdown([*names, "limit", "date", "revision"], lines)
    return TEMPLATE.read_text().replace("<!-- table -->", table)


def _measured(name: str) -> dict:
    """Returns what an accelerator took for a planned update, if it has been run."""
    if name not in PLANNED or not (where := PLANNED[name].measured):
        return {}
    file, case = where
    found = json.loads((RESULTS / "accelerator" / file).read_text())["cases"][case]
    return {"measured_gb": found["peak_gb"], "measured_seconds": found["seconds"]}


def _line(name: str, row: dict) -> list[str]:
    place = row["machine"] if name in PLANNED else "CPU"
    cells = [name, f"`{place}`" if name in PLANNED else place]
    for quantity, digits in (("gb", "{:.2f} GB"), ("seconds", "{:.4g}")):
        guess, found = row[f"predicted_{quantity}"], row.get(f"measured_{quantity}")
        cells += [digits.format(guess) if guess else "", digits.format(found) if found else ""]
        cells.append(f"{guess / found - 1:+.0%}" if guess and found else "")
    return [*cells, row["bound"] or "", row["date"], row["revision"]]


if __name__ == "__main__":
    main()
