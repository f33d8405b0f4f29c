"""Conversations on the command line, and text that is shown while a model writes it."""

import sys
from collections.abc import Callable, Sequence

from transformer_jax.config import UserError

# --------------------------------------------------------------------------------------------------
# Writing a text to stdout while a model writes it.


class Streamed:
    """Writes the text as it comes: the argument `watch` of `generate` and `reply`.

    A part is held back while it may be the beginning of one of the strings `stop`. `before` stands
    in front of the text.
    """

    def __init__(self, stop: Sequence[str], before: str = ""):
        self._stop = stop
        self._before = before
        self._written = ""

    def __call__(self, texts: list[str]) -> None:
        ready = texts[0].removesuffix("\ufffd")  # a character whose other bytes are still to come
        ready = ready[: len(ready) - self._held_back(ready)]
        sys.stdout.write(self._before + ready[len(self._written) :])
        sys.stdout.flush()
        self._before = ""
        self._written = max(self._written, ready, key=len)

    def end(self, text: str) -> None:
        """Writes the rest of the whole text, and ends the line."""
        print(self._before + text[len(self._written) :], flush=True)

    def _held_back(self, text: str) -> int:
        """Returns the number of last characters that may be the beginning of a stop string."""
        lengths = [
            length
            for stop in self._stop
            for length in range(len(stop))
            if text.endswith(stop[:length])
        ]
        return max(lengths, default=0)


# --------------------------------------------------------------------------------------------------
# A conversation on the command line, in a terminal or through pipes.

_PROMPT = "> "


def begun(system: str | None) -> list[dict]:
    """Returns the messages of a conversation before the user writes."""
    return [] if system is None else [{"role": "system", "content": system}]


def user_message(text: str) -> dict:
    return {"role": "user", "content": text}


def hold(task, params, system: str | None, settings: dict) -> None:
    """Answers the messages of stdin until it ends. `settings` are arguments of `task.reply`.

    In a terminal, an answer is written as it comes. Otherwise each line of stdin is a message, and
    each line of stdout its answer, in which a line end is a space. An empty line is no message; its
    answer is empty. Raises UserError for a message that exceeds the window, with its line, and for
    a run without the marks of conversations.
    """
    _ = task.chat_tokenizer
    history = begun(system)

    def answer(text: str, watch: Callable | None = None) -> str:
        """Returns the answer to a message; both are then part of the history."""
        messages = [*history, user_message(text)]
        answered = task.reply(params, messages, watch=watch, **settings).text
        history[:] = messages
        if answered.strip():
            history.append({"role": "assistant", "content": answered})
        return answered

    (_talk if sys.stdin.isatty() else _pipe)(answer, settings["stop"])


def _talk(answer: Callable, stop) -> None:
    from transformer_jax.pictures.progress import say

    say("a conversation; Ctrl-D ends it")
    while True:
        try:
            text = input(_PROMPT)
        except EOFError:
            print()
            return
        if text.strip():
            show = Streamed(stop)
            try:
                show.end(answer(text, show))
            except UserError as error:  # the conversation goes on
                say(f"error: {error}")


def _pipe(answer: Callable, stop) -> None:
    from transformer_jax.data.sources.text_files import text_lines

    for number, text in enumerate(text_lines("-"), 1):
        try:
            answered = answer(text) if text.strip() else ""
        except UserError as error:
            raise UserError(f"stdin:{number}: {error}") from None
        print(" ".join(answered.split("\n")), flush=True)
