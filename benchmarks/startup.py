"""Measures the time to the first update, to compile deep models, and to wait for data.

python benchmarks/startup.py [--json=FILE] [--case=train] [--case=depth] [--case=waiting] [--tiny]

- `train`: seconds from the command to the first update of each quickstart, with prepared data. Cold
  is with an empty compilation cache, warm is the second run.
- `depth`: seconds to compile GPT-3's shape with 96 layers, by dry_run with an empty cache. The peer
  has 12 layers; a ratio near 1 means that depth costs nothing.
- `waiting`: the share of time in which a run waits for its rows, with built-in text. On a GPU the
  models have full size, else they are the quickstarts.
"""

import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

import harness

TRAINERS = {
    "train_wmt": "configs/wmt/quickstart.py",
    "train_gpt": "configs/gpt/quickstart.py",
    "train_bert": "configs/bert/quickstart.py",
}


def call(program: str, *flags: str, cache: str) -> subprocess.CompletedProcess:
    """Runs a program of the package with the compilation cache in `cache`."""
    command = [sys.executable, "-m", f"transformer_jax.{program}", *flags]
    env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": cache}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return done


def first_update(program: str, config: str, cache: str) -> float:
    """Returns the seconds to the first update, as the run reports them."""
    with tempfile.TemporaryDirectory() as folder:
        done = call(
            program,
            f"--config={config}",
            f"--workdir={folder}/run",
            "--config.train.num_steps=1",
            "--config.train.eval_every=1",
            "--config.checkpoint.every=1",
            cache=cache,
        )
    return float(re.search(r"first step after ([\d.]+) s", done.stderr)[1])


def train(tiny: bool):
    for program, config in list(TRAINERS.items())[: 1 if tiny else None]:
        call("prepare", f"--config={config}", cache=tempfile.mkdtemp())
        with tempfile.TemporaryDirectory() as cache:
            yield {
                "case": f"{program}, cold",
                "ours": first_update(program, config, cache),
                "unit": "s",
            }
            yield {
                "case": f"{program}, warm",
                "ours": statistics.median(
                    first_update(program, config, cache) for _ in range(1 if tiny else 3)
                ),
                "unit": "s",
            }


def depth(tiny: bool):
    size = "125m" if tiny else "175b"

    def compiled(layers: int) -> float:
        with tempfile.TemporaryDirectory() as cache:
            done = call(
                "dry_run",
                f"--config=configs/gpt/gpt3.py:{size}",
                "--devices=8",
                "--config.mesh.tensor=4",
                f"--config.model.num_layers={layers}",
                cache=cache,
            )
        return json.loads(done.stdout.splitlines()[-1])["compile_seconds"]

    shallow = statistics.median(compiled(12) for _ in range(1 if tiny else 3))
    deep = statistics.median(compiled(96) for _ in range(1 if tiny else 3))
    yield {
        "case": f"compiling 96 layers, GPT-3 {size}",
        "ours": deep,
        "unit": "s",
        "peer": shallow,
        "peer_name": "12 layers",
        "ratio": shallow / deep,
    }


# Runs of full size for a GPU: {program: (config, keys)}. The fused kernel has no dropout.
FULL_SIZE = {
    "train_gpt": ("configs/gpt/gpt2.py:124m", {"data.corpus": "python", "train.batch": 32}),
    "train_bert": (
        "configs/bert/base.py",
        {
            "data.corpus": "pydoc",
            "train.batch": 256,
            "model.attention_dropout": 0,
            "task.phases": ((1.0, 128, 20),),
        },
    ),
    "train_wmt": (
        "configs/wmt/big.py",
        {"data.tfds_name": "none", "data.corpus": "grammar", "train.batch": 64},
    ),
}


def waiting(tiny: bool):
    """The first third of the updates is not counted: it compiles and warms up."""
    interval = 2 if tiny else 50
    quickstarts = {program: (config, {}) for program, config in TRAINERS.items()}
    for program, (config, keys) in (FULL_SIZE if harness.gpu() else quickstarts).items():
        keys = keys | {
            "train.num_steps": 3 * interval,
            "train.log_every": interval,
            "train.eval_every": 1000,
            "checkpoint.every": 1000,
        }
        with tempfile.TemporaryDirectory() as folder:
            call(
                program,
                f"--config={config}",
                f"--workdir={folder}/run",
                *(f"--config.{key}={value}" for key, value in keys.items()),
                cache=f"{folder}/compiled",
            )
            text = pathlib.Path(folder, "run/metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        timed = [line for line in lines if line.get("seconds/step") and line["step"] > interval]
        data = sum(line["seconds/data"] for line in timed)
        step = sum(line["seconds/step"] for line in timed)
        yield {
            "case": f"{config.removeprefix('configs/')}, waiting for data",
            "ours": 100 * data / (data + step),
            "unit": "% of time",
        }


if __name__ == "__main__":
    harness.main(__doc__, {"train": train, "depth": depth, "waiting": waiting}, ("jax", "flax"))
