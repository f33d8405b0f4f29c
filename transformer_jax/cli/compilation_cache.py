"""The cache of compiled programs: each is compiled once per machine.

JAX can limit the cache, too. It then reads the times of all entries at each new one, which takes
seconds with 20,000 entries, and it refuses a folder that was ever used without the limit.
"""

import contextlib
import os
import pathlib
import time

from transformer_jax.storage import least_used

LIMIT = "TRANSFORMER_JAX_COMPILED_GB"
_BYTES = 10e9
_SECONDS = 3600  # between two looks at the size of the folder


def use() -> None:
    """Keeps compiled programs in the user's cache, or where JAX_COMPILATION_CACHE_DIR says."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        folder = pathlib.Path("~/.cache/transformer_jax/compiled").expanduser()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        keep_small(folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def keep_small(folder: pathlib.Path) -> None:
    """Removes the least recently used programs beyond the limit. Looks once an hour.

    Several processes may call it at the same time. A program that is in use is in memory.
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
        # Another process may have removed it.
        with contextlib.suppress(FileNotFoundError):
            if file.name.endswith("-cache"):
                status = file.stat()
                # A reader sets the time of access at most once a day on most disks, else never.
                used = max(status.st_atime, status.st_mtime)
                entries.append(least_used.Entry(pathlib.Path(file.path), used, status.st_size))
    return entries


def _remove(path: pathlib.Path) -> bool:
    path.unlink(missing_ok=True)
    return True
