"""Rows of conversations, rows of prompts, and prompts with completions."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data import packing, rows, store, texts
from transformer_jax.data.rows import Row, TrainRows, padded
from transformer_jax.data.sources import chat
from transformer_jax.data.tokenizers.chat import ChatTokenizer, Prompt, Rendered, as_messages
from transformer_jax.data.tokenizers.chat_template import conversational
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# Packed conversations: each row has several, in which only the assistant's tokens have weights,
# because the model must not learn to write the messages of users.

_CONVERSATIONS_PER_BLOCK = 10_000  # tokenized in one call; all at once would fill the memory
_COUNTS = ("conversations", "rows", "cut", "unanswered", "labels", "answers")


class PackedChats:
    """Rows of several conversations, which segment ids distinguish (1, 2, ...; 0 is padding).

    Keys, all int32 (L,): tokens, labels (the next token of each), weights (1 if the label is a
    token that the assistant generates), positions (which restart at 0 in each conversation), and
    segment_ids.
    """

    def __init__(self, stored: store.Store, tokenizer: ChatTokenizer, length: int):
        self.meta = stored.meta
        self.tokenizer = tokenizer
        self.length = length
        self._rows = packing.StoredRows(stored)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [*map(self._row, self._rows.read([number for number, _ in numbers]))]

    def _row(self, tokens: np.ndarray) -> Row:
        """Returns the row for stored tokens, in which a delimiter follows each conversation."""
        tokens, is_completion, is_end = self.tokenizer.unstored(tokens)
        # The last token of a conversation is not an input, because it predicts nothing.
        read = np.flatnonzero(~is_end & ~np.append(is_end[1:], True))
        segments = 1 + np.cumsum(is_end)[read]
        _, first, lengths = np.unique(segments, return_index=True, return_counts=True)
        row = {
            "tokens": tokens[read],
            "labels": tokens[read + 1],
            "weights": is_completion[read + 1],
            "positions": np.arange(len(read)) - np.repeat(first, lengths),
            "segment_ids": segments,
        }
        return {name: padded(values, self.length) for name, values in row.items()}


@dataclasses.dataclass(frozen=True)
class ChatRows:
    """Rows of `length` tokens from the conversations that `config.data` names."""

    config: ConfigDict
    length: int

    def text(self, split: str):
        """Returns the conversations of a split, or None if `config.data` names none."""
        return chat.open_conversations(self.config.data, split)

    def training_text(self) -> "Contents":
        return Contents(self.text("train"))

    def fingerprint(self) -> dict:
        return {"train": self.text("train").fingerprint()}

    def train(self, tokenizer: ChatTokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call packs the conversations."""
        return rows.train_rows(
            [self._packed(tokenizer, "train")], self.config.train, self.config.data.seed
        )

    def evaluation(self, tokenizer: ChatTokenizer, split: str) -> rows.EvalRows:
        return rows.EvalRows(self._packed(tokenizer, split))

    def _packed(self, tokenizer: ChatTokenizer, split: str) -> PackedChats:
        conversations, data = self.text(split), self.config.data
        key = {
            "text": conversations.fingerprint(),
            "tokenizer": tokenizer.fingerprint(),
            "length": self.length,
            "seed": data.seed,
        }
        content = store.Content(
            parts=lambda: [*enumerate(conversations.parts())],
            fill=_Packing(tokenizer, self.length, data.seed),
            whole=_Whole(split, self.length),
            title=f"packing {split}",
        )
        stored = store.build(
            data.cache, f"chats-{split}", key, tokenizer.stored_size, content, rebuild=data.rebuild
        )
        say(f"{split}: {_summary(stored.meta, self.length)}")
        return PackedChats(stored, tokenizer, self.length)


@dataclasses.dataclass(frozen=True)
class Contents:
    """The contents of all messages in conversations, on which a tokenizer is trained."""

    conversations: Iterable[Sequence[chat.Message]]

    def fingerprint(self) -> dict:
        return {"contents": self.conversations.fingerprint()}

    def parts(self) -> list["Contents"]:
        return [Contents(part) for part in self.conversations.parts()]

    def __iter__(self) -> Iterator[str]:
        return (message["content"] for messages in self.conversations for message in messages)


@dataclasses.dataclass(frozen=True)
class _Packing:
    """Packs one part of a split into rows of `length` tokens.

    A longer conversation is truncated, and it is dropped if no token of the assistant is left.
    """

    tokenizer: ChatTokenizer
    length: int
    seed: int

    def __call__(self, writer: store.Writer, numbered: tuple[int, Iterable]) -> dict:
        """Writes rows of conversations, each followed by a delimiter, and returns the counts."""
        number, conversations = numbered
        sequences = packing.Sequences()
        counts = dict.fromkeys(_COUNTS, 0)
        remaining = iter(conversations)
        while block := list(itertools.islice(remaining, _CONVERSATIONS_PER_BLOCK)):
            sequences.append([*self._fitting(self.tokenizer.render_all(block), counts)])
        sequences.join()
        # Two tokens of each stored conversation are not inputs: its last one, which predicts
        # nothing, and the delimiter after it.
        plan = packing.plan_texts(sequences.lengths - 2, self.length, (self.seed, number))
        packing.write(writer, ([sequences.sequence(i) for i in row] for row in plan))
        counts["conversations"], counts["rows"] = len(sequences.lengths), len(plan)
        return counts

    def _fitting(self, rendered, counts: dict[str, int]) -> Iterator[list[int]]:
        """Yields conversations as they are stored, and updates the counts."""
        for ids, is_completion in rendered:
            # L inputs and their L labels are L + 1 tokens.
            fits = slice(self.length + 1)
            num_tokens = int(is_completion[fits].sum())
            # Without a token of the assistant, all weights would be 0.
            if not num_tokens:
                counts["unanswered"] += 1
                continue
            counts["cut"] += len(ids) > self.length + 1
            counts["labels"] += len(ids[fits]) - 1
            counts["answers"] += num_tokens
            yield self.tokenizer.stored(Rendered(ids[fits], is_completion[fits])).tolist()


@dataclasses.dataclass(frozen=True)
class _Whole:
    """Sums the counts of the parts. Raises UserError if no conversation is left."""

    split: str
    length: int

    def __call__(self, parts: list[dict]) -> dict[str, int]:
        counts = texts.sums(parts, _COUNTS)
        if not counts["conversations"]:
            raise UserError(
                f"config.data.{self.split}_files: no conversation is left after dropping "
                f"{counts['unanswered']} without a reply in their first "
                f"config.task.length={self.length} tokens"
            )
        return counts


def _summary(meta: dict, length: int) -> str:
    num_rows, positions = meta["rows"], meta["rows"] * length
    summary = (
        f"{meta['conversations']:,} conversations in {num_rows:,} rows, "
        f"{meta['answers'] / positions:.1%} of the positions are completions, "
        f"{1 - meta['labels'] / positions:.1%} are padding"
    )
    if meta["cut"]:
        summary += f", cut {meta['cut']:,} at the end"
    if meta["unanswered"]:
        summary += f", dropped {meta['unanswered']:,} whose replies lie beyond a row"
    return summary


# --------------------------------------------------------------------------------------------------
# Rows of prompts, alone or together with rows of texts, for models that learn from completions of
# their own: such a row needs no labels.


@dataclasses.dataclass(frozen=True)
class PromptRows:
    """Rows of one prompt each: `prompts` (P,) int32, its ids, and `prompt_lengths` ()."""

    ids: Sequence[Sequence[int]]
    length: int  # P, at least the length of the longest prompt

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [
            {
                "prompts": padded(np.array(self.ids[number], np.int32), self.length),
                "prompt_lengths": np.int32(len(self.ids[number])),
            }
            for number, _ in numbers
        ]


@dataclasses.dataclass(frozen=True)
class WithTexts:
    """Training rows of prompts, each together with a row of texts under keys that start "text_"."""

    prompts: TrainRows
    texts: Any  # training rows

    def row_shape(self, step: int) -> int:
        return self.prompts.row_shape(step)

    def size(self, step: int) -> int:
        return self.prompts.size(step)

    def until(self, step: int) -> float:
        return self.prompts.until(step)

    def batch(self, step: int, indices: Sequence[int]) -> Row:
        # The same indices for both, so that each host reads only its own rows of either.
        texts = self.texts.batch(step, indices).items()
        return self.prompts.batch(step, indices) | {f"text_{name}": x for name, x in texts}


# --------------------------------------------------------------------------------------------------
# Prompts with completions, as token ids.
#
# A prompt and its completions are encoded separately, because encoding them together could merge
# characters of both into one token. The ids of a prompt are therefore the same as those that a
# policy continues: the ones in `CausalUse.replies` with a chat tokenizer, and otherwise the ones in
# `CausalUse.generate`.

Ids = list[int]


class Example(NamedTuple):
    """A prompt with its completions, from best to worst."""

    prompt: Ids
    completions: list[Ids]
    label: float = 1.0  # the probability that each one is preferred to those after it


def prompt_ids(
    tokenizer: Any, prompts: Sequence[Prompt], with_start: Callable[[Ids], Ids]
) -> list[Ids]:
    """Returns the ids of prompts.

    With a tokenizer for conversations, a prompt is one, followed by what comes before a reply.
    Otherwise it is a text, to which `with_start` adds the start token of a document. Raises
    UserError for messages if the tokenizer has no form for them.
    """
    if chat_tokenizer := conversational(tokenizer):
        return chat_tokenizer.prompts([as_messages(prompt) for prompt in prompts])
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise UserError(
            "a prompt has messages, but the run in config.init_from has no special tokens for "
            "conversations; start from a run of config.task.name='chat', or give texts"
        )
    return [with_start(ids) for ids in tokenizer.encode(list(prompts))]


def end_id(tokenizer: Any) -> int:
    """Returns the id that ends a completion of a language model."""
    chat_tokenizer = conversational(tokenizer)
    return tokenizer.eos_id if chat_tokenizer is None else chat_tokenizer.end_id


def completion_ids(tokenizer: Any, texts: Sequence[str], end: Sequence[int]) -> list[Ids]:
    """Returns the ids of completions, each followed by the ids in `end`."""
    return [[*ids, *end] for ids in tokenizer.encode(list(texts))]


def fitted(example: Example, room: int) -> Example:
    """Truncates an example so that the prompt with any of its completions fits in `room` tokens.

    First the start of the prompt is removed, except for its last room / 2 tokens, and then the ends
    of the completions. All completions keep the same prompt, so that their log-probabilities are
    comparable.
    """
    longest = max(map(len, example.completions))
    # The start of the prompt goes first, because its end is what the completions continue.
    prompt = example.prompt[-max(room - longest, room // 2) :]
    left = room - len(prompt)
    return example._replace(prompt=prompt, completions=[ids[:left] for ids in example.completions])
