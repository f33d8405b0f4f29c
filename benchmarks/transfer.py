"""Measures the gain of pre-training: tasks fine-tuned from a run and from scratch, several seeds.

python benchmarks/transfer.py --init_from=DIR --data=DIR --workdir=DIR [--gpt=DIR] [--seeds=3] \\
    [--json=FILE] [--case=sst2] [--case=features] [--tiny]

`--data` holds imdb/{train,test}.tsv, sst2/{train,dev}.tsv, cola/in_domain_{train,dev}.tsv,
mrpc/{train,test}.txt, olid/ (as published), wikiann_ner/{train,dev}.txt and xquad/xquad.en.json.
Every fourth article of the latter is held out. `imdb-gpt` fine-tunes the run --gpt with and without
the language model's loss (Radford et al. 2018, table 5). `features` takes the six choices of layers
on WikiANN (Devlin et al. 2018, table 7) and needs a run with more than four layers. Complete runs
are not repeated.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Case:
    """A fine-tuning task."""

    config: str  # file in configs/finetune, and its argument
    measure: str  # of the held-out set
    train: str  # file in --data, or one that `prepare` writes
    valid: str
    keys: dict = dataclasses.field(default_factory=dict)  # overrides of the config


CASES = {
    "imdb": Case("sentiment.py:imdb-cpu", "accuracy", "imdb/train.tsv", "imdb/test.tsv"),
    "sst2": Case(
        "sentiment.py:olid-cpu",
        "accuracy",
        "sst2/train.tsv",
        "sst2/dev.tsv",
        {"task.text": "1", "task.label": "2", "task.labels": "('0','1')", "train.num_steps": 651},
    ),
    "cola": Case(
        "sentiment.py:olid-cpu",
        "matthews",
        "cola/in_domain_train.tsv",
        "cola/in_domain_dev.tsv",
        {"task.text": "4", "task.label": "2", "task.labels": "('0','1')", "train.num_steps": 804},
    ),
    "mrpc": Case(
        "sentiment.py:olid-cpu",
        "f1",
        "mrpc/train.txt",
        "mrpc/test.txt",
        {
            "task.text": "#1 String",
            "task.pair": "#2 String",
            "task.label": "Quality",
            "task.labels": "('0','1')",
            "task.length": 128,
            "train.num_steps": 384,
        },
    ),
    "olid": Case("sentiment.py:olid-cpu", "macro_f1", "olid/olid-training-v1.0.tsv", "olid.tsv"),
    "wikiann": Case("ner.py:wikiann-cpu", "f1", "wikiann_ner/train.txt", "wikiann_ner/dev.txt"),
    "xquad": Case(
        "squad.py:1.1",
        "f1",
        "xquad_train.json",
        "xquad_valid.json",
        {
            "task.length": 256,
            "task.stride": 64,
            "task.max_question": 32,
            "optimizer.learning_rate": "5e-4",
            "train.num_steps": 400,
            "train.batch": 16,
        },
    ),
}
FEATURES = ("embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("init_from", "data", "workdir"):
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    parser.add_argument("--gpt", type=pathlib.Path, help="a run of GPT, for the case imdb-gpt")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", help="write command and rows to this file")
    parser.add_argument(
        "--case",
        choices=[*CASES, "features", "imdb-gpt"],
        action="append",
        help="only this case; may be repeated",
    )
    parser.add_argument("--tiny", action="store_true", help="two updates each, to try the script")
    arguments = parser.parse_args()
    prepared = prepare(arguments.data, arguments.workdir / "data")
    default = [*CASES, "features", *(["imdb-gpt"] if arguments.gpt else [])]
    rows = []
    for name in arguments.case or default:
        for label, case in variants(name, arguments.gpt):
            row = {"case": label, **fine_tuned(arguments, prepared, label, case)}
            rows.append(row)
            score = f"{row['mean']:.4f} +- {row['deviation']:.4f}"
            print(f"{label:32} {row['measure']:10} {score}  {row['values']}", flush=True)
    if arguments.json:
        record = {"command": sys.argv, "rows": rows}
        pathlib.Path(arguments.json).write_text(json.dumps(record, indent=2))


def with_keys(name: str, **changes) -> Case:
    """Returns a case with other values of config keys; `__` stands for the dot of a key."""
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return dataclasses.replace(CASES[name], keys=CASES[name].keys | keys)


def variants(name: str, gpt: pathlib.Path | None) -> Iterator[tuple[str, Case]]:
    """Yields (label, case) of the runs that a case compares."""
    if name == "features":
        for features in FEATURES:
            # Few sentences are longer than 32 tokens; those are read in parts.
            case = with_keys("wikiann", task__length=32)
            config = f"{case.config},features={features}"
            yield f"wikiann {features}", dataclasses.replace(case, config=config)
    elif name == "imdb-gpt":
        yield "imdb GPT, both objectives", with_keys("imdb", init_from=gpt, task__lm_weight=0.5)
        yield "imdb GPT, its own alone", with_keys("imdb", init_from=gpt)
        yield (
            "imdb GPT, from scratch",
            with_keys("imdb", init_from=gpt, train__pretrained="false"),
        )
    else:
        yield f"{name} pre-trained", CASES[name]
        yield f"{name} from scratch", with_keys(name, train__pretrained="false")


def fine_tuned(arguments, prepared: pathlib.Path, label: str, case: Case) -> dict:
    """Returns the mean, deviation and values of the held-out measure over the seeds."""
    keys = {"init_from": arguments.init_from} | case.keys
    for key, name in (("data.train_files", case.train), ("data.valid_files", case.valid)):
        folder = prepared if (prepared / name).exists() else arguments.data
        keys[key] = folder / name
    if arguments.tiny:
        keys["train.num_steps"] = 2
    steps = keys.get("train.num_steps")
    if steps:
        keys |= {
            "train.eval_every": steps,
            "checkpoint.every": steps,
            "optimizer.warmup_steps": steps // 10,
        }
    command = [
        sys.executable,
        "-m",
        "transformer_jax.finetune",
        f"--config=configs/finetune/{case.config}",
        f"--workdir={arguments.workdir / label.replace(',', '').replace(' ', '_')}",
        f"--seeds={arguments.seeds}",
        *(f"--config.{key}={value}" for key, value in keys.items()),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return {"measure": case.measure, **json.loads(done.stdout)[f"valid/{case.measure}"]}


def prepare(data: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Writes the files that need conversion into `folder`, and returns it.

    OLID's test labels are in a separate file, and XQuAD has no split.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = (data / "olid/labels-levela.csv").read_text("utf-8").splitlines()
    labels = dict(line.split(",") for line in lines if line)
    header, *tweets = (data / "olid/testset-levela.tsv").read_text("utf-8").splitlines()
    rows = [f"{tweet}\t{labels[tweet.split(chr(9))[0]]}" for tweet in tweets]
    text = "\n".join([f"{header}\tsubtask_a", *rows]) + "\n"
    (folder / "olid.tsv").write_text(text, "utf-8")
    split_articles(data, folder)
    return folder


def every_fifth_review(data: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes every fifth review of IMDB's test set into `folder`, as imdb_valid.tsv."""
    reviews = (data / "imdb/test.tsv").read_text("utf-8").splitlines(keepends=True)
    (folder / "imdb_valid.tsv").write_text("".join(reviews[::5]), "utf-8")


def split_articles(data: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes XQuAD's articles into `folder`: every fourth is held out."""
    articles = json.loads((data / "xquad/xquad.en.json").read_text("utf-8"))["data"]
    parts = {
        "train": [article for i, article in enumerate(articles) if i % 4],
        "valid": articles[::4],
    }
    for name, part in parts.items():
        (folder / f"xquad_{name}.json").write_text(json.dumps({"data": part}), "utf-8")


if __name__ == "__main__":
    main()
