"""Parts built by Apache Beam: on its direct runner, on Dataflow, Flink or Spark."""

import dataclasses
import importlib.util
from collections.abc import Sequence
from typing import Any

from transformer_jax.config import RunError, UserError
from transformer_jax.data.store import workers


class Beam(workers.Alone):
    """A pipeline of `runner` builds the parts; `options` are its own, KEY=VALUE each.

    The store and the text lie on storage that all workers reach.
    """

    def __init__(self, runner: str, options: Sequence[str] = ()):
        if importlib.util.find_spec("apache_beam") is None:
            raise UserError(
                f"--beam_runner={runner}: Apache Beam is not installed: pip install -e '.[beam]'"
            )
        self._runner = runner
        self._options = [f"--{option}" for option in options]

    def run(self, job, parts, title):
        import apache_beam as beam
        from apache_beam.options import pipeline_options

        try:
            options = pipeline_options.PipelineOptions(self._options, runner=self._runner)
            with beam.Pipeline(options=options) as pipeline:
                numbered = pipeline | beam.Create(parts)
                # Without it, a runner would fuse the steps, and one worker would build all parts.
                spread = numbered | beam.Reshuffle()
                _ = spread | title >> beam.Map(_Reporting(job))
        except Exception as error:  # Each runner raises its own.
            line = " ".join(f"{type(error).__name__}: {error}".split())
            raise RunError(f"--beam_runner={self._runner}: {line[:500]}") from error


@dataclasses.dataclass(frozen=True)
class _Reporting:
    """Builds a part. Leaves the user's mistakes to the process that completes the store."""

    job: workers.Job

    def __call__(self, part: Any) -> None:
        try:
            self.job(part)
        except UserError as error:
            self.job.report(part, error)
