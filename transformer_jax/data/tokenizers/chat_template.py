"""Conversations in the form of a published chat template, which is a program in the language Jinja.

A template is a program that somebody else wrote. It runs in Jinja's sandbox, in a process of its
own (data/render_templates.py), which has a gigabyte of memory and 10 s for a conversation, and
writes no files.
"""

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
from packaging.version import Version

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.chat import ChatTokenizer, Message, Rendered
from transformer_jax.data.tokenizers.published import Published

_PROGRAM = pathlib.Path(__file__).parent.parent / "render_templates.py"


class Text(NamedTuple):
    """A rendered conversation, and the spans of it that stand inside {% generation %}."""

    text: str
    spans: list[list[int]]


class ChatTemplate:
    """A chat template, whose `variables` are texts such as the special tokens."""

    def __init__(self, template: str, variables: Mapping[str, str]):
        self._first = {"template": template, "variables": dict(variables)}
        self._process: subprocess.Popen | None = None

    def render(self, messages: Sequence[Message], **variables) -> Text:
        """Returns a conversation as a text. Raises UserError if the template fails."""
        process = self._running()
        _send(process, {"messages": list(messages), **variables})
        line = process.stdout.readline()
        if not line:
            self._process = None
            raise UserError(f"the chat template {_cause(process)}")
        reply = json.loads(line)
        if "error" in reply:
            raise UserError(f"the chat template: {reply['error']}")
        return Text(**reply)

    def _running(self) -> subprocess.Popen:
        """Returns the process that renders the template, which is started here."""
        if self._process is None:
            if not _has_jinja():
                raise UserError(
                    "chat templates need jinja2 3.1.6 or newer: pip install 'transformer_jax[chat]'"
                )
            # Isolated (-I), so that no file of the working directory is imported. The process ends
            # with its input, that is with this one.
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for this program alone
            )
            _send(self._process, self._first)
        return self._process


def _send(process: subprocess.Popen, content: dict) -> None:
    # A process that has ended is noticed by its missing reply.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(f"{json.dumps(content)}\n")
        process.stdin.flush()


def _cause(process: subprocess.Popen) -> str:
    """Returns why the process has ended without a reply."""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    error = process.stderr.read().strip()
    code = process.wait()
    if code == -signal.SIGPROF:
        return "takes more than 10 s"
    reason = error.splitlines()[-1] if error else f"exit status {code}"
    return f"could not be rendered: its process ended ({reason})"


class TemplateTokenizer(ChatTokenizer):
    """A published tokenizer whose conversations have the form of its own chat template.

    The ids are those of transformers' apply_chat_template, except that a special token which is
    written in a message is encoded as ordinary text, so that a user can't forge messages of other
    roles. `end_id` is the end token, which ends a message in the templates of chat models.
    """

    def __init__(self, base: Published):
        super().__init__(base, (), base.prefix)
        self._template = ChatTemplate(base.chat_template, base.special_pieces)

    def __reduce__(self):
        return type(self), (self.base,)

    def render_all(self, conversations):
        return [self._rendered(messages) for messages in conversations]

    def _rendered(self, messages):
        safe = _safe(list(messages), self.base.placeholders)
        whole = self._template.render(safe)
        spans = whole.spans or self._spans(safe, whole.text)
        ids, owned = [], []
        for i, start in self.base.encode_rendered(whole.text):
            ids.append(i)
            owned.append(any(first <= start < stop for first, stop in spans))
        return Rendered(np.array(ids, np.int32), np.array(owned, bool))

    def prompts(self, conversations):
        return [self.prompt(messages) for messages in conversations]

    def prompt(self, messages, *, tools=()):
        variables = {"tools": list(tools)} if tools else {}
        safe = _safe({"messages": list(messages), **variables}, self.base.placeholders)
        text = self._template.render(add_generation_prompt=True, **safe).text
        return [i for i, _ in self.base.encode_rendered(text)]

    def _spans(self, messages: Sequence[Message], whole: str) -> list[tuple[int, int]]:
        """Returns the spans of a text that the assistant writes, by rendering its beginnings.

        A span ends with the end token. Raises UserError if a beginning of the conversation is not
        rendered as it is within the whole.
        """
        end = self.base.special_pieces["eos_token"]
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._template.render(messages[:number], add_generation_prompt=True).text
            through = self._template.render(messages[: number + 1]).text
            if not (through.startswith(before) and whole.startswith(through)):
                raise UserError(
                    "the chat template renders the beginning of a conversation differently where "
                    "it goes on, so that the assistant's messages can't be found in it; put them "
                    "into {% generation %} and {% endgeneration %} in the template"
                )
            written = through[len(before) :]
            length = written.rfind(end) + len(end) if end in written else len(written)
            spans.append((len(before), len(before) + length))
        return spans

    # The completions of a stored conversation can't be found by its ids, so the store marks them.

    @property
    def stored_size(self):
        return 2 * self.vocab_size + 1

    def stored(self, rendered):
        ids = rendered.ids + self.vocab_size * rendered.is_completion
        return np.append(ids, np.int32(2 * self.vocab_size))

    def unstored(self, stored):
        is_end = stored == 2 * self.vocab_size
        is_completion = (stored >= self.vocab_size) & ~is_end
        return np.where(is_end, self.eos_id, stored % self.vocab_size), is_completion, is_end

    def hf_files(self):
        return self.base.hf_files()


def _has_jinja() -> bool:
    """Returns whether there is a release of Jinja whose sandbox has no known way out."""
    try:
        return Version(metadata.version("jinja2")) >= Version("3.1.6")
    except metadata.PackageNotFoundError:
        return False


def _safe(value: Any, placeholders: Mapping[str, str]) -> Any:
    """Returns a value whose texts have placeholders for the special tokens that stand in them."""
    if isinstance(value, str):
        for piece, placeholder in placeholders.items():
            value = value.replace(piece, placeholder)
        return value
    if isinstance(value, Mapping):
        return {key: _safe(each, placeholders) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(each, placeholders) for each in value]
    return value


def conversational(tokenizer) -> ChatTokenizer | None:
    """Returns a tokenizer as one for conversations, by its chat template; None if it is none."""
    if isinstance(tokenizer, ChatTokenizer):
        return tokenizer
    if isinstance(tokenizer, Published) and tokenizer.chat_template:
        return TemplateTokenizer(tokenizer)
    return None
