"""The programs, as a user starts them: `command`, and `call`, which is quicker and as good."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile

from tests.conftest import UNOPTIMIZED

ENV = {**os.environ}
# to import; nothing of ours, which must import what it needs
_DEAR = [
    "jax",
    "flax.linen",
    "optax",
    "orbax.checkpoint",
    "grain.python",
    "tensorboardX",
    "matplotlib.figure",
    "sacremoses",
]
_BEFORE_JAX = {"dry_run"}  # sets what jax reads when it is imported


def optimized() -> dict[str, str]:
    """The environment in which tests compile as users do (TEST_OPTIMIZED in conftest.py)."""
    env = {**ENV, "TEST_OPTIMIZED": "1"}
    env.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)
    given = env.get("XLA_FLAGS", "").split()
    return env | {"XLA_FLAGS": " ".join(flag for flag in given if flag not in UNOPTIMIZED)}


def command(program, *arguments):
    return [sys.executable, "-m", f"transformer_jax.{program}", *map(str, arguments)]


def call(program, *arguments, text=None, **env) -> subprocess.CompletedProcess:
    """The ended program. It is forked from a process that has imported what takes long: a refusal
    in 0.1 instead of 1.7 s.
    """
    if program in _BEFORE_JAX:
        return subprocess.run(
            command(program, *arguments),
            input=text,
            capture_output=True,
            encoding="utf-8",
            env={**ENV, **env},
            timeout=300,
        )
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(_DEAR)
    with tempfile.TemporaryDirectory() as folder:
        streams = [os.path.join(folder, name) for name in ("stdin", "stdout", "stderr")]
        for name in streams:
            with open(name, "w", encoding="utf-8") as file:
                file.write(text or "" if name == streams[0] else "")
        # set: it does not start itself again
        running = forks.Process(
            target=_become,
            args=(program, [*map(str, arguments)], {**ENV, "GLIBC_TUNABLES": "", **env}, streams),
        )
        running.start()
        running.join(300)
        running.kill()
        running.join()
        out, err = (open(name, encoding="utf-8").read() for name in streams[1:])
        return subprocess.CompletedProcess(command(program, *arguments), running.exitcode, out, err)


def _become(program, arguments, env, streams):
    os.environ.clear()
    os.environ.update(env)
    for number, name in enumerate(streams):
        os.dup2(os.open(name, os.O_RDWR), number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", closefd=False) for number, mode in enumerate("rww")
    )
    sys.argv = [program, *arguments]
    runpy.run_module(f"transformer_jax.{program}", run_name="__main__", alter_sys=True)


def refused(done, *words):
    """Exit code 2 and one clear line."""
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and "Traceback" not in done.stderr
    for word in words:
        assert word in last
