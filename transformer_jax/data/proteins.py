"""Records of proteins, and rows of them: masked residues, or residues with their contacts.

The content of a record is its residues, one letter each, followed by its contacts: pairs of
positions from 0, as 16-bit integers. Its number `residues` is the number of letters.
"""

import abc
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer_jax.data import masking, store
from transformer_jax.data.rows import Row, generator, padded, philox_key
from transformer_jax.data.tokenizers.words import Residues

_POSITION = "<u2"  # 16 bits, because known proteins have at most some ten thousand residues
MOST_RESIDUES = 2**16  # of a protein with contacts, whose positions must fit 16 bits
NO_CONTACTS = np.zeros((0, 2), np.int64)


def record(
    residues: str, contacts: Int[np.ndarray, "C 2"] = NO_CONTACTS, **numbers: int
) -> store.Record:
    """Returns the record of a protein, with further integers such as labels."""
    content = residues.encode() + np.asarray(contacts).astype(_POSITION).tobytes()
    return store.Record(content, {"residues": len(residues), **numbers})


class Stored:
    """The proteins in a record store."""

    def __init__(self, records: store.Records):
        self._records = records
        self.sizes = records.array("residues")

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, numbers: Sequence[int]) -> list[tuple[str, Int[np.ndarray, "C 2"]]]:
        """Returns (residues, contacts) for the proteins with these numbers."""
        contents = self._records.read(numbers)
        return [_parts(content, self.sizes[n]) for content, n in zip(contents, numbers)]

    def text(self, tokenizer: Residues, most: int) -> Int[np.ndarray, " T"]:
        """Returns about `most` tokens of the first proteins, with <eos> before and after each."""
        # As many of the first proteins as needed, so that a large set is not read in full.
        number = int(np.searchsorted(np.cumsum(self.sizes), most)) + 1
        parts = [[tokenizer.eos_id]]
        for residues, _ in self.read(range(min(number, len(self)))):
            parts.append([*tokenizer.encode(residues), tokenizer.eos_id])
        return np.concatenate(parts).astype(np.int64)


def _parts(content: np.ndarray, size: int) -> tuple[str, np.ndarray]:
    # A copy, because `content` may begin at an odd address.
    contacts = np.frombuffer(content[size:].tobytes(), _POSITION).reshape(-1, 2)
    return content[:size].tobytes().decode(), contacts.astype(np.int64)


class Proteins(abc.ABC):
    """Rows <cls> residues <eos> of at most L tokens, one for each protein.

    A protein that is longer than a row is cropped, at a position that each epoch draws anew.
    """

    def __init__(self, records: store.Records, tokenizer: Residues, length: int, seed: int):
        self._stored = Stored(records)
        self.tokenizer = tokenizer
        self.length = length
        self._key = philox_key((seed, 0, 0))

    def __len__(self) -> int:
        return len(self._stored)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        proteins = self._stored.read([number for number, _ in numbers])
        return [
            self._cropped(*protein, generator(self._key, number, epoch))
            for protein, (number, epoch) in zip(proteins, numbers)
        ]

    def _cropped(self, residues: str, contacts: np.ndarray, random: np.random.Generator) -> Row:
        # <cls> and <eos> take two positions.
        room = self.length - 2
        first = int(random.integers(len(residues) - room + 1)) if len(residues) > room else 0
        tokenizer = self.tokenizer
        ids = tokenizer.encode(residues[first : first + room])
        tokens = np.array([tokenizer.cls_id, *ids, tokenizer.eos_id])
        row = self._row(tokens, contacts - first, random)
        return row | {
            "tokens": padded(row["tokens"], self.length),
            "segment_ids": padded(np.ones(len(tokens)), self.length),
        }

    @abc.abstractmethod
    def _row(self, tokens: np.ndarray, contacts: np.ndarray, random: np.random.Generator) -> Row:
        """Returns the tokens (N,) and the further arrays of the row.

        `contacts` (C, 2) are positions relative to the start of the crop; contacts outside the crop
        are not removed yet.
        """


class MaskedProteins(Proteins):
    """Proteins in which each epoch masks other residues.

    Keys, int32: tokens, segment_ids (L,), masked_positions, masked_labels, masked_weights (P,).
    """

    def __init__(self, records, tokenizer: Residues, length: int, seed: int, share: float):
        super().__init__(records, tokenizer, length, seed)
        self._mask = masking.Masking(
            tokenizer.mask_id,
            tokenizer.special,
            tokenizer.continues,
            max_predictions(length, share),
            selected=share,
        )

    def _row(self, tokens, contacts, random):
        return self._mask(tokens, random)


def max_predictions(length: int, share: float) -> int:
    """Returns the maximum number of masked residues in a row of `length` tokens."""
    return max(round(share * length), 1)


class ContactMaps(Proteins):
    """Proteins with their contacts.

    Keys, int32: tokens, segment_ids (L,), contacts (L - 2, L - 2), which is 1 for two residues in
    contact.
    """

    def _row(self, tokens, contacts, random):
        size = len(tokens) - 2
        # A contact counts only if both of its residues are in the crop.
        inside = contacts[((contacts >= 0) & (contacts < size)).all(axis=1)]
        return {"tokens": tokens, "contacts": contact_map(inside, self.length - 2)}


def contact_map(contacts: Int[np.ndarray, "C 2"], size: int) -> Int[np.ndarray, "P P"]:
    """Returns the symmetric contact map, int32."""
    contact = np.zeros((size, size), np.int32)
    contact[contacts[:, 0], contacts[:, 1]] = 1
    # A contact is stored once, in either order.
    return np.maximum(contact, contact.T)
