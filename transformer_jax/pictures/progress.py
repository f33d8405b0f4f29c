"""Progress of long work on stderr: a bar on a terminal, a plain line now and then otherwise."""

import sys
import time
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# plain lines: they are kept in the file
_in_notebook = (
    {"force_terminal": False, "force_jupyter": False} if "ipykernel" in sys.modules else {}
)
console = Console(stderr=True, highlight=False, soft_wrap=True, **_in_notebook)

_MINUTE = 60.0


def say(text: str) -> None:
    """One line on stderr, above a bar if there is one."""
    console.print(text, markup=False)


class Bar:
    """A bar of `total` units; `advance` moves it. Used as a context. Off a terminal it prints every
    `seconds`.
    """

    def __init__(self, title: str, total: int | None, start: int = 0, seconds: float = 15.0):
        self.title, self.total, self.done, self.seconds = title, total, start, seconds
        # (units done, when), the last two that are a minute apart: the pace is that since the first
        # of them
        self.marks, self.printed = [], time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.rich = (
            Progress(*columns, console=console, transient=True) if console.is_terminal else None
        )
        if self.rich:
            self.task = self.rich.add_task(title, total=total, completed=start, note="")

    def __enter__(self):
        if self.rich:
            self.rich.start()
        return self

    def __exit__(self, *_):
        if self.rich:
            self.rich.update(self.task, completed=self.done)
            self.rich.stop()

    def advance(self, units: int = 1, note: str = "") -> None:
        self.done += units
        now = time.monotonic()
        # none before the first units are done, which may hold set-up
        if not self.marks or now - self.marks[-1][1] > _MINUTE:
            self.marks = [*self.marks[-1:], (self.done, now)]
        # an update costs more than many a unit
        if self.rich and (note or now - self.printed > 0.1):
            self.printed = now
            self.rich.update(self.task, completed=self.done, **({"note": note} if note else {}))
        elif not self.rich and now - self.printed > self.seconds:
            self.printed = now
            of = f" of {self.total:,}, {self.left()} left" if self.total else ""
            print(f"{self.title}: {self.done:,}{of}", file=sys.stderr, flush=True)

    def left(self) -> str:
        """Time left at the pace of the last minute or two, as h:mm:ss: units may come to cost more,
        as those of longer rows do.
        """
        if not self.marks or self.done == self.marks[0][0]:
            return "?"
        since, began = self.marks[0]
        pace = (time.monotonic() - began) / (self.done - since)
        seconds = int(pace * max((self.total or 0) - self.done, 0))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def track(items: Iterable, title: str, total: int | None = None) -> Iterator:
    """Yields the items and moves a bar with them."""
    with Bar(title, total) as bar:
        for item in items:
            yield item
            bar.advance()
