"""Errors of a disk or a bucket, as one line that names the path."""

import contextlib
from collections.abc import Iterator
from typing import Any

from transformer_jax.config import UserError


@contextlib.contextmanager
def reading(subject: Any) -> Iterator[None]:
    """Raises an OSError of the context as a UserError: "SUBJECT: can't be read (REASON)".

    `subject` is the path, or the flag or key with its value.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{subject}: can't be read ({error.strerror or error})") from None


@contextlib.contextmanager
def writing(subject: Any, kind: type[Exception] = UserError, note: str = "") -> Iterator[None]:
    """Raises an OSError of the context as `kind`: "SUBJECT: can't be written (REASON)NOTE"."""
    try:
        yield
    except OSError as error:
        raise kind(f"{subject}: can't be written ({error.strerror or error}){note}") from None
