"""Best of n: the continuation with the highest reward, in Python and on the command line."""

import json

import pytest

from tests.programs import call, refused
from tests.tasks.preferences import reward, train
from transformer_jax.config import UserError
from transformer_jax.inference.generation import Continuation, best_of
from transformer_jax.runs.open import open_run


def numbered(prompts):
    """Continues each prompt by its number."""
    for number, prompt in enumerate(prompts):
        yield Continuation(f"{number}", len(prompt), "end")


def last_digit(pairs):
    assert len(pairs) <= 1024
    return [int(text) % 10 // 3 for _, text in pairs]


def test_the_first_of_the_highest_rewards_is_chosen():
    chosen = list(best_of(numbered, last_digit, ["a", "bb", "c"], 4))
    # The numbers of the prompts are 0 to 3, 4 to 7 and 8 to 11, their rewards 0001, 1122 and 2300.
    assert [each.text for each in chosen] == ["3", "6", "9"]
    assert [each.reward for each in chosen] == [1, 2, 3] and chosen[1].tokens == 2
    many = list(best_of(numbered, last_digit, ["a"] * 700, 3))  # scored in three parts
    assert many[699].text == "2099" and len(many) == 700
    with pytest.raises(UserError, match="best_of=0: must be at least 1"):
        next(best_of(numbered, last_digit, ["a"], 0))


@pytest.fixture(scope="module")
def chooser(gpt, tmp_path_factory):
    """Returns the workdir of a reward model."""
    folder = tmp_path_factory.mktemp("chooser")
    train(reward(folder, gpt.workdir, train__num_steps=1), folder / "run")
    return folder / "run"


@pytest.mark.full
def test_generate_prints_the_best_of_its_samples(gpt, chooser):
    how = [f"--workdir={gpt.workdir}", "--prompts=-", "--max_tokens=8", "--seed=3"]
    best = [f"--reward={chooser}", "--best_of=5", "--config.decode.batch=4"]
    done = call("generate", *how, *best, text="the cat\na dog\n")
    assert done.returncode == 0, done.stderr
    chosen = [json.loads(line) for line in done.stdout.splitlines()]
    sampled = call("generate", *how, "--num_samples=5", text="the cat\na dog\n")
    drawn = [json.loads(line) for line in sampled.stdout.splitlines()]
    task, params = open_run(chooser)
    scores = list(task.score(params, [(each["prompt"], each["text"]) for each in drawn]))
    for number, best in enumerate(chosen):
        of_prompt = range(5 * number, 5 * number + 5)
        index = max(of_prompt, key=scores.__getitem__)
        assert best["reward"] == pytest.approx(scores[index], rel=1e-3)
        assert {name: best[name] for name in drawn[index]} == drawn[index]


@pytest.mark.full
def test_one_prompt_is_printed_as_text(gpt, chooser):
    flags = [f"--workdir={gpt.workdir}", "--prompt=the cat", "--max_tokens=4", "--best_of=2"]
    done = call("generate", *flags, f"--reward={chooser}")
    assert done.returncode == 0 and done.stdout.startswith("the cat"), done.stderr


@pytest.mark.full
def test_flags_that_do_not_go_together_are_refused(gpt):
    workdir = f"--workdir={gpt.workdir}"
    refused(call("generate", workdir, "--best_of=2"), "--best_of and --reward: give both")
    pair = (workdir, "--best_of=2", f"--reward={gpt.workdir}")
    refused(call("generate", *pair, "--num_samples=2"), "--num_samples and --best_of: give one")
    refused(call("generate", *pair), "--reward=", "a causal_lm run, not one that scores")
