"""Files of word vectors in the text and the binary format of word2vec.

Both begin with a line "count width". In a text file, each other line is a word and its numbers. In
a binary one, named *.bin, a space and float32 in little-endian order follow each word. A text file
without the first line is that of GloVe, which is read, too.
"""

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from jaxtyping import Float

from transformer_jax.config import UserError
from transformer_jax.storage import buckets, errors

_FLOAT = np.dtype("<f4")


def write(path, words: Sequence[str], vectors: Float[np.ndarray, "N M"]) -> None:
    """Writes word vectors. Raises UserError for a word with white space, which ends a word."""
    if spaced := [word for word in words if not word or word.split() != [word]]:
        raise UserError(
            f"{path}: the token {spaced[0]!r} has white space, which a file of vectors cannot "
            "hold; a run with config.data.tokenizer=words has no such token"
        )
    path = buckets.path(path)
    with errors.writing(path), path.open("wb") as file:
        file.write(b"%d %d\n" % vectors.shape)
        for word, vector in zip(words, vectors.astype(_FLOAT)):
            file.write(word.encode() + b" ")
            if path.name.endswith(".bin"):
                file.write(vector.tobytes() + b"\n")
            else:
                file.write(" ".join(map(str, vector.tolist())).encode() + b"\n")


def width(path) -> int:
    """Returns the width of the vectors of a file. Reads its beginning alone."""
    path = buckets.path(path)
    with errors.reading(path), path.open("rb") as file:
        return _sizes(path, file)[1]


def read(path) -> Iterator[tuple[str, Float[np.ndarray, " M"]]]:
    """Yields the words of a file with their vectors.

    Raises UserError with the number of the line or word that is of another form, or whose vector
    is not finite. A name that ends in .bin makes it the binary format.
    """
    path = buckets.path(path)
    with errors.reading(path), path.open("rb") as file:
        count, size = _sizes(path, file)
        entries = _binary if path.name.endswith(".bin") else _lines
        number = 0
        for word, vector in entries(path, file, size):
            if not np.isfinite(vector).all():
                raise UserError(f"{path}: the vector of {word!r} is not finite")
            yield word, vector
            number += 1
        if count is not None and number != count:
            raise UserError(f"{path}: has {number:,} words, but its first line says {count:,}")


def _sizes(path, file: BinaryIO) -> tuple[int | None, int]:
    """Returns (count, width), and leaves the file at its first word. The count may be unknown."""
    fields = file.readline().split()
    if len(fields) == 2 and all(re.fullmatch(rb"0|[1-9]\d{0,11}", field) for field in fields):
        if fields[1] == b"0":
            raise UserError(f"{path}:1: vectors of 0 numbers")
        return int(fields[0]), int(fields[1])
    if path.name.endswith(".bin") or len(fields) < 3:
        raise UserError(f'{path}:1: must be "count width", as word2vec writes it')
    file.seek(0)
    return None, len(fields) - 1


def _lines(path, file: BinaryIO, size: int) -> Iterator[tuple[str, np.ndarray]]:
    first = 1 if file.tell() == 0 else 2
    for number, line in enumerate(file, first):
        # The word may hold characters that are white space elsewhere.
        word, *fields = line.rstrip().rsplit(b" ", size)
        try:
            with np.errstate(over="ignore"):
                vector = np.array(fields, np.float64).astype(np.float32)
            entry = word.decode(), vector.reshape(size)
        except ValueError:
            entry = None
        if entry is None or not word.strip():
            raise UserError(
                f"{path}:{number}: {line[:40]!r} is not a word and {size} numbers in UTF-8 (the "
                "name of a binary file ends in .bin)"
            )
        yield entry


def _binary(path, file: BinaryIO, size: int) -> Iterator[tuple[str, np.ndarray]]:
    content = file.read()
    place, number, num_bytes = 0, 0, size * _FLOAT.itemsize
    while content[place : place + 1].strip() or content[place + 1 : place + 2]:
        number += 1
        end = content.find(b" ", place)
        vector = content[end + 1 : end + 1 + num_bytes]
        if end < 0 or len(vector) < num_bytes:
            raise UserError(f"{path}: ends within word {number:,}, or is not a binary file")
        try:
            word = content[place:end].lstrip(b"\n").decode()
        except UnicodeDecodeError:
            raise UserError(f"{path}: word {number:,}, at byte {place:,}, is not UTF-8") from None
        yield word, np.frombuffer(vector, _FLOAT).astype(np.float32)
        place = end + 1 + num_bytes
