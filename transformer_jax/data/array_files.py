"""Array files: images in .npy and .npz files, and word vectors in word2vec's formats."""

import collections
import contextlib
import io
import itertools
import pathlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from jaxtyping import Float

from transformer_jax.config import UserError
from transformer_jax.storage import buckets

# --------------------------------------------------------------------------------------------------
# Arrays of images in .npy and .npz files, read one image at a time, because a file may be larger
# than the memory.

ENDINGS = (".npy", ".npz")
_IMAGES, _LABELS = "images", "labels"  # as np.savez(FILE, images=..., labels=...) names them
_LABELS_ENDING = ".labels.npy"  # beside FILE.npy, which holds only one array
_BLOCK = 2**20  # bytes in one call, see `_read`


def is_labels(path: str) -> bool:
    """Returns whether a file has the labels of another file."""
    return path.endswith(_LABELS_ENDING)


def images(path: str, max_pixels: int) -> Iterator[np.ndarray]:
    """Yields the images of a file, each uint8 (H, W, C), from an array (N, H, W) or (N, H, W, C).

    It is the array of an .npy file, or the array "images" of an .npz file. Only one image at a time
    is in memory. Raises UserError for an array of another form, a damaged file, or images of more
    than `max_pixels`.
    """
    with _array(path, _IMAGES) as (stream, shape, dtype):
        # Other dtypes are refused and not scaled, because whether 1.0 or 255 is white would be a
        # guess.
        if dtype != np.uint8 or len(shape) not in (3, 4) or 0 in shape:
            raise UserError(f"{path}: {dtype} {shape}: images are uint8 (N, H, W) or (N, H, W, C)")
        size = shape[1:] if len(shape) == 4 else (*shape[1:], 1)
        if size[2] not in (1, 3):
            raise UserError(f"{path}: images with {size[2]} channels: must have 1 or 3")
        if size[0] * size[1] > max_pixels:
            raise UserError(
                f"{path}: images of {size[1]} x {size[0]} pixels: may have at most "
                f"config.source.max_pixels={max_pixels}"
            )
        for number in range(shape[0]):
            content = _read(stream, int(np.prod(size)), f"{path}: image {number}")
            yield np.frombuffer(content, np.uint8).reshape(size)


def labels(path: str) -> np.ndarray | None:
    """Returns the labels of the images in a file, int64 (N,), or None if there are none.

    They are the array "labels" of an .npz file; for FILE.npy, they are in FILE.labels.npy. Raises
    UserError unless there is one integer from 0 for each image.
    """
    with _array(path, _IMAGES) as (_, shape, _):
        count = shape[0] if shape else 0
    if path.endswith(".npy"):
        path = path.removesuffix(".npy") + _LABELS_ENDING
        if not buckets.path(path).is_file():
            return None
    elif not _has_labels(path):
        return None
    with _array(path, _LABELS) as (stream, shape, dtype):
        if dtype.kind not in "iu" or shape != (count,):
            raise UserError(
                f"{path}: labels of {dtype} {shape}: must be whole numbers ({count},), one for "
                "each image"
            )
        content = _read(stream, count * dtype.itemsize, path)
    values = np.frombuffer(content, dtype).astype(np.int64)
    if values.min(initial=0) < 0:
        raise UserError(f"{path}: label {values.min()}: must be at least 0")
    return values


def _has_labels(path: str) -> bool:
    with _zip(path) as archive:
        return f"{_LABELS}.npy" in archive.namelist()


@contextlib.contextmanager
def _zip(path: str) -> Iterator[zipfile.ZipFile]:
    with buckets.reading(path), buckets.open_at(path, 0) as file:
        try:
            # Not `np.load`, which would read each array as a whole.
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile as error:
            raise UserError(f"{path}: not an .npz file ({error})") from None
        with archive:
            yield archive


@contextlib.contextmanager
def _array(path: str, name: str) -> Iterator[tuple[io.BufferedIOBase, tuple, np.dtype]]:
    """Yields (stream of the values, shape, dtype) of an array in a file."""
    with contextlib.ExitStack() as stack:
        if path.endswith(".npz"):
            archive = stack.enter_context(_zip(path))
            try:
                stream = stack.enter_context(archive.open(f"{name}.npy"))
            except KeyError:
                names = ", ".join(pathlib.PurePath(each).stem for each in archive.namelist())
                raise UserError(f"{path}: no array {name!r}, only {names or 'nothing'}") from None
        else:
            stack.enter_context(buckets.reading(path))
            stream = stack.enter_context(buckets.open_at(path, 0))
        yield stream, *_header(path, stream)


def _header(path: str, stream: io.BufferedIOBase) -> tuple[tuple[int, ...], np.dtype]:
    """Returns (shape, dtype) of an array. Raises UserError unless it is plain and row-major.

    The header is parsed without `np.load`, which could unpickle objects and so execute code.
    """
    try:
        # Version 3 only adds names of fields in UTF-8, which images do not have.
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read(stream)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not an array of NumPy ({error})") from None
    # In Fortran's order, the pixels of an image are spread over the whole file.
    if is_fortran or dtype.hasobject:
        raise UserError(f"{path}: an array of objects or in Fortran's order; save it in C's order")
    return shape, dtype


def _read(stream: io.BufferedIOBase, size: int, where: str) -> bytes:
    """Returns the next `size` bytes. Raises UserError if the file ends before, or is damaged."""
    # Read in blocks, so that a header with a false size can't make the program allocate all of it.
    blocks = []
    try:
        while size:
            block = stream.read(min(size, _BLOCK))
            if not block:
                raise UserError(f"{where}: the file is damaged (it ends within the array)")
            blocks.append(block)
            size -= len(block)
    except (EOFError, zipfile.BadZipFile, ValueError) as error:
        raise UserError(f"{where}: the file is damaged ({error})") from None
    return b"".join(blocks)


# --------------------------------------------------------------------------------------------------
# Files of word vectors in the text and the binary format of word2vec, which most other libraries
# can read, too.
#
# Both formats start with a line "count width". In a text file, each other line is a word and its
# numbers. In a binary file, named *.bin, each word is followed by a space and by little-endian
# float32 numbers. A text file without the first line is in GloVe's format, which is read, too.

_FLOAT = np.dtype("<f4")
_LINES_OF_WIDTH = 100  # at the start of a file without a first line, to find the vectors' width


def write(path, words: Sequence[str], vectors: Float[np.ndarray, "N M"]) -> None:
    """Writes word vectors. Raises UserError for a word with white space, which would end it."""
    if spaced := [word for word in words if not word or word.split() != [word]]:
        raise UserError(
            f"{path}: the token {spaced[0]!r} has white space, which a file of vectors cannot "
            "hold; a run with config.data.tokenizer=words has no such token"
        )
    path = buckets.path(path)
    with buckets.writing(path), path.open("wb") as file:
        file.write(b"%d %d\n" % vectors.shape)
        for word, vector in zip(words, vectors.astype(_FLOAT)):
            file.write(word.encode() + b" ")
            if path.name.endswith(".bin"):
                file.write(vector.tobytes() + b"\n")
            else:
                # `tolist` turns float32 into Python's floats, whose text restores the value
                # exactly.
                file.write(" ".join(map(str, vector.tolist())).encode() + b"\n")


def width(path) -> int:
    """Returns the width of the vectors in a file, of which only the start is read."""
    path = buckets.path(path)
    with buckets.reading(path), path.open("rb") as file:
        return _sizes(path, file)[1]


def read(path) -> Iterator[tuple[str, Float[np.ndarray, " M"]]]:
    """Yields the words of a file with their vectors.

    A file whose name ends in .bin is in the binary format. Raises UserError, with the number of the
    line or word, for a malformed entry or a vector that is not finite.
    """
    path = buckets.path(path)
    with buckets.reading(path), path.open("rb") as file:
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
    """Returns (count or None, width), and leaves the file at its first word."""
    fields = file.readline().split()
    if len(fields) == 2 and all(re.fullmatch(rb"0|[1-9]\d{0,11}", field) for field in fields):
        if fields[1] == b"0":
            raise UserError(f"{path}:1: vectors of 0 numbers")
        return int(fields[0]), int(fields[1])
    if path.name.endswith(".bin") or len(fields) < 3:
        raise UserError(f'{path}:1: must be "count width", as word2vec writes it')
    file.seek(0)
    # A word may have spaces, as ". . ." in the vectors of Common Crawl, and may even end in a
    # number. Most words have none, so the most frequent width is the vectors' width.
    widths = collections.Counter(map(_width, itertools.islice(file, _LINES_OF_WIDTH)))
    file.seek(0)
    return None, max(widths, key=widths.get) or len(fields) - 1


def _width(line: bytes) -> int:
    """Returns how many numbers end a line, of which the first field belongs to the word."""
    numbers = itertools.takewhile(_is_number, reversed(line.split()[1:]))
    return sum(1 for _ in numbers)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _lines(path, file: BinaryIO, size: int) -> Iterator[tuple[str, np.ndarray]]:
    first = 1 if file.tell() == 0 else 2
    for number, line in enumerate(file, first):
        # The fields are split from the right, because a word may contain characters that count as
        # white space elsewhere.
        word, *fields = line.rstrip().rsplit(b" ", size)
        try:
            # By way of float64, in which NumPy parses text. What float32 can't hold becomes
            # infinite, and `read` reports it.
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
    # Read as a whole, because the end of a word can only be found by searching for its space.
    content = file.read()
    offset, number, num_bytes = 0, 0, size * _FLOAT.itemsize
    # A single line end may follow the last vector.
    while content[offset : offset + 1].strip() or content[offset + 1 : offset + 2]:
        number += 1
        end = content.find(b" ", offset)
        vector = content[end + 1 : end + 1 + num_bytes]
        if end < 0 or len(vector) < num_bytes:
            raise UserError(f"{path}: ends within word {number:,}, or is not a binary file")
        try:
            # word2vec writes a line end after each vector, and some other programs do not.
            word = content[offset:end].lstrip(b"\n").decode()
        except UnicodeDecodeError:
            raise UserError(f"{path}: word {number:,}, at byte {offset:,}, is not UTF-8") from None
        yield word, np.frombuffer(vector, _FLOAT).astype(np.float32)
        offset = end + 1 + num_bytes
