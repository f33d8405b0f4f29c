"""The CPU sweep of configs/scaling/cpu.py as a user runs it: how long its six sizes take, how well
the law fits, how near the prediction of the seventh, larger one comes.

python benchmarks/scaling.py [--json=benchmarks/results/scaling_cpu.json] [--tiny]      (SWEEP=DIR: a folder to work in; what is finished there is not trained, nor timed, again)

The pictures are left in benchmarks/results.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from harness import main, seconds

RESULTS = pathlib.Path(__file__).parent / "results"


def sweep(tiny: bool):
    """The five commands in turn. Nothing here has a peer."""
    folder = pathlib.Path(os.environ.get("SWEEP") or tempfile.mkdtemp())
    there = [f"--workdir={folder}"]
    family = [
        *there,
        "--config=configs/scaling/cpu.py",
        *(["--config.train.batch=1"] if tiny else []),
    ]
    timed, held_out_timed = not any(folder.glob("d*")), not (folder / "held_out").exists()
    spent = seconds(lambda: call("run", *family))
    if timed:
        yield {"case": "18 runs of six sizes", "ours": spent, "unit": "s"}
    if held_out_timed:
        call("predict", *family)
        yield {
            "case": "the held-out run",
            "ours": seconds(lambda: call("run", *family, "--held_out")),
            "unit": "s",
        }
    fit, check = call("fit", *there), call("check", *there)
    yield {"case": "R^2 of log L(N, D)", "ours": fit["L(N, D)"]["r2"], "unit": "", "fit": fit}
    yield {
        "case": "predicted beside measured loss, off by",
        "ours": 100 * abs(check["relative_error"]),
        "unit": "%",
        "check": check,
    }
    for path in map(pathlib.Path, fit.pop("pictures")):
        if not tiny:
            shutil.copy(path, RESULTS / f"scaling_cpu_{path.name}")


def call(command: str, *flags: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax.scaling", command, *flags],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}


if __name__ == "__main__":
    main(__doc__, {"sweep": sweep}, ["jax", "scipy", "numpy"])
