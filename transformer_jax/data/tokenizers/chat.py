"""The chat template: conversations as ids, with marks that no text can contain.

A conversation is a list of messages, {"role": "user", "content": "Hello"} and so on. Each message
is the mark of its role, its text, and the mark of an end:

    <user>Hello<end><assistant>Hello! What can I do?<end>
"""

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Integer

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant")
MARKS = ("<system>", "<user>", "<assistant>", "<end>")  # one of each role, and the end
FILE = "chat.json"

Message = Mapping[str, str]  # {"role": one of ROLES, "content": a text}
Prompt = str | Sequence[Message]  # a text is a message of the user


def as_messages(prompt: Prompt) -> Sequence[Message]:
    """Returns the conversation that is to be answered."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


class Rendered(NamedTuple):
    """A conversation as ids.

    Attributes:
      ids: (N,) int32.
      is_answer: (N,) bool, the tokens that the assistant writes: its texts, and the end of each.
    """

    ids: Integer[np.ndarray, " N"]
    is_answer: Bool[np.ndarray, " N"]


class ChatTokenizer(Tokenizer):
    """A tokenizer with the marks of a conversation, one token each behind its vocabulary.

    The ids of the marks are the last four. A text that contains "<user>" has the ids of these
    letters: only a role gives a mark. Decoded marks give no text.
    """

    def __init__(self, base: Tokenizer, marks: Sequence[str] = MARKS):
        super().__init__(base.model)
        self.base = base
        self.marks = tuple(marks)
        self.vocab_size = base.vocab_size + len(self.marks)
        ids = range(base.vocab_size, self.vocab_size)
        self.role_ids = dict(zip(ROLES, ids))
        self.end_id = ids[-1]
        for name in ("eos_id", "bos_id", "pad_id", "unk_id", "cls_id", "sep_id", "mask_id"):
            setattr(self, name, getattr(base, name))
        self.never, self.pair_separators = base.never, base.pair_separators
        self.special = np.append(base.special, [True] * len(self.marks))

    def __reduce__(self):
        return type(self), (self.base, self.marks)

    # the template

    def render(self, messages: Sequence[Message]) -> Rendered:
        """Returns a whole conversation."""
        return self.render_all([messages])[0]

    def render_all(self, conversations: Sequence[Sequence[Message]]) -> list[Rendered]:
        """Returns whole conversations. All their texts are encoded together."""
        texts = [message["content"] for messages in conversations for message in messages]
        encoded = iter(self.encode(texts))
        return [self._rendered(messages, encoded) for messages in conversations]

    def _rendered(self, messages: Sequence[Message], encoded) -> Rendered:
        parts = [
            [self.role_ids[message["role"]], *next(encoded), self.end_id] for message in messages
        ]
        ids = np.fromiter(itertools.chain.from_iterable(parts), np.int32)
        return Rendered(ids, self.is_answer(ids))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Returns the ids of a conversation, and the mark behind which the assistant answers."""
        return self.prompts([messages])[0]

    def prompts(self, conversations: Sequence[Sequence[Message]]) -> list[list[int]]:
        """Returns the `prompt` of each conversation. All their texts are encoded together."""
        mark = self.role_ids["assistant"]
        return [[*each.ids.tolist(), mark] for each in self.render_all(conversations)]

    def answer(self, text: str) -> list[int]:
        """Returns the ids of an answer behind a `prompt`, its end included."""
        return [*self.encode(text), self.end_id]

    def is_answer(self, ids: Integer[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
        """Returns which ids the assistant writes: those behind its mark, up to the next mark.

        The mark of the end is among them. `ids` may hold several conversations.
        """
        is_mark = ids >= self.base.vocab_size
        places = np.maximum.accumulate(np.where(is_mark, np.arange(len(ids)), -1))
        before = np.append(-1, places)[: len(ids)]  # the last mark before each place
        return (before >= 0) & (ids[before] == self.role_ids["assistant"])

    @property
    def answering(self) -> "ChatTokenizer":
        """This tokenizer as a decoder of answers takes it: the mark of the end ends a text."""
        answering = copy.copy(self)
        answering.eos_id = self.end_id
        return answering

    # the tokenizer

    def _encode(self, texts):
        return self.base.encode(texts)

    def encode_spans(self, texts):
        return self.base.encode_spans(texts)

    def _decode(self, ids):
        return [self._text(sequence) for sequence in ids]

    def _text(self, ids: list[int]) -> str:
        """Returns the texts between marks, each decoded by itself."""
        groups = itertools.groupby(ids, key=self._is_mark)
        return "".join(self.base.decode([*group]) for is_mark, group in groups if not is_mark)

    def _is_mark(self, i: int) -> bool:
        return self.base.vocab_size <= i < self.vocab_size

    def pieces(self, ids):
        first = self.base.vocab_size
        return [
            self.marks[i - first] if self._is_mark(i) else self.base.pieces([i])[0] for i in ids
        ]

    def begins_word(self, piece):
        return piece in self.marks or self.base.begins_word(piece)

    def ends_word(self, piece):
        return piece in self.marks or self.base.ends_word(piece)

    def without_marks(self, piece):
        return piece if piece in self.marks else self.base.without_marks(piece)

    def fingerprint(self):
        return f"{self.base.fingerprint()} {json.dumps(self.marks)}"

    def files(self):
        return self.base.files() | {FILE: json.dumps({"marks": self.marks}).encode()}

    @property
    def hf_end(self):
        return [self.eos_id, self.end_id]

    def hf_files(self):
        *of_roles, end = self.marks
        marks = json.dumps(dict(zip(ROLES, of_roles)))
        template = (
            f"{{% set marks = {marks} %}}{{% for message in messages %}}"
            f"{{{{ marks[message['role']] + message['content'] + {json.dumps(end)} }}}}"
            f"{{% endfor %}}{{% if add_generation_prompt %}}"
            f"{{{{ marks['assistant'] }}}}{{% endif %}}"
        )
        return self.base.hf_with(self.marks, {"eos_token": end, "chat_template": template})


def with_marks(tokenizer: Tokenizer, marks: Sequence[str]) -> ChatTokenizer:
    """Returns the tokenizer with these marks: of system, user, assistant, and the end.

    Raises UserError for other values, and where the tokenizer has other marks already.
    """
    are_texts = all(isinstance(mark, str) and mark.strip() for mark in marks)
    if len(marks) != len(MARKS) or not are_texts or len(set(marks)) < len(marks):
        raise UserError(
            f"config.task.special_tokens={tuple(marks)!r}: must be four different texts, those "
            "of system, user, assistant and the end of a message"
        )
    if not isinstance(tokenizer, ChatTokenizer):
        return ChatTokenizer(tokenizer, marks)
    if tokenizer.marks != tuple(marks):
        raise UserError(
            f"config.task.special_tokens={tuple(marks)!r}: the run in config.init_from has "
            f"{tokenizer.marks!r}; give these"
        )
    return tokenizer
