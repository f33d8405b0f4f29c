"""Files and folders that appear whole or not at all."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator


@contextlib.contextmanager
def appearing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a temporary path beside `path`, on the same disk and with the same suffix.

    The caller writes a file or a folder there. When the context ends, it is renamed to `path`.
    After an error it is deleted, and `path` is as it was.
    """
    temporary = path.with_name(f".{path.stem}.half{path.suffix}")
    _delete(temporary)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        _delete(temporary)


def write_whole(path: os.PathLike, content: str) -> None:
    """Writes a file on a disk or in a bucket; a reader never sees a part of it."""
    if not isinstance(path, pathlib.Path):
        path.write_text(content)  # an object in a bucket changes at once
        return
    with appearing(path) as temporary:
        temporary.write_text(content)


def _delete(path: pathlib.Path) -> None:
    """Deletes the file or folder, if it exists. An error here must not hide the first one."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
