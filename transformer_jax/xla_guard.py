"""Sets the XLA flag that avoids wrong results on CPUs, before XLA reads its flags.

Since jaxlib 0.10.2, XLA on CPU offloads reductions to YNNPACK, and some of them return wrong values
without any error (jax-ml/jax#39103, #39741). The flag keeps reductions in XLA itself.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import warnings
from importlib import metadata

FLAG = "--xla_cpu_experimental_ynn_fusion_type"
# The releases of jaxlib that were tried with tests/xla_programs.py, and the value of the flag with
# which no sum is wrong there; None if no sum is wrong without the flag either.
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
# Any other release gets this value if it accepts the flag. XLA aborts a process that sets an
# unknown flag, so a child process tries it first.
UNTRIED = "-reduce"
# The environment variable with the flag that this module has added to XLA_FLAGS. A child process
# inherits both variables, but it may use another jaxlib, and then has to remove the flag.
ADDED = "TRANSFORMER_JAX_XLA_FLAG"
# The environment variable with the release of jaxlib about which this process or its parent has
# warned, so that the worker processes of a run do not repeat the warning.
WARNED = "TRANSFORMER_JAX_UNTRIED_JAXLIB"
TRIAL = "import jax; jax.devices()"
TRIAL_SECONDS = 120


def protect() -> None:
    """Adds the flag that the installed jaxlib needs to XLA_FLAGS, unless the user has set it.

    It does not import jax. It warns if XLA has already read its flags, or if this release of jaxlib
    has not been tried.
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
            # In front, where `_remove_inherited` looks for it in a child process.
            os.environ["XLA_FLAGS"] = f"{flag} {_read_flags()}".rstrip()
            os.environ[ADDED] = flag
    except (metadata.PackageNotFoundError, OSError):
        return  # there is no jaxlib, or XLA_FLAGS names a missing file, which XLA itself reports


def _backend_is_open() -> bool:
    # jax has no public function for this, and none could be called without importing jax.
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
    """Removes the flag that a parent process has added to XLA_FLAGS."""
    added = os.environ.pop(ADDED, None)
    flags = os.environ.get("XLA_FLAGS", "")
    if added and flags.startswith(added):
        os.environ["XLA_FLAGS"] = flags.removeprefix(added).lstrip()


def _read_flags() -> str:
    """Returns the user's flags, which are in XLA_FLAGS or in the file that it names."""
    flags = os.environ.get("XLA_FLAGS", "")
    if not flags.strip() or flags.lstrip().startswith("-"):
        return flags
    with open(flags, encoding="utf-8") as file:
        return file.read()


def _untried(jaxlib: str) -> str | None:
    """Returns the value of the flag for a release that is not in the table, or None.

    It is None if the release does not accept the flag. Warns in any case, because it is not known
    whether the sums of this release are right.
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
    """Returns whether this jaxlib starts with the flag, or None if it does not start at all.

    The answer is cached in a file for each release and value, because starting jax takes seconds.
    """
    name = f"jaxlib-{jaxlib}{UNTRIED}"
    cached = pathlib.Path("~/.cache/transformer_jax/xla_flag").expanduser() / name
    with contextlib.suppress(OSError):
        return cached.read_text("utf-8") == "accepted"
    accepted = _starts(f"{FLAG}={UNTRIED}")
    # If jax does not start without the flag either, the flag is not the reason.
    if not accepted and not _starts(""):
        return None
    with contextlib.suppress(OSError):  # without the file, the next process tries again
        cached.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place, because another process may read the file at any moment.
        temporary = cached.with_name(f".{name}.{os.getpid()}")
        temporary.write_text("accepted" if accepted else "refused", "utf-8")
        temporary.replace(cached)
    return accepted


def _starts(flags: str) -> bool:
    """Returns whether jax starts on a CPU, in a child process with these XLA flags."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRIAL],
            # On a CPU, so that the trial does not hold an accelerator that this process needs.
            env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TRIAL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
