"""Compares representations of words from before BERT: sentiment of reviews, and named entities.

python benchmarks/representations.py --text=unsup.txt --data=DIR --workdir=DIR \\
    [--objective=NAME] [--json=FILE] [--tiny]
python benchmarks/representations.py --table --json=FILE

`--text` is IMDB's unlabelled reviews, a sentence a line with a blank line between reviews; every
fiftieth review is held out. `--data` holds imdb/{{train,test}}.tsv, wikiann_ner/{{train,dev}}.txt
and multi30k/{{train,val}}.{{en,de}}. A part is a representation: its training on the reviews, or
for CoVe on English-German captions, then the tasks. Its row is put into --json as soon as it ends.
Complete runs are not repeated, and a part that was stopped goes on.

Four parts freeze their vectors, and an LSTM of two layers in both directions reads them. Only they
do the tags of WikiANN. The other models are fine-tuned whole. Their language model learns on the
reviews alone, so the first two stages of ULMFiT are one here.

All trainings on texts have the same budget, about 10 minutes of a core of an EPYC:
{pretrainings}.
- IMDB: {imdb} updates of 32 reviews, cut at 128 tokens; every fifth review of the test set;
- WikiANN: {wikiann} updates of 32 sentences.
Each has 3 seeds, and takes minutes a seed. All parts together take less than 3 hours of 2 cores.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import time
import types
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import transfer
from harness import machine

COMMAND = "python benchmarks/representations.py --text=unsup.txt --data=DIR --workdir=DIR --json"
SEEDS = 3


class Pretraining(NamedTuple):
    """A run on texts."""

    config: str
    num_steps: int
    keys: dict = {}
    tiny: dict = {}


class Representation(NamedTuple):
    """The vectors that a task reads."""

    label: str
    run: str  # its pre-training
    features: str = ""  # those of a frozen model, or none
    from_scratch: bool = False  # the shape of the run, with random parameters
    config: str = ""  # of the classification, or that of transfer.py
    keys: dict = {}


PRETRAININGS = {
    "word2vec": Pretraining(
        "configs/word_vectors/skip_gram.py", 1200, tiny={"model.vocab_size": 400}
    ),
    "cove": Pretraining(
        "configs/recurrent/multi30k.py:luong",
        2400,
        {"task.bleu_lines": 0},
        {"model.d_model": 16},
    ),
    "elmo": Pretraining(
        "configs/elmo/quickstart.py",
        2400,
        {"data.corpus": "", "model.vocab_size": 20_000},
        {"model.vocab_size": 400, "model.lstm_width": 16},
    ),
    "language_model": Pretraining(
        "configs/awd_lstm/wikitext103.py:cpu",
        1000,
        {"data.mask_documents": "true"},
        {"model.vocab_size": 400, "model.d_model": 16},
    ),
    "bert": Pretraining(
        "configs/encoders/pretrain.py:bert",
        2000,
        tiny={"model.d_model": 16, "model.vocab_size": 400},
    ),
}
POOLED = {"task.head_kind": "concatenation"}
REPRESENTATIONS = {
    "mean": Representation("mean of word2vec's vectors", "word2vec"),
    "random": Representation("random vectors, LSTM", "word2vec", "embeddings", from_scratch=True),
    "word2vec": Representation("word2vec, LSTM", "word2vec", "embeddings"),
    "cove": Representation("CoVe, LSTM", "cove", "concat-embeddings-last"),
    "elmo": Representation("ELMo, LSTM", "elmo", "weighted"),
    "lstm": Representation(
        "LSTM, not pre-trained", "language_model", from_scratch=True, keys=POOLED
    ),
    "ulmfit": Representation("ULMFiT", "language_model", config="ulmfit.py:imdb-cpu"),
    "bert": Representation("BERT", "bert"),
}
TASKS = {
    "imdb": dataclasses.replace(
        transfer.with_keys("imdb", train__num_steps=300, task__length=128), valid="imdb_valid.tsv"
    ),
    "wikiann": transfer.with_keys("wikiann", train__num_steps=600),
}


def main() -> None:
    lengths = [f"{name} {run.num_steps:,}" for name, run in PRETRAININGS.items()]
    doc = __doc__.format(
        pretrainings=", ".join(lengths) + " updates",
        **{task: case.keys["train.num_steps"] for task, case in TASKS.items()},
    )
    arguments = comparison.parser(doc, list(REPRESENTATIONS)).parse_args()
    if arguments.table:
        rows = json.loads(arguments.json.read_text())["rows"]
        print(table(rows))
        draw(rows, arguments.json.with_suffix(".png"))
        return
    folder = arguments.workdir / "data"
    folder.mkdir(parents=True, exist_ok=True)
    transfer.every_fifth_review(arguments.data, folder)
    for name in arguments.objective or REPRESENTATIONS:
        row = measured(arguments, folder, name)
        print(json.dumps(row), flush=True)
        if arguments.json:
            order = list(REPRESENTATIONS)
            comparison.add_rows(arguments.json, [row], "objective", order, COMMAND)


def measured(arguments, folder: pathlib.Path, name: str) -> dict:
    """Returns the row of a representation. `folder` holds the data."""
    representation = REPRESENTATIONS[name]
    run = pretrained(arguments, folder, representation.run)
    row = {"objective": name, **described(run)}
    for task in TASKS if representation.features else ["imdb"]:
        row[task] = fine_tuned(arguments, folder, name, task)
    return row


def fine_tuned(arguments, folder: pathlib.Path, name: str, task: str) -> dict:
    """Returns the scores of a task by a representation, over the seeds."""
    representation, case = REPRESENTATIONS[name], TASKS[task]
    keys = case.keys | representation.keys
    if representation.from_scratch:
        keys["train.pretrained"] = "false"
    if representation.features:
        keys |= {"task.features": representation.features, "task.lstm_width": 256}
    options = types.SimpleNamespace(
        init_from=arguments.workdir / "pretraining" / representation.run,
        data=arguments.data,
        workdir=arguments.workdir / name,
        tiny=arguments.tiny,
        seeds=1 if arguments.tiny else SEEDS,
    )
    case = dataclasses.replace(case, config=representation.config or case.config, keys=keys)
    return transfer.fine_tuned(options, folder, task, case)


def pretrained(arguments, folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns a run on texts, trained here unless it is complete."""
    keys = captions(arguments.data) if name == "cove" else {}
    return trained(arguments, folder, name, PRETRAININGS[name], keys)


def trained(
    arguments, folder: pathlib.Path, name: str, pretraining: Pretraining, keys: dict
) -> pathlib.Path:
    """Returns the run of a training with these keys. By default it reads the reviews."""
    run = arguments.workdir / "pretraining" / name
    steps = 2 if arguments.tiny else pretraining.num_steps
    reviews = comparison.write_reviews(arguments.text, folder, arguments.tiny)
    keys = reviews | {"data.cache": arguments.workdir / "cache"} | pretraining.keys | keys
    keys |= pretraining.tiny if arguments.tiny else {}
    keys |= dict.fromkeys(("train.num_steps", "train.eval_every", "checkpoint.every"), steps)
    minutes = run.with_suffix(".minutes")
    started = time.monotonic()
    comparison.train(pretraining.config, run, keys)
    if not minutes.exists():
        minutes.write_text(json.dumps((time.monotonic() - started) / 60))
    return run


def captions(data: pathlib.Path) -> dict:
    """Returns the config keys of Multi30k's English-German captions."""
    return {
        f"data.{split}_{side}": data / "multi30k" / f"{file}.{language}"
        for split, file in (("train", "train"), ("valid", "val"))
        for side, language in (("source", "en"), ("target", "de"))
    }


def described(run: pathlib.Path) -> dict:
    """Returns the size of a run on texts, and the origin of its row."""
    from transformer_jax.runs import spec
    from transformer_jax.runs.spec import make_task

    config = spec.read(run).config
    task = make_task(config, run)
    return {
        "parameters": task.parameter_counts()["params"],
        "updates": config.train.num_steps,
        "minutes": json.loads(run.with_suffix(".minutes").read_text()),
        "tokenizer": task.tokenizer.fingerprint(),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
    }


# results


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown."""
    header = ["vectors", "parameters", "updates", "minutes", "IMDB accuracy", "WikiANN F1"]
    lines = []
    for row in rows:
        representation = REPRESENTATIONS[row["objective"]]
        costs = [f"{row['updates']:,}", f"{row['minutes']:.0f}"]
        lines.append(
            [
                representation.label,
                f"{row['parameters']:,}",
                *([""] * 2 if representation.from_scratch else costs),
                *(comparison.spread_cell(row.get(task), 100) for task in TASKS),
            ]
        )
    return comparison.markdown(header, lines)


def draw(rows: list[dict], path: pathlib.Path) -> None:
    """Draws the scores of each representation, with the deviation over seeds."""
    labelled = [(REPRESENTATIONS[row["objective"]].label, row) for row in rows]
    measures = {task: case.measure for task, case in TASKS.items()}
    comparison.draw_scores(path, labelled, measures, "What a classifier and a tagger read", (10, 4))


if __name__ == "__main__":
    main()
