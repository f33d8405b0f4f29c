"""Conversations, prompts and preferences between completions, from files or built in."""

import dataclasses
from collections.abc import Iterator, Sequence

from transformer_jax.config import UserError
from transformer_jax.data.sources import text_files
from transformer_jax.data.sources.tables import is_table, objects, split_files
from transformer_jax.data.sources.text_files import (
    Location,
    Span,
    from_json,
    matching_files,
    sha256,
    text_lines,
)
from transformer_jax.data.tokenizers.chat import ROLES, Message, Prompt

# --------------------------------------------------------------------------------------------------
# Conversations: files of messages, files of prompts and completions, and built-in ones.
#
# A line is {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]},
# or {"prompt": ..., "completion": ...}, which are one message of the user and one of the assistant.
# A table has columns of these names. Where a cell is a text, as in CSV, lists are JSON in it.
# Each split is an object that can be iterated over repeatedly, because a tokenizer may be trained
# on it first, and has a fingerprint, by which caches notice another text.

CORPUS = "grammar"
_HELD_OUT = 300  # built-in conversations in each of the validation and test splits
_MOST_TURNS = 3  # in a built-in conversation
_CONVERSATION_BYTES = 300  # approximate size of a built-in one, which divides them into parts
# Part of the fingerprint; it changes whenever the built-in conversations change.
_VERSION = "1"
_SYSTEM = "You translate between English and German."


@dataclasses.dataclass(frozen=True)
class Conversations:
    """The conversations in spans of files: JSON lines, or tables. Blank lines are skipped.

    Iterating raises UserError for a line that is not a conversation.
    """

    spans: tuple[Span, ...]

    def fingerprint(self) -> dict:
        return {"conversations": sha256([span.file for span in self.spans])}

    def parts(self) -> list["Conversations"]:
        files = [span.file for span in self.spans]
        return [Conversations(spans) for spans in text_files.document_parts(files, _boundary)]

    def __iter__(self) -> Iterator[Sequence[Message]]:
        return (
            _conversation(value, where) for span in self.spans for where, value in _values(span)
        )


def _boundary(file: str):
    # Every line end is a boundary, because a conversation is one line.
    return None if _is_whole(file) else text_files.next_line


def _is_whole(file: str) -> bool:
    """Returns whether a file is read as a whole: a table, one list of JSON, or compressed."""
    name = text_files.uncompressed_name(file)
    return text_files.is_compressed(file) or is_table(file) or name.endswith(".json")


# Keys whose values are no texts. In CSV, and in many a table, they are JSON within a text.
_NO_TEXTS = ("messages", "completions", "label")


def _values(span: Span) -> Iterator[tuple[str | Location, object]]:
    """Yields (location, value) for each line of JSON lines, or each row of a table."""
    if _is_whole(span.file):
        for where, value in objects(span.file):
            yield where, _unpacked(value, where) if is_table(span.file) else value
        return
    for index, line in enumerate(text_lines(span)):
        if line.strip():
            location = Location(span, index)
            yield location, from_json(line, location)


def _unpacked(row: dict, where: str) -> dict:
    # An empty cell is none, because a table has the columns of all its rows. Only a prompt may be
    # an empty text, where no messages stand in its place.
    filled = {key: value for key, value in row.items() if value != ""}
    if "messages" not in filled and "prompt" in row:
        filled["prompt"] = row["prompt"]
    packed = [key for key in _NO_TEXTS if isinstance(filled.get(key), str)]
    return filled | {key: from_json(filled[key], f"{where}: {key!r}") for key in packed}


def _conversation(value, location: str | Location) -> list[Message]:
    """Returns the messages of a JSON value. Raises UserError if it is not a conversation."""
    match value:
        case {"messages": messages}:
            check(messages, str(location))
        case {"prompt": prompt, "completion": completion}:
            for name in ("prompt", "completion"):
                _check_text(value[name], f"{location}: {name!r}")
            messages = [
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": completion},
            ]
        case _:
            raise UserError(
                f"{location}: no object with 'messages', or with 'prompt' and 'completion'"
            )
    # Refused here, where the line is known: all of its weights would be 0.
    if not any(message["role"] == "assistant" for message in messages):
        raise UserError(f"{location}: no message of the assistant, so nothing to learn from")
    return messages


def check(messages, where: str) -> None:
    """Raises UserError if `messages` is not a conversation. The message starts with `where`.

    A conversation has at least one message, only its first message may be of the system, and no
    content is empty.
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
    """Raises UserError if `messages` is not a conversation that ends with a user's message."""
    check(messages, where)
    if messages[-1]["role"] != "user":
        raise UserError(f"{where}: the last one must be of the user, to whom the model replies")


def _check_text(text, name: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{name} must be a text that is not empty")


@dataclasses.dataclass(frozen=True)
class GrammarConversations:
    """Conversations about one to three translations of sentences from the built-in grammar.

    The user asks for the German of an English sentence, or for the English of a German one. Every
    second conversation starts with a message of the system.
    """

    split: str
    size: int  # the end of the range of conversations
    start: int = 0  # the start of the range

    def fingerprint(self) -> dict:
        # Imported here because reading the lexicon takes time.
        from transformer_jax.corpora import grammar

        versions = {"grammar": grammar.VERSION, "conversations": _VERSION}
        return versions | {"split": self.split, "size": self.size}

    def parts(self) -> list["GrammarConversations"]:
        ranges = text_files.ranges(self.size, self.size * _CONVERSATION_BYTES)
        return [dataclasses.replace(self, start=start, size=stop) for start, stop in ranges]

    def __iter__(self) -> Iterator[list[Message]]:
        for number in range(self.start, self.size):
            messages = [{"role": "system", "content": _SYSTEM}] if number % 2 else []
            # By the number and not at random, so that all lengths occur equally often in any range.
            for turn in range(1 + number % _MOST_TURNS):
                messages += _translation(self.split, number * _MOST_TURNS + turn)
            yield messages


def _translation(split: str, number: int) -> list[Message]:
    """Returns a question for a translation, and the reply."""
    from transformer_jax.corpora import grammar

    english, german = grammar.sentence_pair(0, split, number)
    language, source, target = ("German", english, german)
    if number % 4 == 3:
        language, source, target = ("English", german, english)
    return [
        {"role": "user", "content": f"How do you say in {language}: {source}"},
        {"role": "assistant", "content": target},
    ]


def open_conversations(data, split: str) -> Conversations | GrammarConversations | None:
    """Returns the conversations of a split that `config.data` names, or None if it names none.

    Raises UserError if a file does not exist, if two sources are named, or if there are no training
    conversations.
    """
    key = f"{split}_files"
    if data.corpus and data.train_files:
        raise UserError(
            f"config.data.corpus={data.corpus} and config.data.train_files: name one source of "
            "conversations"
        )
    if data[key]:  # users may evaluate on their own files, whatever the run was trained on
        return Conversations(tuple(map(Span, matching_files(f"config.data.{key}", data[key]))))
    if data.corpus == CORPUS:
        return GrammarConversations(split, data.corpus_size if split == "train" else _HELD_OUT)
    if data.corpus:
        raise UserError(
            f"config.data.corpus={data.corpus}: has no conversations; only {CORPUS} does"
        )
    if split == "train":
        raise UserError(
            "config.data.train_files is missing: the training conversations, as JSON lines or "
            "tables"
        )
    return None


# --------------------------------------------------------------------------------------------------
# Prompts: JSON lines, tables, text files with one prompt per line, or the built-in questions.
#
# A line of *.jsonl is {"prompt": ...}, {"messages": [...]} or a JSON string. Other keys are
# ignored, so that files of preferences or conversations with completions can serve as prompts, too.


@dataclasses.dataclass(frozen=True)
class Prompts:
    """The prompts in files. Blank lines are skipped."""

    paths: tuple[str, ...]

    def fingerprint(self) -> dict:
        return {"prompts": sha256(self.paths)}

    def __iter__(self) -> Iterator[Prompt]:
        for path in self.paths:
            # By the name of the file, because a prompt in a text file may itself look like JSON.
            if is_table(path) or text_files.uncompressed_name(path).endswith((".jsonl", ".json")):
                yield from (_prompt(value, str(where)) for where, value in _values(Span(path)))
            else:
                yield from filter(str.strip, text_lines(path))


@dataclasses.dataclass(frozen=True)
class Questions:
    """The first question of each conversation, with the message of the system before it, if any."""

    conversations: Conversations | GrammarConversations

    def fingerprint(self) -> dict:
        return {"prompts": self.conversations.fingerprint()}

    def __iter__(self) -> Iterator[Prompt]:
        return (prompt for prompt, _ in self.answered())

    def answered(self) -> Iterator[tuple[list[Message], str]]:
        """Yields each question with the reply that the conversation gives."""
        for messages in self.conversations:
            first = next(i for i, each in enumerate(messages) if each["role"] == "assistant")
            yield messages[:first], messages[first]["content"]


def open_prompts(data, split: str) -> Prompts | Questions | None:
    """Returns the prompts of a split that `config.data` names, or None if it names none."""
    if data.corpus:
        return Questions(open_conversations(data, split))
    paths = split_files(data, split)
    return paths and Prompts(paths)


def _prompt(value, where: str) -> Prompt:
    """Returns the prompt of a JSON value. Raises UserError if it has none."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise UserError(f"{where}: neither a JSON object with 'prompt' nor a JSON string")
    return prompt_of(value, where)


# --------------------------------------------------------------------------------------------------
# Preferences between completions of a prompt, as JSON lines or tables. The completions of a ranking
# stay together, because a reward model overfits if their pairs are shuffled among all others
# (Ouyang et al. 2022, section 3.5).
#
# A line is a pair, {"prompt": ..., "chosen": ..., "rejected": ...}, or a ranking, {"prompt": ...,
# "completions": [best, ..., worst]}. The "label" of a pair, 1 by default, is the probability that
# `chosen` is preferred. "messages", a conversation that ends with a user's message, may replace the
# prompt.

FEWEST, MOST = 2, 9  # completions of a prompt (Ouyang et al. 2022, section 3.5: 4 to 9)


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Ranked completions of a prompt.

    Attributes:
      where: file and line, for error messages.
      prompt: a text, which may be empty, or messages.
      completions: different texts, from best to worst.
      label: the probability that each of them is preferred to those after it.
    """

    where: str
    prompt: Prompt
    completions: tuple[str, ...]
    label: float = 1.0


@dataclasses.dataclass(frozen=True)
class Preferences:
    """The rankings in files. A pair is a ranking of two completions. Blank lines are skipped."""

    paths: tuple[str, ...]

    def fingerprint(self) -> dict:
        return {"preferences": sha256(self.paths)}

    def __iter__(self) -> Iterator[Ranking]:
        for path in self.paths:
            yield from (_ranking(value, str(where)) for where, value in _values(Span(path)))


def open_preferences(data, split: str) -> Preferences | None:
    """Returns the rankings of a split that `config.data` names, or None if it names none."""
    paths = split_files(data, split)
    return paths and Preferences(paths)


def _ranking(value, where: str) -> Ranking:
    """Returns the ranking of a JSON value. Raises UserError if it is not one."""
    if not isinstance(value, dict):
        raise UserError(
            f"{where}: not a JSON object with 'prompt', 'chosen' and 'rejected', or with 'prompt' "
            "and 'completions'"
        )
    if "completions" in value:
        for key in ("chosen", "rejected", "label"):
            if key in value:
                raise UserError(f"{where}: {key!r} and 'completions': give a pair or a ranking")
        completions = _completions(value["completions"], where)
        named = {f"completion {number}": text for number, text in enumerate(completions, 1)}
    else:
        named = {f"'{key}'": text_of(value, key, where) for key in ("chosen", "rejected")}
    _check_different(named, where)
    return Ranking(where, prompt_of(value, where), tuple(named.values()), _label(value, where))


def prompt_of(value: dict, where: str) -> Prompt:
    """Returns the prompt of a JSON object. Raises UserError if there is none, or two."""
    if "messages" not in value:
        return text_of(value, "prompt", where)
    if "prompt" in value:
        raise UserError(f"{where}: 'messages' and 'prompt': give one of them")
    check_turns(value["messages"], where)
    return value["messages"]


def text_of(value: dict, key: str, where: str) -> str:
    """Returns the text under a key. Raises UserError if it is missing or not a text."""
    if key not in value:
        raise UserError(f"{where}: no key {key!r}")
    if not isinstance(value[key], str):
        raise UserError(f"{where}: {key!r} is not a text")
    return value[key]


def _completions(texts, where: str) -> list[str]:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: 'completions' is not a list of texts")
    if not FEWEST <= len(texts) <= MOST:
        raise UserError(
            f"{where}: 'completions' has {len(texts)}: must have from {FEWEST} to {MOST}"
        )
    return texts


def _check_different(named: dict[str, str], where: str) -> None:
    names = {}
    for name, text in named.items():
        # Equal completions would be pushed up and down at once.
        if text in names:
            raise UserError(f"{where}: {names[text]} and {name} are equal: neither is preferred")
        names[text] = name


def _label(value: dict, where: str) -> float:
    label = value.get("label", 1.0)
    # True is an instance of int, but a mistake here.
    is_number = isinstance(label, int | float) and not isinstance(label, bool)
    if not is_number or not 0 <= label <= 1:
        raise UserError(f"{where}: 'label' must be a probability, a number from 0 to 1")
    return float(label)
