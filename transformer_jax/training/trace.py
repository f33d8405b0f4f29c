"""A profile of some updates, for xprof or TensorBoard."""

import pathlib

import jax

from transformer_jax.pictures.progress import say


class Trace:
    """Traces the updates first to last into `folder`/profile: tensorboard --logdir (with its
    profile plugin), or xprof. Nothing without `updates` or, on all processes but one, a folder.

    Operations, the updates and what the clock tells apart are in it, Python's calls are not:
    hooking into threads that begin and end meanwhile, as those of a save do, has crashed the
    process (jax 0.10 with Python 3.11).
    """

    def __init__(self, folder: pathlib.Path | None, updates: tuple[int, int] | None):
        self.folder, (self.first, self.last), self.running = (
            folder and folder / "profile",
            updates if updates and folder else (0, -1),
            False,
        )
        self._options, self._update = jax.profiler.ProfileOptions(), None
        self._options.python_tracer_level = 0

    def __enter__(self):
        return self

    def before(self, step: int) -> None:
        if self.first <= step <= self.last and not self.running:  # a run may go on in between
            jax.profiler.start_trace(self.folder, profiler_options=self._options)
            self.running = True
        self._update = jax.profiler.StepTraceAnnotation("update", step_num=step)
        self._update.__enter__()

    def after(self, step: int, state) -> None:
        self._update.__exit__(None, None, None)
        if step == self.last and self.running:
            jax.block_until_ready(state.step)
            self.__exit__()

    def __exit__(self, *_):
        if self.running:
            self.running = False
            jax.profiler.stop_trace()
            say(f"profile of updates {self.first} to {self.last}: {self.folder}")
