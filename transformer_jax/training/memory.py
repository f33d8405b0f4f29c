"""Out of memory, in one line: the size that was asked for, what takes memory, and the remedies.

The host's memory and a device's run out alike. XLA raises a JaxRuntimeError, numpy and Python a
MemoryError.
"""

import contextlib
import errno
import pathlib
import re

from ml_collections import ConfigDict

_JAX_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")  # by name: this module imports no jax
_SIZE = re.compile(
    r"(?:allocat\w*|reserve|Used|request for)[^\d\n]{0,20}"
    r"([\d.]*\d) ?([KMGTP]?)(?:i?B|bytes)?\b",
    re.IGNORECASE,
)
_UNITS = "KMGTP"


def ran_out(error: BaseException | None) -> bool:
    """Whether the error, or what caused it, is a lack of memory."""
    if error is None:
        return False
    text = str(error).lower()
    exhausted = "resource_exhausted" in text and ("memory" in text or "allocat" in text)
    of_jax = type(error).__name__ in _JAX_ERRORS and (exhausted or "out of memory" in text)
    of_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or of_jax or of_system or ran_out(error.__cause__)


def asked(error: BaseException) -> int | None:
    """The bytes that the error says were asked for."""
    match = _SIZE.search(str(error))
    if match is None:
        return asked(error.__cause__) if error.__cause__ else None
    return int(float(match[1]) * 1024 ** (1 + _UNITS.index(match[2].upper()) if match[2] else 0))


def shown(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024


def of_host() -> int | None:
    """The bytes that this process can have at most: the machine's, or the container's limit."""
    sizes = []
    with contextlib.suppress(OSError, ValueError):
        text = pathlib.Path("/proc/meminfo").read_text()
        sizes.append(
            1024
            * sum(int(re.search(rf"{name}: +(\d+)", text)[1]) for name in ("MemTotal", "SwapTotal"))
        )
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(pathlib.Path("/sys/fs/cgroup", name).read_text()))
    return min(sizes, default=None)


def line(error: BaseException, doing: str, takes: str, remedies: str) -> str:
    """The one line. `takes` and `remedies` may be empty."""
    size = asked(error)
    wanted = f"{shown(size)} asked for" if size else "how much was asked for is not known"
    return "; ".join(
        part
        for part in (f"out of memory{doing and f' {doing}'}: {wanted}", takes, remedies)
        if part
    )


def training_remedies(config: ConfigDict) -> str:
    """What to try, in this order."""
    train, tries = config.train, []
    more = next(
        (
            n
            for n in range(train.accumulation + 1, train.batch + 1)
            if train.batch % n == 0 and train.first_batch % n == 0
        ),
        None,
    )
    if more:
        tries.append(f"--config.train.accumulation={more} or more (now {train.accumulation})")
    if config.model.get("remat", "full") != "full":
        tries.append("--config.model.remat=full")
    tries.append(f"more devices with --config.mesh.fsdp=N (now {config.mesh.fsdp})")
    return (
        f"try, in this order: {'; '.join(tries)}; python -m transformer_jax.dry_run shows what fits"
    )


def decoding_remedies(config: ConfigDict) -> str:
    """What to try, in this order."""
    decode = config.decode
    tries = [f"--config.decode.batch={max(decode.batch // 2, 1)} or less (now {decode.batch})"]
    if decode.beam > 1:
        tries.append(f"--config.decode.beam={decode.beam // 2} or less (now {decode.beam})")
    return f"try, in this order: {'; '.join(tries)}"
