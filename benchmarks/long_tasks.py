"""Compares encoders on long texts: whole film reviews, and questions about whole articles.

python benchmarks/long_tasks.py --text=unsup.txt --data=DIR --workdir=DIR [--objective=NAME] \\
    [--json=FILE] [--tiny]
python benchmarks/long_tasks.py --table --json=FILE

`--text` is IMDB's unlabelled reviews, a sentence a line with a blank line between reviews. `--data`
holds imdb/{{train,test}}.tsv and xquad/xquad.en.json. A RoBERTa learns on the reviews; its last
rows have 512 tokens. Longformer begins with it. A part is a model, whose row is put into --json as
soon as it ends. Complete runs are not repeated, and a part that was stopped goes on.

- Pre-training: {pretrainings} updates.
- IMDB: {imdb} updates of 32 reviews, and every fifth review of the test set. Longformer reads whole
  reviews, of up to 2,048 tokens. RoBERTa reads the first 512.
- XQuAD, the paragraphs of an article joined to one text: {xquad} updates of 8 rows. Longformer
  reads 2,048 tokens at a time, with the question as global tokens; RoBERTa reads windows.
  Every fourth article is held out.

Each has 2 seeds. The budget of all parts is two and a half hours of one core.
"""

import dataclasses
import json
import os
import pathlib
import types
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import representations
import transfer

COMMAND = "python benchmarks/long_tasks.py --text=unsup.txt --data=DIR --workdir=DIR --json"
SEEDS = 2
PRETRAININGS = {
    "roberta": representations.Pretraining(
        "configs/encoders/pretrain.py:roberta",
        4000,
        {"task.phases": "((0.75,32,5),(0.2,128,20),(0.05,512,76))"},
        {"model.d_model": 16, "model.vocab_size": 400},
    ),
    "longformer": representations.Pretraining(
        "configs/longformer/cpu.py", 100, tiny={"model.d_model": 16, "model.vocab_size": 400}
    ),
}


class Encoder(NamedTuple):
    """A model that reads so many tokens of a text at a time."""

    label: str
    run: str
    length: int


ENCODERS = {
    "roberta-512": Encoder("RoBERTa, 512 tokens", "roberta", 512),
    "longformer": Encoder("Longformer, 2,048 tokens", "longformer", 2048),
}
TASKS = {
    "imdb": dataclasses.replace(
        transfer.with_keys(
            "imdb",
            train__num_steps=150,
            optimizer__learning_rate="5e-4",
            task__group_by_length=8,
        ),
        valid="imdb_valid.tsv",
    ),
    "xquad": dataclasses.replace(
        transfer.with_keys("xquad", train__num_steps=100, train__batch=8),
        train="articles_train.json",
        valid="articles_valid.json",
    ),
}


def main() -> None:
    lengths = [f"{name} {run.num_steps:,}" for name, run in PRETRAININGS.items()]
    steps = {task: case.keys["train.num_steps"] for task, case in TASKS.items()}
    doc = __doc__.format(pretrainings=", ".join(lengths), **steps)
    arguments = comparison.parser(doc, list(ENCODERS)).parse_args()
    if arguments.table:
        print(table(json.loads(arguments.json.read_text())["rows"]))
        return
    folder = arguments.workdir / "data"
    folder.mkdir(parents=True, exist_ok=True)
    transfer.every_fifth_review(arguments.data, folder)
    join_articles(arguments.data, folder)
    for name in arguments.objective or ENCODERS:
        row = measured(arguments, folder, name)
        print(json.dumps(row), flush=True)
        if arguments.json:
            comparison.add_rows(arguments.json, [row], "objective", list(ENCODERS), COMMAND)


def measured(arguments, folder: pathlib.Path, name: str) -> dict:
    """Returns the row of a model. `folder` holds the data."""
    run = pretrained(arguments, folder, ENCODERS[name].run)
    row = {"objective": name, **representations.described(run)}
    for task, case in TASKS.items():
        length = ENCODERS[name].length
        keys = case.keys | {"task.length": length}
        if task == "xquad":
            keys["task.stride"] = length // 4
        options = types.SimpleNamespace(
            init_from=run,
            data=arguments.data,
            workdir=arguments.workdir / name,
            tiny=arguments.tiny,
            seeds=1 if arguments.tiny else SEEDS,
        )
        case = dataclasses.replace(case, keys=keys)
        row[task] = transfer.fine_tuned(options, folder, task, case)
    return row


def pretrained(arguments, folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns a run on the reviews, trained here unless it is complete."""
    keys = {}
    if name == "longformer":
        roberta = pretrained(arguments, folder, "roberta")
        keys = {"init_from": roberta, "data.tokenizer_files": roberta / "tokenizer"}
    return representations.trained(arguments, folder, name, PRETRAININGS[name], keys)


def join_articles(data: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes XQuAD's articles into `folder`, each as one paragraph. Every fourth is held out."""
    transfer.split_articles(data, folder)
    for name in ("train", "valid"):
        articles = json.loads((folder / f"xquad_{name}.json").read_text("utf-8"))["data"]
        for article in articles:
            article["paragraphs"] = [joined(article["paragraphs"])]
        (folder / f"articles_{name}.json").write_text(json.dumps({"data": articles}), "utf-8")


def joined(paragraphs: list[dict]) -> dict:
    """Returns one paragraph with the texts and the questions of all."""
    text, questions = "", []
    for paragraph in paragraphs:
        for question in paragraph["qas"]:
            for answer in question["answers"]:
                answer["answer_start"] += len(text)
            questions.append(question)
        text += paragraph["context"] + "\n"
    return {"context": text, "qas": questions}


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown."""
    header = ["model", "parameters", "IMDB accuracy", "articles, F1"]
    lines = [
        [
            ENCODERS[row["objective"]].label,
            f"{row['parameters']:,}",
            *(comparison.spread_cell(row.get(task), 100) for task in TASKS),
        ]
        for row in rows
    ]
    return comparison.markdown(header, lines)


if __name__ == "__main__":
    main()
