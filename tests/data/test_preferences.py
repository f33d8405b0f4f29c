"""Preferences in files: pairs and rankings, their mistakes, and rows that are too long."""

import json

import pytest

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data.chat_rows import Example, fitted
from transformer_jax.data.sources import chat

PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
ASKED = [{"role": "user", "content": "a"}]


def read(tmp_path, *lines):
    path = tmp_path / "pairs.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts))
    config = configs.experiment(model=dict(name="gpt"), task=dict(name="causal_lm"))
    config.data.train_files = str(path)
    assert chat.open_preferences(config.data, "valid") is None
    return chat.open_preferences(config.data, "train")


def test_pairs_and_rankings_are_read_in_order(tmp_path):
    ranking = {"prompt": "", "completions": ["x", "y", "z"], "id": 7}
    talk = {"messages": ASKED, "chosen": "b", "rejected": "c"}
    records = read(tmp_path, PAIR, "", PAIR | {"label": 0.25}, ranking, talk)
    first, second, third, fourth = records
    assert fourth.prompt == ASKED
    assert (first.prompt, first.completions, first.label) == ("a", ("b", "c"), 1.0)
    assert first.where.endswith("pairs.jsonl:1") and second.where.endswith("pairs.jsonl:3")
    assert second.label == 0.25
    assert (third.prompt, third.completions, third.label) == ("", ("x", "y", "z"), 1.0)
    fingerprint = records.fingerprint()
    assert fingerprint != read(tmp_path, PAIR).fingerprint()


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object with 'prompt', 'chosen' and 'rejected', or"),
        ({"prompt": "a", "chosen": "b"}, "no key 'rejected'"),
        ({"chosen": "b", "rejected": "c"}, "no key 'prompt'"),
        (PAIR | {"chosen": 3}, "'chosen' is not a text"),
        (PAIR | {"prompt": None}, "'prompt' is not a text"),
        (PAIR | {"messages": ASKED}, "'messages' and 'prompt': give one of them"),
        ({"messages": [], "chosen": "b", "rejected": "c"}, "'messages' must be a list of at least"),
        (
            {"messages": [{"role": "assistant", "content": "a"}], "chosen": "b", "rejected": "c"},
            "the last one must be of the user",
        ),
        (PAIR | {"rejected": "b"}, "'chosen' and 'rejected' are equal: neither is preferred"),
        (PAIR | {"label": 1.5}, "'label' must be a probability, a number from 0 to 1"),
        (PAIR | {"label": True}, "'label' must be a probability"),
        (PAIR | {"completions": ["b", "c"]}, "'chosen' and 'completions': give a pair or a"),
        ({"completions": ["b", "c"]}, "no key 'prompt'"),
        ({"prompt": "a", "completions": "bc"}, "'completions' is not a list of texts"),
        ({"prompt": "a", "completions": ["b", 2]}, "'completions' is not a list of texts"),
        ({"prompt": "a", "completions": ["b"]}, "has 1: must have from 2 to 9"),
        ({"prompt": "a", "completions": [*"bcdefghijk"]}, "has 10: must have from 2 to 9"),
        ({"prompt": "a", "completions": [*"bcb"]}, "completion 1 and completion 3 are equal"),
    ],
)
def test_a_wrong_line_is_an_error_with_its_number(tmp_path, line, message):
    with pytest.raises(UserError, match=rf"pairs.jsonl:2: .*{message}"):
        list(read(tmp_path, PAIR, line))


@pytest.mark.parametrize(
    "prompt, completions, expected",
    [
        (3, (4, 2), (3, (4, 2))),  # all fits
        (9, (4, 2), (6, (4, 2))),  # the prompt loses its beginning
        (9, (8, 2), (5, (5, 2))),  # it keeps the half of a row
        (2, (9, 3), (2, (8, 3))),  # a short prompt leaves the rest
    ],
)
def test_long_examples_lose_the_beginning_of_prompts_and_the_ends_of_completions(
    prompt, completions, expected
):
    whole = Example([*range(prompt)], [[*range(size)] for size in completions])
    cut = fitted(whole, 10)
    assert (len(cut.prompt), tuple(map(len, cut.completions))) == expected
    assert cut.prompt == whole.prompt[prompt - len(cut.prompt) :]
    assert all(b == a[: len(b)] for a, b in zip(whole.completions, cut.completions))
