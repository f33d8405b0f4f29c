"""The process of a program: its environment, compilation cache, errors and exit codes."""

import contextlib
import logging
import os
import pathlib
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable

from absl import logging as absl_logging

from transformer_jax.cli import flags
from transformer_jax.cli import flags as cli_help
from transformer_jax.config import Interrupted, Preempted, RunError, UserError
from transformer_jax.distributed import hosts
from transformer_jax.storage import least_used
from transformer_jax.training import memory

# --------------------------------------------------------------------------------------------------
# Running a program. Its environment is set up, and every error ends in one line and an exit code.

EXIT_USER = 2
FLAGS = flags.FLAGS


def run(
    main: Callable[[], None],
    define_flags: Callable[[], None],
    before_jax: Callable[[], None] = lambda: None,
) -> None:
    """Parses the flags, runs `main`, and exits.

    Exit codes: 0 done, 2 a mistake of the user, 75 preempted, 130 interrupted, 1 any other failure.
    `before_jax` may set environment variables that jax reads when it is imported.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the stream was closed, as it is for a daemon
            setattr(sys, name, open(os.devnull, mode))
    use_huge_pages()
    _drop_write_errors_of_threads()
    # The messages of XLA are for its developers. With jaxlib 0.10.1, for example, each program that
    # is loaded from the compilation cache prints one as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale
    with _defined(define_flags):
        _run(main, before_jax)


@contextlib.contextmanager
def _defined(define_flags: Callable[[], None]):
    """In the context, FLAGS has the flags of one program; a process may run several in turn."""
    others = set(FLAGS)
    define_flags()
    own = set(FLAGS) - others
    try:
        yield
    finally:
        flags.forget(own)


def _run(main: Callable[[], None], before_jax: Callable[[], None]) -> None:
    """Parses the flags, runs `main`, and turns each kind of error into its exit code."""
    try:
        flags.parse(sys.argv, main.__module__)
        before_jax()
        _join_other_hosts()
        use()
        _mute_libraries()
        main()
        hosts.leave()
    except UserError as error:
        _end(f"error: {error}", EXIT_USER)
    except (Preempted, Interrupted) as stopped:
        hosts.leave()  # all processes stop at the same point, so each of them gets here
        _say(str(stopped))
        sys.exit(stopped.code)
    except (RunError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of stdout has ended, as `head` does. Python flushes stdout once more when
            # it exits, which would print a second error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _end_with_error(error)
    except KeyboardInterrupt:
        _end("interrupted", Interrupted.code)
    except Exception as error:
        if memory.ran_out(error):
            _end_with_error(error)
        if hosts.count() > 1:
            hosts.await_news()
            traceback.print_exc()
            first_line = str(error).partition("\n")[0]
            hosts.failed(f"{type(error).__name__}: {first_line}", 1)
        raise


def use_huge_pages() -> None:
    """Restarts this program with a malloc that uses huge pages and returns no memory to the system.

    XLA on CPU allocates its buffers anew at each step, and with pages of 4 kB, page faults take a
    third of the time: with huge pages, fine-tuning a BERT with 3 layers of width 192 on rows of 256
    tokens on two cores rises from 5,800 to 9,400 tokens/s. The restart is needed, because glibc
    (from 2.35) reads this setting only when a program starts.
    """
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        return
    if "GLIBC_TUNABLES" in os.environ:  # set by the user, or by this function before the restart
        return
    os.environ["GLIBC_TUNABLES"] = (
        "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736"
    )
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _drop_write_errors_of_threads() -> None:
    """Silences OSErrors in other threads, because the main thread reports them in one line.

    Otherwise each write in progress, by TensorStore or TensorBoard, would print the error again,
    with a traceback.
    """
    sys.unraisablehook = _without_write_errors(sys.unraisablehook)
    threading.excepthook = _without_write_errors(threading.excepthook)


def _without_write_errors(hook: Callable) -> Callable:
    def filtered(args) -> None:
        error = args.exc_value
        if not isinstance(error, OSError) and str(error) != "Event loop is closed":
            hook(args)

    return filtered


def _join_other_hosts() -> None:
    if "coordinator" not in FLAGS:
        return
    arguments = hosts.arguments(FLAGS.coordinator, FLAGS.num_processes, FLAGS.process_id)
    if arguments is not None:
        hosts.supervise()
        hosts.connect(arguments, FLAGS.patience)


def _mute_libraries() -> None:
    """Mutes the loggers of libraries, so that each error is reported once.

    Orbax logs what it does, and each error twice, through absl's logger. If several writes fail
    together, asyncio logs all of them but the first.
    """
    for logger in (absl_logging.get_absl_logger(), logging.getLogger("asyncio")):
        logger.setLevel(logging.CRITICAL)


def _end_with_error(error: Exception) -> None:
    """Prints one line and exits with 1."""
    ran_out = memory.ran_out(error) and not isinstance(error, RunError)
    line = cli_help.out_of_memory(error, flags.overrides()) if ran_out else error
    _end(f"error: {line}", 1)


def _end(line: str, code: int) -> None:
    _say(line)
    hosts.failed(line, code)
    sys.exit(code)


def _say(line: str) -> None:
    prefix = f"process {hosts.index()}: " if hosts.index() else ""
    print(f"{prefix}{line}", file=sys.stderr, flush=True)


# --------------------------------------------------------------------------------------------------
# The compilation cache, with which each program is compiled only once per machine.
#
# The size of the cache is limited here and not by JAX, which would read the times of all entries at
# each new entry (seconds with 20,000 entries), and refuses a folder that was ever used without its
# limit.

LIMIT = "TRANSFORMER_JAX_COMPILED_GB"  # an environment variable
_BYTES = 10e9  # the limit without it
_SECONDS = 3600  # between two checks of the size of the folder


def use() -> None:
    """Caches compiled programs in the user's cache folder, or in JAX_COMPILATION_CACHE_DIR."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        folder = pathlib.Path("~/.cache/transformer_jax/compiled").expanduser()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        keep_small(folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def keep_small(folder: pathlib.Path) -> None:
    """Removes the least recently used programs beyond the limit, checking it at most once an hour.

    Several processes may call it at the same time. Removing the file of a program that is in use
    is harmless, because the program itself is in memory.
    """
    most = least_used.limit(LIMIT, _BYTES)
    looked = folder / ".looked"
    with contextlib.suppress(OSError):
        if looked.exists() and time.time() - looked.stat().st_mtime < _SECONDS:
            return
        looked.touch()
        if removed := least_used.remove(_entries(folder), most, _remove):
            from transformer_jax.pictures.progress import say

            say(
                f"removed from {folder}, beyond {LIMIT}={most / 1e9:g}: the {len(removed):,} "
                "compiled programs that were not used for longest"
            )


def _entries(folder: pathlib.Path) -> list[least_used.Entry]:
    entries = []
    for file in os.scandir(folder):
        # Another process may have removed the file.
        with contextlib.suppress(FileNotFoundError):
            if file.name.endswith("-cache"):
                status = file.stat()
                # Most file systems update the time of access at most once a day, others never.
                used = max(status.st_atime, status.st_mtime)
                entries.append(least_used.Entry(pathlib.Path(file.path), used, status.st_size))
    return entries


def _remove(path: pathlib.Path) -> bool:
    path.unlink(missing_ok=True)
    return True
