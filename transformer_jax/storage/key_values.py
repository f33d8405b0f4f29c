"""Requests to buckets, and reading an object in a bucket as a stream."""

import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import tensorstore as ts

# --------------------------------------------------------------------------------------------------
# Requests to buckets, through TensorStore's key-value stores.
#
# TensorStore finds the credentials. It retries a request that gets no answer, or that is refused
# because of too many requests, for up to a quarter of an hour.

# Seconds to wait for the first answer of a bucket, so that a wrong name or a missing network is
# reported soon. Later requests have TensorStore's own limit, because an outage in the middle of a
# run should be waited out.
PATIENCE = 60
_KINDS = {
    "NOT_FOUND": FileNotFoundError,
    "PERMISSION_DENIED": PermissionError,
    "UNAUTHENTICATED": PermissionError,
}
# URLs of buckets that have answered, so that PATIENCE does not limit later requests to them.
_answered: set[str] = set()


@functools.cache
def bucket(url: str) -> ts.KvStore:
    """Returns the key-value store of a bucket's objects, for a URL such as "gs://BUCKET/"."""
    return ts.KvStore.open(url).result()


def answer(url: str, path: Any, request: Callable, patience: float | None = None) -> Any:
    """Waits for the future that request(key-value store of `url`) returns, and returns its result.

    `patience` is the number of seconds to wait. Raises OSErrors whose messages start with `path`.
    """
    seconds = patience if url in _answered else PATIENCE
    with as_os_errors(path, seconds):
        result = request(bucket(url)).result(seconds)
    _answered.add(url)
    return result


@contextlib.contextmanager
def as_os_errors(path: Any, seconds: float | None = PATIENCE) -> Iterator[None]:
    """Turns TensorStore's errors in the context into OSErrors of one line that names `path`.

    `seconds` is how long the context waits for an answer, which the line of a time-out says.
    """
    try:
        yield
    except TimeoutError:
        raise TimeoutError(f"{path}: no answer within {seconds} seconds") from None
    except ValueError as error:
        # TensorStore raises ValueError for all errors, and only the code before the colon tells
        # them apart.
        reason = str(error).split(" [")[0].splitlines()[0]
        kind = _KINDS.get(reason.partition(":")[0], OSError)
        raise kind(f"{path}: {reason}") from None


# --------------------------------------------------------------------------------------------------
# Reading an object in a bucket as a stream.
#
# Objects are read in blocks, because a file of records may be larger than the memory of a host.

# Bytes per request. They are many, because each request takes a round trip to the bucket.
READ_SIZE = 2**23


class Stream(io.RawIOBase):
    """The content of an object, which is read block by block.

    The next block is requested while the current one is used. Raises FileNotFoundError if there is
    no such object, and OSError if it changes while it is read.
    """

    def __init__(self, source: Any, start: int = 0, block_size: int | None = None):
        """`source` is a buckets.Path; the stream starts with byte `start`."""
        result = source.stamped()
        if result.state == "missing":
            raise FileNotFoundError(f"{source}: no such file")
        self.source = source
        self.generation = result.stamp.generation
        self._size = block_size or READ_SIZE
        self._start = start  # of the next block
        # The rest of the current block, as a view, so that reading a part of it copies only that
        # part.
        self._block = memoryview(b"")
        # There is always one request ahead, so that the network works while a block is used.
        self._next = source.read_part(start, start + self._size)

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
        """Returns the next block, which is empty at the end of the object."""
        with as_os_errors(self.source):
            try:
                result = self._next.result()
                self._start += self._size
                self._next = self.source.read_part(self._start, self._start + self._size)
            except ValueError as error:
                if not _is_past_the_end(error):
                    raise
                # The rest is requested without an end, because it is shorter than a block, and a
                # range beyond the end is an error.
                self._next = None
                try:
                    result = self.source.read_part(self._start, None).result()
                except ValueError as error:
                    if not _is_past_the_end(error):
                        raise
                    return b""
        # Blocks of two versions of the object must not be mixed.
        if result.stamp.generation != self.generation:
            raise OSError(f"{self.source}: changed while it was read")
        return result.value


def is_empty(source: Any) -> bool:
    """Returns whether an object, a buckets.Path, has no content. Only one byte is read."""
    return not _is_byte(source, source.read_part(0, 1))


def size(source: Any) -> int:
    """Returns the number of bytes of an object.

    TensorStore has no request for the size, so it is found by reading single bytes. The requests of
    a round are sent together, and each round narrows the range of possible sizes by a factor of 8.
    """
    low, offsets = -1, [0, *(2 ** (6 * power) for power in range(9))]
    while True:
        read = [source.read_part(offset, offset + 1) for offset in offsets]
        # The invariant of the search: the object has a byte at `low` but none at `high`, so that
        # its size is `high` once they are neighbors.
        held = sum(_is_byte(source, future) for future in read)
        low, high = [low, *offsets][held], offsets[held]
        if high - low == 1:
            return high
        offsets = [*range(low + 1, high, -(-(high - low) // 8)), high]


def _is_byte(source: Any, future: Any) -> bool:
    """Returns whether a request for one byte of an object has found it."""
    with as_os_errors(source):
        try:
            return bool(future.result().value)
        except ValueError as error:
            if not _is_past_the_end(error):
                raise
            return False


def _is_past_the_end(error: ValueError) -> bool:
    return str(error).startswith("OUT_OF_RANGE")
