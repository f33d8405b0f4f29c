"""The output of a run: the progress line, metrics.jsonl, TensorBoard files and curves.png."""

import contextlib
import json
import math
import pathlib
import time
from typing import TextIO

import jax
import tensorboardX

from transformer_jax import pictures
from transformer_jax.config import RunError
from transformer_jax.pictures.progress import Bar, console, say
from transformer_jax.storage import buckets
from transformer_jax.storage.buckets import Mirror, appearing, write_whole

_SECONDS_BETWEEN_CURVES = 60  # between two drawings of curves.png
_SECONDS_BETWEEN_SENDS = 60  # between two copies to a bucket


class Reporter:
    """Writes the measurements of a run, in process 0 only.

    A run that was killed may have recorded steps after its last checkpoint, at `start`. Their lines
    are removed, because these steps will be done again.

    Attributes:
      folder: the local folder to which the files are written; None in processes other than 0.
      evaluations: the recorded evaluations up to `start`, each {name: score}.
      evaluated: the evaluation recorded at `start`; empty if there is none.
    """

    def __init__(self, workdir: pathlib.Path | buckets.Path, start: int, num_steps: int):
        self.workdir = workdir
        self.num_steps = num_steps
        self.name = "/".join(str(workdir).rstrip("/").split("/")[-2:])  # such as runs/quickstart
        self.active = jax.process_index() == 0
        self.folder: pathlib.Path | None = None
        self.evaluations: list[dict[str, float]] = []
        self.evaluated: dict[str, float] = {}
        if self.active:
            self._open(start)

    def _open(self, start: int) -> None:
        self._mirror = Mirror(self.workdir, "metrics.jsonl")
        self._sent = time.monotonic()
        self.folder = self._mirror.local
        self._lines, recorded = _reopened(self.folder / "metrics.jsonl", start)
        for line in recorded:
            if not any(key.startswith(("train/", "hook/")) for key in line):
                self.evaluations.append({k: v for k, v in line.items() if k != "step"})
                self.evaluated = self.evaluations[-1] if line["step"] == start else {}
        # TensorBoard hides the recorded events of steps that this run will do again.
        self._tensorboard = tensorboardX.SummaryWriter(
            str(self.folder / "tensorboard"), purge_step=start + 1
        )
        self._drawn = time.monotonic()
        self._bar = Bar("training", self.num_steps, start, seconds=float("inf"))

    def __enter__(self):
        if self.active:
            self._bar.__enter__()
        return self

    def __exit__(self, *error):
        if not self.active:
            return
        self._bar.__exit__(*error)
        # An error of the run itself is more important than an error in writing its last metrics.
        ignored = contextlib.suppress(RunError) if error[0] else contextlib.nullcontext()
        with ignored, self._writing():
            self._lines.close()
            self._tensorboard.close()
            draw_curves(self.folder, self.name)
            self.send()
        self._mirror.close()

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes a line to metrics.jsonl, and the finite values to TensorBoard."""
        if not self.active:
            return
        # JSON has neither NaN nor infinity.
        line = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self._writing():
            print(json.dumps({"step": step, **line}), file=self._lines, flush=True)
        for name, value in line.items():
            if value is not None:
                self._tensorboard.add_scalar(name, value, step)
        if time.monotonic() - self._sent > _SECONDS_BETWEEN_SENDS:
            self.send()

    def send(self) -> None:
        """Copies the files to the workdir if it is in a bucket."""
        if self.active and self.folder is not self.workdir:
            with self._writing():
                self._tensorboard.flush()
                self._mirror.send()
            self._sent = time.monotonic()

    def step(self) -> None:
        """Advances the progress bar by one update."""
        if self.active:
            self._bar.advance()

    def progress(self, step: int, values: dict[str, float]) -> None:
        """Shows the measurements: beside the bar in a terminal, elsewhere as a line of text."""
        if not self.active:
            return
        note = _note(values)
        if console.is_terminal:
            self._bar.advance(0, note)
        else:
            say(f"step {step:,}/{self.num_steps:,}  {note}  {self._bar.left()} left")

    def evaluation(self, step: int, values: dict[str, float]) -> None:
        """Writes and shows the scores of an evaluation.

        Draws the curves if the last drawing is old. They are drawn once more at the end of the run.
        """
        self.write(step, values)
        if not self.active:
            return
        scores = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
        say(f"step {step:,}  {scores}")
        if time.monotonic() - self._drawn > _SECONDS_BETWEEN_CURVES:
            with self._writing():
                draw_curves(self.folder, self.name)
            self._drawn = time.monotonic()
        self.send()

    def _writing(self) -> contextlib.AbstractContextManager:
        return buckets.writing(self.workdir, RunError, "; the saved checkpoints are complete")


def _note(values: dict[str, float]) -> str:
    """Returns the text of the progress line."""
    speed = ""
    if math.isfinite(values["train/mfu"]):
        speed = (
            f"{values['train/tokens_per_second']:,.0f} tokens/s  MFU {values['train/mfu']:.0%}  "
        )
    skipped = f"  skipped {values['train/skipped']}" if values["train/skipped"] else ""
    return (
        f"loss {values['train/loss']:.4f}  lr {values['train/learning_rate']:.2e}  {speed}"
        f"padding {values['train/padding']:.1%}{skipped}"
    )


def draw_curves(folder: pathlib.Path, run: str) -> pathlib.Path:
    """Draws curves.png from metrics.jsonl in `folder`, with the name of the run as the title.

    Returns the path of the picture.
    """
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figure = pictures.curves({"": lines}, title=run)
    path = folder / "curves.png"
    with appearing(path) as temporary:
        figure.savefig(temporary, dpi=100)
    return path


def _reopened(path: pathlib.Path, start: int) -> tuple[TextIO, list[dict]]:
    """Removes the lines of steps after `start` from the metrics file.

    Returns the file, opened for appending, and the remaining lines, parsed.
    """
    recorded = []
    if path.exists():
        for line in path.read_text(errors="replace").splitlines(keepends=True):
            # The last line that a killed run has written may be incomplete.
            with contextlib.suppress(ValueError, TypeError, KeyError):
                if line.endswith("\n") and (values := json.loads(line))["step"] <= start:
                    recorded.append(values)
        write_whole(path, "".join(json.dumps(values) + "\n" for values in recorded))
    return path.open("a"), recorded
