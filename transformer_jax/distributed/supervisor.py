"""A parent process that explains the end of its child when JAX's runtime aborts the child."""

import os
import signal
import sys

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
RESUME = "This process ends, too; the same command goes on with the run"

_parent: int | None = None  # the parent's process id, in the child
_pipe: int | None = None  # a pipe to the parent, in the child


def supervise() -> None:
    """Forks; returns in the child.

    The parent forwards SIGTERM and SIGINT to the child, and ends with the child's exit code or
    signal. Where JAX's runtime aborts the child, the parent writes a line about the cause.
    """
    global _parent, _pipe
    parent = os.getpid()
    read, write = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        _parent = parent
        _pipe = write
        return
    os.close(write)
    status = _wait_for(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGABRT:
        print(_cause(os.read(read, 1000).decode()), file=sys.stderr, flush=True)
        code = 1
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(parent, -code)
    os._exit(code)


def _wait_for(child: int) -> int:
    """Forwards signals to the child until it ends. Returns its wait status."""
    while True:
        received = signal.sigwaitinfo(_SIGNALS)
        if received.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
        elif received.si_code <= 0:
            # From a process. A terminal sends its signals to the child itself.
            os.kill(child, received.si_signo)


def _cause(report: str) -> str:
    """Why the runtime aborted the child; `report` is the content of the pipe."""
    index, _, coordinator = report.partition(" ")
    if not coordinator:
        return "the processes of the run did not find each other"
    return (
        f"process {index}: process 0 ({coordinator}), which connects the processes, died or "
        f"can't be reached. {RESUME}"
    )


def report(index: int, coordinator: str) -> None:
    """Sends the parent the number of this process, and the name of process 0's host."""
    if _pipe is not None:
        os.write(_pipe, f"{index} {coordinator}".encode())


def has_parent_died() -> bool:
    """Whether this process has a supervising parent that has died."""
    return _parent is not None and os.getppid() != _parent
