"""The interface of every kind of tokenizer: text to ids and back."""

import hashlib
import numbers
import pathlib

from transformer_jax.config import UserError


class Tokenizer:
    """A kind of tokenizer. `model` is the content of the one file that it is saved in.

    `eos_id` ends a document, and begins text that continues no prompt. No text encodes to a special
    id. A kind defines `_encode` and `_decode` for lists of texts.
    """

    file: str
    vocab_size: int
    eos_id: int

    def __init__(self, model: bytes):
        self.model = model

    def encode(self, text: str | list[str]) -> list[int] | list[list[int]]:
        """The ids of a text, or of each text of a list; no special ids among them.

        encode("a dog") gives [5, 9], encode(["a dog", "a"]) gives [[5, 9], [5]]. Raises UserError
        for anything else.
        """
        if isinstance(text, str):
            return self._encode([text])[0]
        if not isinstance(text, list):
            raise UserError(f"encode takes a text or a list of texts, not {type(text).__name__}")
        if not set(map(type, text)) <= {str}:
            _refuse_others(text, str, "encode takes a text or a list of texts")
        return self._encode(text)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        raise NotImplementedError

    def encode_spans(self, texts: list[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """As `encode`, with the characters of its text that each id stands for."""
        encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [(each.ids, each.offsets) for each in encoded]

    def decode(self, ids: list[int] | list[list[int]]) -> str | list[str]:
        """The text of a list of ids, or of each list in a list; `eos_id` gives no text.

        decode([5, 9]) gives "a dog", decode([[5, 9], [5]]) gives ["a dog", "a"], and decode([]) "".
        A model's vocabulary may be larger: ids beyond this one give nothing, or the unknown
        character. Raises UserError for anything else, such as an array: array.tolist() is a list.
        """
        takes = "decode takes a list of ids or a list of such lists"
        if not isinstance(ids, list):
            raise UserError(f"{takes}, not {type(ids).__name__}")
        if not ids or not isinstance(ids[0], list):
            return self._decode([_checked(ids, takes)])[0]
        _refuse_others(ids, list, takes)
        return self._decode([_checked(each, takes) for each in ids])

    def _decode(self, ids: list[list[int]]) -> list[str]:
        raise NotImplementedError

    def pieces(self, ids: list[int]) -> list[str]:
        """Each id as it can be shown in a picture."""
        raise NotImplementedError

    def words(self, ids: list[int]) -> tuple[list[str], list[int]]:
        """The words that ids form, for a picture, and for each id the number of its word.

        Spaces divide words; the end of a document stands alone.
        """
        found, numbers, closed = [], [], True
        for i, piece in zip(ids, self.pieces(ids)):
            if closed or i == self.eos_id or self.begins_word(piece):
                found.append("")
            found[-1] += self.shown(piece)
            numbers.append(len(found) - 1)
            closed = i == self.eos_id or self.ends_word(piece)
        return found, numbers

    def begins_word(self, piece: str) -> bool:
        return piece.startswith("▁")

    def ends_word(self, piece: str) -> bool:
        return False

    def shown(self, piece: str) -> str:
        """A piece as a part of its word."""
        return piece.strip("▁")

    def fingerprint(self) -> str:
        return hashlib.sha256(self.model).hexdigest()

    def files(self) -> dict[str, bytes]:
        return {self.file: self.model}

    def save(self, folder: pathlib.Path) -> None:
        write(self.files(), folder)


def _checked(ids: list, takes: str) -> list[int]:
    """The ids as ints. Raises UserError for what is none; `takes` begins its message."""
    if not set(map(type, ids)) <= {int}:
        _refuse_others(ids, numbers.Integral, takes)
        ids = [int(i) for i in ids]
    if ids and not 0 <= min(ids) <= max(ids) < 2**31:
        wrong = next(i for i in ids if not 0 <= i < 2**31)
        raise UserError(f"{takes}; {wrong} is no id: they are from 0 to 2^31 - 1")
    return ids


def _refuse_others(items: list, kind: type, takes: str) -> None:
    for place, item in enumerate(items):
        if not isinstance(item, kind) or isinstance(item, bool):
            raise UserError(f"{takes}; item {place} of this list is {type(item).__name__}")


def write(files: dict[str, bytes], folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
