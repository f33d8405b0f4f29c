"""Conversations: JSON lines of messages, or of prompts and completions, and built-in ones.

A line is {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]},
or {"prompt": ..., "completion": ...}: a message of the user, and one of the assistant. Each split
is an object that can be iterated over again and has a fingerprint.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from transformer_jax.config import UserError
from transformer_jax.data.sources import parts
from transformer_jax.data.sources.file_digests import sha256
from transformer_jax.data.sources.text_files import (
    Place,
    Span,
    from_json,
    matching_files,
    text_lines,
)
from transformer_jax.data.tokenizers.chat import ROLES, Message

CORPUS = "grammar"
_HELD_OUT = 300  # built-in conversations of the validation and test splits
_MOST_TURNS = 3  # of a built-in conversation
_CONVERSATION_BYTES = 300  # of a built-in one, about
_VERSION = "1"  # of the form of the built-in conversations
_SYSTEM = "You translate between English and German."


@dataclasses.dataclass(frozen=True)
class Conversations:
    """The conversations in spans of JSON lines. Lines without text are left out."""

    spans: tuple[Span, ...]

    def fingerprint(self) -> dict:
        return {"conversations": sha256([span.file for span in self.spans])}

    def parts(self) -> list["Conversations"]:
        files = [span.file for span in self.spans]
        return [Conversations(spans) for spans in parts.of_documents(files, _boundary)]

    def __iter__(self) -> Iterator[Sequence[Message]]:
        for span in self.spans:
            for index, line in enumerate(text_lines(span)):
                if line.strip():
                    place = Place(span, index)
                    yield _conversation(from_json(line, place), place)


def _boundary(file: str):
    return parts.next_line


def _conversation(value, place: Place) -> list[Message]:
    """Returns the messages of a JSON value. Raises UserError where they are no conversation."""
    match value:
        case {"messages": messages}:
            check(messages, str(place))
        case {"prompt": prompt, "completion": completion}:
            for name in ("prompt", "completion"):
                _check_text(value[name], f"{place}: {name!r}")
            messages = [
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": completion},
            ]
        case _:
            raise UserError(
                f"{place}: not a JSON object with 'messages', or with 'prompt' and 'completion'"
            )
    if not any(message["role"] == "assistant" for message in messages):
        raise UserError(f"{place}: no message of the assistant, so nothing to learn from")
    return messages


def check(messages, where: str) -> None:
    """Raises UserError where `messages` are no conversation; `where` begins the error.

    A conversation has at least one message. Only its first may be of the system. No content is
    empty.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise UserError(f"{where}: 'messages' must be a list of at least one message")
    for number, message in enumerate(messages, 1):
        name = f"{where}: message {number}"
        if not isinstance(message, dict):
            raise UserError(f"{name}: not an object with 'role' and 'content'")
        if missing := [key for key in ("role", "content") if key not in message]:
            raise UserError(f"{name}: {missing[0]!r} is missing")
        if message["role"] not in ROLES:
            raise UserError(f"{name}: role {message['role']!r} must be one of {', '.join(ROLES)}")
        if message["role"] == "system" and number > 1:
            raise UserError(f"{name}: a message of the system must be the first")
        _check_text(message["content"], f"{name}: 'content'")


def check_turns(messages, where: str) -> None:
    """Raises UserError where `messages` are no conversation that ends with the user."""
    check(messages, where)
    if messages[-1]["role"] != "user":
        raise UserError(f"{where}: the last one must be of the user, whom the model answers")


def _check_text(text, name: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{name} must be a text that is not empty")


@dataclasses.dataclass(frozen=True)
class GrammarConversations:
    """Conversations of one to three translations, of sentences of the built-in grammar.

    The user asks for the German of an English sentence, or for the English of a German one. Every
    second conversation begins with a message of the system.
    """

    split: str
    size: int  # the number of the last conversation, and one
    start: int = 0  # the first conversation

    def fingerprint(self) -> dict:
        # Imported here because the lexicon takes time to read.
        from transformer_jax.data import grammar

        versions = {"grammar": grammar.VERSION, "conversations": _VERSION}
        return versions | {"split": self.split, "size": self.size}

    def parts(self) -> list["GrammarConversations"]:
        ranges = parts.ranges(self.size, self.size * _CONVERSATION_BYTES)
        return [dataclasses.replace(self, start=start, size=stop) for start, stop in ranges]

    def __iter__(self) -> Iterator[list[Message]]:
        for number in range(self.start, self.size):
            messages = [{"role": "system", "content": _SYSTEM}] if number % 2 else []
            for turn in range(1 + number % _MOST_TURNS):
                messages += _translation(self.split, number * _MOST_TURNS + turn)
            yield messages


def _translation(split: str, number: int) -> list[Message]:
    """Returns the question for a translation, and its answer."""
    from transformer_jax.data import grammar

    english, german = grammar.sentence_pair(0, split, number)
    language, source, target = ("German", english, german)
    if number % 4 == 3:
        language, source, target = ("English", german, english)
    return [
        {"role": "user", "content": f"How do you say in {language}: {source}"},
        {"role": "assistant", "content": target},
    ]


def of_split(data, split: str) -> Conversations | GrammarConversations | None:
    """Returns the conversations of a split that `config.data` names; None where it names none.

    Raises UserError where a file does not exist, where two sources are named, and where there are
    no training conversations.
    """
    key = f"{split}_files"
    if data.corpus and data.train_files:
        raise UserError(
            f"config.data.corpus={data.corpus} and config.data.train_files: name one source of "
            "conversations"
        )
    if data[key]:  # users may evaluate on their own files whatever the run was trained on
        return Conversations(tuple(map(Span, matching_files(f"config.data.{key}", data[key]))))
    if data.corpus == CORPUS:
        return GrammarConversations(split, data.corpus_size if split == "train" else _HELD_OUT)
    if data.corpus:
        raise UserError(
            f"config.data.corpus={data.corpus}: holds no conversations; only {CORPUS} does"
        )
    if split == "train":
        raise UserError(
            "config.data.train_files is missing: the training conversations, as JSON lines"
        )
    return None
