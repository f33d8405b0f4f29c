"""Compares RealFormer with BERT: norms after the sublayers, before them, and residual attention.

python benchmarks/realformer.py --workdir=DIR --json=FILE [--objective=NAME] [--seeds=8] [--tiny]
python benchmarks/realformer.py --table --json=FILE

The three encoders have four layers of 128 and the settings of configs/bert/quickstart.py, whose
text is the documentation of Python's standard library: nothing is downloaded. A seed gives all
three the same initial parameters and the same rows, so that their differences are paired; the norm
behind the last layer of `pre` is the only parameter that the others lack. The measures are those of
masked tokens in held-out documents (He et al. 2020).

A run is {updates} updates of 48 rows, of 32 tokens in the first nine tenths and of 64 in the last;
about 6 minutes on 2 cores, so that 3 x 8 runs take {hours:.1f} hours. After each seed of the three,
their rows are put into --json with the seeds so far. Complete runs are not repeated, and one that
was stopped goes on.
"""

import datetime
import json
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import numpy as np
import scipy.stats
from harness import machine

CONFIG = "configs/bert/quickstart.py"
COMMAND = "python benchmarks/realformer.py --workdir=DIR --json"
UPDATES = 2500
MINUTES = 6  # of a run, on 2 cores
LABELS = {
    "post": "post-LN (BERT)",
    "pre": "pre-LN",
    "realformer": "residual attention (RealFormer)",
}
MODELS = {
    "post": "bert",
    "pre": str(pathlib.Path(__file__).parent / "pre_norm.py"),
    "realformer": "realformer",
}
MEASURES = ("accuracy", "loss")
TINY = {"model.d_model": 16, "model.num_heads": 2, "model.vocab_size": 400, "train.batch": 4}


def main() -> None:
    doc = __doc__.format(updates=UPDATES, hours=3 * 8 * MINUTES / 60)
    flags = comparison.parser(doc, list(MODELS))
    flags.add_argument("--seeds", type=int, default=8)
    arguments = flags.parse_args()
    if arguments.table:
        return print(table(json.loads(arguments.json.read_text())["rows"]))
    names = arguments.objective or list(MODELS)
    for seeds in range(1, arguments.seeds + 1):
        rows = [measured(arguments, name, seeds) for name in names]
        print(json.dumps(rows), flush=True)
        if arguments.json:
            comparison.add_rows(arguments.json, rows, "objective", list(MODELS), COMMAND)


def measured(arguments, name: str, seeds: int) -> dict:
    """Returns the row of a model over the first seeds; those that are complete are only read."""
    num_steps = 2 if arguments.tiny else UPDATES
    keys = {
        "model.name": MODELS[name],
        "model.num_layers": 4,
        "model.unroll": 4,
        "train.num_steps": num_steps,
        "train.eval_every": num_steps,
        "checkpoint.every": 0.1,
        "data.cache": arguments.workdir / "cache",
        **(TINY if arguments.tiny else {}),
    }
    scores = comparison.train(CONFIG, arguments.workdir / name, keys, seeds)
    return {
        "objective": name,
        **{measure: scores[f"valid/{measure}"] for measure in MEASURES},
        "updates": num_steps,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
    }


# results


def difference(row: dict, baseline: dict, measure: str) -> tuple[float, float, float]:
    """Returns the mean of the paired differences, and its 95 % interval by Student's t."""
    pairs = zip(row[measure]["values"], baseline[measure]["values"])
    differences = np.array([own - other for own, other in pairs])
    mean, error = differences.mean(), scipy.stats.sem(differences)
    half = scipy.stats.t.ppf(0.975, len(differences) - 1) * error
    return mean, mean - half, mean + half


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown, with their differences from post-LN."""
    baseline = next((row for row in rows if row["objective"] == "post"), None)
    lines = []
    for row in rows:
        cell = ""
        if baseline and row is not baseline and len(row["accuracy"]["values"]) > 1:
            mean, low, high = (100 * each for each in difference(row, baseline, "accuracy"))
            cell = f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"
        lines.append(
            [
                LABELS[row["objective"]],
                str(len(row["accuracy"]["values"])),
                comparison.spread_cell(row["accuracy"], 100),
                f"{row['loss']['mean']:.3f}",
                cell,
            ]
        )
    header = ["model", "seeds", "accuracy, %", "loss", "accuracy less that of post-LN, paired"]
    return comparison.markdown(header, lines)


if __name__ == "__main__":
    main()
