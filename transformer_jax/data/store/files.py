"""The files of one store: each is written atomically and verified when it is read."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import weakref
from collections.abc import Iterable

import tensorstore as ts

from transformer_jax.config import UserError
from transformer_jax.storage import buckets

FORMAT = 5  # Part of every key: a new layout leads to new folders.
CONTEXT = ts.Context()
# Seconds for a small file. TensorStore itself would retry for a quarter of an hour.
_TIMEOUT = 60
_DAMAGE = ("DATA_LOSS", "NOT_FOUND: chunk", "FAILED_PRECONDITION: Error reading")


class DamagedStore(UserError):
    """The content of a store differs from the content that was written."""

    def __init__(self, path, detail):
        super().__init__(
            f"{path} is damaged ({detail}); build it again with --config.data.rebuild=true"
        )


@contextlib.contextmanager
def storage_errors(path):
    """Turns the errors of a disk or bucket into a UserError of one line, or a DamagedStore."""
    try:
        yield
    # TensorStore raises a TimeoutError without text, or a ValueError that begins with a code.
    except (OSError, ValueError) as error:
        detail = str(error).split(" [")[0] or f"no answer within {_TIMEOUT} seconds"
        if detail.startswith(_DAMAGE):
            raise DamagedStore(path, detail) from None
        raise UserError(f"{path}: {detail}") from None


@contextlib.contextmanager
def locked(path: pathlib.Path):
    """Holds an advisory lock; the system releases it when the process ends."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _SharedLock:
    """An advisory lock that several processes hold; its file has the time of the latest."""

    def __init__(self, path: pathlib.Path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            descriptor = os.open(path, os.O_RDONLY)  # of another user
        weakref.finalize(self, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(descriptor)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Folder:
    """A folder on a disk or in a bucket.

    A sealed file begins with the digest of its content, which is verified when it is read.
    """

    def __init__(self, path: str | pathlib.Path):
        url = str(path).removeprefix("file://")
        self.is_local = "://" not in url
        self.path = buckets.path(url).absolute() if self.is_local else url
        base = self.path.as_uri() if self.is_local else url
        with storage_errors(self.path):
            self._files = ts.KvStore.open(f"{base}/", context=CONTEXT).result()

    @property
    def name(self) -> str:
        return str(self.path).rpartition("/")[2]

    def url(self, name: str) -> str:
        """Returns the URL of a subfolder."""
        return (self._files / f"{name}/").url

    def part(self, number: int) -> "Folder":
        """Returns the subfolder of a part."""
        return Folder(f"{self.path}/{number:05}")

    def names(self) -> list[str]:
        """Returns the names of all files, at any depth."""
        with storage_errors(self.path):
            return [name.decode() for name in self._files.list().result()]

    def has(self, name: str) -> bool:
        return self.read(name) is not None

    def read(self, name: str, sealed: bool = False) -> bytes | None:
        """Returns the content of a file; None where there is no such file.

        Raises DamagedStore for a sealed file whose content differs from its digest.
        """
        with storage_errors(self.path):
            entry = self._files.read(name).result(_TIMEOUT)
        if entry.state == "missing":
            return None
        if not sealed or not entry.value:
            return entry.value
        digest, _, content = entry.value.partition(b"\n")
        if digest.decode(errors="replace") != sha256(content):
            raise DamagedStore(self.path, f"{name}: checksum mismatch")
        return content

    def write(self, name: str, content: bytes, sealed: bool = False) -> None:
        self._set(name, f"{sha256(content)}\n".encode() + content if sealed else content)

    def delete(self, name: str) -> None:
        self._set(name, None)

    def _set(self, name: str, content: bytes | None) -> None:
        with storage_errors(self.path):
            self._files.write(name, content).result()

    @contextlib.contextmanager
    def exclusive(self):
        """Lets the processes of one machine build one after the other.

        A bucket has no locks: there the caller ensures that process 0 alone builds.
        """
        if not self.is_local:
            yield
            return
        with locked(self._beside("lock")):
            # A killed write leaves these files, and TensorStore would not truncate them.
            for partial in self.path.rglob("*.__lock"):
                partial.unlink()
            yield

    def hold(self) -> None:
        """Protects the folder from `remove` as long as this object lives.

        The processes that hold it share a lock, which the system releases when they end.
        """
        # Whoever can't write beside the folder reads it without a lock.
        with contextlib.suppress(OSError):
            if self.is_local:
                self._held = _SharedLock(self._beside("used"))

    def last_used(self) -> float | None:
        """Returns when a folder on a disk was last held, or built, in seconds; None for others."""
        for name in ("used", "lock"):
            with contextlib.suppress(FileNotFoundError):
                return self._beside(name).stat().st_mtime
        return None

    def remove(self) -> bool:
        """Removes a folder on a disk.

        Returns False where a process holds or builds it, or where it can't be removed.
        """
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, UserError):
            for name in ("lock", "used"):
                file = stack.enter_context(self._beside(name).open("a"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.clear()
            shutil.rmtree(self.path)
            return True
        return False

    def _beside(self, name: str) -> pathlib.Path:
        return self.path.with_name(f".{self.path.name}.{name}")

    def clear(self) -> None:
        """Deletes all files."""
        # First the files that would make a partly deleted folder look like more.
        for name in self.names():
            if name.endswith("store.json"):
                self.delete(name)
        with storage_errors(self.path):
            self._files.delete_range(ts.KvStore.KeyRange()).result()

    def complete(self, metadata: dict, files: Iterable[str]) -> None:
        """Writes store.json. It holds the digests of `files`, those that no CRC covers."""
        body = {
            "format": FORMAT,
            "meta": metadata,
            "files": {name: sha256(self.read(name)) for name in files},
        }
        self.write("store.json", json.dumps(body).encode(), sealed=True)

    def open_complete(self) -> tuple[dict, dict[str, bytes]]:
        """Returns the metadata and the files that store.json lists, after verifying them."""
        body = self.read("store.json", sealed=True)
        if not body:
            raise DamagedStore(self.path, "store.json: missing or empty")
        description = json.loads(body)
        files = {name: self.read(name) for name in description["files"]}
        for name, digest in description["files"].items():
            if sha256(files[name] or b"") != digest:
                raise DamagedStore(self.path, f"{name}: missing or checksum mismatch")
        return description["meta"], files
