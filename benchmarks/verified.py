"""Trains the quickstarts with a chain of digests, and recomputes their last updates.

python benchmarks/verified.py --json=FILE [NAME ...]

Each quickstart makes four updates, and `verify` recomputes the last two in a process of its own,
which tokenizes the text again. The row says how many updates, and how many tensors of the state,
had other bits. It takes about a minute a quickstart.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
from harness import machine

ROOT = pathlib.Path(__file__).parent.parent
NAMES = sorted(path.parent.name for path in (ROOT / "configs").glob("*/quickstart.py"))
# What a quickstart begins with: {its keys: the quickstart whose run they name}.
BEGINS = {
    "distilbert": {"task.teacher": "bert", "init_from": "bert"},
    "preferences": {"init_from": "chat", "task.reference": "chat"},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or NAMES:
            row = {"objective": name} | verified(name, pathlib.Path(folder))
            print(json.dumps(row), flush=True)
            row |= {"machine": machine(), "revision": comparison.revision()}
            command = "python benchmarks/verified.py --json=FILE"
            comparison.add_rows(arguments.json, [row], "objective", NAMES, command)


def trained(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Returns the run of a quickstart, after four updates."""
    workdir = folder / name
    if not (workdir / "checkpoints").is_dir():
        keys = {key: trained(other, folder) for key, other in BEGINS.get(name, {}).items()}
        keys |= {"train.num_steps": 4, "checkpoint.keep_every": 2, "data.cache": folder / "cache"}
        _call("train", f"--config={name}/quickstart", workdir, keys)
    return workdir


def verified(name: str, folder: pathlib.Path) -> dict:
    """Returns what `verify` found in the last two updates of a quickstart."""
    workdir = trained(name, folder)
    found = json.loads(_call("verify", "--from=2", workdir, {}, "--to=4"))
    (stretch,) = found["recomputed"]
    return {
        "updates": stretch["to"] - stretch["from"],
        "exact": stretch["exact"],
        "differences": found["differences"],
    }


def _call(program: str, first: str, workdir: pathlib.Path, keys: dict, *flags: str) -> str:
    command = [sys.executable, "-m", f"transformer_jax.{program}", first, f"--workdir={workdir}"]
    options = [*flags, *(f"--config.{key}={value}" for key, value in keys.items())]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


if __name__ == "__main__":
    main()
