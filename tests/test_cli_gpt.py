"""The language model's path through the command line, as a user walks it: prepare, train, write,
evaluate, convert; and the mistakes on the way.
"""

import json

import pytest

from tests.conftest import build_gpt
from tests.programs import call
from transformer_jax import config as configs

SIZES = (
    "model.vocab_size",
    "model.d_model",
    "model.num_layers",
    "model.num_heads",
    "model.max_length",
    "task.length",
    "data.tokenizer",
    "data.train_files",
    "data.valid_files",
    "data.cache",
    "train.num_steps",
    "train.batch",
    "train.eval_every",
    "train.log_every",
    "optimizer.learning_rate",
    "checkpoint.every",
)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    config = build_gpt(tmp_path_factory.mktemp("cli_gpt"))
    return [
        "--config=configs/gpt/gpt2.py",
        *(f"--config.{key}={configs.get(config, key)}" for key in SIZES),
    ]


@pytest.fixture(scope="module")
def trained(flags, tmp_path_factory):
    prepared = call("prepare", *flags)
    assert prepared.returncode == 0 and "built token store" in prepared.stderr, prepared.stderr
    workdir = tmp_path_factory.mktemp("trained_gpt") / "run"
    done = call("train_gpt", *flags, "--config.task.sample_tokens=5", f"--workdir={workdir}")
    assert (
        done.returncode == 0
        and "built token store" not in done.stderr
        and "a sample:" in done.stderr
    ), done.stderr
    return workdir


def test_generate_streams_what_it_gives_as_json(trained, tmp_path):
    how = ["--max_tokens=80", "--temperature=0.5", "--seed=7"]  # more than the window of 64
    streamed = call("generate", f"--workdir={trained}", "--prompt=the dog", *how)
    assert (
        streamed.returncode == 0
        and streamed.stdout.startswith("the dog")
        and streamed.stdout.endswith("\n")
    ), streamed.stderr
    (tmp_path / "prompts.jsonl").write_text('"the dog"\n"a\\ncat"\n')
    listed = call("generate", f"--workdir={trained}", f"--prompts={tmp_path}/prompts.jsonl", *how)
    first, second = map(json.loads, listed.stdout.splitlines())
    assert (
        first["prompt"] == "the dog" and first["prompt"] + first["text"] + "\n" == streamed.stdout
    )
    assert second["prompt"] == "a\ncat" and second["tokens"] <= 80
    piped = call(
        "generate", f"--workdir={trained}", "--prompts=-", "--num_samples=2", *how, text="the dog\n"
    )
    one, other = map(json.loads, piped.stdout.splitlines())
    assert one == first and other["prompt"] == "the dog" and other["text"] != one["text"]


def test_without_a_number_a_text_fits_the_window_it_must_not_exceed(trained):
    flags = [f"--workdir={trained}", "--prompts=-", "--window=refuse", "--stop=never"]
    done = call("generate", *flags, text="the dog\n")
    assert done.returncode == 0 and 0 < json.loads(done.stdout)["tokens"] < 64, done.stderr


def test_a_stop_string_is_not_shown(trained):
    whole = call(
        "generate", f"--workdir={trained}", "--prompt=the", "--temperature=0", "--max_tokens=20"
    ).stdout
    stop = whole[8:10]
    cut = call(
        "generate",
        f"--workdir={trained}",
        "--prompt=the",
        "--temperature=0",
        "--max_tokens=20",
        f"--stop={stop}",
    ).stdout
    assert cut == whole[: whole.index(stop, 3)] + "\n"


def test_evaluate_prints_one_object(trained):
    done = call("evaluate", f"--workdir={trained}", "--config.decode.stride=8")
    found = json.loads(done.stdout)
    assert found["stride"] == 8 and found["bits_per_byte"] > 0 and found["perplexity"] > 1, (
        done.stderr
    )


@pytest.mark.parametrize(
    "program, arguments, words",
    [
        ("generate", ["--prompt=a", "--prompts=b"], "--prompt and --prompts"),
        ("generate", ["--prompts=nowhere"], "--prompts=nowhere: no such file"),
        ("generate", ["--top_p=2"], "top_p=2.0: must be"),
        ("generate", ["--max_tokens=100", "--window=refuse"], "config.model.max_length=64"),
        ("translate", [], "not one that translates"),
        ("evaluate", ["--set=test"], "config.data.test_files"),
    ],
)
def test_a_mistake_costs_one_line(trained, program, arguments, words):
    done = call(program, f"--workdir={trained}", *arguments, text="")
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_wrong_trainer_and_a_wrong_key_are_named(flags, tmp_path):
    done = call("train_wmt", *flags, f"--workdir={tmp_path}/run")
    assert done.returncode == 2 and "config.task.name='causal_lm'" in done.stderr
    done = call("train_gpt", *flags, "--config.data.train_file=x", f"--workdir={tmp_path}/run")
    assert done.returncode == 2 and "did you mean" in done.stderr and "train_files" in done.stderr
    assert not (tmp_path / "run").exists()
