"""Sets the XLA flag that keeps results on a CPU right, before XLA reads its flags."""

import contextlib
import os
import pathlib
import subprocess
import sys
import warnings
from importlib import metadata

FLAG = "--xla_cpu_experimental_ynn_fusion_type"
# Releases of jaxlib that were tried with tests/xla_programs.py, and the flag's value with which
# that finds no wrong sum; None where it finds none without the flag.
VALUES = {
    "0.10.0": None,
    "0.10.1": None,
    "0.10.2": "-reduce",
    "0.11.0": "-reduce",
    "0.11.1": "-reduce",
    "0.11.2": "-reduce",
    "0.12.0": "-reduce",
    "0.12.0.1": "-reduce",
}
# Any other release gets the value of the latest ones if it accepts it. XLA ends a process with a
# flag that it does not know, so a child process tries that.
UNTRIED = "-reduce"
# The flag that this module added to XLA_FLAGS. A child process inherits both variables; it may run
# another jaxlib.
ADDED = "TRANSFORMER_JAX_XLA_FLAG"
# The release of jaxlib about which this process or its parent has warned: the workers of a run
# need not repeat it.
WARNED = "TRANSFORMER_JAX_UNTRIED_JAXLIB"
TRIAL = "import jax; jax.devices()"
TRIAL_SECONDS = 120


def protect() -> None:
    """Adds the flag that the installed jaxlib needs to XLA_FLAGS, unless the user sets that flag.

    Imports no jax. Warns where XLA has read its flags already, and where nobody has tried this
    release of jaxlib.
    """
    try:
        jaxlib = metadata.version("jaxlib")
        if _backend_is_open():
            _warn_if_late(jaxlib)
            return
        _remove_inherited()
        if FLAG in _read_flags():
            return
        value = VALUES[jaxlib] if jaxlib in VALUES else _untried(jaxlib)
        if value:
            flag = f"{FLAG}={value}"
            os.environ["XLA_FLAGS"] = f"{flag} {_read_flags()}".rstrip()
            os.environ[ADDED] = flag
    except (metadata.PackageNotFoundError, OSError):
        return  # no jaxlib; or a file that XLA_FLAGS names, for whose lack XLA has a message


def _backend_is_open() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()


def _warn_if_late(jaxlib: str) -> None:
    value = VALUES.get(jaxlib, UNTRIED)
    if value and FLAG not in _read_flags():
        warnings.warn(
            f"jaxlib {jaxlib} {'computes' if jaxlib in VALUES else 'may compute'} some sums "
            "wrongly on a CPU, and jax started before transformer_jax could prevent it: import "
            "transformer_jax before the first use of jax, or set the environment variable "
            f"XLA_FLAGS={FLAG}={value}",
            stacklevel=4,
        )


def _remove_inherited() -> None:
    """Takes the flag that a parent process added out of XLA_FLAGS."""
    added = os.environ.pop(ADDED, None)
    flags = os.environ.get("XLA_FLAGS", "")
    if added and flags.startswith(added):
        os.environ["XLA_FLAGS"] = flags.removeprefix(added).lstrip()


def _read_flags() -> str:
    """The user's flags: XLA_FLAGS holds them, or names a file of them."""
    flags = os.environ.get("XLA_FLAGS", "")
    if not flags.strip() or flags.lstrip().startswith("-"):
        return flags
    with open(flags, encoding="utf-8") as file:
        return file.read()


def _untried(jaxlib: str) -> str | None:
    """Returns the flag's value for a release that is not in the table, None if it can't have one.

    Warns: whether the sums of this release are right is not known.
    """
    accepted = _accepts_flag(jaxlib)
    if os.environ.get(WARNED) != jaxlib:
        os.environ[WARNED] = jaxlib
        told = {
            True: "It gets the XLA flag that keeps the sums of earlier releases right.",
            False: "It does not accept the XLA flag that keeps the sums of earlier releases right.",
            None: "Whether it accepts the XLA flag that keeps the sums of earlier releases right "
            "could not be found out, so the flag is not set.",
        }[accepted]
        warnings.warn(
            f"transformer_jax was not tried with jaxlib {jaxlib}, and some releases compute some "
            f"sums wrongly on a CPU. {told} To try this one, run `python tests/xla_programs.py` "
            "of transformer_jax's repository, with "
            + (f"XLA_FLAGS={FLAG}={UNTRIED}" if accepted else "no XLA_FLAGS"),
            stacklevel=4,
        )
    return UNTRIED if accepted else None


def _accepts_flag(jaxlib: str) -> bool | None:
    """Whether this jaxlib starts with the flag; None if it does not start without it either.

    The result is kept in a file per release and value, since starting jax takes seconds.
    """
    name = f"jaxlib-{jaxlib}{UNTRIED}"
    cached = pathlib.Path("~/.cache/transformer_jax/xla_flag").expanduser() / name
    with contextlib.suppress(OSError):
        return cached.read_text("utf-8") == "accepted"
    accepted = _starts(f"{FLAG}={UNTRIED}")
    if not accepted and not _starts(""):
        return None
    with contextlib.suppress(OSError):  # without the file, the next process tries again
        cached.parent.mkdir(parents=True, exist_ok=True)
        temporary = cached.with_name(f".{name}.{os.getpid()}")
        temporary.write_text("accepted" if accepted else "refused", "utf-8")
        temporary.replace(cached)
    return accepted


def _starts(flags: str) -> bool:
    """Whether jax starts on a CPU in a child process with these XLA flags."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRIAL],
            env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TRIAL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
