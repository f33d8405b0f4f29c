"""Conversations from files: their form, and the rows that they are packed into."""

import itertools
import json

import numpy as np
import pytest

from tests.data.test_chat_tokenizer import ASSISTANT, END, STOP, SYSTEM, USER, A, B, message
from transformer_jax.config import UserError, experiment
from transformer_jax.data import tokenizers
from transformer_jax.data.chat_rows import ChatRows
from transformer_jax.data.sources import chat
from transformer_jax.data.tokenizers.chat import SPECIAL_TOKENS
from transformer_jax.data.tokenizers.words import Characters


def config(folder, lines, **keys):
    """Returns a config with these training conversations, JSON values or lines."""
    lines = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n")
    files = dict(train_files=str(folder / "chats.jsonl"), cache=str(folder / "cache"))
    return experiment(
        model={"name": "gpt"}, task={"name": "chat"}, data=files | keys, train={"batch": 2}
    )


def rows(folder, lines, length):
    letters = tokenizers.with_special_tokens(Characters.train(["ab"], 8), SPECIAL_TOKENS)
    component = ChatRows(config(folder, lines), length).train(letters).phases[0].components[0]
    return component, component.rows([(number, 0) for number in range(len(component))])


GOOD = {"prompt": "a", "completion": "b"}
TURN = [message("user", "a"), message("assistant", "b")]


@pytest.mark.parametrize(
    "line, error",
    [
        ("{", "not JSON"),
        ('{"prompt": "\\ud83d", "completion": "b"}', "half a character"),
        ("[]", "no object with 'messages', or with 'prompt' and 'completion'"),
        ({"prompt": "a"}, "no object with 'messages', or with 'prompt' and 'completion'"),
        ({"prompt": 1, "completion": "b"}, "'prompt' must be a text that is not empty"),
        ({"prompt": "a", "completion": " "}, "'completion' must be a text that is not empty"),
        ({"messages": []}, "'messages' must be a list of at least one message"),
        ({"messages": "a"}, "'messages' must be a list of at least one message"),
        ({"messages": ["a"]}, "message 1: not an object with 'role' and 'content'"),
        ({"messages": [{"content": "a"}]}, "message 1: 'role' is missing"),
        ({"messages": [*TURN, {"role": "user"}]}, "message 3: 'content' is missing"),
        (
            {"messages": [message("tool", "a")]},
            "message 1: role 'tool' must be one of system, user, assistant",
        ),
        ({"messages": [message([], "a")]}, r"message 1: role \[\] must be one of"),
        ({"messages": [*TURN, message("system", "a")]}, "message 3: a message of the system must"),
        ({"messages": [message("user", "")]}, "message 1: 'content' must be a text that is not"),
        ({"messages": TURN[:1]}, "no message of the assistant, so nothing to learn from"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, error):
    text = chat.open_conversations(config(tmp_path, [GOOD, "", line]).data, "train")
    with pytest.raises(UserError, match=rf"chats.jsonl:3: {error}"):
        list(text)


def test_missing_and_doubled_sources_are_refused(tmp_path):
    good = config(tmp_path, [GOOD])
    with pytest.raises(UserError, match="config.data.train_files is missing"):
        chat.open_conversations(
            experiment(model={"name": "gpt"}, task={"name": "chat"}).data, "train"
        )
    assert chat.open_conversations(good.data, "valid") is None
    good.data.corpus = "grammar"
    with pytest.raises(UserError, match="corpus=grammar and config.data.train_files"):
        chat.open_conversations(good.data, "train")
    good.data.train_files, good.data.corpus = None, "python"
    with pytest.raises(UserError, match="corpus=python: has no conversations; only grammar"):
        chat.open_conversations(good.data, "train")


def test_both_forms_of_a_line_are_the_same(tmp_path):
    text = chat.open_conversations(
        config(tmp_path, [GOOD, {"messages": TURN, "id": 7}]).data, "train"
    )
    first, second = text
    assert first == second == TURN


def test_built_in_conversations(tmp_path):
    data = config(tmp_path, [GOOD]).data
    data.train_files, data.corpus, data.corpus_size = None, "grammar", 60
    train, valid = (chat.open_conversations(data, split) for split in ("train", "valid"))
    conversations = [*train]
    parts = itertools.chain.from_iterable(train.parts())
    assert len(conversations) == 60 and conversations == [*parts]
    for messages in conversations:
        chat.check(messages, "here")
    counts = {sum(each["role"] == "user" for each in messages) for messages in conversations}
    assert counts == {1, 2, 3} and {messages[0]["role"] for messages in conversations} == {
        "system",
        "user",
    }
    texts = {json.dumps(messages) for messages in conversations}
    assert not texts & {json.dumps(messages) for messages in valid}
    assert train.fingerprint() != valid.fingerprint()


def test_a_packed_row_by_hand(tmp_path):
    _, (row,) = rows(tmp_path, [GOOD, {"messages": [message("system", "b"), *TURN]}], 16)
    # The order within a row is drawn.
    one = [USER, A, STOP, ASSISTANT, B, STOP]
    other = [SYSTEM, B, STOP, *one]
    chats = [one, other] if row["tokens"][0] == USER else [other, one]
    expected = {name: [] for name in row}
    for number, ids in enumerate(chats, 1):
        size = len(ids) - 1
        expected["tokens"] += ids[:-1]
        expected["labels"] += ids[1:]
        expected["weights"] += [0] * (size - 2) + [1, 1]
        expected["positions"] += range(size)
        expected["segment_ids"] += [number] * size
    for name, values in row.items():
        assert values.dtype == np.int32
        assert values.tolist() == expected[name] + [0] * 3, name


def test_each_conversation_is_packed_once_and_long_ones_lose_their_end(tmp_path):
    draw = np.random.default_rng(0)

    def word(longest):
        return "".join(draw.choice(["a", "b"], draw.integers(1, longest + 1)))

    lines = [{"prompt": word(9), "completion": word(9)} for _ in range(150)]
    lines += [
        {"prompt": "a", "completion": "b" * 30},  # cut
        {"prompt": "a" * 40, "completion": "b"},  # nothing of the completion is left
    ]
    component, read = rows(tmp_path, lines, 24)
    letters = component.tokenizer
    expected = []
    for line in lines[:-1]:
        pair = [message("user", line["prompt"]), message("assistant", line["completion"])]
        expected.append(letters.render(pair).ids[:25].tolist())
    packed = []
    for row in read:
        for number in range(1, row["segment_ids"].max() + 1):
            inside = row["segment_ids"] == number
            ids = [row["tokens"][inside][0], *row["labels"][inside]]
            packed.append([int(i) for i in ids])
            assert (
                row["weights"][inside].tolist() == letters.is_completion(np.array(ids))[1:].tolist()
            )
    assert sorted(packed) == sorted(expected)
    meta = component.meta
    assert (meta["conversations"], meta["cut"], meta["unanswered"]) == (151, 1, 1)
    assert meta["answers"] == sum(row["weights"].sum() for row in read)
    assert meta["labels"] == sum((row["segment_ids"] > 0).sum() for row in read)
    assert len(read) < 151 / 1.5 and END not in np.concatenate([row["tokens"][:1] for row in read])


def test_no_conversation_that_fits_is_refused(tmp_path):
    message = "config.data.train_files: no conversation is left after dropping 1 without a reply"
    with pytest.raises(UserError, match=message):
        rows(tmp_path, [{"prompt": "a" * 40, "completion": "b"}], 24)
