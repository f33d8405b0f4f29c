"""Measures the scaling law of configs/scaling/cpu.py: its time, its fit, its prediction.

python benchmarks/scaling.py [--json=benchmarks/results/scaling_cpu.json] [--tiny]

The environment variable SWEEP names a folder for the runs. Runs that are complete there are neither
trained nor timed again. The pictures are written to benchmarks/results.
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
    """Runs the five commands. There is no peer."""
    folder = pathlib.Path(os.environ.get("SWEEP") or tempfile.mkdtemp())
    workdir = f"--workdir={folder}"
    family = [workdir, "--config=configs/scaling/cpu.py"]
    if tiny:
        family.append("--config.train.batch=1")
    runs_are_new = not any(folder.glob("d*"))
    held_out_is_new = not (folder / "held_out").exists()
    spent = seconds(lambda: call("run", *family))
    if runs_are_new:
        yield {"case": "18 runs of six sizes", "ours": spent, "unit": "s"}
    if held_out_is_new:
        call("predict", *family)
        yield {
            "case": "the held-out run",
            "ours": seconds(lambda: call("run", *family, "--held_out")),
            "unit": "s",
        }
    fit = call("fit", workdir)
    drawn = fit.pop("pictures")  # paths of this machine, which are no result
    check = call("check", workdir)
    yield {"case": "R^2 of log L(N, D)", "ours": fit["L(N, D)"]["r2"], "unit": "", "fit": fit}
    yield {
        "case": "predicted beside measured loss, off by",
        "ours": 100 * abs(check["relative_error"]),
        "unit": "%",
        "check": check,
    }
    for path in map(pathlib.Path, drawn):
        if not tiny:
            shutil.copy(path, RESULTS / f"scaling_cpu_{path.name}")


def call(command: str, *flags: str) -> dict:
    words = [sys.executable, "-m", "transformer_jax.scaling", command, *flags]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}


if __name__ == "__main__":
    main(__doc__, {"sweep": sweep}, ["jax", "scipy", "numpy"])
