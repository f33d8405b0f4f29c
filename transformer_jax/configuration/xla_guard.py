"""Sets the XLA flag that keeps results on a CPU right, before XLA reads its flags."""

import os
import sys
import warnings
from importlib import metadata

FLAG = "--xla_cpu_experimental_ynn_fusion_type"
# Releases of jaxlib that compute some sums wrongly on a CPU, and the flag's value that mends them.
# Both are tried with tests/xla_programs.py. XLA ends a process with a flag that it does not know,
# so no other release gets the flag.
VALUES = {
    "0.10.2": "-reduce",
    "0.11.0": "-reduce",
    "0.11.1": "-reduce",
    "0.11.2": "-reduce",
    "0.12.0": "-reduce",
    "0.12.0.1": "-reduce",
}
# The flag that this module added to XLA_FLAGS. A child process inherits both variables; it may run
# another jaxlib.
ADDED = "TRANSFORMER_JAX_XLA_FLAG"


def protect() -> None:
    """Adds the flag that the installed jaxlib needs to XLA_FLAGS, unless the user sets that flag.

    Imports no jax. Warns where XLA has read its flags already.
    """
    try:
        value = VALUES.get(metadata.version("jaxlib"))
        if _backend_is_open():
            _warn_if_late(value)
        else:
            _remove_inherited()
            _add(value)
    except (metadata.PackageNotFoundError, OSError):
        return  # no jaxlib; or a file that XLA_FLAGS names, for whose lack XLA has a message


def _backend_is_open() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()


def _warn_if_late(value: str | None) -> None:
    if value and FLAG not in _read_flags():
        warnings.warn(
            "this jaxlib computes some sums wrongly on a CPU, and jax started before "
            "transformer_jax could prevent it: import transformer_jax before the first use of jax, "
            f"or set the environment variable XLA_FLAGS={FLAG}={value}",
            stacklevel=4,
        )


def _remove_inherited() -> None:
    """Takes the flag that a parent process added out of XLA_FLAGS."""
    added = os.environ.pop(ADDED, None)
    flags = os.environ.get("XLA_FLAGS", "")
    if added and flags.startswith(added):
        os.environ["XLA_FLAGS"] = flags.removeprefix(added).lstrip()


def _add(value: str | None) -> None:
    if value and FLAG not in _read_flags():
        flag = f"{FLAG}={value}"
        os.environ["XLA_FLAGS"] = f"{flag} {_read_flags()}".rstrip()
        os.environ[ADDED] = flag


def _read_flags() -> str:
    """The user's flags: XLA_FLAGS holds them, or names a file of them."""
    flags = os.environ.get("XLA_FLAGS", "")
    if not flags.strip() or flags.lstrip().startswith("-"):
        return flags
    with open(flags, encoding="utf-8") as file:
        return file.read()
