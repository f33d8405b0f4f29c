"""Requests to buckets, and reading an object of a bucket as a stream."""

import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import tensorstore as ts

# --------------------------------------------------------------------------------------------------
# Requests to buckets, by TensorStore's key-value stores.
#
# TensorStore finds the credentials. It repeats a request that is not answered, or refused because
# there are too many, for up to a quarter of an hour.

# Seconds to wait for the first answer of a bucket. Later requests have TensorStore's own limit.
PATIENCE = 60
_KINDS = {
    "NOT_FOUND": FileNotFoundError,
    "PERMISSION_DENIED": PermissionError,
    "UNAUTHENTICATED": PermissionError,
}
_answered: set[str] = set()  # URLs of buckets


@functools.cache
def bucket(url: str) -> ts.KvStore:
    """The objects of the bucket at a URL, such as "gs://BUCKET/"."""
    return ts.KvStore.open(url).result()


def answer(url: str, path: Any, request: Callable, patience: float | None = None) -> Any:
    """Returns the result of request(objects of the bucket at `url`), a future.

    `path` names the object in errors, which are OSErrors. `patience`: seconds to wait.
    """
    with as_os_errors(path):
        result = request(bucket(url)).result(patience if url in _answered else PATIENCE)
    _answered.add(url)
    return result


@contextlib.contextmanager
def as_os_errors(path: Any) -> Iterator[None]:
    """Raises TensorStore's errors in the context as OSErrors of one line, which begins with the
    path.
    """
    try:
        yield
    except TimeoutError:
        raise TimeoutError(f"{path}: no answer within {PATIENCE} seconds") from None
    except ValueError as error:
        # TensorStore's messages begin with a code.
        reason = str(error).split(" [")[0].splitlines()[0]
        kind = _KINDS.get(reason.partition(":")[0], OSError)
        raise kind(f"{path}: {reason}") from None


# --------------------------------------------------------------------------------------------------
# Reading an object of a bucket as a stream.

READ_SIZE = 2**23  # bytes of one request


class Stream(io.RawIOBase):
    """The content of an object, read block by block. The next block is requested ahead of time.

    Raises FileNotFoundError where there is no such object, and OSError where it changes meanwhile.
    """

    def __init__(self, source: Any, start: int = 0, block_size: int | None = None):
        """`source` is a buckets.Path; the stream begins with byte `start`."""
        result = source.stamped()
        if result.state == "missing":
            raise FileNotFoundError(f"{source}: no such file")
        self.source = source
        self.generation = result.stamp.generation
        self._size = block_size or READ_SIZE
        self._start = start  # of the next block
        self._block = memoryview(b"")  # the rest of the current block
        self._next = source.read_part(start, start + self._size)  # the future of the next block

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if not self._block and self._next is not None:
            self._block = memoryview(self._received())
        count = min(len(buffer), len(self._block))
        buffer[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def _received(self) -> bytes:
        """The next block; empty at the end of the object."""
        with as_os_errors(self.source):
            try:
                result = self._next.result()
                self._start += self._size
                self._next = self.source.read_part(self._start, self._start + self._size)
            except ValueError as error:
                if not _is_past_the_end(error):
                    raise
                # The rest is shorter than a block.
                self._next = None
                try:
                    result = self.source.read_part(self._start, None).result()
                except ValueError as error:
                    if not _is_past_the_end(error):
                        raise
                    return b""
        if result.stamp.generation != self.generation:
            raise OSError(f"{self.source}: changed while it was read")
        return result.value


def is_empty(source: Any) -> bool:
    """Whether an object, a buckets.Path, has no content. It reads one byte, not a block."""
    return not _is_byte(source, source.read_part(0, 1))


def size(source: Any) -> int:
    """The number of bytes of an object, by reading single ones: TensorStore does not say it.

    Each round of requests, sent together, narrows the range of possible sizes 8 times.
    """
    low, places = -1, [0, *(2 ** (6 * power) for power in range(9))]
    while True:
        read = [source.read_part(place, place + 1) for place in places]
        # The object has byte `low` and not byte `high`.
        held = sum(_is_byte(source, future) for future in read)
        low, high = [low, *places][held], places[held]
        if high - low == 1:
            return high
        places = [*range(low + 1, high, -(-(high - low) // 8)), high]


def _is_byte(source: Any, future: Any) -> bool:
    """Whether the request for one byte of an object finds it."""
    with as_os_errors(source):
        try:
            return bool(future.result().value)
        except ValueError as error:
            if not _is_past_the_end(error):
                raise
            return False


def _is_past_the_end(error: ValueError) -> bool:
    return str(error).startswith("OUT_OF_RANGE")
