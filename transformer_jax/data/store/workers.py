"""Who builds the parts of a store: this process, the processes of a job, or an Apache Beam runner.

The parts are independent, so the store does not depend on the workers.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from transformer_jax.config import UserError
from transformer_jax.distributed import hosts
from transformer_jax.pictures.progress import track


class Job(Protocol):
    """Builds a part of a store; picklable."""

    def __call__(self, part: Any) -> None: ...

    def report(self, part: Any, error: UserError) -> None:
        """Leaves the reason why a part can't be built, for the process that completes the store."""


class Alone:
    """This process builds all parts in turn."""

    leads = True  # this process completes the stores

    def agree(self, values: dict[str, Any]) -> None:
        """Raises UserError where a process has other values than the leading one."""

    def share(self, value: Any) -> Any:
        """Returns the `value` of the leading process. It must have a form in JSON."""
        return value

    def run(self, job: Job, parts: Sequence, title: str) -> None:
        """Calls `job` for each part, and returns when all parts are built."""
        for part in track(parts, f"{title} (parts)", len(parts)):
            job(part)


class Processes(Alone):
    """The processes of a job share the parts: process i of N builds the parts i, i + N, ..."""

    def __init__(self):
        self.leads = hosts.index() == 0
        self.agree = hosts.agree
        self.share = hosts.share

    def run(self, job, parts, title):
        super().run(job, parts[hosts.index() :: hosts.count()], title)
        hosts.agree({})  # all have built their parts


_current = Alone()


def current() -> Alone:
    return _current


@contextlib.contextmanager
def using(workers: Alone) -> Iterator[None]:
    """In the context, `workers` build the stores."""
    global _current
    before, _current = _current, workers
    try:
        yield
    finally:
        _current = before
