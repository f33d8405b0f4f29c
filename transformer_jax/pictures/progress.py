"""Progress of long operations on stderr: a bar on a terminal, otherwise lines at intervals.

In a notebook, the lines of a cell are one output, which shows the newest of them.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

_is_notebook = "ipykernel" in sys.modules
_CELL_LINES = 24  # of a cell's output, because a notebook file stores it
# A bar would be stored with all its states.
_plain = {"force_terminal": False, "force_jupyter": False} if _is_notebook else {}
# On stderr, because stdout has results, which may be piped. Long lines are not broken, so that they
# can be searched.
console = Console(stderr=True, highlight=False, soft_wrap=True, **_plain)

_PACE_SECONDS = 60.0  # the pace is measured over the last one or two, because it may change
_DRAW_SECONDS = 0.1  # between updates of a bar, because one may take longer than a unit of work
_BAR_COLUMNS = 16  # few, because the numbers beside the bar say more
_FILE_COLUMNS = 110

_printed = time.monotonic()  # when a line was last printed, for `never_silent`
# (operation, when it began), a stack, because operations nest; the innermost one is named
_doing = [("starting", time.monotonic())]
_speaker = ""  # of several runs in one process, the one that lines are about


def width() -> int:
    """Returns the number of columns of a line: those of the terminal, or 110 without one."""
    return console.width if console.is_terminal else _FILE_COLUMNS


def say(text: str) -> None:
    """Prints a line on stderr, above the bar if one is shown."""
    global _printed
    _printed = time.monotonic()
    line = f"{_speaker}: {text}" if _speaker else text
    if not (_is_notebook and _cell.add(line)):
        # A text may contain brackets, which rich would read as markup.
        console.print(line, markup=False)


class _Cell:
    """The lines that a cell of a notebook has printed, as a single output."""

    def __init__(self):
        self._number = None  # how many cells were executed before
        self._lines: list[str] = []
        self._handle: Any = None
        self._lock = threading.Lock()  # `never_silent` prints from a thread

    def add(self, text: str) -> bool:
        """Shows a text below the earlier ones of the same cell, of which the newest remain.

        Returns whether there is a notebook: a script may import its libraries, too.
        """
        from IPython import get_ipython
        from IPython.display import display

        if (shell := get_ipython()) is None:
            return False
        with self._lock:
            # A cell that runs again has another number, too.
            is_new = shell.execution_count != self._number
            if is_new:
                self._number, self._lines = shell.execution_count, []
            self._lines += text.splitlines()
            if len(self._lines) > _CELL_LINES:
                self._lines = ["...", *self._lines[1 - _CELL_LINES :]]
            content = {"text/plain": "\n".join(self._lines)}
            if is_new:
                self._handle = display(content, raw=True, display_id=True)
            else:
                self._handle.update(content, raw=True)
        return True


_cell = _Cell()


@contextlib.contextmanager
def speaking(name: str) -> Iterator[None]:
    """In the context, lines begin with `name`, which tells several runs in one process apart."""
    global _speaker
    earlier, _speaker = _speaker, name
    try:
        yield
    finally:
        _speaker = earlier


@contextlib.contextmanager
def doing(text: str) -> Iterator[None]:
    """In the context, the program is doing `text`, as a bar and `never_silent` say."""
    _doing.append((text, time.monotonic()))
    try:
        yield
    finally:
        _doing.pop()


@contextlib.contextmanager
def never_silent(seconds: float = 60.0) -> Iterator[None]:
    """In the context, says what the program is doing whenever nothing was printed for `seconds`.

    Otherwise a run would seem to hang during a compilation, or on a busy machine, which may take
    minutes.
    """
    ended = threading.Event()

    def watch():
        while not ended.wait(max(_printed + seconds - time.monotonic(), 0.0)):
            # Checked again, because a line may have been printed while this thread was waiting.
            if time.monotonic() - _printed >= seconds:
                say(f"still {_doing[-1][0]}")

    # A daemon, because it must not keep a program alive that fails.
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Operation(ProgressColumn):
    """Names an operation within that of the bar, such as a compilation, and counts its seconds."""

    def __init__(self):
        super().__init__()
        self._depth = len(_doing)

    def render(self, _task) -> Text:
        if len(_doing) <= self._depth:
            return Text()
        text, began = _doing[-1]
        seconds = time.monotonic() - began
        # A short one, such as the reading of a batch, would only flicker.
        return Text(f"{text} {seconds:.0f} s") if seconds >= 1 else Text()


class Bar:
    """A context manager for a progress bar of `total` units, which `advance` moves.

    If stderr is not a terminal, it prints a line every `seconds` instead.
    """

    def __init__(self, title: str, total: int | None, start: int = 0, seconds: float = 15.0):
        self.title = title
        self.total = total
        self.done = start
        self.seconds = seconds
        # The last two points (units, time) in time; the pace is measured since the first of them.
        self.points = []
        self.printed = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(_BAR_COLUMNS),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            _Operation(),
            # On a narrow terminal, the end of the note is left out.
            TextColumn(
                "{task.fields[note]}",
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
        )
        self.rich = (
            Progress(*columns, console=console, transient=True, expand=True)
            if console.is_terminal
            else None
        )
        if self.rich:
            self.task = self.rich.add_task(title, total=total, completed=start, note="")

    def __enter__(self):
        if self.rich:
            self.rich.start()
        return self

    def __exit__(self, *_):
        if self.rich:
            # The last units may not have been drawn yet, because a bar is drawn at most every
            # _DRAW_SECONDS.
            self.rich.update(self.task, completed=self.done)
            self.rich.stop()

    def advance(self, units: int = 1, note: str = "") -> None:
        self.done += units
        now = time.monotonic()
        # The first point is after the first units, because these may include set-up.
        if not self.points or now - self.points[-1][1] > _PACE_SECONDS:
            self.points = [*self.points[-1:], (self.done, now)]
        if self.rich and (note or now - self.printed > _DRAW_SECONDS):
            self.printed = now
            self.rich.update(self.task, completed=self.done, **({"note": note} if note else {}))
        elif not self.rich and now - self.printed > self.seconds:
            self.printed = now
            of = f" of {self.total:,}, {self.left()} left" if self.total else ""
            say(f"{self.title}: {self.done:,}{of}")

    def left(self) -> str:
        """Returns the remaining time as h:mm:ss, at the pace of the last one or two minutes.

        Earlier units are ignored, because the cost of a unit may change.
        """
        if not self.points or self.done == self.points[0][0]:
            return "?"
        first_units, first_time = self.points[0]
        pace = (time.monotonic() - first_time) / (self.done - first_units)
        seconds = int(pace * max((self.total or 0) - self.done, 0))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def track(items: Iterable, title: str, total: int | None = None) -> Iterator:
    """Yields the items, and advances a bar for each of them."""
    with Bar(title, total) as bar:
        for item in items:
            yield item
            bar.advance()
