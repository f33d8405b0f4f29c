"""Word error rates of spoken digits, with pre-training and without, by minutes of transcripts.

python benchmarks/speech.py --workdir=DIR [--json=FILE] [--part=NAME] [--tiny]
python benchmarks/speech.py --table --json=FILE

The digits are synthesised (configs/wav2vec2/quickstart.py); nothing is downloaded. Held-out voices
say the {held_out} minutes of the test set. The parts, in order, are:

- pretraining: {pretraining} updates on an hour without transcripts.
- {systems}: {ten} updates on 10 minutes with
  transcripts or {one} on 1 minute, from the pre-training or from a new model, with 3 seeds each.

The error rates of each system are those of the greedy path, and of a prefix beam search with
5-grams of the characters of the training transcripts. The interval is that of the bootstrap over
the utterances of all seeds. A part's row is put into --json as soon as it ends. Complete runs are
not repeated, and a run that was stopped goes on. All parts take less than 4 hours of 2 cores.
"""

import datetime
import json
import os
import pathlib
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
from harness import machine

COMMAND = "python benchmarks/speech.py --workdir=DIR --json=FILE"
CONFIG = "configs/wav2vec2/quickstart.py"
SEEDS = 3
HELD_OUT_MINUTES = 5.0
PRETRAINING = 2500  # updates
UPDATES = {10.0: 1200, 1.0: 600}  # by minutes of transcripts
# name: (label, minutes of transcripts, whether it begins with the pre-training)
SYSTEMS = {
    "pretrained-10": ("10 minutes, pre-trained", 10.0, True),
    "scratch-10": ("10 minutes", 10.0, False),
    "pretrained-1": ("1 minute, pre-trained", 1.0, True),
    "scratch-1": ("1 minute", 1.0, False),
}
PARTS = ["pretraining", *SYSTEMS]
DECODERS = {
    "greedy": {"decode.beam": 1},
    "beam": {"decode.beam": 16, "task.lm_order": 5, "task.lm_weight": 1.0},
}


def main() -> None:
    doc = __doc__.format(
        held_out=f"{HELD_OUT_MINUTES:.0f}",
        pretraining=f"{PRETRAINING:,}",
        ten=f"{UPDATES[10.0]:,}",
        one=UPDATES[1.0],
        systems=", ".join(SYSTEMS),
    )
    arguments = comparison.parser(doc, PARTS, "part").parse_args()
    if arguments.table:
        print(table(json.loads(arguments.json.read_text())["rows"]))
        return
    for part in arguments.part or PARTS:
        row = measured(arguments, part)
        print(json.dumps(row), flush=True)
        if arguments.json:
            comparison.add_rows(arguments.json, [row], "part", PARTS, COMMAND)


def measured(arguments, part: str) -> dict:
    """Returns the row of a part, whose runs are trained here unless they are complete."""
    started = time.monotonic()
    if part == "pretraining":
        run = pretrained(arguments)
        scores = {"scores": last_scores(run)}
    else:
        runs = fine_tuned(arguments, part)
        scores = {name: error_rates(runs, keys) for name, keys in DECODERS.items()}
    return {
        "part": part,
        **scores,
        "minutes": minutes(arguments, part, started),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
    }


def minutes(arguments, part: str, started: float) -> float:
    """Returns the minutes that a part took when it was computed first."""
    path = arguments.workdir / f"{part}.minutes"
    if not path.exists():
        path.write_text(json.dumps((time.monotonic() - started) / 60))
    return json.loads(path.read_text())


def pretrained(arguments) -> pathlib.Path:
    run = arguments.workdir / "pretraining"
    keys = {"source.held_out_minutes": HELD_OUT_MINUTES, "train.num_steps": PRETRAINING}
    if arguments.tiny:
        keys["source.unlabelled_minutes"] = 0.5
    train(arguments, "pretrain", run, keys)
    return run


def fine_tuned(arguments, part: str) -> list[pathlib.Path]:
    """Returns the runs of a system, one for each seed."""
    _, labelled, begins = SYSTEMS[part]
    keys = {"source.minutes": labelled, "source.held_out_minutes": HELD_OUT_MINUTES}
    keys["train.num_steps"] = UPDATES[labelled]
    if begins:
        keys["init_from"] = pretrained(arguments)
    if arguments.tiny:
        keys |= {"source.minutes": 0.5, "source.held_out_minutes": 0.3}
    seeds = 1 if arguments.tiny else SEEDS
    config = "ctc" if begins else "scratch"
    train(arguments, config, arguments.workdir / part, keys, seeds)
    return [arguments.workdir / part / f"seed-{seed}" for seed in range(seeds)]


def train(arguments, config: str, run: pathlib.Path, keys: dict, seeds: int = 0) -> None:
    keys = keys | {"data.cache": arguments.workdir / "cache"}
    if arguments.tiny:
        keys["train.num_steps"] = 2
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    comparison.train(f"{CONFIG}:{config}", run, keys, seeds)


def last_scores(run: pathlib.Path) -> dict[str, float]:
    """Returns the last scores of the validation set."""
    from transformer_jax.runs import spec

    lines = [line for line in spec.metrics(run) if "valid/loss" in line]
    return {name: value for name, value in lines[-1].items() if name.startswith("valid/")}


def error_rates(runs: list[pathlib.Path], keys: dict) -> dict:
    """Returns the test's error rate of each seed, their mean and deviation, and its interval."""
    from transformer_jax.runs.open import open_run
    from transformer_jax.scores import predictions

    values, outputs, references = [], [], []
    for run in runs:
        task, params = open_run(run, overrides=keys)
        transcribed = task.split_outputs(params, "test")
        values.append(task.scored(transcribed.outputs, transcribed.references)["wer"])
        outputs += transcribed.outputs
        references += transcribed.references
    (measure,) = task.measures
    interval = predictions.intervals(measure, measure.statistics(outputs, references))["wer"]
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        "values": values,
        "mean": statistics.mean(values),
        "deviation": deviation,
        "interval": interval,
        "utterances": len(references),
    }


# results


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown."""
    header = ["transcripts", "WER, greedy", "95 % interval", "WER, beam with 5-grams", "minutes"]
    lines = []
    for row in rows:
        if row["part"] in SYSTEMS:
            low, high = row["greedy"]["interval"]
            lines.append(
                [
                    SYSTEMS[row["part"]][0],
                    comparison.spread_cell(row["greedy"], 1),
                    f"{low:.1f} to {high:.1f}",
                    comparison.spread_cell(row["beam"], 1),
                    f"{row['minutes']:.0f}",
                ]
            )
    return comparison.markdown(header, lines)


if __name__ == "__main__":
    main()
