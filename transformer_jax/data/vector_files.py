"""Files of word vectors in the text and the binary format of word2vec.

Both begin with a line "count width". In a text file, each other line is a word and its numbers. In
a binary one, named *.bin, a space and float32 in little-endian order follow each word. A text file
without the first line is that of GloVe, which is read, too.
"""

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
            f"{path}: the token {spaced[0]!r} has white space, which a file of vectors cannot hold"
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

    Raises UserError with the number of the word or line that is of another form.
    """
    path = buckets.path(path)
    with errors.reading(path), path.open("rb") as file:
        count, size = _sizes(path, file)
        entries = _binary if path.name.endswith(".bin") else _lines
        number = 0
        for entry in entries(path, file, size):
            yield entry
            number += 1
        if count is not None and number != count:
            raise UserError(f"{path}: has {number:,} words, but its first line says {count:,}")


def _sizes(path, file: BinaryIO) -> tuple[int | None, int]:
    """Returns (count, width), and leaves the file at its first word. The count may be unknown."""
    fields = file.readline().split()
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        return int(fields[0]), int(fields[1])
    if path.name.endswith(".bin") or len(fields) < 3:
        raise UserError(f'{path}:1: must be "count width", as word2vec writes it')
    file.seek(0)
    return None, len(fields) - 1


def _lines(path, file: BinaryIO, size: int) -> Iterator[tuple[str, np.ndarray]]:
    for line in file:
        # The word may hold characters that are white space elsewhere.
        word, *fields = line.rstrip().rsplit(b" ", size)
        try:
            vector = np.array(fields, np.float64).astype(np.float32)
            yield word.decode(), vector.reshape(size)
        except ValueError:
            raise UserError(
                f"{path}: {line[:40]!r}... is not a word and {size} numbers in UTF-8"
            ) from None


def _binary(path, file: BinaryIO, size: int) -> Iterator[tuple[str, np.ndarray]]:
    content = file.read()
    place, num_bytes = 0, size * _FLOAT.itemsize
    while content[place : place + 1].strip() or content[place + 1 : place + 2]:
        end = content.find(b" ", place)
        vector = content[end + 1 : end + 1 + num_bytes]
        if end < 0 or len(vector) < num_bytes:
            raise UserError(f"{path}: ends within the vector of a word")
        try:
            word = content[place:end].lstrip(b"\n").decode()
        except UnicodeDecodeError:
            raise UserError(f"{path}: a word at byte {place:,} is not UTF-8") from None
        yield word, np.frombuffer(vector, _FLOAT).astype(np.float32)
        place = end + 1 + num_bytes
