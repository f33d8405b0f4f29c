"""The chat template: conversations as ids, with special tokens that no text can encode to.

A conversation is a list of messages such as {"role": "user", "content": "Hello"}. Each message is
rendered as the special token of its role, its text, and the special token of the end of a message:

    <user>Hello<end><assistant>Hello! What can I do?<end>
"""

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Integer

from transformer_jax.config import Renamed, UserError, renamed_in
from transformer_jax.data.tokenizers.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = ("<system>", "<user>", "<assistant>", "<end>")  # one for each role, and the end
FILE = "chat.json"

Message = Mapping[str, str]  # {"role": one of ROLES, "content": a text}
Prompt = str | Sequence[Message]  # a text is a single message of the user


def as_messages(prompt: Prompt) -> Sequence[Message]:
    """Returns a prompt as a conversation that the assistant is to continue."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


class Rendered(NamedTuple):
    """A conversation as ids.

    Attributes:
      ids: (N,) int32.
      is_completion: (N,) bool, the tokens that the assistant generates: its texts, and the end
        token of each of its messages.
    """

    ids: Integer[np.ndarray, " N"]
    is_completion: Bool[np.ndarray, " N"]

    is_answer = Renamed("is_answer", "is_completion")


class ChatTokenizer(Tokenizer):
    """A tokenizer with four further special tokens for conversations, after its vocabulary.

    A text that contains "<user>" is encoded as these characters: only a message's role becomes a
    special token, so that a user can't forge messages of other roles. Special tokens decode to no
    text. A conversation begins with the ids `prefix`, as a text of the base tokenizer does.
    """

    def __init__(
        self,
        base: Tokenizer,
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
        prefix: tuple[int, ...] = (),
    ):
        super().__init__(base.model)
        self.base = base
        self.prefix = prefix
        self.special_tokens = tuple(special_tokens)
        self.vocab_size = base.vocab_size + len(self.special_tokens)
        ids = range(base.vocab_size, self.vocab_size)
        self.role_ids = dict(zip(ROLES, ids))
        self.end_id = ids[-1] if ids else base.eos_id
        for name in ("eos_id", "bos_id", "pad_id", "unk_id", "cls_id", "sep_id", "mask_id"):
            setattr(self, name, getattr(base, name))
        self.never, self.pair_separators = base.never, base.pair_separators
        self.special = np.append(base.special, [True] * len(self.special_tokens))

    def __reduce__(self):
        return type(self), (self.base, self.special_tokens, self.prefix)

    marks = Renamed("marks", "special_tokens")
    answer = Renamed("answer", "completion")
    is_answer = Renamed("is_answer", "is_completion")
    answering = Renamed("answering", "for_replies")

    # The template: a conversation as ids. Text never passes through a template in Jinja, where a
    # user could write special tokens.

    def render(self, messages: Sequence[Message]) -> Rendered:
        """Returns a whole conversation as ids."""
        return self.render_all([messages])[0]

    def render_all(self, conversations: Sequence[Sequence[Message]]) -> list[Rendered]:
        """Returns whole conversations as ids. All their texts are encoded in one call."""
        texts = [message["content"] for messages in conversations for message in messages]
        encoded = iter(self.encode(texts))
        return [self._rendered(messages, encoded) for messages in conversations]

    def _rendered(self, messages: Sequence[Message], encoded) -> Rendered:
        parts = [
            [self.role_ids[message["role"]], *next(encoded), self.end_id] for message in messages
        ]
        # The text of a message is encoded by itself, so that its ids do not depend on what stands
        # around it.
        ids = np.fromiter(itertools.chain(self.prefix, *parts), np.int32)
        return Rendered(ids, self.is_completion(ids))

    def prompt(self, messages: Sequence[Message], *, tools: Sequence[Mapping] = ()) -> list[int]:
        """Returns the ids of a conversation, followed by the special token of the assistant.

        Only a chat template (chat_template.py) shows `tools`. Raises UserError otherwise.
        """
        if tools:
            raise UserError("tools: this run has no chat template that could show them")
        return self.prompts([messages])[0]

    def prompts(self, conversations: Sequence[Sequence[Message]]) -> list[list[int]]:
        """Returns the `prompt` of each conversation. All their texts are encoded in one call."""
        role_id = self.role_ids["assistant"]
        return [[*each.ids.tolist(), role_id] for each in self.render_all(conversations)]

    # Rendered conversations in the token store, where each is followed by a delimiter.

    @property
    def stored_size(self) -> int:
        """The number of different values that `stored` returns."""
        return self.vocab_size

    def stored(self, rendered: Rendered) -> Integer[np.ndarray, " N"]:
        """Returns a conversation as it is stored, with the delimiter at its end."""
        return np.append(rendered.ids, np.int32(self.eos_id))

    def unstored(
        self, stored: Integer[np.ndarray, " N"]
    ) -> tuple[Integer[np.ndarray, " N"], Bool[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
        """Returns (ids, which of them the assistant generates, which are delimiters)."""
        return stored, self.is_completion(stored), stored == self.eos_id

    def completion(self, text: str) -> list[int]:
        """Returns the ids of a completion of a `prompt`, including the end of the message."""
        return [*self.encode(text), self.end_id]

    def is_completion(self, ids: Integer[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
        """Returns which ids the assistant generates.

        These are the ids after the assistant's special token, up to and including the end of the
        message. `ids` may contain several conversations.
        """
        is_special = ids >= self.base.vocab_size
        last = np.maximum.accumulate(np.where(is_special, np.arange(len(ids)), -1))
        # The position of the last special token before each position. Shifting by one position
        # excludes the role token itself, which the prompt provides, and includes the end token,
        # which the model must learn to generate.
        before = np.append(-1, last)[: len(ids)]
        return (before >= 0) & (ids[before] == self.role_ids["assistant"])

    @property
    def for_replies(self) -> "ChatTokenizer":
        """A copy of this tokenizer for generation, in which the end of a message is `eos_id`."""
        # A shallow copy, because both share the base tokenizer, which is large.
        tokenizer = copy.copy(self)
        tokenizer.eos_id = self.end_id
        return tokenizer

    # The tokenizer of a text, which is the base tokenizer's: only the structure of a conversation
    # needs the further tokens.

    def _encode(self, texts):
        return self.base.encode(texts)

    def encode_spans(self, texts):
        return self.base.encode_spans(texts)

    def _decode(self, ids):
        return [self._text(sequence) for sequence in ids]

    def _text(self, ids: list[int]) -> str:
        """Returns the texts between special tokens, which are decoded separately."""
        groups = itertools.groupby(ids, key=self._is_role_or_end)
        # Decoded group by group, because the base tokenizer does not know the special tokens in
        # between.
        return "".join(self.base.decode([*group]) for is_special, group in groups if not is_special)

    def _is_role_or_end(self, i: int) -> bool:
        return self.base.vocab_size <= i < self.vocab_size

    def pieces(self, ids):
        first = self.base.vocab_size
        return [
            self.special_tokens[i - first] if self._is_role_or_end(i) else self.base.pieces([i])[0]
            for i in ids
        ]

    def begins_word(self, piece):
        return piece in self.special_tokens or self.base.begins_word(piece)

    def ends_word(self, piece):
        return piece in self.special_tokens or self.base.ends_word(piece)

    def without_boundaries(self, piece):
        return piece if piece in self.special_tokens else self.base.without_boundaries(piece)

    def fingerprint(self):
        prefix = f" {json.dumps(self.prefix)}" if self.prefix else ""
        return f"{self.base.fingerprint()} {json.dumps(self.special_tokens)}{prefix}"

    def files(self):
        content = {"marks": self.special_tokens} | ({"prefix": self.prefix} if self.prefix else {})
        return self.base.files() | {FILE: json.dumps(content).encode()}

    @property
    def hf_end(self):
        return self.eos_id if self.end_id == self.eos_id else [self.eos_id, self.end_id]

    def hf_files(self):
        *role_tokens, end = self.special_tokens
        roles = json.dumps(dict(zip(ROLES, role_tokens)))
        before = "".join(self.base.pieces(list(self.prefix)))
        start = f"{{{{ {json.dumps(before)} }}}}" if before else ""
        # The same template in Jinja, for programs that use Hugging Face's tokenizers.
        template = (
            f"{start}{{% set roles = {roles} %}}{{% for message in messages %}}"
            f"{{{{ roles[message['role']] + message['content'] + {json.dumps(end)} }}}}"
            f"{{% endfor %}}{{% if add_generation_prompt %}}"
            f"{{{{ roles['assistant'] }}}}{{% endif %}}"
        )
        return self.base.hf_with(self.special_tokens, {"eos_token": end, "chat_template": template})


def with_special_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> ChatTokenizer:
    """Returns the tokenizer with these special tokens for system, user, assistant and the end.

    Raises UserError if `tokens` are not four different texts, or if the tokenizer already has other
    ones.
    """
    tokens = tuple(tokens)
    are_texts = all(isinstance(token, str) and token.strip() for token in tokens)
    if len(tokens) != len(SPECIAL_TOKENS) or not are_texts or len(set(tokens)) < len(tokens):
        raise UserError(
            f"config.task.special_tokens={tokens!r}: must be four different texts, for "
            "system, user, assistant and the end of a message"
        )
    if not isinstance(tokenizer, ChatTokenizer):
        return ChatTokenizer(tokenizer, tokens, tokenizer.prefix)
    if tokenizer.special_tokens != tokens:
        raise UserError(
            f"config.task.special_tokens={tokens!r}: the run in config.init_from has "
            f"{tokenizer.special_tokens!r}; give these"
        )
    return tokenizer


__getattr__ = renamed_in(__name__, {"MARKS": "SPECIAL_TOKENS", "with_marks": "with_special_tokens"})
