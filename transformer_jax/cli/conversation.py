"""Conversations and answers on the command line, and output shown while a model generates it."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from transformer_jax.config import UserError

# -------------------------------------------- streaming a text to stdout while a model generates it


class Streamed:
    """Writes a text while it is generated, as the argument `watch` of `generate` and `reply`.

    The end of the text is held back as long as it may be the start of one of the strings `stop`,
    which do not belong to the completion. `before` is written in front of the text.
    """

    def __init__(self, stop: Sequence[str], before: str = ""):
        self._stop = stop
        self._before = before
        self._written = ""

    def __call__(self, texts: list[str]) -> None:
        # The last character is held back if it is incomplete, because the rest of its bytes is in
        # the next tokens and what has been written cannot be taken back.
        ready = texts[0].removesuffix("\ufffd")
        ready = ready[: len(ready) - self._held_back(ready)]
        sys.stdout.write(self._before + ready[len(self._written) :])
        sys.stdout.flush()
        self._before = ""
        # The longer one, because `ready` becomes shorter when a stop string seems to begin.
        self._written = max(self._written, ready, key=len)

    def end(self, text: str) -> None:
        """Writes what remains of the complete text, and ends the line."""
        print(self._before + text[len(self._written) :], flush=True)

    def _held_back(self, text: str) -> int:
        """Returns how many of the last characters may be the start of a stop string."""
        lengths = [
            length
            for stop in self._stop
            # A whole stop string is not looked for, because generation ends in front of it.
            for length in range(len(stop))
            if text.endswith(stop[:length])
        ]
        return max(lengths, default=0)


# ---------------------------------------------- lines that are typed into a terminal, and answers

_PROMPT = "> "


def typed(what: str) -> Iterator[str]:
    """Yields the lines that are typed into a terminal, until Ctrl-D. `what` introduces them."""
    from transformer_jax.pictures.progress import say

    say(f"{what}; Ctrl-D ends it")
    while True:
        try:
            yield input(_PROMPT if sys.stdout.isatty() else "")
        except EOFError:
            print(file=sys.stderr)
            return


def answers(
    texts: Iterable[str] | None, answer: Callable[[Iterable[str]], Iterable[Any]]
) -> Iterator[Any]:
    """Yields `answer(texts)`, by default of the lines of stdin.

    In a terminal, each line is answered as soon as it is typed, and an error in a line does not end
    the program. Elsewhere, lines are answered in batches.
    """
    from transformer_jax.data.sources.text_files import text_lines
    from transformer_jax.pictures.progress import say

    if texts or not sys.stdin.isatty():
        yield from answer(texts or text_lines("-"))
        return
    for line in typed("type a line"):
        try:
            yield from answer([line])
        except UserError as error:
            say(f"error: {error}")


# --------------------------------------------------- a conversation in a terminal, or through pipes


def first_messages(system: str | None) -> list[dict]:
    """Returns the messages of a conversation before the user's first one."""
    return [] if system is None else [{"role": "system", "content": system}]


def user_message(text: str) -> dict:
    return {"role": "user", "content": text}


def hold(task, params, system: str | None, settings: dict) -> None:
    """Replies to the messages on stdin until it ends. `settings` are arguments of `task.reply`.

    In a terminal, a reply is written while it is generated. Otherwise each line of stdin is a
    message, and each line of stdout is the reply to it, with line ends replaced by spaces. An empty
    line is not a message, and the line of its reply is empty. Raises UserError, with the number of
    the line, for a message that exceeds the window, and for a run without the special tokens of
    conversations.
    """
    _ = task.chat_tokenizer  # raises the error before the first message is read
    history = first_messages(system)

    def reply(text: str, watch: Callable | None = None) -> str:
        """Returns the reply to a message, and adds both to the history."""
        messages = [*history, user_message(text)]
        completion = task.reply(params, messages, watch=watch, **settings).text
        # Only now, so that a message without a reply is not in the history.
        history[:] = messages
        if completion.strip():
            history.append({"role": "assistant", "content": completion})
        return completion

    (_talk if sys.stdin.isatty() else _pipe)(reply, settings["stop"])


def _talk(reply: Callable, stop) -> None:
    from transformer_jax.pictures.progress import say

    for text in typed("a conversation"):
        if text.strip():
            show = Streamed(stop)
            try:
                show.end(reply(text, show))
            except UserError as error:  # in a terminal, the conversation continues
                say(f"error: {error}")


def _pipe(reply: Callable, stop) -> None:
    from transformer_jax.data.sources.text_files import text_lines

    for number, text in enumerate(text_lines("-"), 1):
        try:
            completion = reply(text) if text.strip() else ""
        except UserError as error:
            raise UserError(f"stdin:{number}: {error}") from None
        print(" ".join(completion.split("\n")), flush=True)
