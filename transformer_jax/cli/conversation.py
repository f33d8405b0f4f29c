"""A conversation on the command line, in a terminal or through pipes."""

import sys
from collections.abc import Callable

from transformer_jax.cli.streamed import Streamed
from transformer_jax.config import UserError

_PROMPT = "> "


def begun(system: str | None) -> list[dict]:
    """Returns the messages of a conversation before the user writes."""
    return [] if system is None else [{"role": "system", "content": system}]


def of_user(text: str) -> dict:
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
        messages = [*history, of_user(text)]
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
