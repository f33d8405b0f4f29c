"""Measures training steps on a CPU under releases of jaxlib and values of an XLA flag.

python benchmarks/xla_flags.py --jax=PYTHON,PYTHON,... [--json=FILE] [--case=gpt_cpu ...] [--tiny]

The flag is that of transformer_jax/xla_guard.py. Each PYTHON is the interpreter of an
environment with the package's libraries and one release of jaxlib. Each interpreter and flag runs
in a separate process; they take turns. The peer is the first interpreter without the flag.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLAG = "--xla_cpu_experimental_ynn_fusion_type"
WITHOUT = "without a flag"
# {case: (function of steps.py, its arguments)}
CASES = {
    "gpt_cpu": ("gpt_rows", dict(rows=8, length=256, layers=4, width=512, vocab_size=8192)),
    "bert_small": (
        "bert_rows",
        dict(rows=16, length=128, masked=20, predicted=20, layers=4, width=512),
    ),
    "transformer_tiny": (
        "translation_rows",
        dict(rows=32, length=64, layers=4, width=128, d_ff=256, heads=4, vocab_size=4000),
    ),
}
ROUNDS = 9


class Side:
    """A process that compiles the training step with one release and flag, and times it."""

    def __init__(self, python: str, value: str, case: str, tiny: bool):
        flags = "" if value == WITHOUT else f"{FLAG}={value}"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        self.process = subprocess.Popen(
            [python, __file__, "--worker", case, flags, str(int(tiny))],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.jaxlib = self._read()

    def turn(self) -> float:
        """Returns the seconds of one step."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[0]} ended with exit code {self.process.wait()}")
        return line.strip()


def compare(case: str, tiny: bool, pythons: str) -> Iterator[dict]:
    from harness import medians

    sizes = CASES[case][1]
    tokens = sizes["rows"] * sizes["length"]
    with ExitStack() as stack:
        sides = {}
        for python in (pythons or sys.executable).split(","):
            for value in (WITHOUT, "-reduce", ""):
                side = Side(python, value, case, tiny)
                stack.callback(side.close)
                sides[f"jaxlib {side.jaxlib}, {value or 'empty'}"] = side
        spent = medians({name: side.turn for name, side in sides.items()}, 2 if tiny else ROUNDS)
    first = next(iter(sides))
    for name, seconds in spent.items():
        yield {
            "case": f"{case}, {name}",
            "ours": tokens / seconds,
            "unit": "tokens/s",
            "peer": tokens / spent[first],
            "peer_name": first,
            "ratio": spent[first] / seconds,
        }


def work(case: str, flags: str, tiny: bool) -> None:
    """Prints jaxlib's version, then the seconds of a step for each line of stdin."""
    import transformer_jax  # noqa: F401  # importing it changes XLA_FLAGS, which is replaced below

    os.environ["XLA_FLAGS"] = flags
    import jaxlib
    import steps

    function, sizes = CASES[case]
    if tiny:
        sizes = sizes | {"rows": 2, "length": 64}
    step = steps.our_step(getattr(steps, function), sizes)
    step()
    print(jaxlib.__version__, flush=True)
    for _ in sys.stdin:
        # A virtual machine may have taken back the memory while the other processes ran.
        step()
        began = time.perf_counter()
        step()
        print(time.perf_counter() - began, flush=True)


def run() -> None:
    from functools import partial

    from harness import main

    cases = {name: partial(compare, name) for name in CASES}
    main(__doc__, cases, ("jax", "flax"), given=("jax", "interpreters, separated by commas"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], sys.argv[3], sys.argv[4] == "1")
    else:
        run()
