"""Trains the quickstarts twice with a chain of digests, and recomputes their last updates.

python benchmarks/verified.py --json=FILE [NAME ...]

Each quickstart makes four updates. Another process makes the same four, with no data and no
programs that the first one has kept: `again` names the checkpoints at which the metrics of an
update or a tensor of the state has other bits. Then `verify` recomputes the last two updates, and
`differences` says what differs. It takes about two minutes a quickstart.
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


def trained(name: str, folder: pathlib.Path, runs: str = "runs") -> pathlib.Path:
    """Returns the run of a quickstart, after four updates."""
    workdir = folder / runs / name
    if not (workdir / "checkpoints").is_dir():
        keys = {key: trained(other, folder) for key, other in BEGINS.get(name, {}).items()}
        keys |= {"train.num_steps": 4, "train.eval_every": 4, "checkpoint.keep_every": 2}
        keys |= {"data.cache": folder / f"cache-{runs}"}
        _call("train", f"--config={name}/quickstart", workdir, keys)
    return workdir


def verified(name: str, folder: pathlib.Path) -> dict:
    """Returns what differs in a second training of a quickstart, and what `verify` found."""
    workdir = trained(name, folder)
    first, second = map(checkpoints, (workdir, trained(name, folder, "again")))
    found = json.loads(_call("verify", "--from=2", workdir, {}, "--to=4"))
    (stretch,) = found["recomputed"]
    return {
        "again": [step for step in first | second if first.get(step) != second.get(step)],
        "updates": stretch["to"] - stretch["from"],
        "exact": stretch["exact"],
        "differences": found["differences"],
    }


def checkpoints(workdir: pathlib.Path) -> dict[int, list]:
    """Returns the digests in the chain of a run: metrics of updates, lines and tensors by step."""
    entries = map(json.loads, (workdir / "chain.jsonl").read_text().splitlines())
    digests = ("updates", "lines", "state")
    return {
        entry["step"]: [entry[name] for name in digests]
        for entry in entries
        if entry["kind"] == "checkpoint"
    }


def _call(program: str, first: str, workdir: pathlib.Path, keys: dict, *flags: str) -> str:
    command = [sys.executable, "-m", f"transformer_jax.{program}", first, f"--workdir={workdir}"]
    options = [*flags, *(f"--config.{key}={value}" for key, value in keys.items())]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": f"{workdir}-programs"}
    done = subprocess.run(
        [*command, *options], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


if __name__ == "__main__":
    main()
