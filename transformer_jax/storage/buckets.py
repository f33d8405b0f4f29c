"""Paths in a bucket (gs://BUCKET/NAME; data also s3://...), and what a bucket lacks: appending, and
locks.

TensorStore's key-value stores do the work, with their credentials and their patience: a request
that is refused for being one too many, or not answered, is sent again for up to a quarter of an
hour. Orbax takes these paths for its own through etils.epath, so that all in a bucket goes one way.
"""

import contextlib
import fnmatch
import functools
import glob
import io
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorstore as ts
from etils import epath

from transformer_jax.config import RunError, UserError

# seconds for a bucket's first answer; one that has answered gets all that TensorStore gives
PATIENCE = 60
_COMMIT = "commit_success.txt"  # Orbax's word that a checkpoint in a bucket is whole
_BLOCK = 2**23  # bytes of a file that is read piece by piece
_SCHEMES = ("gs://", "s3://")
_answered = set()  # buckets


def path(where) -> "pathlib.Path | Path":
    """A name on a disk or in a bucket. Raises UserError for URLs of neither, and for the home of a
    user there is not.
    """
    if isinstance(where, Path) or "://" not in str(where):
        try:
            return where if isinstance(where, Path) else pathlib.Path(where).expanduser()
        except RuntimeError:
            raise UserError(f"{where}: no such user's home") from None
    if not str(where).startswith(_SCHEMES) or not str(where).partition("://")[2].strip("/"):
        raise UserError(
            f"{where}: neither a path nor {' nor '.join(f'{scheme}BUCKET/NAME' for scheme in _SCHEMES)}"
        )
    _register()
    return Path(str(where))


@functools.cache
def _register() -> None:
    """Orbax and TFDS take names in a bucket for `Path`, from the first one on."""
    epath.register_path_cls(_SCHEMES)(Path)


def folder_of_run(where) -> "pathlib.Path | Path":
    """`path`, of a workdir: Orbax writes no other buckets than Google's."""
    if str(where).startswith("s3://"):
        raise UserError(f"{where}: a run's folder can be on a disk or in gs://, not in s3://")
    return path(where)


def matches(pattern: str) -> list[str]:
    """The files that a shell pattern names, in order; without a wildcard its own name if there is
    such a file.
    """
    if not re.search(r"[*?[]", pattern):
        return [str(path(pattern))] if path(pattern).is_file() else []
    if "://" not in pattern:
        return sorted(name for name in glob.glob(str(path(pattern))) if os.path.isfile(name))
    base = re.split(r"[*?[]", pattern)[0].rpartition("/")[0]
    return [str(found) for found in path(base).glob(pattern[len(base) + 1 :]) if found.is_file()]


def version(where) -> Any:
    """What changes with a file's content."""
    there = path(where)
    if isinstance(there, Path):
        return there.stamped().stamp.generation
    status = there.stat()
    return status.st_size, status.st_mtime_ns


def write(target: "pathlib.Path | Path", content: str) -> None:
    """Writes a file whole or not at all."""
    if isinstance(target, Path):
        target.write_text(content)
        return
    half = target.with_name(f".{target.name}.half")
    half.write_text(content)
    os.replace(half, target)


class Path(epath.gpath.PosixGPath):
    """A name in a bucket, as pathlib and Orbax know paths. A folder is but the beginning that
    several names share: it needs no making, and goes with the last of them.

    Raises OSErrors of one line that begins with the URL.
    """

    def stamped(self) -> ts.KvStore.ReadResult:
        """Whether there is such an object (`state` is "missing" or "value"), and of which
        generation; without its content.
        """
        return self._ask(lambda files: files.read(self._name, byte_range=slice(0, 0)))

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return bool(self._name) and self.stamped().state == "value"

    def is_dir(self) -> bool:
        return not self._name or bool(self._names())

    def iterdir(self) -> Iterator["Path"]:
        return (self / name for name in sorted({name.partition("/")[0] for name in self._names()}))

    def glob(self, pattern: str) -> Iterator["Path"]:
        """Files and folders; `**` stands for folders of any depth."""
        known = {
            parts[:depth]
            for parts in (tuple(name.split("/")) for name in self._names())
            for depth in range(1, len(parts) + 1)
        }
        return (
            self.joinpath(*parts) for parts in sorted(known) if _fits(parts, pattern.split("/"))
        )

    def read_bytes(self) -> bytes:
        found = self._ask(lambda files: files.read(self._name))
        if found.state == "missing":
            raise FileNotFoundError(f"{self}: no such file")
        return found.value

    def read_text(self, encoding: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def open(self, mode: str = "r", **_) -> io.BufferedReader | io.TextIOWrapper:
        """To read from, piece by piece. What is written is written whole, by `write_bytes`."""
        if mode not in ("r", "rb"):
            raise io.UnsupportedOperation(f"{self}: mode {mode!r}")
        reader = io.BufferedReader(_Stream(self), _BLOCK)
        return reader if mode == "rb" else io.TextIOWrapper(reader, "utf-8")

    def read_part(self, start: int, stop: int | None) -> "ts.Future[ts.KvStore.ReadResult]":
        return self._files.read(self._name, byte_range=slice(start, stop))

    def write_bytes(self, data: bytes) -> int:
        self._ask(lambda files: files.write(self._name, bytes(data)))
        return len(data)

    def write_text(self, data: str, *_, **__) -> int:
        return self.write_bytes(data.encode())

    def write_if(
        self, data: bytes | None, generation: bytes, patience: float | None = None
    ) -> bytes | None:
        """Writes (None: deletes) where the object is still of a `generation` as `stamped` gives it.
        Returns the new one, None where it is another's.
        """
        done = self._ask(
            lambda files: files.write(self._name, data, if_equal=generation), patience
        ).generation
        if done or data is None:
            return done or None
        # the answer to a write that was done may have been lost, and the write sent again
        there = self._ask(lambda files: files.read(self._name))
        return there.stamp.generation if there.state == "value" and there.value == data else None

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        if not exist_ok and self.exists():
            raise FileExistsError(f"{self}: there already")

    def unlink(self, missing_ok: bool = False) -> None:
        self._ask(lambda files: files.write(self._name, None))

    def rmtree(self, missing_ok: bool = False) -> None:
        names = self._names()
        if not names and not missing_ok:
            raise FileNotFoundError(f"{self}: no such folder")
        # these first: half a checkpoint must not look like a whole one
        for name in sorted((name for name in names if name.endswith(_COMMIT)), key=len):
            (self / name).unlink()
        self._ask(lambda files: files.delete_range(self._below()))

    def rmdir(self) -> None:
        if self._names():
            raise OSError(f"{self}: not empty")

    def rename(self, target) -> "Path":
        """Of a file or folder. A bucket knows no such thing: all is read and written."""
        target = path(target)
        if self.is_file():
            target.write_bytes(self.read_bytes())
            self.unlink()
        else:
            for name in sorted(
                self._names(), key=lambda name: (name.endswith(_COMMIT), -len(name))
            ):
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
        return "/".join(self.parts[3:])

    @property
    def _files(self) -> ts.KvStore:
        return _bucket("{}://{}/".format(*self.parts[1:3]))

    def _below(self) -> ts.KvStore.KeyRange:
        # "0" is what follows "/"
        return (
            ts.KvStore.KeyRange(f"{self._name}/", f"{self._name}0")
            if self._name
            else ts.KvStore.KeyRange()
        )

    def _names(self) -> list[str]:
        """Of all objects below, relative to here."""
        start = len(self._name.encode()) + 1 if self._name else 0
        # some programs write objects to stand for folders
        return [
            name.decode()
            for name in self._ask(lambda files: files.list(self._below(), start))
            if name and not name.endswith(b"/")
        ]

    def _ask(self, request: Callable, patience: float | None = None):
        bucket = self.parts[1:3]
        with told(self):
            answer = request(self._files).result(patience if bucket in _answered else PATIENCE)
        _answered.add(bucket)
        return answer


@functools.cache
def _bucket(url: str) -> ts.KvStore:
    return ts.KvStore.open(url).result()


def _fits(parts, pattern) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return _fits(parts, pattern[1:]) or _fits(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


@contextlib.contextmanager
def told(where) -> Iterator[None]:
    """What goes wrong in a bucket as an OSError of one line."""
    try:
        yield
    except TimeoutError:
        raise TimeoutError(f"{where}: no answer within {PATIENCE} seconds") from None
    except ValueError as error:  # TensorStore's begin with a code
        detail = str(error).split(" [")[0].splitlines()[0]
        kinds = {
            "NOT_FOUND": FileNotFoundError,
            "PERMISSION_DENIED": PermissionError,
            "UNAUTHENTICATED": PermissionError,
        }
        raise kinds.get(detail.partition(":")[0], OSError)(f"{where}: {detail}") from None


class _Stream(io.RawIOBase):
    """An object's content block by block, the next one on its way."""

    def __init__(self, source: Path):
        if (there := source.stamped()).state == "missing":
            raise FileNotFoundError(f"{source}: no such file")
        self.source, self.generation = source, there.stamp.generation
        self._at, self._block, self._next = 0, memoryview(b""), source.read_part(0, _BLOCK)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if not self._block and self._next is not None:
            self._block = memoryview(self._received())
        count = min(len(buffer), len(self._block))
        buffer[:count], self._block = self._block[:count], self._block[count:]
        return count

    def _received(self) -> bytes:
        with told(self.source):
            try:
                found = self._next.result()
                self._at += _BLOCK
                self._next = self.source.read_part(self._at, self._at + _BLOCK)
            except ValueError as error:
                if not str(error).startswith("OUT_OF_RANGE"):
                    raise
                self._next = None  # the rest is less than a block
                try:
                    found = self.source.read_part(self._at, None).result()
                except ValueError as error:
                    if not str(error).startswith("OUT_OF_RANGE"):
                        raise
                    return b""
        if found.stamp.generation != self.generation:
            raise OSError(f"{self.source}: changed while it was read")
        return found.value


class Mirror:
    """A folder for files that are appended to and redrawn: `folder` itself on a disk; for one in a
    bucket, where objects are only written whole, a local one.

    `send` brings to the bucket what has changed. A file that another run has written there since is
    not written over: RunError.
    """

    def __init__(self, folder: "pathlib.Path | Path", *fetched: str):
        self.folder, self.local, self._scratch = folder, folder, None
        if not isinstance(folder, Path):
            return
        self._scratch = tempfile.TemporaryDirectory(prefix="transformer_jax-")
        self.local, self._sent, self._generations = pathlib.Path(self._scratch.name), {}, {}
        for name in fetched:
            self._generations[name] = (folder / name).stamped().stamp.generation
            with contextlib.suppress(FileNotFoundError):
                (self.local / name).write_bytes((folder / name).read_bytes())

    def send(self) -> None:
        for file in sorted(self.local.rglob("*")) if self._scratch else ():
            name, status = file.relative_to(self.local).as_posix(), file.stat()
            if not file.is_file() or self._sent.get(name) == (status.st_size, status.st_mtime_ns):
                continue
            if name in self._generations:
                self._generations[name] = (self.folder / name).write_if(
                    file.read_bytes(), self._generations[name]
                )
                if self._generations[name] is None:
                    raise RunError(
                        f"{self.folder / name}: another run has written there; this one ends, nothing of it is saved from here on"
                    )
            else:
                (self.folder / name).write_bytes(file.read_bytes())
            self._sent[name] = status.st_size, status.st_mtime_ns

    def close(self) -> None:
        if self._scratch:
            self._scratch.cleanup()
