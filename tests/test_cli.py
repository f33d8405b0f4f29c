"""A translation run on the command line: resuming, translating, evaluating, and mistakes."""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from tests.conftest import write_pairs
from tests.jitted import jitted
from tests.programs import ENV, call, command, here, refused, translation_flags


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    """Returns the flags of a tiny run on files."""
    return translation_flags(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="module")
def trained(overrides, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("trained") / "run"
    done = call("train_wmt", *overrides, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    return workdir


def test_the_workdir_holds_what_decoding_needs(trained):
    record = json.loads((trained / "config.json").read_text())
    assert record["config"]["model"]["d_model"] == 16
    assert record["versions"]["jax"]
    assert record["checkpoint_format"] == 1
    assert record["fingerprint"]["train"] and record["fingerprint"]["tokenizer"]
    assert {p.name for p in trained.iterdir()} == {
        ".lock",
        "config.json",
        "tokenizer",
        "checkpoints",
        "metrics.jsonl",
        "tensorboard",
        "curves.png",
    }


@pytest.mark.full
def test_the_same_command_has_nothing_to_do_and_a_longer_run_resumes(trained, overrides):
    again = call("train_wmt", *overrides, f"--workdir={trained}")
    assert again.returncode == 0 and "nothing to do" in again.stderr
    longer = call("train_wmt", *overrides, f"--workdir={trained}", "--config.train.num_steps=6")
    assert longer.returncode == 0
    assert "resuming from step 4" in longer.stderr
    assert "step 6/6" in longer.stderr


def test_translate_keeps_lines_and_order(trained):
    lines = [
        "a dog runs",
        "",
        "the cat sleeps and a dog runs",
        "   ",
        "two women sing ☃ zzz",
        "a dog runs",
    ]
    done = call("translate", f"--workdir={trained}", text="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    out = done.stdout.split("\n")
    assert len(out) == len(lines) + 1
    assert out[-1] == ""
    assert out[1] == out[3] == ""
    assert out[0] == out[5]
    alone = call("translate", f"--workdir={trained}", "--step=latest", text=lines[2] + "\n")
    assert alone.stdout == out[2] + "\n"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--workdir=/nowhere/there"], ["/nowhere/there", "no run here"]),
        ([], ["workdir"]),
        (["--workdir=@", "--step=99"], ["no checkpoint '99'", "best, latest"]),
        (["--workdir=@", "--stp=9"], ["stp"]),
        (["--workdir=@", "stray"], ["stray"]),
        (["--workdir="], ["--workdir=... is missing", "folder of the run"]),
        (["--workdir=@", "--n_best=9"], ["config.decode.beam=4"]),
        (["--workdir=@", "--config.train.batch=9"], ["config.train.batch", "fixed by the run"]),
        (["--workdir=@", "--config.decode.beam=0"], ["config.decode.beam=0"]),
        (
            ["--workdir=@", "--config.decode.average=9"],
            ["config.decode.average=9", "config.checkpoint.keep"],
        ),
    ],
)
def test_translate_refuses_mistakes(trained, arguments, words):
    refused(
        here("translate", *(a.replace("@", str(trained)) for a in arguments), text="a\n"), *words
    )


@pytest.mark.full
def test_a_long_line_stops_no_translation(trained):
    """The number and order of the lines stay the same, and one warning names the long lines."""
    lines = ["a dog runs", "two women sing. " * 50, "", "dog " * 300, "a dog runs"]
    flags, text = f"--workdir={trained}", "\n".join(lines) + "\n"
    done = call("translate", flags, text=text)
    out = done.stdout.split("\n")
    assert done.returncode == 0 and len(out) == 6 and out[0] == out[4] != "" == out[2], done.stderr
    assert done.stderr.count("warning") == 1
    assert "lines 2, 4 are longer than the 119 tokens" in done.stderr
    skipped = call("translate", flags, "--long=skip", text=text).stdout
    assert skipped == f"{out[0]}\n\n\n\n{out[0]}\n"


@pytest.mark.full
def test_translate_names_a_line_that_it_refuses(trained):
    text = "a dog runs\n" + "dog " * 300 + "\n"
    done = here("translate", f"--workdir={trained}", "--long=refuse", text=text)
    refused(done, "line 2", "config.model.max_length")
    done = subprocess.run(
        command("translate", f"--workdir={trained}"),
        input=b"ok\n\xff\xfe\n",
        capture_output=True,
        env=ENV,
    )
    assert done.returncode == 2
    assert b"stdin:2: not UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_workdir_without_its_tokenizer_is_refused(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    refused(
        call("translate", f"--workdir={tmp_path / 'run'}", text="a\n"),
        "no tokenizer that can be read here",
    )
    (tmp_path / "run" / "config.json").write_text("[]")
    refused(
        call("translate", f"--workdir={tmp_path / 'run'}", text="a\n"),
        "config.json",
        "not a run's record",
    )


def test_evaluate_prints_one_json_object(trained, tmp_path):
    done = call("evaluate", f"--workdir={trained}")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert 0 <= scores["bleu"] <= 100
    assert 0 <= scores["chrf"] <= 100
    assert 0 <= scores["bleu_tokenized_compound_split"] <= 100
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed")
    assert "nc:6" in scores["chrf_signature"]
    assert scores["set"] == "valid"
    files = [str(tmp_path / name) for name in ("test.en", "test.de")]
    for file, line in zip(files, ("a dog runs\n", "ein hund rennt\n")):
        pathlib.Path(file).write_text(line)
    test = call(
        "evaluate",
        f"--workdir={trained}",
        "--set=test",
        f"--config.data.test_source={files[0]}",
        f"--config.data.test_target={files[1]}",
        "--config.decode.average=2",
    )
    assert test.returncode == 0 and json.loads(test.stdout)["set"] == "test", test.stderr
    refused(call("evaluate", f"--workdir={trained}", "--set=test"), "config.data.test_source")


def test_n_best_scores_and_the_attention_picture(trained, tmp_path):
    done = call(
        "translate",
        f"--workdir={trained}",
        "--n_best=3",
        f"--attention={tmp_path / 'a.png'}",
        text="a dog runs\nthe cat sleeps\n",
    )
    rows = [line.split(" ||| ") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] * 3
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    scores = [float(row[2]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    single = (
        call("translate", f"--workdir={trained}", "--scores", text="a dog runs\n")
        .stdout.rstrip("\n")
        .split("\t")
    )
    assert float(single[0]) == pytest.approx(scores[0], abs=1e-3) and single[1] == rows[0][1]


@pytest.mark.full
def test_another_config_or_other_data_in_a_workdir_is_refused(trained, overrides, tmp_path):
    refused(
        here("train_wmt", *overrides, f"--workdir={trained}", "--config.train.batch=16"),
        "train.batch: 8 -> 16",
    )
    files = write_pairs(tmp_path / "other", count=44)
    other = [f"--config.{key}={value}" for key, value in files.items()]
    refused(
        here("train_wmt", *overrides, *other, f"--workdir={trained}", "--config.train.num_steps=9"),
        "not the train",
    )


def test_load_from_python(trained):
    import transformer_jax

    model, params, tokenizer = transformer_jax.load(trained)
    source = np.array(tokenizer.source.encode(["a dog runs"]))
    target = np.array([[tokenizer.target.bos_id]])
    logits = jitted(model.apply)({"params": params}, source, target)
    assert logits.shape == (1, 1, 96) and np.isfinite(logits).all()
