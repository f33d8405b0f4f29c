"""Fine-tuning on the command line: several seeds, evaluation, prediction, and mistakes."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from tests.finetuning.examples import build, pretrained
from tests.programs import call, here, refused

CONFIG = "--config=configs/finetune/sentiment.py:imdb-cpu"
TEXT = "the cat sat\na dog ran\n"


@dataclasses.dataclass(frozen=True)
class Trained:
    """Two runs of different seeds in `folder`, and the flags of their training."""

    folder: pathlib.Path
    flags: list[str]
    summary: dict  # the output of `finetune`

    @property
    def pretrained(self) -> str:
        return self.flags[0].partition("=")[2]

    @property
    def run(self) -> str:
        return f"--workdir={self.folder}/runs/seed-0"

    def train_again(self):
        return train(self.folder, self.flags)


def train(folder, flags):
    seeds = (f"--workdir={folder}/runs", "--seeds=2", "--config.model.dropout=0.2")
    return call("finetune", CONFIG, *flags, *seeds)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    bert = pretrained(folder, "bert")
    config = build(folder / "data", "classification", bert)
    keys = {
        "task.length": 32,
        "task.labels": "('cat','dog')",
        "train.num_steps": 6,
        "train.batch": 8,
        "train.eval_every": 6,
        "checkpoint.every": 6,
        "data.train_files": config.data.train_files,
        "data.valid_files": config.data.valid_files,
    }
    flags = [
        f"--config.init_from={bert}",
        *(f"--config.{key}={value}" for key, value in keys.items()),
    ]
    done = train(folder, flags)
    assert done.returncode == 0, done.stderr
    assert "tensors restored" in done.stderr, done.stderr
    assert "head/out/kernel" in done.stderr, done.stderr
    return Trained(folder, flags, json.loads(done.stdout))


@pytest.mark.full
def test_the_summary_of_two_seeds(trained):
    accuracy = trained.summary["valid/accuracy"]
    assert trained.summary["seeds"] == 2 and len(accuracy["values"]) == 2
    assert accuracy["mean"] == pytest.approx(sum(accuracy["values"]) / 2)


@pytest.mark.full
def test_the_same_command_has_nothing_to_do(trained):
    again = trained.train_again()
    assert json.loads(again.stdout) == trained.summary and "nothing to do" in again.stderr


@pytest.mark.full
def test_an_override_of_the_model_is_recorded(trained):
    record = json.loads((trained.folder / "runs/seed-0/config.json").read_text())
    assert record["config"]["model"]["dropout"] == 0.2


def test_evaluate_and_inspect(trained):
    scores = json.loads(call("evaluate", trained.run).stdout)
    assert scores["examples"] == 12
    assert scores["accuracy"] == pytest.approx(trained.summary["valid/accuracy"]["values"][0])
    assert scores["confusion"]["labels"] == list(scores["f1_by_class"]) == ["cat", "dog"]
    picture = trained.folder / "confusion.png"
    matrix = call("draw", "confusion", trained.run, f"--output={picture}")
    assert matrix.returncode == 0, matrix.stderr
    assert picture.stat().st_size > 3000


def test_predict(trained):
    labels = call("predict", trained.run, text=TEXT).stdout.split()
    lines = call("predict", trained.run, "--json", text=TEXT).stdout.splitlines()
    predictions = [json.loads(line) for line in lines]
    assert [prediction["label"] for prediction in predictions] == labels
    for prediction in predictions:
        assert sum(prediction["probabilities"].values()) == pytest.approx(1)

    text = "the cat sat\n\na dog ran" + " to the cat" * 30 + "\n"
    done = call("predict", trained.run, "--json", text=text)
    first, empty, _ = map(json.loads, done.stdout.splitlines())
    assert first == predictions[0]
    assert empty == {"text": "", "label": None, "probabilities": None}
    assert done.stderr.count("warning") == 1 and "line 3 is longer than" in done.stderr
    assert call("predict", trained.run, "--long=skip", text=text).stdout == f"{labels[0]}\n\n\n"


def test_mistakes_in_training_are_refused(trained):
    folder, flags = trained.folder, trained.flags
    wrong = folder / "wrong.tsv"
    wrong.write_text("cow\tthe cat\n")
    new = f"--workdir={folder}/new"
    dropout = "--config.model.dropout=0.5"
    for arguments, words in (
        ([CONFIG, *flags, new, f"--config.data.valid_files={wrong}"], "wrong.tsv:1: unknown label"),
        ([CONFIG, *flags[1:], new], "config.init_from is missing"),
        (["--config=configs/bert/base.py", new], "not a fine-tuning task"),
        ([CONFIG, *flags, new, "--seeds=2", "--profile=1:2"], "--profile is for one run"),
        ([CONFIG, *flags, trained.run, "--seeds=2"], "runs/seed-0: holds a single run"),
        ([CONFIG, *flags, f"--workdir={folder}/runs"], "holds the runs of --seeds"),
        ([CONFIG, *flags, trained.run, dropout], "holds a run with another config: model.dropout"),
    ):
        refused(here("finetune", *arguments), words)
    assert not (folder / "new").exists()
    assert not any((folder / path).exists() for path in ("runs/config.json", "runs/seed-0/seed-0"))


@pytest.mark.parametrize(
    "program, arguments, words",
    [
        ("predict", ["@/runs/seed-0", "--text=a\tb"], "line 1: must hold 1 text, not 2"),
        ("predict", ["@/runs/seed-0", "--long=split", "--text=x"], "long='split': must be"),
        ("predict", ["@/bert_run", "--text=x"], "line 1: must hold 2 texts, separated by a tab"),
        ("evaluate", ["@/runs/seed-0", "--set=test"], "give --config.data.test_files"),
        ("generate", ["@/runs/seed-0", "--prompt=x"], "not one that continues"),
    ],
)
def test_mistakes_in_the_use_of_a_run_are_refused(trained, program, arguments, words):
    workdir, *others = arguments
    refused(here(program, workdir.replace("@", f"--workdir={trained.folder}"), *others), words)


def test_features_are_the_states_of_the_tokens(trained, tmp_path):
    path = tmp_path / "states.npz"
    options = [f"--workdir={trained.pretrained}", f"--output={path}", "--layers=0,-1"]
    done = call("features", *options, text="the dog sat.\na cat\n")
    assert done.returncode == 0, done.stderr
    pieces = [json.loads(line) for line in done.stdout.splitlines()]
    with np.load(path) as arrays:
        assert [*arrays] == ["text_0", "text_1"]
        for text, names in zip(arrays.values(), pieces):
            assert text.shape == (2, len(names), 32) and np.isfinite(text).all()


@pytest.mark.parametrize(
    "options, words",
    [
        (["--output=states.txt"], "--output=states.txt: must be a file *.npz or *.safetensors"),
        (["--output=states.npz", "--layers="], "--layers=: must be numbers of layers"),
        (["--output=states.npz", "--layers=a"], "--layers=a: must be whole numbers"),
    ],
)
def test_mistakes_in_features_are_refused(trained, options, words):
    done = call("features", f"--workdir={trained.pretrained}", *options, text="the dog\n")
    assert done.returncode == 2 and words in done.stderr


def test_several_tasks_of_one_config(trained):
    """The files of each task are named by its name, and nothing is trained if one is missing."""
    folder = trained.folder
    for task, texts in (("rte", ("sentence1", "sentence2")), ("qqp", ("question1", "question2"))):
        row = json.dumps(dict.fromkeys(texts, "the cat sat") | {"label": 1})
        (folder / f"{task}.jsonl").write_text(f"{row}\n{row.replace('1}', '0}')}\n" * 8)
    keys = {"train.num_steps": 1, "train.batch": 8, "task.length": 16, "data.cache": folder / "c"}
    files = [f"--config.data.{split}_files={folder}/{{task}}.jsonl" for split in ("train", "valid")]
    flags = [
        "--config=babylm/finetune",
        f"--config.init_from={trained.pretrained}",
        f"--workdir={folder}/tasks",
        *files,
        *(f"--config.{key}={value}" for key, value in keys.items()),
    ]
    for tasks, words in (
        ("rte,sst2", "--tasks: no 'sst2'"),
        ("rte,rte", "--tasks: rte occurs twice"),
        ("rte,mnli", "mnli.jsonl: no such file"),
    ):
        refused(here("finetune", *flags, f"--tasks={tasks}"), words)
    refused(here("finetune", *flags, "--tasks=rte", "--profile=1:2"), "--profile is for one run")
    refused(
        here("finetune", *flags, "--tasks=all", "--config=babylm/pretrain"),
        "has no TASKS = {name: ...}",
    )
    assert not (folder / "tasks").exists()

    done = call("finetune", *flags, "--tasks=rte,qqp")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["measures"] == {"rte": "valid/accuracy", "qqp": "valid/f1"}
    scores = [result["tasks"][name][key]["mean"] for name, key in result["measures"].items()]
    assert result["mean"] == pytest.approx(sum(scores) / 2)
    assert (folder / "tasks/qqp/config.json").exists()
    row = next(line for line in done.stderr.splitlines() if line.startswith("qqp "))
    assert row.split() == ["qqp", f"{scores[1]:.4f}", "1", "valid/f1"]
    again = call("finetune", *flags, "--tasks=rte,qqp")
    assert json.loads(again.stdout) == result and again.stderr.count("nothing to do") == 2
