"""Compares the relatives of BERT: each objective at equal compute, on one text.

python benchmarks/encoders.py --text=unsup.txt --data=DIR --workdir=DIR [--objective=NAME] \\
    [--json=FILE] [--tiny]
python benchmarks/encoders.py --speed --text=unsup.txt --data=DIR --workdir=DIR --json=FILE
python benchmarks/encoders.py --table --json=FILE

`--text` is IMDB's unlabelled reviews, a sentence a line with a blank line between reviews; every
fiftieth review is held out. `--data` holds imdb/{train,test}.tsv, sst2/{train,dev}.tsv,
cola/in_domain_{train,dev}.tsv, mrpc/{train,test}.txt, wikiann_ner/{train,dev}.txt and
xquad/xquad.en.json. A part is one objective: its run of configs/encoders/pretrain.py, then the six
tasks. Its row is put into --json as soon as it ends. Complete runs are not repeated, and a part
that was stopped goes on.

The budget of a part, about 10 minutes of pre-training and as many of fine-tuning on a core of an
EPYC:
- pre-training: as many updates of 48 rows as take 60 TFLOP in forward and backward pass, with the
  generator of ELECTRA, both streams of XLNet and the teacher of DistilBERT;
- SST-2 and CoLA: an epoch, 217 and 268 updates of 32, 3 seeds;
- MRPC, WikiANN and IMDB: 127, 300 and 250 updates of 32, one seed;
- XQuAD: 250 updates of 16 rows of 128 tokens, one seed.
IMDB's score is that of every fifth review of its test set.

`--speed` adds to each row the sentences of SST-2 that its model classifies in a second, after two
updates of each training. The models take turns. Run it on a quiet machine, with a --workdir of its
own.

`none` has the shape of `roberta` and random parameters. DistilBERT's teacher is `bert`, whose
own pre-training comes before.
"""

import dataclasses
import datetime
import functools
import json
import os
import pathlib
import platform
import time
import types
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import transfer
from harness import in_turn, machine

PRETRAINING = "configs/encoders/pretrain.py"
COMMAND = "python benchmarks/encoders.py --text=unsup.txt --data=DIR --workdir=DIR --json"
FLOPS = 60e12  # of a pre-training


class Objective(NamedTuple):
    """An objective, or none."""

    label: str
    # the run that gives tokenizer and shape to a model that is not pre-trained
    shape: str = ""
    teacher: str = ""  # the run that this one learns from
    begins_with: str = ""  # layers of the teacher, or none


OBJECTIVES = {
    "roberta": Objective("RoBERTa: masked tokens"),
    "none": Objective("RoBERTa, not pre-trained", shape="roberta"),
    "bert": Objective("BERT: masked tokens, next sentence"),
    "electra": Objective("ELECTRA: replaced tokens"),
    "albert": Objective("ALBERT: n-grams, order, shared layers"),
    "xlnet": Objective("XLNet: permuted tokens"),
    "unilm": Objective("UniLM: four masks"),
    "distilbert": Objective("DistilBERT: two layers, distilled", "", "bert", "1,3"),
    "small": Objective("two layers: masked tokens"),
}
# Each with its number of seeds, and the unit of the table.
TASKS = {
    "sst2": (transfer.with_keys("sst2", train__num_steps=217), 3),
    "cola": (transfer.with_keys("cola", train__num_steps=268), 3),
    "mrpc": (transfer.with_keys("mrpc", train__num_steps=127), 1),
    "wikiann": (transfer.with_keys("wikiann", train__num_steps=300), 1),
    "xquad": (
        transfer.with_keys("xquad", train__num_steps=250, task__length=128, task__stride=48),
        1,
    ),
    "imdb": (
        dataclasses.replace(
            transfer.with_keys("imdb", train__num_steps=250, task__length=128),
            valid="imdb_valid.tsv",
        ),
        1,
    ),
}
TINY = {"model.d_model": 16, "model.num_heads": 2, "model.vocab_size": 400}


def main() -> None:
    flags = comparison.parser(__doc__, list(OBJECTIVES))
    flags.add_argument("--speed", action="store_true", help="measure the rows of --json")
    arguments = flags.parse_args()
    if arguments.table:
        rows = json.loads(arguments.json.read_text())["rows"]
        print(table(rows))
        draw(rows, arguments.json.with_suffix(".png"))
        return
    folder = arguments.workdir / "data"
    folder.mkdir(parents=True, exist_ok=True)
    transfer.split_articles(arguments.data, folder)
    transfer.every_fifth_review(arguments.data, folder)
    if arguments.speed:
        rows = json.loads(arguments.json.read_text())["rows"]
        rows = with_speeds(rows, arguments, folder)
        comparison.add_rows(arguments.json, rows, "objective", list(OBJECTIVES), COMMAND)
        return
    for name in arguments.objective or OBJECTIVES:
        row = measured(arguments, folder, name)
        print(json.dumps(row), flush=True)
        if arguments.json:
            comparison.add_rows(arguments.json, [row], "objective", list(OBJECTIVES), COMMAND)


def measured(arguments, folder: pathlib.Path, name: str) -> dict:
    """Returns the row of an objective. `folder` holds the data."""
    shape = OBJECTIVES[name].shape
    run = pretrained(arguments, folder, shape or name)
    begin = {"init_from": run} | ({"train.pretrained": "false"} if shape else {})
    row = {"objective": name, **described(run)}
    for task in TASKS:
        row[task] = fine_tuned(arguments, folder, name, task, begin)
    return row


def fine_tuned(arguments, folder: pathlib.Path, name: str, task: str, begin: dict) -> dict:
    """Returns the scores of a task by an objective's model. `begin` holds keys of its beginning."""
    case, seeds = TASKS[task]
    short = arguments.tiny or arguments.speed
    options = types.SimpleNamespace(
        init_from=begin["init_from"],
        data=arguments.data,
        workdir=arguments.workdir / name,
        tiny=short,
        seeds=1 if short else seeds,
    )
    case = dataclasses.replace(case, keys=case.keys | begin)
    return transfer.fine_tuned(options, folder, task, case)


def pretrained(arguments, folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the run of an objective, trained here unless it is complete."""
    from transformer_jax.runs import spec

    run = arguments.workdir / name / "pretraining"
    keys = comparison.write_reviews(arguments.text, folder, arguments.tiny)
    keys["data.cache"] = arguments.workdir / "cache"
    keys |= TINY if arguments.tiny else {}
    _, _, teacher, layers = OBJECTIVES[name]
    if teacher:
        keys["task.teacher"] = pretrained(arguments, folder, teacher)
        keys["init_from"] = {"": {"run": str(keys["task.teacher"]), "layers": layers}}
    short = arguments.tiny or arguments.speed
    keys["train.num_steps"] = 2 if short else updates(f"{PRETRAINING}:{name}", keys)
    keys |= dict.fromkeys(("train.eval_every", "checkpoint.every"), keys["train.num_steps"])
    minutes = run.parent / "minutes.json"
    started = time.monotonic()
    comparison.train(f"{PRETRAINING}:{name}", run, keys)
    if not minutes.exists():
        minutes.write_text(json.dumps((time.monotonic() - started) / 60))
    assert spec.exists(run)
    return run


def updates(config: str, keys: dict) -> int:
    """Returns the number of updates that take FLOPS."""
    from transformer_jax import config as configs
    from transformer_jax.runs.spec import make_task

    loaded = configs.load(config, {key: str(value) for key, value in keys.items()})
    return round(FLOPS / flops_per_update(make_task(loaded), loaded))


def flops_per_update(task, config) -> float:
    """Returns the mean over the phases of a run."""
    shares = [share for share, *_ in config.task.get("phases", ((1.0,),))]
    per_row = sum(share * task.flops(number) for number, share in enumerate(shares))
    return per_row * config.train.batch


def described(run: pathlib.Path) -> dict:
    """Returns the size and the cost of a run, and the origin of its row."""
    from transformer_jax.data import tokenizers
    from transformer_jax.runs import spec
    from transformer_jax.runs.spec import make_task

    config = spec.read(run).config
    task = make_task(config, run)
    return {
        "parameters": task.parameter_counts()["params"],
        "updates": config.train.num_steps,
        "tflop": config.train.num_steps * flops_per_update(task, config) / 1e12,
        "minutes": json.loads((run.parent / "minutes.json").read_text()),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
        "python": platform.python_version(),
        "tokenizer": tokenizers.load(run / "tokenizer").fingerprint(),
    }


def with_speeds(rows: list[dict], arguments, folder: pathlib.Path) -> list[dict]:
    """Returns the rows with the sentences a second that their models for SST-2 classify."""
    from transformer_jax import open_run

    lines = (arguments.data / "sst2/dev.tsv").read_text("utf-8").splitlines()
    sentences = [line.split("\t")[0] for line in lines]
    calls = {}
    for name in (row["objective"] for row in rows):
        run = pretrained(arguments, folder, OBJECTIVES[name].shape or name)
        fine_tuned(arguments, folder, name, "sst2", {"init_from": run})
        workdir = arguments.workdir / name / "sst2/seed-0"
        calls[name] = functools.partial(classify, *open_run(workdir), sentences)
    seconds = in_turn(calls, repeats=7)
    return [
        row | {"sentences_per_second": len(sentences) / seconds[row["objective"]]} for row in rows
    ]


def classify(task, params, sentences: list[str]) -> None:
    """Labels all sentences."""
    for _ in task.predict(params, sentences):
        pass


# results


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown."""
    measures = [f"{task} {case.measure}" for task, (case, _) in TASKS.items()]
    costs = ["parameters", "updates", "TFLOP", "minutes", "sentences/s"]
    header = ["objective", *costs, *measures]
    lines = []
    for row in rows:
        costs = [f"{row['updates']:,}", f"{row['tflop']:.0f}", f"{row['minutes']:.0f}"]
        speed = row.get("sentences_per_second")
        lines.append(
            [
                OBJECTIVES[row["objective"]].label,
                f"{row['parameters']:,}",
                *([""] * 3 if OBJECTIVES[row["objective"]].shape else costs),
                f"{speed:,.0f}" if speed else "",
                *(comparison.spread_cell(row[task], 100) for task in TASKS),
            ]
        )
    return comparison.markdown(header, lines)


def draw(rows: list[dict], path: pathlib.Path) -> None:
    """Draws the score of each objective in each task, with the deviation over seeds."""
    labelled = [(OBJECTIVES[row["objective"]].label, row) for row in rows]
    measures = {task: case.measure for task, (case, _) in TASKS.items()}
    comparison.draw_scores(path, labelled, measures, "Encoders at equal compute", (13, 4.5))


if __name__ == "__main__":
    main()
