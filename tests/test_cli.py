"""The whole path through the command line, as a user walks it: train, stop, resume, translate; and
every mistake on the way.
"""

import json
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import TINY, write_pairs
from tests.programs import ENV, call, command, refused


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    """Flags of a tiny run on files, after --config=configs/wmt/multi30k.py."""
    folder = tmp_path_factory.mktemp("cli")
    keys = {
        **TINY,
        **write_pairs(folder / "text"),
        "data.cache": folder / "cache",
        "decode.beam": 4,
    }
    return [
        "--config=configs/wmt/multi30k.py",
        *(f"--config.{key}={value}" for key, value in keys.items()),
    ]


@pytest.fixture(scope="module")
def trained(overrides, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("trained") / "run"
    done = call("train_wmt", *overrides, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    return workdir


def test_a_run_leaves_what_decoding_needs(trained):
    record = json.loads((trained / "config.json").read_text())
    assert (
        record["config"]["model"]["d_model"] == 16
        and record["versions"]["jax"]
        and record["checkpoint_format"] == 1
    )
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


def test_the_same_command_has_nothing_to_do_and_a_longer_run_resumes(trained, overrides):
    again = call("train_wmt", *overrides, f"--workdir={trained}")
    assert again.returncode == 0 and "nothing to do" in again.stderr
    longer = call("train_wmt", *overrides, f"--workdir={trained}", "--config.train.num_steps=6")
    assert (
        longer.returncode == 0
        and "resuming from step 4" in longer.stderr
        and "step 6/6" in longer.stderr
    )


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
    assert (
        len(out) == len(lines) + 1 and out[-1] == "" and out[1] == out[3] == "" and out[0] == out[5]
    )
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
def test_translate_says_what_is_wrong(trained, arguments, words):
    refused(
        call("translate", *(a.replace("@", str(trained)) for a in arguments), text="a\n"), *words
    )


def test_a_long_line_stops_no_translation(trained):
    """The number and order of the lines stay, and one warning names the long ones."""
    lines = ["a dog runs", "two women sing. " * 50, "", "dog " * 300, "a dog runs"]
    flags, text = f"--workdir={trained}", "\n".join(lines) + "\n"
    done = call("translate", flags, text=text)
    out = done.stdout.split("\n")
    assert done.returncode == 0 and len(out) == 6 and out[0] == out[4] != "" == out[2], done.stderr
    assert done.stderr.count("warning") == 1
    assert "lines 2, 4 are longer than the 119 tokens" in done.stderr
    skipped = call("translate", flags, "--long=skip", text=text).stdout
    assert skipped == f"{out[0]}\n\n\n\n{out[0]}\n"


def test_translate_names_a_line_it_can_not_take(trained):
    text = "a dog runs\n" + "dog " * 300 + "\n"
    done = call("translate", f"--workdir={trained}", "--long=refuse", text=text)
    refused(done, "line 2", "config.model.max_length")
    done = subprocess.run(
        command("translate", f"--workdir={trained}"),
        input=b"ok\n\xff\xfe\n",
        capture_output=True,
        env=ENV,
    )
    assert (
        done.returncode == 2
        and b"stdin:2: not UTF-8" in done.stderr
        and b"Traceback" not in done.stderr
    )


@pytest.mark.parametrize(
    "extra, words",
    [
        (["--config.train.num_stps=5"], ["config.train.num_stps", "did you mean train.num_steps"]),
        (["--config.model.num_heads=3"], ["config.model.num_heads=3"]),
        (["--config.mesh.tensor=3"], ["config.mesh.tensor=3"]),
        (["--config.train.batch=lots"], ["config.train.batch='lots'"]),
        (
            ["--config.data.train_source=/no/such.txt"],
            ["config.data.train_source=/no/such.txt", "no such file"],
        ),
        (["--config.data.tfds_name=x/y"], ["name one source"]),
        (["--profile=5:3"], ["--profile=5:3", "FROM:TO"]),
        (["--config.train.num_steps"], ["needs a value"]),
        (["--cfg=1"], ["cfg"]),
        (
            ["--config.checkpoint.every=0"],
            ["config.checkpoint.every=0", "at least 1, or a fraction of"],
        ),
        (
            ["--config.decode.max_extra=200"],
            ["config.decode.max_extra=200", "config.model.max_length"],
        ),
        (["--config.mesh.rules=('embed','fsdp')"], ["config.mesh.rules"]),
        (["--config.mesh.rules=(1,)"], ["config.mesh.rules", "logical axis"]),
        (["--config.task.bleu_lines=-1"], ["config.task.bleu_lines=-1"]),
        (["--config.task.source_length=3"], ["no pair is left"]),
    ],
)
def test_a_wrong_run_is_refused_and_leaves_nothing(overrides, tmp_path, extra, words):
    refused(call("train_wmt", *overrides, f"--workdir={tmp_path / 'run'}", *extra), *words)
    assert not (tmp_path / "run").exists()


def test_a_workdir_that_can_not_be_or_is_in_use(overrides, tmp_path):
    (tmp_path / "file").write_text("")
    refused(
        call("train_wmt", *overrides, f"--workdir={tmp_path / 'file'}"),
        str(tmp_path / "file"),
        "can't be written",
    )
    from transformer_jax.runs import lock

    with lock.held(tmp_path / "run"):
        refused(
            call("train_wmt", *overrides, f"--workdir={tmp_path / 'run'}"),
            "another run is at work there",
        )


def test_what_is_left_of_a_killed_start_is_no_dead_end(overrides, tmp_path):
    (tmp_path / "run" / "tokenizer").mkdir(parents=True)
    # nor is a machine without git
    done = call(
        "train_wmt",
        *overrides,
        f"--workdir={tmp_path / 'run'}",
        "--config.train.num_steps=2",
        PATH="",
    )
    assert done.returncode == 0, done.stderr


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


def test_help_lists_the_flags():
    done = call("translate", "--help")
    assert (
        done.returncode == 0
        and "--n_best" in done.stdout
        and "--workdir" in done.stdout
        and "stdin to stdout" in done.stdout
    )


def test_evaluate_prints_one_json_object(trained, tmp_path):
    done = call("evaluate", f"--workdir={trained}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (
        0 <= found["bleu"] <= 100
        and 0 <= found["chrf"] <= 100
        and 0 <= found["bleu_tokenized_compound_split"] <= 100
    )
    assert (
        found["bleu_signature"].startswith("nrefs:1|case:mixed")
        and "nc:6" in found["chrf_signature"]
        and found["set"] == "valid"
    )
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
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] * 3 and (tmp_path / "a.png").read_bytes()[
        :4
    ] == b"\x89PNG"
    scores = [float(row[2]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    single = (
        call("translate", f"--workdir={trained}", "--scores", text="a dog runs\n")
        .stdout.rstrip("\n")
        .split("\t")
    )
    assert float(single[0]) == pytest.approx(scores[0], abs=1e-3) and single[1] == rows[0][1]


def test_a_missing_config_file_is_refused(tmp_path):
    refused(
        call("train_wmt", "--config=configs/wmt/none.py", f"--workdir={tmp_path}"),
        "configs/wmt/none.py",
        "no such file",
    )


def test_bad_data_is_named_with_its_line(overrides, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\nbad \xff\nfine\n")
    (tmp_path / "b.txt").write_text("eins\nzwei\n")
    files = [
        f"--config.data.train_source={tmp_path / 'a.txt'}",
        f"--config.data.train_target={tmp_path / 'b.txt'}",
    ]
    refused(
        call("train_wmt", *overrides, f"--workdir={tmp_path / 'run'}", *files),
        "a.txt:2",
        "not UTF-8",
    )
    (tmp_path / "a.txt").write_text("one\n")
    refused(
        call("train_wmt", *overrides, f"--workdir={tmp_path / 'run'}", *files),
        "a.txt has 1 lines",
        "b.txt has more",
    )
    assert not (tmp_path / "run").exists()


def test_another_config_or_other_data_in_a_workdir_is_refused(trained, overrides, tmp_path):
    refused(
        call("train_wmt", *overrides, f"--workdir={trained}", "--config.train.batch=16"),
        "train.batch: 8 -> 16",
    )
    files = write_pairs(tmp_path / "other", count=44)
    other = [f"--config.{key}={value}" for key, value in files.items()]
    refused(
        call("train_wmt", *overrides, *other, f"--workdir={trained}", "--config.train.num_steps=9"),
        "not the train",
    )


def test_sigterm_exits_75_and_the_same_command_ends_as_if_nothing_had_happened(overrides, tmp_path):
    flags = [
        *overrides,
        "--config.train.num_steps=60",
        "--config.checkpoint.every=60",
        "--config.train.eval_every=60",
        "--config.model.dropout=0.1",
    ]
    straight = call("train_wmt", *flags, f"--workdir={tmp_path / 'straight'}")
    assert straight.returncode == 0, straight.stderr
    process = subprocess.Popen(
        command("train_wmt", *flags, f"--workdir={tmp_path / 'stopped'}"),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=ENV,
    )
    for line in process.stderr:
        if line.startswith("step 2/"):
            process.send_signal(signal.SIGTERM)
            break
    rest = process.stderr.read()
    assert process.wait() == 75, rest
    assert "state saved" in rest
    assert call("train_wmt", *flags, f"--workdir={tmp_path / 'stopped'}").returncode == 0
    final = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("straight", "stopped")
    ]
    assert final[0] == final[1] and final[0]["step"] == 60


WAITING = """
import sys
from transformer_jax.cli import flags as cli
from transformer_jax.cli import process

def main():
    print("ready", file=sys.stderr, flush=True)
    sys.stdin.read()

process.run(main, lambda: None)
"""


def test_ctrl_c_costs_one_line():
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        stdin=subprocess.PIPE,
        env=ENV,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.read() == "interrupted\n" and process.wait() == 130


def test_load_from_python(trained):
    import jax.numpy as jnp

    import transformer_jax

    model, params, tokenizer = transformer_jax.load(trained)
    source = jnp.array(tokenizer.source.encode(["a dog runs"]))
    logits = model.apply({"params": params}, source, jnp.array([[tokenizer.target.bos_id]]))
    assert logits.shape == (1, 1, 96) and np.isfinite(logits).all()


def test_dry_run_prints_one_json_object_last_and_opens_no_data(tmp_path):
    done = call(
        "dry_run",
        "--config=configs/wmt/base.py",
        "--devices=8",
        "--config.mesh.fsdp=2",
        "--config.mesh.tensor=2",
        "--config.train.batch=16",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["params"] == 63_082_496 and found["mesh"] == {
        "data": 2,
        "fsdp": 2,
        "tensor": 2,
        "sequence": 1,
    }
    assert found["tokens_per_step"] == 16 * 256 and found["flops_per_step"] > 6 * 44e6 * 16 * 256
    # parameters and two moments
    assert found["bytes_per_device"]["arguments"] == pytest.approx(3 * 4 * 63_082_496 / 4, rel=0.02)
    assert "target_embed/embedding" in done.stderr and "tensor, fsdp" in done.stderr
    refused(
        call("dry_run", "--config=configs/wmt/base.py", "--devices=8", "--config.mesh.tensor=3"),
        "config.mesh.tensor=3",
    )


def test_closed_streams_are_empty_ones():
    """As a daemon's are."""
    done = subprocess.run(
        ["bash", "-c", '"$@" <&- >&-', "_", *command("costs")],
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=ENV,
        timeout=300,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_a_config_is_a_python_file(tmp_path):
    for name, content, message in (
        ("a.json", "{}", "a config is a Python file"),
        ("b.py", "raise ValueError('one\\ntwo')", "b.py:1: ValueError: one two"),
        ("c.py", "import sys; sys.exit(3)", "c.py:1: SystemExit: 3"),
    ):
        (tmp_path / name).write_text(content)
        refused(
            call("train_gpt", f"--config={tmp_path}/{name}", f"--workdir={tmp_path}/run"), message
        )
