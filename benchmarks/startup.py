"""From the command to the first update, the time to compile deep models, and what a run waits for.

python benchmarks/startup.py [--json=FILE] [--case=train] [--case=depth] [--case=waiting] [--tiny]

`train`: each trainer's quickstart, its data prepared; cold, that is with an empty compilation
cache, and warm, the second time. `depth`: compiling GPT-3's shape with 96 layers beside 12, by
dry_run, with an empty cache each time: a ratio near 1 means that the depth costs nothing.
`waiting`: the share of a run's time in which an update waits for its rows: on a GPU models of full
size, else the quickstarts; built-in text.
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


def started(program: str, *flags: str, cache: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-m", f"transformer_jax.{program}", *flags],
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(
            f"{shlex.join(done.args)} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return done


def first_update(program: str, config: str, cache: str) -> float:
    """Seconds, by what the run itself says."""
    with tempfile.TemporaryDirectory() as folder:
        done = started(
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
        started("prepare", f"--config={config}", cache=tempfile.mkdtemp())
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
            done = started(
                "dry_run",
                f"--config=configs/gpt/gpt3.py:{size}",
                "--devices=8",
                "--config.mesh.tensor=4",
                f"--config.model.num_layers={layers}",
                cache=cache,
            )
        return json.loads(done.stdout.splitlines()[-1])["compile_seconds"]

    few, many = (
        statistics.median(compiled(layers) for _ in range(1 if tiny else 3)) for layers in (12, 96)
    )
    yield {
        "case": f"compiling 96 layers, GPT-3 {size}",
        "ours": many,
        "unit": "s",
        "peer": few,
        "peer_name": "12 layers",
        "ratio": few / many,
    }


FULL = {  # on a GPU, where attention's fused kernel has no dropout
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
    """Of the updates after the first `each`, which are compiled and warm up."""
    each = 2 if tiny else 50
    for program, (config, keys) in (
        FULL if harness.gpu() else {name: (config, {}) for name, config in TRAINERS.items()}
    ).items():
        keys = keys | {
            "train.num_steps": 3 * each,
            "train.log_every": each,
            "train.eval_every": 1000,
            "checkpoint.every": 1000,
        }
        with tempfile.TemporaryDirectory() as folder:
            started(
                program,
                f"--config={config}",
                f"--workdir={folder}/run",
                *(f"--config.{key}={value}" for key, value in keys.items()),
                cache=f"{folder}/compiled",
            )
            lines = [
                json.loads(line)
                for line in pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()
            ]
        data, step = (
            sum(
                line[f"seconds/{what}"]
                for line in lines
                if line.get("seconds/step") and line["step"] > each
            )
            for what in ("data", "step")
        )
        yield {
            "case": f"{config.removeprefix('configs/')}, waiting for data",
            "ours": 100 * data / (data + step),
            "unit": "% of time",
        }


if __name__ == "__main__":
    harness.main(__doc__, {"train": train, "depth": depth, "waiting": waiting}, ("jax", "flax"))
