"""Rows of conversations, of prompts, and of prompts with completions."""

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
from transformer_jax.data.tokenizers.chat import ChatTokenizer, Prompt, as_messages
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# Packed conversations: each row holds several, and their answers alone have a weight.

_CONVERSATIONS_PER_BLOCK = 10_000  # tokenised together
_COUNTS = ("conversations", "rows", "cut", "unanswered", "labels", "answers")


class PackedChats:
    """Rows of several conversations, apart by segment ids (1, 2, ...; 0 is padding).

    Keys, all int32 (L,): tokens, labels (the token that follows each), weights (1 where the
    assistant writes the label), positions, which begin anew with each conversation, segment_ids.
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
        """Returns the row of conversations, behind each of which stands the end of a document."""
        is_end = tokens == self.tokenizer.eos_id
        # The last token of a conversation predicts none.
        read = np.flatnonzero(~is_end & ~np.append(is_end[1:], True))
        segments = 1 + np.cumsum(is_end)[read]
        _, first, lengths = np.unique(segments, return_index=True, return_counts=True)
        row = {
            "tokens": tokens[read],
            "labels": tokens[read + 1],
            "weights": self.tokenizer.is_answer(tokens)[read + 1],
            "positions": np.arange(len(read)) - np.repeat(first, lengths),
            "segment_ids": segments,
        }
        return {name: padded(values, self.length) for name, values in row.items()}


@dataclasses.dataclass(frozen=True)
class ChatRows:
    """Rows of `length` tokens, of the conversations that `config.data` names."""

    config: ConfigDict
    length: int

    def text(self, split: str):
        """Returns the conversations of a split; None where `config.data` names none."""
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
            data.cache, f"chats-{split}", key, tokenizer.vocab_size, content, rebuild=data.rebuild
        )
        say(f"{split}: {_summary(stored.meta, self.length)}")
        return PackedChats(stored, tokenizer, self.length)


@dataclasses.dataclass(frozen=True)
class Contents:
    """The texts of the messages of conversations, of which a tokenizer is trained."""

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

    A conversation that is longer loses its end; it is left out where no answer is left.
    """

    tokenizer: ChatTokenizer
    length: int
    seed: int

    def __call__(self, writer: store.Writer, numbered: tuple[int, Iterable]) -> dict:
        """Writes the rows, a conversation and the end of a document in turn; returns counts."""
        number, conversations = numbered
        sequences = packing.Sequences()
        counts = dict.fromkeys(_COUNTS, 0)
        remaining = iter(conversations)
        while block := list(itertools.islice(remaining, _CONVERSATIONS_PER_BLOCK)):
            sequences.append([*self._fitting(self.tokenizer.render_all(block), counts)])
        sequences.join()
        # Neither the last token of a conversation nor the end behind it is read.
        plan = packing.plan_texts(sequences.lengths - 2, self.length, (self.seed, number))
        packing.write(writer, ([sequences.sequence(i) for i in row] for row in plan))
        counts["conversations"], counts["rows"] = len(sequences.lengths), len(plan)
        return counts

    def _fitting(self, rendered, counts: dict[str, int]) -> Iterator[list[int]]:
        """Yields the ids of conversations with the end of a document, and adds to the counts."""
        for ids, is_answer in rendered:
            fits = slice(self.length + 1)
            answers = int(is_answer[fits].sum())
            if not answers:
                counts["unanswered"] += 1
                continue
            counts["cut"] += len(ids) > self.length + 1
            counts["labels"] += len(ids[fits]) - 1
            counts["answers"] += answers
            yield [*ids[fits], self.tokenizer.eos_id]


@dataclasses.dataclass(frozen=True)
class _Whole:
    """Adds up the counts of the parts. Raises UserError where no conversation is left."""

    split: str
    length: int

    def __call__(self, parts: list[dict]) -> dict[str, int]:
        counts = texts.sums(parts, _COUNTS)
        if not counts["conversations"]:
            raise UserError(
                f"config.data.{self.split}_files: no conversation is left after dropping "
                f"{counts['unanswered']} without an answer in their first "
                f"config.task.length={self.length} tokens"
            )
        return counts


def _summary(meta: dict, length: int) -> str:
    num_rows, positions = meta["rows"], meta["rows"] * length
    summary = (
        f"{meta['conversations']:,} conversations in {num_rows:,} rows, "
        f"{meta['answers'] / positions:.1%} of the positions are answers, "
        f"{1 - meta['labels'] / positions:.1%} are padding"
    )
    if meta["cut"]:
        summary += f", cut {meta['cut']:,} at the end"
    if meta["unanswered"]:
        summary += f", dropped {meta['unanswered']:,} whose answers lie beyond a row"
    return summary


# --------------------------------------------------------------------------------------------------
# Rows of prompts, alone or beside rows of texts.


@dataclasses.dataclass(frozen=True)
class PromptRows:
    """Prompts as ids, each the row of `prompts` (P,) int32 and `prompt_lengths` ()."""

    ids: Sequence[Sequence[int]]
    length: int  # P, at least that of the longest prompt

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
    """Training rows of prompts, with a row of texts beside each, whose keys begin with "text_"."""

    prompts: TrainRows
    texts: Any  # training rows

    def row_shape(self, step: int) -> int:
        return self.prompts.row_shape(step)

    def size(self, step: int) -> int:
        return self.prompts.size(step)

    def until(self, step: int) -> float:
        return self.prompts.until(step)

    def batch(self, step: int, places: Sequence[int]) -> Row:
        texts = self.texts.batch(step, places).items()
        return self.prompts.batch(step, places) | {f"text_{name}": x for name, x in texts}


# --------------------------------------------------------------------------------------------------
# Prompts with completions, as token ids.
#
# A prompt and its completions are encoded apart. So the ids of a prompt are those that a policy
# continues: as `CausalUse.replies` has them where the tokenizer knows the marks of conversations,
# and else as `CausalUse.generate` has them.

Ids = list[int]


class Example(NamedTuple):
    """A prompt with its completions, the best first."""

    prompt: Ids
    completions: list[Ids]
    label: float = 1.0  # the probability that each one is preferred to those behind it


def prompt_ids(
    tokenizer: Any, prompts: Sequence[Prompt], with_start: Callable[[Ids], Ids]
) -> list[Ids]:
    """Returns the ids of prompts.

    With a ChatTokenizer a prompt is a conversation, up to the place where the assistant answers.
    Else it is a text behind the token that a document starts with, which `with_start` adds. Raises
    UserError for messages where the tokenizer knows no marks.
    """
    if isinstance(tokenizer, ChatTokenizer):
        return tokenizer.prompts([as_messages(prompt) for prompt in prompts])
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise UserError(
            "a prompt has messages, but the run in config.init_from knows no marks of "
            "conversations; begin with a run of config.task.name='chat', or give texts"
        )
    return [with_start(ids) for ids in tokenizer.encode(list(prompts))]


def end_id(tokenizer: Any) -> int:
    """Returns the token at the end of a language model's completion."""
    return tokenizer.end_id if isinstance(tokenizer, ChatTokenizer) else tokenizer.eos_id


def completion_ids(tokenizer: Any, texts: Sequence[str], end: Sequence[int]) -> list[Ids]:
    """Returns the ids of completions, each with its `end`."""
    return [[*ids, *end] for ids in tokenizer.encode(list(texts))]


def fitted(example: Example, room: int) -> Example:
    """Returns an example whose prompt and each completion have at most `room` tokens together.

    The prompt loses its beginning, but not its last room / 2 tokens. Then the completions lose
    their ends. All completions have the same prompt.
    """
    longest = max(map(len, example.completions))
    prompt = example.prompt[-max(room - longest, room // 2) :]
    left = room - len(prompt)
    return example._replace(prompt=prompt, completions=[ids[:left] for ids in example.completions])
