"""A profile of some updates, for xprof or TensorBoard."""

import pathlib

import jax

from transformer_jax.pictures.progress import say


class Trace:
    """Traces the updates from the first to the last of `updates` into `folder`/profile.

    xprof shows the profile, and so does TensorBoard with its profile plugin. Without `updates` or a
    folder, nothing is traced.

    The profile holds the operations, the updates and the purposes of the clock. It has no Python
    calls, because their tracer has crashed the process (jax 0.10 with Python 3.11). It hooks into
    every thread, and the threads of a save begin and end meanwhile.
    """

    def __init__(self, folder: pathlib.Path | None, updates: tuple[int, int] | None):
        self.folder = folder and folder / "profile"
        self.first, self.last = updates if updates and folder else (0, -1)
        self.running = False
        self._options = jax.profiler.ProfileOptions()
        self._options.python_tracer_level = 0
        self._update: jax.profiler.StepTraceAnnotation | None = None

    def __enter__(self):
        return self

    def before(self, step: int) -> None:
        """Call it before update number `step`; starts the trace if it is within the updates."""
        if self.first <= step <= self.last and not self.running:
            jax.profiler.start_trace(self.folder, profiler_options=self._options)
            self.running = True
        self._update = jax.profiler.StepTraceAnnotation("update", step_num=step)
        self._update.__enter__()

    def after(self, step: int, state) -> None:
        """Call it after update number `step`; ends the trace after the last of the updates."""
        self._update.__exit__(None, None, None)
        if step == self.last and self.running:
            jax.block_until_ready(state.step)
            self.__exit__()

    def __exit__(self, *_):
        if self.running:
            self.running = False
            jax.profiler.stop_trace()
            say(f"profile of updates {self.first} to {self.last}: {self.folder}")
