"""Fine-tuning through the command line: several seeds, evaluate, predict; and the mistakes on the
way.
"""

import json

import pytest

from tests.finetuning.examples import build, pretrained
from tests.programs import call


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    bert = pretrained(folder, "bert")
    config = build(folder / "data", "classification", bert)
    sizes = {
        "task.length": 32,
        "task.labels": "('cat','dog')",
        "train.num_steps": 6,
        "train.batch": 8,
        "train.eval_every": 6,
        "checkpoint.every": 6,
        "data.train_files": config.data.train_files,
        "data.valid_files": config.data.valid_files,
    }
    return folder, [
        f"--config.init_from={bert}",
        *(f"--config.{key}={value}" for key, value in sizes.items()),
    ]


def test_the_whole_path(given):
    folder, flags = given
    config = "--config=configs/finetune/sentiment.py:imdb-cpu"
    done = call(
        "finetune",
        config,
        *flags,
        f"--workdir={folder}/runs",
        "--seeds=2",
        "--config.model.dropout=0.2",
    )
    assert (
        done.returncode == 0
        and "tensors restored" in done.stderr
        and "head/out/kernel" in done.stderr
    ), done.stderr
    found = json.loads(done.stdout)
    assert found["seeds"] == 2 and len(found["valid/accuracy"]["values"]) == 2
    assert found["valid/accuracy"]["mean"] == pytest.approx(
        sum(found["valid/accuracy"]["values"]) / 2
    )
    again = call(
        "finetune",
        config,
        *flags,
        f"--workdir={folder}/runs",
        "--seeds=2",
        "--config.model.dropout=0.2",
    )
    assert json.loads(again.stdout) == found and "nothing to do" in again.stderr
    run = f"--workdir={folder}/runs/seed-0"
    assert (
        json.loads((folder / "runs/seed-0/config.json").read_text())["config"]["model"]["dropout"]
        == 0.2
    )

    scores = json.loads(call("evaluate", run).stdout)
    assert scores["examples"] == 12 and scores["accuracy"] == pytest.approx(
        found["valid/accuracy"]["values"][0]
    )
    assert scores["confusion"]["labels"] == list(scores["f1_by_class"]) == ["cat", "dog"]
    matrix = call("inspect", "confusion", run, f"--output={folder}/confusion.png")
    assert matrix.returncode == 0, matrix.stderr
    assert (folder / "confusion.png").stat().st_size > 3000
    plain = call("predict", run, text="the cat sat\na dog ran\n").stdout.split()
    objects = [
        json.loads(line)
        for line in call(
            "predict", run, "--json", text="the cat sat\na dog ran\n"
        ).stdout.splitlines()
    ]
    assert [each["label"] for each in objects] == plain and all(
        sum(each["probabilities"].values()) == pytest.approx(1) for each in objects
    )

    lines = "the cat sat\n\na dog ran" + " to the cat" * 30 + "\n"
    done = call("predict", run, "--json", text=lines)
    kept, empty, _ = map(json.loads, done.stdout.splitlines())
    assert kept == objects[0] and empty == {"text": "", "label": None, "probabilities": None}
    assert done.stderr.count("warning") == 1 and "line 3 is longer than" in done.stderr
    assert call("predict", run, "--long=skip", text=lines).stdout == f"{plain[0]}\n\n\n"

    wrong = folder / "wrong.tsv"
    wrong.write_text("cow\tthe cat\n")
    for program, arguments, words in (
        (
            "finetune",
            [config, *flags, f"--workdir={folder}/new", f"--config.data.valid_files={wrong}"],
            "wrong.tsv:1: unknown label 'cow'",
        ),
        (
            "finetune",
            [config, *flags[1:], f"--workdir={folder}/new"],
            "config.init_from is missing",
        ),
        (
            "finetune",
            ["--config=configs/bert/base.py", f"--workdir={folder}/new"],
            "no task of fine-tuning",
        ),
        (
            "finetune",
            [config, *flags, f"--workdir={folder}/new", "--seeds=2", "--profile=1:2"],
            "--profile is for one run",
        ),
        ("finetune", [config, *flags, run, "--seeds=2"], "runs/seed-0: holds a single run"),
        ("finetune", [config, *flags, f"--workdir={folder}/runs"], "holds the runs of --seeds"),
        (
            "finetune",
            [config, *flags, run, "--config.model.dropout=0.5"],
            "holds a run with another config: model.dropout",
        ),
        ("predict", [run, "--text=a\tb"], "line 1: must hold 1 text, not 2"),
        ("predict", [run, "--long=split", "--text=x"], "long='split': must be"),
        ("predict", [f"--workdir={folder}/bert_run", "--text=x"], "not one that was fine-tuned"),
        ("evaluate", [run, "--set=test"], "give --config.data.test_files"),
        ("generate", [run, "--prompt=x"], "not one that continues"),
    ):
        refused = call(program, *arguments)
        assert (
            refused.returncode == 2
            and words in refused.stderr
            and "Traceback" not in refused.stderr
        ), refused.stderr
    assert not (folder / "new").exists()
    assert not any((folder / path).exists() for path in ("runs/config.json", "runs/seed-0/seed-0"))
