"""Runs the programs as a user does: `command` in a new process, `call` in a fork or in this one."""

import contextlib
import logging
import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import warnings

from absl import logging as absl_logging

from tests.conftest import TINY, UNOPTIMIZED, write_pairs
from tests.forked import become

ENV = {**os.environ}
# Libraries that take long to import. Modules of the package are not imported in advance, because
# each must import all that it needs.
_SLOW_LIBRARIES = [
    "jax",
    "jax.experimental.pallas",
    "flax.linen",
    "optax",
    "orbax.checkpoint",
    "grain.python",
    "tensorboardX",
    "matplotlib.figure",
    "sacremoses",
    "scipy.optimize",
    "scipy.stats",
]
# Programs that use a run or a folder and train nothing.
_USES = {
    "classify",
    "convert",
    "costs",
    "download",
    "evaluate",
    "features",
    "fill_mask",
    "generate",
    "draw",
    "predict",
    "score",
    "surprisal",
    "transcribe",
    "translate",
}
# Programs that set what jax reads when it is imported.
_BEFORE_JAX = {"dry_run"}


def optimized() -> dict[str, str]:
    """Returns the environment in which programs are compiled as users compile them.

    conftest.py explains TEST_OPTIMIZED.
    """
    env = {**ENV, "TEST_OPTIMIZED": "1"}
    env.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)
    flags = [flag for flag in env.get("XLA_FLAGS", "").split() if flag not in UNOPTIMIZED]
    return env | {"XLA_FLAGS": " ".join(flags)}


def command(program, *arguments):
    return [sys.executable, "-m", f"transformer_jax.{program}", *map(str, arguments)]


def call(program, *arguments, text=None, current_folder=".", **env) -> subprocess.CompletedProcess:
    """Runs a program to its end, with `text` as stdin.

    A program that uses a run runs in this process (`here`). One that trains, or that has an
    environment or a folder of its own, is forked, so that it has a process of one device.
    """
    if program in _USES and not env and current_folder == ".":
        return here(program, *arguments, text=text)
    return fork(program, *arguments, text=text, current_folder=current_folder, **env)


def fork(program, *arguments, text=None, current_folder=".", **env) -> subprocess.CompletedProcess:
    """Runs a program in a fork of a process that has imported the slow libraries."""
    if program in _BEFORE_JAX:
        return subprocess.run(
            command(program, *arguments),
            input=text,
            capture_output=True,
            encoding="utf-8",
            env={**ENV, **env},
            cwd=current_folder,
            timeout=300,
        )
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(_SLOW_LIBRARIES)
    with tempfile.TemporaryDirectory() as folder:
        streams = [os.path.join(folder, name) for name in ("stdin", "stdout", "stderr")]
        for name in streams:
            with open(name, "w", encoding="utf-8") as file:
                file.write(text or "" if name == streams[0] else "")
        # GLIBC_TUNABLES is set, so that the program does not start itself again to set it.
        running = forks.Process(
            target=become,
            args=(
                program,
                [*map(str, arguments)],
                {**ENV, "GLIBC_TUNABLES": "", **env},
                streams,
                os.path.abspath(current_folder),
            ),
        )
        running.start()
        running.join(300)
        running.kill()
        running.join()
        out, err = (open(name, encoding="utf-8").read() for name in streams[1:])
        return subprocess.CompletedProcess(command(program, *arguments), running.exitcode, out, err)


def here(program, *arguments, text=None) -> subprocess.CompletedProcess:
    """Runs a program in this process, with `text` as stdin. It takes all devices of the process."""
    arguments = [*map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        paths[0].write_text(text or "", encoding="utf-8")
        with _process(program, arguments, paths):
            code = 0
            try:
                # A warning says that the program has been imported before.
                with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
                    runpy.run_module(
                        f"transformer_jax.{program}", run_name="__main__", alter_sys=True
                    )
            except SystemExit as end:
                code = end.code or 0
        out, err = (path.read_text(encoding="utf-8") for path in paths[1:])
    return subprocess.CompletedProcess(command(program, *arguments), code, out, err)


@contextlib.contextmanager
def _process(program, arguments, paths):
    """Lends this process to a program, and takes back what the program changes in it."""
    names = ("asyncio", "huggingface_hub")
    loggers = absl_logging.get_absl_logger(), *map(logging.getLogger, names)
    levels = [logger.level for logger in loggers]
    hooks = sys.unraisablehook, threading.excepthook
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    argv, streams, environment = sys.argv, (sys.stdin, sys.stdout, sys.stderr), dict(os.environ)
    files = [open(path, mode, encoding="utf-8") for path, mode in zip(paths, "rww")]
    sys.argv = [program, *arguments]
    sys.stdin, sys.stdout, sys.stderr = files
    os.environ["GLIBC_TUNABLES"] = ""  # set, so that the program does not start itself again
    try:
        yield
    finally:
        sys.argv, (sys.stdin, sys.stdout, sys.stderr) = argv, streams
        for file in files:
            file.close()
        os.environ.clear()
        os.environ.update(environment)
        sys.unraisablehook, threading.excepthook = hooks
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def refused(done, *words):
    """Asserts exit code 2, and that the last line of stderr is an error with these words."""
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and "Traceback" not in done.stderr
    for word in words:
        assert word in last


def translation_flags(folder) -> list[str]:
    """Writes small files, and returns the flags of a tiny run of `train_wmt` on them."""
    files = write_pairs(folder / "text")
    keys = TINY | files | {"data.cache": folder / "cache", "decode.beam": 4}
    return [
        "--config=configs/wmt/multi30k.py",
        *(f"--config.{key}={value}" for key, value in keys.items()),
    ]
