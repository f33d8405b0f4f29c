"""Training steps on a CPU under releases of jaxlib and the flags of transformer_jax/xla_guard.py.

python benchmarks/xla_flags.py --data=PYTHON,PYTHON,... [--json=FILE] [--case=gpt_cpu ...] [--tiny]

Each PYTHON is the interpreter of an environment that holds the package's libraries and one release
of jaxlib. Each release, flag and interpreter has a process of its own; they take turns. All are
measured against the first interpreter without a flag.
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
CASES = {  # rows and length of a step, and what else train_step.py's functions take
    "gpt_cpu": ("gpt_rows", (8, 256), (4, 512, 8192)),
    "bert_small": ("bert_rows", (16, 128), (20, 20, 4, 512)),
    "transformer_tiny": ("translation_rows", (32, 64), (4, 128, 256, 4, 4000)),
}
ROUNDS = 9


class Side:
    """A process that makes one release's training step and takes a turn whenever it is asked."""

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
        """Seconds of a step."""
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

    _, (rows, length), _ = CASES[case]
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
        rate = rows * length / seconds
        yield {
            "case": f"{case}, {name}",
            "ours": rate,
            "unit": "tokens/s",
            "peer": rows * length / spent[first],
            "peer_name": first,
            "ratio": spent[first] / seconds,
        }


def work(case: str, flags: str, tiny: bool) -> None:
    """Prints jaxlib's version, then a step's seconds for each line it reads."""
    import transformer_jax  # noqa: F401  # adds the flag to XLA_FLAGS, which this replaces

    os.environ["XLA_FLAGS"] = flags
    import jaxlib
    import train_step

    function, shape, others = CASES[case]
    step = train_step.our_step(getattr(train_step, function), ((2, 64) if tiny else shape) + others)
    step()
    print(jaxlib.__version__, flush=True)
    for _ in sys.stdin:
        step()  # brings back the memory that the other processes' turns took
        began = time.perf_counter()
        step()
        print(time.perf_counter() - began, flush=True)


def run() -> None:
    from functools import partial

    from harness import main

    cases = {name: partial(compare, name) for name in CASES}
    main(__doc__, cases, ("jax", "flax"), data="interpreters, divided by commas")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], sys.argv[3], sys.argv[4] == "1")
    else:
        run()
