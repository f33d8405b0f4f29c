"""What pre-training is worth: the same tasks fine-tuned from a run and from nothing, several seeds
each.

python benchmarks/transfer.py --init_from=DIR --data=DIR --workdir=DIR [--gpt=DIR] [--seeds=3] [--json=FILE] [--case=sst2] [--case=features] [--tiny]

`--data` holds imdb/{train,test}.tsv, sst2/{train,dev}.tsv, cola/in_domain_{train,dev}.tsv,
mrpc/{train,test}.txt, olid/ (as published), wikiann_ner/{train,dev}.txt and xquad/xquad.en.json, of
whose articles every fourth is held out. `imdb-gpt`: from the run --gpt, with and without the
language model's objective beside (Radford et al. 2018, table 5). `features`: the six choices of
layers on WikiANN (Devlin et al. 2018, table 7), of a run with more than four layers. Runs that are
done are not repeated.
"""

import argparse
import json
import pathlib
import subprocess
import sys

CASES = {  # config, held-out measure, files, keys
    "imdb": ("sentiment.py:imdb-cpu", "accuracy", ("imdb/train.tsv", "imdb/test.tsv"), {}),
    "sst2": (
        "sentiment.py:olid-cpu",
        "accuracy",
        ("sst2/train.tsv", "sst2/dev.tsv"),
        {"task.text": "1", "task.label": "2", "task.labels": "('0','1')", "train.num_steps": 651},
    ),
    "cola": (
        "sentiment.py:olid-cpu",
        "matthews",
        ("cola/in_domain_train.tsv", "cola/in_domain_dev.tsv"),
        {"task.text": "4", "task.label": "2", "task.labels": "('0','1')", "train.num_steps": 804},
    ),
    "mrpc": (
        "sentiment.py:olid-cpu",
        "f1",
        ("mrpc/train.txt", "mrpc/test.txt"),
        {
            "task.text": "#1 String",
            "task.pair": "#2 String",
            "task.label": "Quality",
            "task.labels": "('0','1')",
            "task.length": 128,
            "train.num_steps": 384,
        },
    ),
    "olid": ("sentiment.py:olid-cpu", "macro_f1", ("olid/olid-training-v1.0.tsv", "olid.tsv"), {}),
    "wikiann": ("ner.py:wikiann-cpu", "f1", ("wikiann_ner/train.txt", "wikiann_ner/dev.txt"), {}),
    "xquad": (
        "squad.py:1.1",
        "f1",
        ("xquad_train.json", "xquad_valid.json"),
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
        help="only this one; may be given several times",
    )
    parser.add_argument("--tiny", action="store_true", help="two updates each, to try the script")
    arguments = parser.parse_args()
    prepared = prepare(arguments.data, arguments.workdir / "data")
    rows = []
    for name in arguments.case or [*CASES, "features", *(["imdb-gpt"] if arguments.gpt else [])]:
        for label, case, keys in variants(name, arguments.gpt):
            row = {"case": label, **finetuned(arguments, prepared, label, *case, keys)}
            rows.append(row)
            print(
                f"{label:32} {row['measure']:10} {row['mean']:.4f} +- {row['deviation']:.4f}  {row['values']}",
                flush=True,
            )
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps({"command": sys.argv, "rows": rows}, indent=2)
        )


def variants(name: str, gpt: pathlib.Path | None):
    """(label, case, keys) of the runs a case compares."""
    if name == "features":
        for features in FEATURES:
            config, *rest = CASES["wikiann"]
            # more than most sentences have; the others are read in parts
            yield (
                f"wikiann {features}",
                (f"{config},features={features}", *rest),
                {"task.length": 32},
            )
    elif name == "imdb-gpt":
        for label, keys in (
            ("both objectives", {"task.lm_weight": 0.5}),
            ("its own alone", {}),
            ("from scratch", {"train.pretrained": "false"}),
        ):
            yield f"imdb GPT, {label}", CASES["imdb"], keys | {"init_from": gpt}
    else:
        yield f"{name} pre-trained", CASES[name], {}
        yield f"{name} from scratch", CASES[name], {"train.pretrained": "false"}


def finetuned(arguments, prepared, label, config, measure, files, keys, more) -> dict:
    """Mean, deviation and values of the held-out measure over the seeds."""
    train, valid = (
        file if (file := prepared / name).exists() else arguments.data / name for name in files
    )
    steps = keys.get("train.num_steps")
    keys = (
        {"init_from": arguments.init_from}
        | keys
        | more
        | {"data.train_files": train, "data.valid_files": valid}
    )
    if arguments.tiny:
        steps = keys["train.num_steps"] = 2
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
        f"--config=configs/finetune/{config}",
        f"--workdir={arguments.workdir / label.replace(',', '').replace(' ', '_')}",
        f"--seeds={arguments.seeds}",
        *(f"--config.{key}={value}" for key, value in keys.items()),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return {"measure": measure, **json.loads(done.stdout)[f"valid/{measure}"]}


def prepare(data: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """What has to be brought into shape first: OLID's test labels stand in a file of their own,
    XQuAD is not split.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labels = dict(
        line.split(",")
        for line in (data / "olid/labels-levela.csv").read_text("utf-8").splitlines()
        if line
    )
    header, *tweets = (data / "olid/testset-levela.tsv").read_text("utf-8").splitlines()
    (folder / "olid.tsv").write_text(
        "\n".join(
            [
                f"{header}\tsubtask_a",
                *(f"{tweet}\t{labels[tweet.split(chr(9))[0]]}" for tweet in tweets),
            ]
        )
        + "\n",
        "utf-8",
    )
    articles = json.loads((data / "xquad/xquad.en.json").read_text("utf-8"))["data"]
    for name, kept in (("train", lambda i: i % 4), ("valid", lambda i: not i % 4)):
        (folder / f"xquad_{name}.json").write_text(
            json.dumps({"data": [article for i, article in enumerate(articles) if kept(i)]}),
            "utf-8",
        )
    return folder


if __name__ == "__main__":
    main()
