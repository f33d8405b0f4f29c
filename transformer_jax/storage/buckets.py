"""Files on disks and in buckets: paths, errors, and atomic writes."""

import contextlib
import fnmatch
import functools
import glob
import io
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorstore as ts
from etils import epath

from transformer_jax.config import RunError, UserError
from transformer_jax.storage import key_values

# --------------------------------------------------------------------------------------------------
# Errors of a disk or a bucket, turned into one line that names the path.
#
# A full disk or a missing file is no defect of the program, so the user needs the path and the
# reason, but no traceback.


@contextlib.contextmanager
def reading(subject: Any) -> Iterator[None]:
    """Turns an OSError in the context into a UserError: "SUBJECT: can't be read (REASON)".

    `subject` is the path, or the flag or config key with its value.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{subject}: can't be read ({error.strerror or error})") from None


@contextlib.contextmanager
def writing(subject: Any, kind: type[Exception] = UserError, note: str = "") -> Iterator[None]:
    """Turns an OSError in the context into `kind`: "SUBJECT: can't be written (REASON)NOTE"."""
    try:
        yield
    except OSError as error:
        raise kind(f"{subject}: can't be written ({error.strerror or error}){note}") from None


# --------------------------------------------------------------------------------------------------
# Atomic writes of files and folders.
#
# A run may be killed at any moment. What it leaves must be either whole or absent, because others
# read it, and the run itself does when it is resumed.


@contextlib.contextmanager
def appearing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a temporary path in the same folder as `path` and with the same suffix.

    The caller writes a file or a folder there, which is renamed to `path` when the context exits.
    After an error, it is deleted, and `path` is unchanged.
    """
    # The same folder means the same disk, where a rename is atomic. The dot hides the file from
    # wildcards, which would otherwise match it half-written.
    temporary = path.with_name(f".{path.stem}.half{path.suffix}")
    # It is deleted first, because a process that was killed may have left one.
    _delete(temporary)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        _delete(temporary)


def write_whole(path: os.PathLike, content: str) -> None:
    """Writes a file on a disk or in a bucket atomically: a reader never sees a part of it."""
    if not isinstance(path, pathlib.Path):
        path.write_text(content)  # writes to an object in a bucket are atomic
        return
    with appearing(path) as temporary:
        temporary.write_text(content)


def _delete(path: pathlib.Path) -> None:
    """Deletes the file or folder, if it exists."""
    # An error here must not replace the error because of which the file is deleted.
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


# --------------------------------------------------------------------------------------------------
# Paths in a bucket: gs://BUCKET/NAME, and s3://BUCKET/NAME for data.
#
# Orbax and TFDS use these paths as well, through etils.epath, so that every request goes through
# `key_values`.

# Orbax writes this file last, so a checkpoint in a bucket is complete once it exists.
_COMMIT = "commit_success.txt"
_SCHEMES = ("gs://", "s3://")


def path(name) -> "pathlib.Path | Path":
    """Returns the path for a name on a disk or in a bucket.

    Raises UserError for a URL of another kind, or for the home folder of an unknown user.
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
    """Makes Orbax and TFDS use `Path` for names in buckets. Called when the first one is used."""
    epath.register_path_cls(_SCHEMES)(Path)


def folder_of_run(name) -> "pathlib.Path | Path":
    """Returns the `path` of a workdir. Raises UserError for s3://, where Orbax can't write."""
    if str(name).startswith("s3://"):
        raise UserError(f"{name}: a run's folder can be on a disk or in gs://, not in s3://")
    return path(name)


def matches(pattern: str) -> list[str]:
    """Returns the files that match a shell pattern, in sorted order.

    `**` stands for folders at any depth. As in a shell, wildcards do not match names that start
    with a dot. The name of an existing file or folder is taken literally, even if it contains
    characters such as brackets. The list is empty if there is no such file.
    """
    if path(pattern).is_file():
        return [str(path(pattern))]
    if not re.search(r"[*?[]", pattern):
        return []
    if "://" not in pattern:
        whole = path(pattern)
        # An existing folder is taken literally, because its name may contain brackets.
        folder = next(parent for parent in whole.parents if parent.is_dir())
        names = glob.glob(str(whole.relative_to(folder)), root_dir=folder, recursive=True)
        return sorted(str(folder / name) for name in names if (folder / name).is_file())
    name = re.split(r"[*?[]", pattern)[0].rpartition("/")[0]
    below = pattern[len(name) + 1 :]
    files = [file for file in path(name).glob(below) if file.is_file()]
    if "/." not in f"/{below}":
        files = [file for file in files if not is_hidden(file, name)]
    return [str(file) for file in files]


def is_hidden(file, folder) -> bool:
    """Returns whether the name of a file in a folder, or of a folder between, starts with a dot."""
    return "/." in str(file)[len(str(folder)) :]


def version(name) -> tuple[int, int, int] | tuple[str]:
    """Returns a value that changes with the content of a file and can be serialized as JSON.

    It is (size, modification time, change time) with times in nanoseconds, or (generation,) in a
    bucket. Programs that copy or unpack files may set the modification time, but only the file
    system sets the change time.
    """
    file = path(name)
    if isinstance(file, Path):
        return (file.stamped().stamp.generation.hex(),)
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_empty(name) -> bool:
    """Returns whether a file has no content."""
    file = path(name)
    return key_values.is_empty(file) if isinstance(file, Path) else file.stat().st_size == 0


def open_at(name, start: int, block_size: int | None = None) -> io.BufferedReader:
    """Opens a file for reading bytes from `start` on.

    Each request to a bucket is for `block_size` bytes.
    """
    file = path(name)
    if isinstance(file, Path):
        raw = key_values.Stream(file, start, block_size)
        return io.BufferedReader(raw, block_size or key_values.READ_SIZE)
    opened = file.open("rb")
    opened.seek(start)
    return opened


def size(name) -> int:
    """Returns the number of bytes of a file."""
    file = path(name)
    return key_values.size(file) if isinstance(file, Path) else file.stat().st_size


class Path(epath.gpath.PosixGPath):
    """A name in a bucket, with the methods of pathlib that Orbax and this package use.

    A folder is a common prefix of object names, so it exists as long as an object's name starts
    with it. Errors are OSErrors of one line that starts with the URL.
    """

    def stamped(self) -> ts.KvStore.ReadResult:
        """Reads only the object's `state`, "missing" or "value", and its generation."""
        # The range is empty, because TensorStore has no request for the generation alone.
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
        """Yields matching files and folders in sorted order; `**` matches folders at any depth."""
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
        """Opens a stream for reading. Objects are written in full by `write_bytes`."""
        if mode not in ("r", "rb"):
            raise io.UnsupportedOperation(f"{self}: mode {mode!r}")
        reader = io.BufferedReader(key_values.Stream(self), key_values.READ_SIZE)
        return reader if mode == "rb" else io.TextIOWrapper(reader, "utf-8")

    def read_part(self, start: int, stop: int | None) -> "ts.Future[ts.KvStore.ReadResult]":
        """Starts reading the bytes from `start` up to `stop`."""
        return key_values.bucket(self._url).read(self._name, byte_range=slice(start, stop))

    def write_bytes(self, data: bytes) -> int:
        self._answer(lambda objects: objects.write(self._name, bytes(data)))
        return len(data)

    def write_text(self, data: str, *_, **__) -> int:
        return self.write_bytes(data.encode())

    def write_if(
        self, data: bytes | None, generation: bytes, patience: float | None = None
    ) -> bytes | None:
        """Writes `data`, or deletes the object for None, if it still has this `generation`.

        Returns the new generation, or None if another process has written the object.
        """
        new = self._answer(
            lambda objects: objects.write(self._name, data, if_equal=generation), patience
        ).generation
        if new or data is None:
            return new or None
        # If the answer to a successful write gets lost, TensorStore writes again, and that write
        # fails because of the new generation. The content shows whether the first one was ours.
        result = self._answer(lambda objects: objects.read(self._name))
        is_own = result.state == "value" and result.value == data
        return result.stamp.generation if is_own else None

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing, because a bucket needs no folders. Raises FileExistsError like pathlib."""
        if not exist_ok and self.exists():
            raise FileExistsError(f"{self}: exists already")

    def unlink(self, missing_ok: bool = False) -> None:
        self._answer(lambda objects: objects.write(self._name, None))

    def rmtree(self, missing_ok: bool = False) -> None:
        names = self._names()
        if not names and not missing_ok:
            raise FileNotFoundError(f"{self}: no such folder")
        # Commit files are deleted first, so that a partly deleted checkpoint never looks complete.
        for name in sorted((name for name in names if name.endswith(_COMMIT)), key=len):
            (self / name).unlink()
        self._answer(lambda objects: objects.delete_range(self._below()))

    def rmdir(self) -> None:
        if self._names():
            raise OSError(f"{self}: not empty")

    def rename(self, target) -> "Path":
        """Renames a file or folder by copying and deleting it, because buckets can't rename."""
        target = path(target)
        if self.is_file():
            target.write_bytes(self.read_bytes())
            self.unlink()
            return target
        # Commit files are copied last, so that a partly copied checkpoint never looks complete.
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
        """The range of object names in this folder."""
        if not self._name:
            return ts.KvStore.KeyRange()
        # "0" is the next character after "/", so it ends the range of names that start with
        # "NAME/".
        return ts.KvStore.KeyRange(f"{self._name}/", f"{self._name}0")

    def _names(self) -> list[str]:
        """The names of all objects in this folder, at any depth, relative to it."""
        start = len(self._name.encode()) + 1 if self._name else 0
        names = self._answer(lambda objects: objects.list(self._below(), start))
        # Names that end with "/" are left out, because some programs write such empty objects as
        # folders.
        return [name.decode() for name in names if name and not name.endswith(b"/")]

    def _answer(self, request: Callable, patience: float | None = None):
        return key_values.answer(self._url, self, request, patience)


def _fits(parts, pattern) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return _fits(parts, pattern[1:]) or _fits(parts[1:], pattern)
    fits = parts[0] == pattern[0] or fnmatch.fnmatchcase(parts[0], pattern[0])
    return fits and _fits(parts[1:], pattern[1:])


# --------------------------------------------------------------------------------------------------
# Files of a run in a bucket that are appended to or rewritten.
#
# Logs grow by a line at a time, which a bucket cannot do: it stores whole objects.


class Mirror:
    """A local folder, `local`, for files that are appended to or rewritten.

    For a `folder` on a disk, `local` is that folder. In a bucket, objects can only be written in
    full, so there `local` is a temporary folder, and `send` copies every changed file.
    """

    def __init__(self, folder: pathlib.Path | Path, *fetched: str):
        """`fetched` names files that are copied from the bucket first.

        `send` does not overwrite one of them if another run has written it in the meantime.
        """
        self.folder = self.local = folder
        self._temporary = None
        if not isinstance(folder, Path):
            return
        self._temporary = tempfile.TemporaryDirectory(prefix="transformer_jax-")
        self.local = pathlib.Path(self._temporary.name)
        # Sizes and modification times serve to send no unchanged file again. By the generations of
        # the fetched objects, a write notices that another run has written one.
        self._sent: dict[str, tuple[int, int]] = {}
        self._generations: dict[str, bytes | None] = {}  # of the fetched objects, by name
        for name in fetched:
            self._generations[name] = (folder / name).stamped().stamp.generation
            with contextlib.suppress(FileNotFoundError):
                (self.local / name).write_bytes((folder / name).read_bytes())

    def send(self) -> None:
        """Copies the changed files to the bucket.

        Raises RunError if another run has written one of the fetched files.
        """
        if not self._temporary:
            return
        for file in sorted(self.local.rglob("*")):
            status = file.stat()
            name = file.relative_to(self.local).as_posix()
            # The version is taken before the content is read, so that a line appended meanwhile is
            # sent the next time.
            version = status.st_size, status.st_mtime_ns
            if not file.is_file() or self._sent.get(name) == version:
                continue
            self._send_file(name, file.read_bytes())
            self._sent[name] = version

    def _send_file(self, name: str, content: bytes) -> None:
        target = self.folder / name
        if name not in self._generations:
            target.write_bytes(content)
            return
        self._generations[name] = target.write_if(content, self._generations[name])
        if self._generations[name] is None:
            raise RunError(
                f"{target}: another run has written this file. This run ends, and saves nothing "
                "more; use one workdir for each run"
            )

    def close(self) -> None:
        """Deletes the temporary folder."""
        if self._temporary:
            self._temporary.cleanup()
