"""Out of memory, in one line: the size of the request, the use of the memory, and remedies.

It is one line for the memory of the host and of a device. XLA raises a JaxRuntimeError; numpy and
Python raise a MemoryError.
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
    """Whether the error, or its cause, is a lack of memory."""
    if error is None:
        return False
    text = str(error).lower()
    exhausted = "resource_exhausted" in text and ("memory" in text or "allocat" in text)
    of_jax = type(error).__name__ in _JAX_ERRORS and (exhausted or "out of memory" in text)
    of_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or of_jax or of_system or ran_out(error.__cause__)


def requested(error: BaseException) -> int | None:
    """The bytes that the failed request asked for, if the error says so."""
    match = _SIZE.search(str(error))
    if match is None:
        return requested(error.__cause__) if error.__cause__ else None
    power = 1 + _UNITS.index(match[2].upper()) if match[2] else 0
    return int(float(match[1]) * 1024**power)


def readable(size: float) -> str:
    """A number of bytes with its unit, such as "2.0 KiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024


def of_host() -> int | None:
    """The most bytes that this process can have: those of the machine, or the container's limit.

    Returns None where the system does not say.
    """
    sizes = []
    with contextlib.suppress(OSError, ValueError):
        text = pathlib.Path("/proc/meminfo").read_text()
        kibibytes = [
            int(re.search(rf"{name}: +(\d+)", text)[1]) for name in ("MemTotal", "SwapTotal")
        ]
        sizes.append(1024 * sum(kibibytes))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(pathlib.Path("/sys/fs/cgroup", name).read_text()))
    return min(sizes, default=None)


def line(error: BaseException, activity: str, use: str, remedies: str) -> str:
    """The message. `activity`, `use` and `remedies` may be empty."""
    size = requested(error)
    request = f"{readable(size)} requested" if size else "the size of the request is not known"
    start = f"out of memory {activity}" if activity else "out of memory"
    return "; ".join(part for part in (f"{start}: {request}", use, remedies) if part)


def training_remedies(config: ConfigDict) -> str:
    """The flags to try in training, in this order."""
    train = config.train
    flags = []
    accumulation = _next_accumulation(train)
    if accumulation:
        flags.append(
            f"--config.train.accumulation={accumulation} or more (now {train.accumulation})"
        )
    if config.model.get("remat", "full") != "full":
        flags.append("--config.model.remat=full")
    flags.append(f"more devices with --config.mesh.fsdp=N (now {config.mesh.fsdp})")
    return (
        f"try, in this order: {'; '.join(flags)}; python -m transformer_jax.dry_run shows what fits"
    )


def _next_accumulation(train: ConfigDict) -> int | None:
    """The next number of microbatches into which the batches can be divided."""
    for number in range(train.accumulation + 1, train.batch + 1):
        if train.batch % number == 0 and train.first_batch % number == 0:
            return number
    return None


def decoding_remedies(config: ConfigDict) -> str:
    """The flags to try in decoding, in this order."""
    decode = config.decode
    flags = [f"--config.decode.batch={max(decode.batch // 2, 1)} or less (now {decode.batch})"]
    if decode.beam > 1:
        flags.append(f"--config.decode.beam={decode.beam // 2} or less (now {decode.beam})")
    return f"try, in this order: {'; '.join(flags)}"
