"""Requests to buckets, by TensorStore's key-value stores.

TensorStore finds the credentials. It repeats a request that is not answered, or refused because
there are too many, for up to a quarter of an hour.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorstore as ts

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
