"""Tokenizers with one token for each word, character or residue."""

import collections
import functools
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.tokenizer import Tokenizer, known_ids, visible

# --------------------------------------------------------------------------------------------------
# One token for each word.

_SPECIAL = ("<end>", "<unk>", "<pad>", "[CLS]", "[SEP]", "[MASK]")
# Letters and digits, with apostrophes between them, or one other character.
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*|\S")


class Words(Tokenizer):
    """One token per word of the training text, the most frequent first.

    A word consists of letters and digits, with apostrophes between them. Any other character that
    is no space is a word of its own. Uncased words are in lower case. Decoding puts a space between
    words: it restores neither the spaces nor the line ends of the text, nor capital letters.

    `counts` (V,) are the occurrences of the words in the training text, 0 for special tokens.
    """

    file = "words.json"
    eos_id, unk_id, pad_id, cls_id, sep_id, mask_id = range(len(_SPECIAL))

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        words, counts = content["words"], content["counts"]
        self.cased = content["cased"]
        self._pieces = [*_SPECIAL, *words]
        self._ids = {word: i for i, word in enumerate(words, len(_SPECIAL))}
        if len(counts) != len(words) or len(self._ids) != len(words):
            raise ValueError("a word occurs twice, or lacks its count")
        self.counts = np.array([0] * len(_SPECIAL) + counts, np.int64)
        self.vocab_size = len(self._pieces)

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, cased: bool, min_count: int = 1
    ) -> "Words":
        """Returns the tokenizer of the words that occur at least `min_count` times.

        The least frequent are cut off beyond `vocab_size`. Equally frequent words are in the order
        of their characters. Raises UserError where no word is left.
        """
        counter = collections.Counter()
        for text in texts:
            counter.update(_split(text, cased))
        frequent = [(-count, word) for word, count in counter.items() if count >= min_count]
        if not frequent:
            raise UserError(
                f"config.data.min_count={min_count}: no word of the training text occurs so often"
            )
        if vocab_size <= len(_SPECIAL):
            raise UserError(
                f"config.model.vocab_size={vocab_size}: must be at least {len(_SPECIAL) + 1}, for "
                f"the {len(_SPECIAL)} special tokens and a word"
            )
        first = sorted(frequent)[: vocab_size - len(_SPECIAL)]
        content = {
            "words": [word for _, word in first],
            "counts": [-count for count, _ in first],
            "cased": cased,
        }
        return cls(json.dumps(content).encode())

    def split(self, text: str) -> Iterable[str]:
        """Returns the words of a text, known or not, in their order."""
        return _split(text, self.cased)

    def spelled(self, size):
        return Spelled(self, size)

    def _encode(self, texts):
        find, unknown = self._ids.get, self.unk_id
        return [[find(word, unknown) for word in self.split(text)] for text in texts]

    def encode_spans(self, texts):
        spans = [[match.span() for match in _WORD.finditer(text)] for text in texts]
        return list(zip(self.encode(texts), spans))

    def _decode(self, ids):
        dropped = (self.eos_id, self.pad_id, self.cls_id, self.sep_id)
        return [
            " ".join(self._pieces[i] for i in known_ids(self, sequence) if i not in dropped)
            for sequence in ids
        ]

    def pieces(self, ids):
        return [self._pieces[i] for i in known_ids(self, ids)]

    def begins_word(self, piece):
        return True

    def without_marks(self, piece):
        return piece


def _split(text: str, cased: bool) -> Iterable[str]:
    """Returns the words of a text in their order."""
    words = _WORD.findall(text)
    return words if cased else map(str.lower, words)


# --------------------------------------------------------------------------------------------------
# Words whose units are their characters, as ELMo reads them.

# The published code of ELMo has the bytes 0 to 255, marks, and adds 1 to all of them. Its mark 256
# begins a sentence; here the end of a text also begins the next.
_TEXT_END, _WORD_BEGIN, _WORD_END, _PADDING = 257, 258, 259, 260
Unit = tuple[int, ...]
_CACHED_WORDS = 2**17  # words whose characters are kept, the latest ones


class Spelled(Tokenizer):
    """A tokenizer of words whose units are characters: a word is `size` numbers.

    They are the word's beginning, its bytes in UTF-8, its end, and padding. A longer word is cut.
    Words that the tokenizer does not know have units, too. A text begins and ends with the mark of
    the end, as in the store of a text. The files are those of the tokenizer of words.
    """

    def __init__(self, words: Tokenizer, size: int):
        super().__init__(words.model)
        self.file, self.vocab_size = words.file, words.vocab_size
        self._words, self._size = words, size
        self._spelling = functools.lru_cache(_CACHED_WORDS)(self._spelled)
        self.eos_id = self.cls_id = self.sep_id = self._unit([_TEXT_END])
        self.unk_id = self._spelling(words.pieces([words.unk_id])[0])

    def __reduce__(self):
        return type(self), (self._words, self._size)

    def _encode(self, texts: list[str]) -> list[list[Unit]]:
        return [[self._spelling(word) for word in self._words.split(text)] for text in texts]

    def encode_spans(self, texts: list[str]) -> list[tuple[list[Unit], Any]]:
        spans = (spans for _, spans in self._words.encode_spans(texts))
        return list(zip(self._encode(texts), spans))

    def pieces(self, ids) -> list[str]:
        """Returns the word of each unit; of a long word, its beginning."""
        return [self._piece(unit) for unit in ids]

    def _piece(self, unit) -> str:
        characters = [number - 1 for number in unit]
        if _TEXT_END in characters:
            return self._words.pieces([self._words.eos_id])[0]
        return bytes(number for number in characters if 0 <= number < 256).decode(errors="replace")

    def begins_word(self, piece):
        return True

    def without_marks(self, piece):
        return piece

    @functools.cached_property
    def table(self) -> Int[np.ndarray, "V C"]:
        """The characters of each word of the vocabulary."""
        words = self._words.pieces(list(range(self.vocab_size)))
        table = np.array([self._spelling(word) for word in words], np.int16)
        table[self._words.eos_id] = self.eos_id
        return table

    def _spelled(self, word: str) -> Unit:
        return self._unit(word.encode()[: self._size - 2])

    def _unit(self, characters) -> Unit:
        numbers = [_WORD_BEGIN, *characters, _WORD_END]
        numbers += [_PADDING] * (self._size - len(numbers))
        return tuple(number + 1 for number in numbers)


# --------------------------------------------------------------------------------------------------
# One token for each character.


class Characters(Tokenizer):
    """One token per character of the training text.

    Id 0 is the end of a document and id 1 an unknown character. The characters follow in order.
    """

    file = "characters.json"
    eos_id, unk_id = range(2)

    def __init__(self, model: bytes):
        super().__init__(model)
        characters = json.loads(model)["characters"]
        if list(characters) != sorted(set(characters)):
            raise ValueError("the characters are not in order")
        self._characters = ["", "\ufffd", *characters]
        self.vocab_size = len(self._characters)
        self._ids = np.full(sys.maxunicode + 1, self.unk_id, np.int32)
        self._ids[[ord(character) for character in characters]] = np.arange(2, self.vocab_size)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Characters":
        """Returns the tokenizer of the texts. Raises UserError for too many characters."""
        characters = set()
        for text in texts:
            characters.update(text)
        num_tokens = len(characters) + 2
        if num_tokens > vocab_size:
            raise UserError(
                f"config.model.vocab_size={vocab_size}: must be at least {num_tokens}, for the "
                f"{len(characters)} characters of the training text, the end and the unknown one"
            )
        return cls(json.dumps({"characters": "".join(sorted(characters))}).encode())

    def _encode(self, texts):
        return [
            self._ids[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)].tolist()
            for text in texts
        ]

    def encode_spans(self, texts):
        return [(ids, [(i, i + 1) for i in range(len(ids))]) for ids in self.encode(texts)]

    def _decode(self, ids):
        return ["".join(self._characters[i] for i in known_ids(self, sequence)) for sequence in ids]

    def pieces(self, ids):
        pieces = ["<end>", "<unk>", *self._characters[2:]]
        return [visible(pieces[i]) for i in known_ids(self, ids)]


# --------------------------------------------------------------------------------------------------
# The alphabet of ESM: one token for each residue of a protein.

# The amino acids; those that stand for several (X, B, Z) or are rare (U, O) follow them.
STANDARD = "LAGVSERTIDPKQNFYMHWC"
AMBIGUOUS = "XBUZO"
# In the order of the published alphabet, which has also the marks of gaps and an unused token.
TOKENS = ("<cls>", "<pad>", "<eos>", "<unk>", *STANDARD, *AMBIGUOUS, ".", "-", "<null_1>", "<mask>")


class Residues(Tokenizer):
    """A token is a residue, an upper-case letter (Rives et al. 2021).

    The ids are those of Hugging Face's EsmTokenizer. Spaces have no token, and any other character
    is unknown. "<mask>" stands for a masked residue, as "[MASK]" does.
    """

    file = "residues.json"

    def __init__(self, model: bytes):
        super().__init__(model)
        self._pieces = json.loads(model)["tokens"]
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        missing = [mark for mark in ("<cls>", "<eos>", "<unk>", "<mask>") if mark not in self._ids]
        if missing:
            raise ValueError(f"no token {missing[0]!r} in the alphabet")
        if len(self._ids) < len(self._pieces):
            raise ValueError("a token of the alphabet occurs twice")
        self.vocab_size = len(self._pieces)
        marks = ("<cls>", "<pad>", "<eos>", "<unk>", "<mask>")
        self.cls_id, self.pad_id, self.eos_id, self.unk_id, self.mask_id = map(self._ids.get, marks)
        self.sep_id = self.eos_id
        # Masks neither hide nor insert gaps.
        self.special = np.array([not piece.isalpha() for piece in self._pieces])

    @classmethod
    def of(cls, tokens: Sequence[str] = TOKENS) -> "Residues":
        """Returns the tokenizer of an alphabet, in the order of its ids; by default that of ESM."""
        return cls(json.dumps({"tokens": [*tokens]}).encode())

    @staticmethod
    def has(tokens: Sequence[str]) -> bool:
        """Whether the lines of a vocab.txt are an alphabet of residues."""
        return {"<cls>", "<eos>", "<mask>", *STANDARD} <= {*tokens}

    def _encode(self, texts):
        find, unknown = self._ids.get, self.unk_id
        return [[find(letter, unknown) for letter in "".join(text.split())] for text in texts]

    def encode_masked(self, text):
        return super().encode_masked(text.replace("<mask>", "[MASK]"))

    def encode_spans(self, texts):
        spans = [[(i, i + 1) for i, letter in enumerate(x) if not letter.isspace()] for x in texts]
        return list(zip(self.encode(texts), spans))

    def _decode(self, ids):
        known = (self.pieces([i for i in sequence if i != self.eos_id]) for sequence in ids)
        return ["".join(piece for piece in pieces if len(piece) == 1) for pieces in known]

    def pieces(self, ids):
        return [self._pieces[i] for i in known_ids(self, ids)]

    def begins_word(self, piece):
        return True

    def without_marks(self, piece):
        return piece

    def hf_files(self):
        marks = {f"{name}_token": f"<{name}>" for name in ("cls", "pad", "eos", "unk", "mask")}
        settings = {"tokenizer_class": "EsmTokenizer", **marks}
        return {
            "vocab.txt": "\n".join(self._pieces).encode(),
            "tokenizer_config.json": json.dumps(settings).encode(),
        }
