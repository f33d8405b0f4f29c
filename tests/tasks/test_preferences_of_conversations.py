"""Preferences between the replies of a conversation, for a run that knows its special tokens."""

import json
from functools import partial

import pytest

from tests.programs import call
from tests.tasks.conftest import trained
from tests.tasks.preferences import dpo, reward, train
from tests.tasks.test_chat import build, message
from transformer_jax.config import UserError
from transformer_jax.inference.generation import best_of
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import resolve

ASKED = [message("user", "the cat")]
PAIRS = [("the cat", " sat."), ("the dog", " ran.")]


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    return trained(build(folder, train__num_steps=2), folder)


@pytest.fixture(scope="module")
def scorer(chats, tmp_path_factory):
    """Returns the task, the parameters and the workdir of a reward model."""
    folder = tmp_path_factory.mktemp("scorer")
    train(reward(folder, chats.workdir, train__num_steps=1), folder / "run")
    return *open_run(folder / "run"), folder / "run"


def test_a_prompt_is_a_message_of_the_user_and_a_completion_its_reply(chats, scorer, tmp_path):
    learner = resolve(dpo(tmp_path, chats.workdir), tmp_path / "run").task()
    tokenizer = chats.task.tokenizer
    for task in (learner, scorer[0]):
        (example,) = task.encoded([("the cat", (" sat.", " ran."))])
        assert example.prompt == tokenizer.prompt(ASKED)
        assert example.completions == [tokenizer.completion(text) for text in (" sat.", " ran.")]
        asked = [message("system", "Be brief."), *ASKED]
        (example,) = task.encoded([(asked, (" sat.",))])
        assert example.prompt == tokenizer.prompt(asked)
    batch = learner.rows().train.batch(0, range(8))
    ends = (batch["labels"] == tokenizer.end_id) & (batch["weights"] == 1)
    assert (ends.sum(axis=-1) == 1).all()  # each completion learns its end


def test_a_policy_is_chosen_by_a_reward_model(chats, scorer):
    """In Python and on the command line, where --system makes a conversation of each prompt."""
    task, params, workdir = scorer
    score = partial(task.score, params)
    in_messages = [([message("user", prompt)], text) for prompt, text in PAIRS]
    assert list(score(PAIRS)) == list(score(in_messages))
    asked = [message("system", "Be brief."), message("user", "the cat")]
    draw = partial(chats.task.replies, chats.params, max_tokens=6, seed=3)
    (chosen,) = best_of(draw, score, [asked], 4)
    drawn = [each.text for each in draw([asked] * 4)]
    assert chosen.reward == pytest.approx(max(score([(asked, text) for text in drawn])))
    flags = ["--chat", "--system=Be brief.", "--prompts=-", "--max_tokens=6", "--seed=3"]
    best = [f"--reward={workdir}", "--best_of=4"]
    done = call("generate", f"--workdir={chats.workdir}", *flags, *best, text="the cat\n")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"] == chosen.text


def test_lines_of_predict_may_hold_messages(scorer):
    task, params, _ = scorer
    lines = [json.dumps({"messages": ASKED, "completion": " sat."}), "the cat\t sat."]
    first, second = task.predict(params, lines)
    assert first == second


def test_messages_need_a_run_that_knows_the_special_tokens(gpt, tmp_path):
    task = resolve(reward(tmp_path, gpt.workdir), tmp_path / "run").task()
    with pytest.raises(UserError, match="a prompt has messages, but the run in config.init_from"):
        task.encoded([(ASKED, (" sat.",))])
