"""Paths in a bucket: gs://BUCKET/NAME, and s3://BUCKET/NAME for data.

Orbax and TFDS use these paths too, through etils.epath, so every request goes through `key_values`.
"""

import fnmatch
import functools
import glob
import io
import os
import pathlib
import re
from collections.abc import Callable, Iterator

import tensorstore as ts
from etils import epath

from transformer_jax.config import UserError
from transformer_jax.storage import key_values, stream

# Orbax writes this file last: a checkpoint in a bucket counts once it exists.
_COMMIT = "commit_success.txt"
_SCHEMES = ("gs://", "s3://")


def path(name) -> "pathlib.Path | Path":
    """The path of a name on a disk or in a bucket.

    Raises UserError for a URL of another kind, and for the home folder of an unknown user.
    """
    if isinstance(name, Path):
        return name
    if "://" not in str(name):
        try:
            return pathlib.Path(name).expanduser()
        except RuntimeError:
            raise UserError(f"{name}: no such user's home") from None
    if not str(name).startswith(_SCHEMES) or not str(name).partition("://")[2].strip("/"):
        urls = " nor ".join(f"{scheme}BUCKET/NAME" for scheme in _SCHEMES)
        raise UserError(f"{name}: neither a path nor {urls}")
    _register()
    return Path(str(name))


@functools.cache
def _register() -> None:
    """From the first bucket on, Orbax and TFDS read names in buckets as `Path`."""
    epath.register_path_cls(_SCHEMES)(Path)


def folder_of_run(name) -> "pathlib.Path | Path":
    """The `path` of a workdir. Raises UserError for s3://, to which Orbax does not write."""
    if str(name).startswith("s3://"):
        raise UserError(f"{name}: a run's folder can be on a disk or in gs://, not in s3://")
    return path(name)


def matches(pattern: str) -> list[str]:
    """The files that a shell pattern names, in order.

    A pattern without a wildcard is the name of one file; the list is empty where there is none.
    """
    if not re.search(r"[*?[]", pattern):
        return [str(path(pattern))] if path(pattern).is_file() else []
    if "://" not in pattern:
        return sorted(name for name in glob.glob(str(path(pattern))) if os.path.isfile(name))
    folder = re.split(r"[*?[]", pattern)[0].rpartition("/")[0]
    files = path(folder).glob(pattern[len(folder) + 1 :])
    return [str(file) for file in files if file.is_file()]


def version(name) -> tuple[int, int] | tuple[str]:
    """A value that changes with the content of a file, with a form in JSON.

    It is (size, time of change in nanoseconds), or in a bucket (generation,).
    """
    file = path(name)
    if isinstance(file, Path):
        return (file.stamped().stamp.generation.hex(),)
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def is_empty(name) -> bool:
    """Whether a file has no content."""
    file = path(name)
    return stream.is_empty(file) if isinstance(file, Path) else file.stat().st_size == 0


def open_at(name, start: int, block_size: int | None = None) -> io.BufferedReader:
    """Opens a file for reading bytes from `start` on; a bucket sends `block_size` bytes at once."""
    file = path(name)
    if isinstance(file, Path):
        raw = stream.Stream(file, start, block_size)
        return io.BufferedReader(raw, block_size or stream.READ_SIZE)
    opened = file.open("rb")
    opened.seek(start)
    return opened


def size(name) -> int:
    """The number of bytes of a file."""
    file = path(name)
    return stream.size(file) if isinstance(file, Path) else file.stat().st_size


class Path(epath.gpath.PosixGPath):
    """A name in a bucket, with the methods of pathlib that Orbax and this package use.

    A folder is a common beginning of names: it exists while an object's name begins with it. Raises
    OSErrors of one line that begins with the URL.
    """

    def stamped(self) -> ts.KvStore.ReadResult:
        """The object without its content: `state` "missing" or "value", and its generation."""
        return self._answer(lambda objects: objects.read(self._name, byte_range=slice(0, 0)))

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return bool(self._name) and self.stamped().state == "value"

    def is_dir(self) -> bool:
        return not self._name or bool(self._names())

    def iterdir(self) -> Iterator["Path"]:
        return (self / name for name in sorted({name.partition("/")[0] for name in self._names()}))

    def glob(self, pattern: str) -> Iterator["Path"]:
        """Files and folders, in order; `**` stands for folders of any depth."""
        entries = set()
        for name in self._names():
            parts = tuple(name.split("/"))
            entries |= {parts[:depth] for depth in range(1, len(parts) + 1)}
        patterns = pattern.split("/")
        return (self.joinpath(*parts) for parts in sorted(entries) if _fits(parts, patterns))

    def read_bytes(self) -> bytes:
        result = self._answer(lambda objects: objects.read(self._name))
        if result.state == "missing":
            raise FileNotFoundError(f"{self}: no such file")
        return result.value

    def read_text(self, encoding: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def open(self, mode: str = "r", **_) -> io.BufferedReader | io.TextIOWrapper:
        """A stream to read from. Objects are written whole, by `write_bytes`."""
        if mode not in ("r", "rb"):
            raise io.UnsupportedOperation(f"{self}: mode {mode!r}")
        reader = io.BufferedReader(stream.Stream(self), stream.READ_SIZE)
        return reader if mode == "rb" else io.TextIOWrapper(reader, "utf-8")

    def read_part(self, start: int, stop: int | None) -> "ts.Future[ts.KvStore.ReadResult]":
        """Starts to read the bytes from `start` to `stop`."""
        return key_values.bucket(self._url).read(self._name, byte_range=slice(start, stop))

    def write_bytes(self, data: bytes) -> int:
        self._answer(lambda objects: objects.write(self._name, bytes(data)))
        return len(data)

    def write_text(self, data: str, *_, **__) -> int:
        return self.write_bytes(data.encode())

    def write_if(
        self, data: bytes | None, generation: bytes, patience: float | None = None
    ) -> bytes | None:
        """Writes `data`, or deletes for None, if the object still has the `generation`.

        Returns the new generation, or None where another process has written the object.
        """
        new = self._answer(
            lambda objects: objects.write(self._name, data, if_equal=generation), patience
        ).generation
        if new or data is None:
            return new or None
        # The answer to a successful write may get lost, and TensorStore then writes again.
        result = self._answer(lambda objects: objects.read(self._name))
        is_own = result.state == "value" and result.value == data
        return result.stamp.generation if is_own else None

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Folders need not be made; raises FileExistsError as pathlib does."""
        if not exist_ok and self.exists():
            raise FileExistsError(f"{self}: exists already")

    def unlink(self, missing_ok: bool = False) -> None:
        self._answer(lambda objects: objects.write(self._name, None))

    def rmtree(self, missing_ok: bool = False) -> None:
        names = self._names()
        if not names and not missing_ok:
            raise FileNotFoundError(f"{self}: no such folder")
        # Commit files go first: a part of a checkpoint must not pass for a complete one.
        for name in sorted((name for name in names if name.endswith(_COMMIT)), key=len):
            (self / name).unlink()
        self._answer(lambda objects: objects.delete_range(self._below()))

    def rmdir(self) -> None:
        if self._names():
            raise OSError(f"{self}: not empty")

    def rename(self, target) -> "Path":
        """Renames a file or folder. Buckets can't, so the content is copied and then deleted."""
        target = path(target)
        if self.is_file():
            target.write_bytes(self.read_bytes())
            self.unlink()
            return target
        # Commit files go last: a part of a checkpoint must not pass for a complete one.
        for name in sorted(self._names(), key=lambda name: (name.endswith(_COMMIT), -len(name))):
            (target / name).write_bytes((self / name).read_bytes())
        self.rmtree()
        return target

    replace = rename

    def expanduser(self) -> "Path":
        return self

    def resolve(self, strict: bool = False) -> "Path":
        return self

    absolute = resolve

    @property
    def _name(self) -> str:
        """The name within the bucket."""
        return "/".join(self.parts[3:])

    @property
    def _url(self) -> str:
        """The URL of the bucket."""
        return "{}://{}/".format(*self.parts[1:3])

    def _below(self) -> ts.KvStore.KeyRange:
        """The range of the names that begin with this folder."""
        if not self._name:
            return ts.KvStore.KeyRange()
        # "0" is the character after "/".
        return ts.KvStore.KeyRange(f"{self._name}/", f"{self._name}0")

    def _names(self) -> list[str]:
        """The names of all objects in this folder, at any depth, relative to it."""
        start = len(self._name.encode()) + 1 if self._name else 0
        names = self._answer(lambda objects: objects.list(self._below(), start))
        # Some programs write objects that stand for folders; their names end with "/".
        return [name.decode() for name in names if name and not name.endswith(b"/")]

    def _answer(self, request: Callable, patience: float | None = None):
        return key_values.answer(self._url, self, request, patience)


def _fits(parts, pattern) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return _fits(parts, pattern[1:]) or _fits(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])
