"""Measures the time to the first update, to compile deep models, and to wait for data.

python benchmarks/startup.py [--json=FILE] [--case=train|depth|waiting] [--root=CHECKOUT] [--tiny]

- `train`: seconds from the command to the first update of each quickstart, with prepared data. Cold
  is with an empty compilation cache, warm is with that of an earlier run. With --root, the peer is
  the package of another checkout, and both take turns.
- `depth`: seconds to compile GPT-3's shape with 96 layers, by dry_run with an empty cache. The peer
  has 12 layers; a ratio near 1 means that depth costs nothing.
- `waiting`: the share of time in which a run waits for its rows, with built-in text. On a GPU the
  models have full size, else they are the quickstarts.
"""

import contextlib
import functools
import json
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator

import comparison
import harness

TRAINERS = {
    "train_wmt": "configs/wmt/quickstart.py",
    "train_gpt": "configs/gpt/quickstart.py",
    "train_bert": "configs/bert/quickstart.py",
}


def call(
    program: str, *flags: str, cache: str, root: pathlib.Path = comparison.ROOT
) -> subprocess.CompletedProcess:
    """Runs a program of the package in `root` with the compilation cache in `cache`."""
    command, options = _command(program, flags, cache, root)
    done = subprocess.run(command, stdout=subprocess.PIPE, **options)
    if done.returncode:
        _fail(command, done.returncode, done.stderr)
    return done


def _command(
    program: str, flags: Iterable[str], cache: str, root: pathlib.Path
) -> tuple[list[str], dict]:
    """Returns the command and the options of its process."""
    env = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", f"transformer_jax.{program}", *flags]
    return command, dict(env=env, cwd=root, stderr=subprocess.PIPE, text=True)


def _fail(command: list[str], code: int, said: str):
    raise SystemExit(f"{shlex.join(command)} ended with {code}:\n{said[-2000:]}")


def first_update(program: str, config: str, root: pathlib.Path, cache: str) -> float:
    """Returns the seconds from the command to the first update, after which the run is stopped."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--config={config}", f"--workdir={folder}/run"]
        command, options = _command(program, flags, cache, root)
        began = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, start_new_session=True, **options
        ) as process:
            said = ""
            for line in process.stderr:
                if "first step after" in line:
                    seconds = time.perf_counter() - began
                    os.killpg(process.pid, signal.SIGKILL)  # with its readers of data
                    return seconds
                said += line
        _fail(command, process.returncode, said)


def train(tiny: bool, root: str | None) -> Iterator[dict]:
    roots = {"ours": comparison.ROOT}
    if root:
        other = pathlib.Path(root).absolute()
        roots[f"commit {comparison.revision(other)}"] = other
    for program, config in list(TRAINERS.items())[: 1 if tiny else None]:
        cold, warm = {}, {}
        with contextlib.ExitStack() as stack:
            for name, folder in roots.items():
                call("prepare", f"--config={config}", cache=tempfile.mkdtemp(), root=folder)
                timed = functools.partial(first_update, program, config, folder)
                cache = stack.enter_context(tempfile.TemporaryDirectory())
                timed(cache)  # fills it
                cold[name] = functools.partial(with_empty_cache, timed)
                warm[name] = functools.partial(timed, cache)
            for state, calls in (("cold", cold), ("warm", warm)):
                spent = harness.medians(calls, 1 if tiny else 3)
                row = {"case": f"{program}, {state}", "ours": spent["ours"], "unit": "s"}
                yield from harness.beside(row["case"], spent, "s", float) if root else [row]


def with_empty_cache(timed: Callable[[str], float]) -> float:
    with tempfile.TemporaryDirectory() as cache:
        return timed(cache)


def depth(tiny: bool, root: str | None) -> Iterator[dict]:
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


def waiting(tiny: bool, root: str | None) -> Iterator[dict]:
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
    harness.main(
        __doc__,
        {"train": train, "depth": depth, "waiting": waiting},
        ("jax", "flax"),
        given=("root", "checkout of another commit, beside which `train` is measured"),
    )
