"""A language model on the command line: preparation, training, generation, evaluation, mistakes."""

import json

import pytest

from tests.conftest import build_gpt
from tests.programs import call, here
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
    assert done.returncode == 0, done.stderr
    assert "built token store" not in done.stderr, done.stderr
    assert "a sample:" in done.stderr, done.stderr
    return workdir


def test_generate_streams_the_text_that_it_returns_as_json(trained, tmp_path):
    # 80 tokens are more than the window of 64.
    how = ["--max_tokens=80", "--temperature=0.5", "--seed=7"]
    streamed = call("generate", f"--workdir={trained}", "--prompt=the dog", *how)
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stdout.startswith("the dog"), streamed.stderr
    assert streamed.stdout.endswith("\n"), streamed.stderr
    (tmp_path / "prompts.jsonl").write_text('"the dog"\n"a\\ncat"\n')
    listed = call("generate", f"--workdir={trained}", f"--prompts={tmp_path}/prompts.jsonl", *how)
    first, second = map(json.loads, listed.stdout.splitlines())
    assert first["prompt"] == "the dog"
    assert first["prompt"] + first["text"] + "\n" == streamed.stdout
    assert second["prompt"] == "a\ncat" and second["tokens"] <= 80
    piped = call(
        "generate", f"--workdir={trained}", "--prompts=-", "--num_samples=2", *how, text="the dog\n"
    )
    one, other = map(json.loads, piped.stdout.splitlines())
    assert one == first and other["prompt"] == "the dog" and other["text"] != one["text"]


@pytest.mark.full
def test_without_max_tokens_a_text_ends_with_the_window(trained):
    flags = [f"--workdir={trained}", "--prompts=-", "--window=refuse", "--stop=never"]
    done = call("generate", *flags, text="the dog\n")
    assert done.returncode == 0 and 0 < json.loads(done.stdout)["tokens"] < 64, done.stderr


def test_a_stop_string_is_not_printed(trained):
    text = call(
        "generate", f"--workdir={trained}", "--prompt=the", "--temperature=0", "--max_tokens=20"
    ).stdout
    stop = text[8:10]
    stopped_text = call(
        "generate",
        f"--workdir={trained}",
        "--prompt=the",
        "--temperature=0",
        "--max_tokens=20",
        f"--stop={stop}",
    ).stdout
    assert stopped_text == text[: text.index(stop, 3)] + "\n"


def test_probabilities_of_next_tokens(trained):
    command = ["generate", f"--workdir={trained}", "--show_probabilities"]
    listed = here(*command, "--prompt=the dog", "--top_k=3").stdout.splitlines()
    probabilities = [float(line.split("  ")[0]) for line in listed]
    assert len(listed) == 3 and probabilities == sorted(probabilities, reverse=True)
    assert 0 < sum(probabilities) <= 1 and all(line.split("  ")[1] for line in listed)
    first, second = map(
        json.loads, call(*command, "--prompts=-", text="the dog\na\n").stdout.splitlines()
    )
    assert first["prompt"] == "the dog" and len(first["next"]) == len(second["next"]) == 10
    assert f"{first['next'][0]['probability']:.4f}  {first['next'][0]['token']}" == listed[0]


@pytest.mark.full
def test_beam_search(trained):
    command = ["generate", f"--workdir={trained}", "--beam=3", "--max_tokens=9"]
    written = call(*command, "--prompt=the dog")
    assert written.returncode == 0, written.stderr
    listed = call(*command, "--n_best=2", "--prompts=-", text="the dog\na\n")
    best, second, other, _ = map(json.loads, listed.stdout.splitlines())
    assert written.stdout == best["prompt"] + best["text"] + "\n" == f"the dog{best['text']}\n"
    assert list(best) == ["prompt", "text", "finished", "tokens", "score"]
    assert 0 > best["score"] >= second["score"] and second["prompt"] == "the dog"
    assert second["text"] != best["text"] and other["prompt"] == "a"


def test_evaluate_prints_one_object(trained):
    done = call("evaluate", f"--workdir={trained}", "--config.decode.stride=8")
    scores = json.loads(done.stdout)
    assert scores["stride"] == 8, done.stderr
    assert scores["bits_per_byte"] > 0, done.stderr
    assert {"tokens", "unigram", "bigram", "trigram"} <= scores["ngrams"].keys()
    assert scores["perplexity"] > 1, done.stderr


@pytest.mark.parametrize(
    "program, arguments, words",
    [
        ("generate", ["--prompt=a", "--prompts=b"], "--prompt and --prompts"),
        ("generate", ["--prompts=nowhere"], "--prompts=nowhere: no such file"),
        ("generate", ["--top_p=2"], "top_p=2.0: must be"),
        ("generate", ["--max_tokens=100", "--window=refuse"], "config.model.max_length=64"),
        ("generate", ["--beam=2", "--temperature=1"], "--temperature and --beam: a beam search"),
        (
            "generate",
            ["--beam=2", "--n_best=3"],
            "n_best=3: must be at most beam=2",
        ),
        ("generate", ["--n_best=2"], "--n_best=2: only with --beam"),
        (
            "generate",
            ["--show_probabilities", "--temperature=1"],
            "--temperature and --show_probabilities: a list of next tokens has no --temperature",
        ),
        ("generate", ["--show_probabilities", "--top_k=999"], "top_k=999: must be from 1 to"),
        ("generate", ["--beam=2", "--max_tokens=70"], "70 more exceed config.model.max_length=64"),
        ("translate", [], "not one that translates"),
        ("evaluate", ["--set=test"], "config.data.test_files"),
    ],
)
def test_a_mistake_prints_one_line(trained, program, arguments, words):
    done = here(program, f"--workdir={trained}", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_wrong_trainer_and_a_wrong_key_are_named(flags, tmp_path):
    done = here("train_wmt", *flags, f"--workdir={tmp_path}/run")
    assert done.returncode == 2 and "config.task.name='causal_lm'" in done.stderr
    done = here("train_gpt", *flags, "--config.data.train_file=x", f"--workdir={tmp_path}/run")
    assert done.returncode == 2 and "did you mean" in done.stderr and "train_files" in done.stderr
    assert not (tmp_path / "run").exists()
