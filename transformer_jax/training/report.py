"""What a run tells: the progress line, metrics.jsonl, TensorBoard, the curves, and where the time
went.
"""

import contextlib
import json
import math
import os
import pathlib
import time
from collections.abc import Callable

import jax
import tensorboardX

from transformer_jax import pictures
from transformer_jax.config import RunError
from transformer_jax.pictures.progress import Bar, console, say
from transformer_jax.storage import buckets

_SECONDS_BETWEEN_CURVES = 60
_SECONDS_BETWEEN_SENDS = 60  # to a bucket


class Clock:
    """Seconds by purpose since the last `lap`: data wait, compiling, evaluation, checkpoint; "step"
    is what is left.
    """

    def __init__(self):
        self._spent, self._began = {}, time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, purpose: str, counts: Callable[[], bool] = lambda: True):
        """`counts`, asked when it is over: whether the time was the purpose's, and not the step's."""
        began = time.perf_counter()
        try:
            with jax.profiler.TraceAnnotation(purpose):  # in a profile, where one is made
                yield
        finally:
            if counts():
                self._spent[purpose] = self._spent.get(purpose, 0.0) + time.perf_counter() - began

    def lap(self) -> dict[str, float]:
        now = time.perf_counter()
        spent = {
            purpose: self._spent.get(purpose, 0.0)
            for purpose in ("data", "compile", "evaluation", "checkpoint")
        }
        spent["step"] = now - self._began - sum(spent.values())
        self._spent, self._began = {}, now
        return spent


class Reporter:
    """Writes what a run measures, on process 0 alone. Lines beyond `start`, of a run that was cut
    off, are dropped.
    """

    def __init__(self, workdir: pathlib.Path | buckets.Path, start: int, num_steps: int):
        self.workdir, self.num_steps, self.active = workdir, num_steps, jax.process_index() == 0
        self.name = "/".join(str(workdir).rstrip("/").split("/")[-2:])  # such as runs/quickstart
        self.folder = None  # where it writes
        self.evaluations, self.evaluated = [], {}  # all up to `start`, {name: score}; at `start`
        if self.active:
            self._mirror, self._sent = buckets.Mirror(workdir, "metrics.jsonl"), time.monotonic()
            self.folder = self._mirror.local
            self._lines, kept = _reopened(self.folder / "metrics.jsonl", start)
            lines = [line for line in kept if not any(key.startswith("train/") for key in line)]
            self.evaluations = [{k: v for k, v in line.items() if k != "step"} for line in lines]
            self.evaluated = self.evaluations[-1] if lines and lines[-1]["step"] == start else {}
            self._tensorboard = tensorboardX.SummaryWriter(
                str(self.folder / "tensorboard"), purge_step=start + 1
            )
            self._drawn = time.monotonic()
            self._bar = Bar("training", num_steps, start, seconds=float("inf"))

    def __enter__(self):
        if self.active:
            self._bar.__enter__()
        return self

    def __exit__(self, *error):
        if self.active:
            self._bar.__exit__(*error)
            # the first error is the one to tell
            with (
                contextlib.suppress(RunError) if error[0] else contextlib.nullcontext(),
                _told(self.workdir),
            ):
                self._lines.close()
                self._tensorboard.close()
                draw_curves(self.folder, self.name)
                self.send()
            self._mirror.close()

    def write(self, step: int, values: dict[str, float]) -> None:
        """One line of metrics.jsonl, and the same to TensorBoard."""
        if self.active:
            # JSON has no nan
            known = {
                name: value if math.isfinite(value) else None for name, value in values.items()
            }
            with _told(self.workdir):
                print(json.dumps({"step": step, **known}), file=self._lines, flush=True)
            for name, value in values.items():
                self._tensorboard.add_scalar(name, value, step)
            if time.monotonic() - self._sent > _SECONDS_BETWEEN_SENDS:
                self.send()

    def send(self) -> None:
        """What has been written so far, to a workdir in a bucket."""
        if self.active and self.folder is not self.workdir:
            with _told(self.workdir):
                self._tensorboard.flush()
                self._mirror.send()
            self._sent = time.monotonic()

    def step(self) -> None:
        if self.active:
            self._bar.advance()

    def progress(self, step: int, values: dict[str, float]) -> None:
        """The progress line: beside the bar on a terminal, by itself otherwise."""
        if not self.active:
            return
        speed = (
            f"{values['train/tokens_per_second']:,.0f} tokens/s  MFU {values['train/mfu']:.0%}  "
            if math.isfinite(values["train/mfu"])
            else ""
        )
        note = (
            f"loss {values['train/loss']:.4f}  lr {values['train/learning_rate']:.2e}  {speed}"
            f"padding {values['train/padding']:.1%}"
            + (f"  skipped {values['train/skipped']}" if values["train/skipped"] else "")
        )
        if console.is_terminal:
            self._bar.advance(0, note)
        else:
            say(f"step {step:,}/{self.num_steps:,}  {note}  {self._bar.left()} left")

    def evaluation(self, step: int, values: dict[str, float]) -> None:
        """Writes and shows an evaluation, and draws the curves unless they are fresh; leaving the
        context always draws them.
        """
        self.write(step, values)
        if self.active:
            say(
                f"step {step:,}  "
                + "  ".join(f"{name} {value:.4f}" for name, value in values.items())
            )
        if self.active and time.monotonic() - self._drawn > _SECONDS_BETWEEN_CURVES:
            with _told(self.workdir):
                draw_curves(self.folder, self.name)
            self._drawn = time.monotonic()
        self.send()


def draw_curves(folder: pathlib.Path, run: str) -> pathlib.Path:
    """curves.png of the metrics.jsonl in `folder`, titled by the run's name. Returns its path."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figure = pictures.curves({"": lines}, title=run)
    path = folder / "curves.png"
    figure.savefig(half := path.with_suffix(".half.png"), dpi=100)
    os.replace(half, path)
    return path


@contextlib.contextmanager
def _told(workdir: pathlib.Path):
    """What goes wrong on the disk, in one line."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{workdir}: can't be written ({error.strerror or error}); its checkpoints are whole"
        ) from None


def _reopened(path: pathlib.Path, start: int):
    """The metrics file, open for appending, without the lines of steps beyond `start`; and what is
    left, parsed.
    """
    kept = []
    if path.exists():
        for line in path.read_text(errors="replace").splitlines(keepends=True):
            # a line that a kill cut short
            with contextlib.suppress(ValueError, TypeError, KeyError):
                if line.endswith("\n") and (values := json.loads(line))["step"] <= start:
                    kept.append(values)
        half = path.with_suffix(".half")
        half.write_text("".join(json.dumps(values) + "\n" for values in kept))
        os.replace(half, path)
    return path.open("a"), kept
