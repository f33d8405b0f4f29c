"""Digests of files, which tell whether they still are what was written."""

import concurrent.futures
import contextlib
import hashlib
import pathlib
from collections.abc import Sequence


def of(folder: pathlib.Path, names: Sequence[str]) -> list[str | None]:
    """The SHA-256 of each named file in the folder; None for one that is missing."""

    def one(name):
        with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(one, names))
