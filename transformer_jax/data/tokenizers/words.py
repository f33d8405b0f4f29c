"""Tokenizers with one token for each word, each character, or each residue of a protein."""

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
# One token for each word, which word vectors and ELMo need: their unit is a word and not a piece.

_SPECIAL = ("<end>", "<unk>", "<pad>", "[CLS]", "[SEP]", "[MASK]")
# Letters and digits with apostrophes between them, or a single other character.
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*|\S")


class Words(Tokenizer):
    """One token for each word of the training text, in descending order of frequency.

    A word consists of letters and digits, with apostrophes between them. Any other character except
    white space is a word of its own. Uncased words are lower-cased. Decoding joins words with
    spaces, so it restores neither the white space of the text nor its capital letters.

    `counts` (V,) is the number of occurrences of each word in the training text, 0 for special
    tokens. Raises ValueError if a word occurs twice or lacks its count.
    """

    file = "words.json"
    eos_id, unk_id, pad_id, cls_id, sep_id, mask_id = range(len(_SPECIAL))

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        words, counts = content["words"], content["counts"]
        self.cased = content["cased"]
        self._pieces = [*_SPECIAL, *words]
        # Without the special tokens, so that no text encodes to them.
        self._ids = {word: i for i, word in enumerate(words, len(_SPECIAL))}
        if len(counts) != len(words) or len(self._ids) != len(words):
            raise ValueError("a word occurs twice, or lacks its count")
        self.counts = np.array([0] * len(_SPECIAL) + counts, np.int64)
        self.vocab_size = len(self._pieces)

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, cased: bool, min_count: int = 1
    ) -> "Words":
        """Returns a tokenizer of the words that occur at least `min_count` times.

        If these are more than `vocab_size`, the least frequent are dropped. Equally frequent words
        are in alphabetical order. Raises UserError if no word is left.
        """
        counter = collections.Counter()
        for text in texts:
            counter.update(_split(text, cased))
        # With the negative count first, sorting puts frequent words first and equal ones in
        # alphabetical order, whatever the order of the text.
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
        """Returns the words of a text in order, including unknown ones."""
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

    def without_boundaries(self, piece):
        return piece


def _split(text: str, cased: bool) -> Iterable[str]:
    """Returns the words of a text in order."""
    words = _WORD.findall(text)
    return words if cased else map(str.lower, words)


# --------------------------------------------------------------------------------------------------
# Words that are represented by their characters, as in ELMo: the model then also has a vector for
# words that the vocabulary lacks.

# In ELMo's published code, characters are the bytes 0 to 255 followed by special characters, and 1
# is added to all of them. Its 256 starts a sentence; it is unused here, because the end of a text
# also starts the next one.
_TEXT_END, _WORD_BEGIN, _WORD_END, _PADDING = 257, 258, 259, 260
Unit = tuple[int, ...]
_CACHED_WORDS = 2**17  # recently used words, because few words make up most of a text


class Spelled(Tokenizer):
    """A tokenizer that represents each word by `size` integers, its characters.

    They are the start of the word, its bytes in UTF-8, the end of the word, and padding. A longer
    word is truncated. Words outside the vocabulary are represented in the same way. A text starts
    and ends with the end-of-text token, as in the token store. It is saved in the files of the word
    tokenizer.
    """

    def __init__(self, words: Tokenizer, size: int):
        super().__init__(words.model)
        self.file, self.vocab_size = words.file, words.vocab_size
        self._words, self._size = words, size
        # A cache of the object: on the method, it would keep every tokenizer alive.
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
        """Returns the word of each unit; a long word is truncated."""
        return [self._piece(unit) for unit in ids]

    def _piece(self, unit) -> str:
        characters = [number - 1 for number in unit]
        if _TEXT_END in characters:
            return self._words.pieces([self._words.eos_id])[0]
        return bytes(number for number in characters if 0 <= number < 256).decode(errors="replace")

    def begins_word(self, piece):
        return True

    def without_boundaries(self, piece):
        return piece

    @functools.cached_property
    def table(self) -> Int[np.ndarray, "V C"]:
        """The characters of each word in the vocabulary."""
        # Training looks words up in this table, so the token store keeps one id per word instead of
        # `size` characters.
        words = self._words.pieces(list(range(self.vocab_size)))
        table = np.array([self._spelling(word) for word in words], np.int16)
        table[self._words.eos_id] = self.eos_id
        return table

    def _spelled(self, word: str) -> Unit:
        # Cut by bytes, as in the published code, even within a character.
        return self._unit(word.encode()[: self._size - 2])

    def _unit(self, characters) -> Unit:
        numbers = [_WORD_BEGIN, *characters, _WORD_END]
        numbers += [_PADDING] * (self._size - len(numbers))
        # 0 is left for positions without a word, as in the published code.
        return tuple(number + 1 for number in numbers)


# --------------------------------------------------------------------------------------------------
# One token for each character, for which no text is too small to train a tokenizer.


class Characters(Tokenizer):
    """One token for each character of the training text.

    Id 0 is the end of a document, and id 1 is an unknown character. The characters follow in the
    order of their code points. Raises ValueError if they are not in that order.
    """

    file = "characters.json"
    eos_id, unk_id = range(2)
    never = (unk_id,)  # no training text has it, so that only chance would generate it

    def __init__(self, model: bytes):
        super().__init__(model)
        characters = json.loads(model)["characters"]
        # Their order defines the ids, so another order would decode to another text.
        if list(characters) != sorted(set(characters)):
            raise ValueError("the characters are not in order")
        self._characters = ["", "\ufffd", *characters]
        self.vocab_size = len(self._characters)
        # A table over all code points, so that encoding a text is a single array lookup.
        self._ids = np.full(sys.maxunicode + 1, self.unk_id, np.int32)
        self._ids[[ord(character) for character in characters]] = np.arange(2, self.vocab_size)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Characters":
        """Returns a tokenizer of the characters in the texts.

        Raises UserError if there are more of them than `vocab_size` allows.
        """
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
            # UTF-32 has one number for each character. A lone surrogate has one, too, and becomes
            # unknown.
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
# The alphabet of ESM: one token for each residue of a protein. It is fixed, so nothing is trained.

# The 20 standard amino acids, and the codes for ambiguous (X, B, Z) and rare (U, O) ones.
STANDARD = "LAGVSERTIDPKQNFYMHWC"
AMBIGUOUS = "XBUZO"
# In the order of the published alphabet, which also has the gap characters of alignments and an
# unused token.
TOKENS = ("<cls>", "<pad>", "<eos>", "<unk>", *STANDARD, *AMBIGUOUS, ".", "-", "<null_1>", "<mask>")


class Residues(Tokenizer):
    """One token for each residue, which is an upper-case letter (ESM, Rives et al. 2021).

    Ids are the same as with Hugging Face's EsmTokenizer, except that lower-case letters, by which
    data bases denote repeats, are read as the same residues. White space is ignored, and any other
    character is unknown. In `encode_masked`, both "<mask>" and "[MASK]" are a masked residue.

    Raises ValueError if the alphabet lacks a special token or has duplicates.
    """

    file = "residues.json"

    def __init__(self, model: bytes):
        super().__init__(model)
        self._pieces = json.loads(model)["tokens"]
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        # Upper-case pieces last, so that they win where lower-casing makes two pieces equal.
        self._letters = {piece.lower(): i for piece, i in self._ids.items()} | self._ids
        needed = ("<cls>", "<eos>", "<unk>", "<mask>")
        missing = [piece for piece in needed if piece not in self._ids]
        if missing:
            raise ValueError(f"no token {missing[0]!r} in the alphabet")
        if len(self._ids) < len(self._pieces):
            raise ValueError("a token of the alphabet occurs twice")
        self.vocab_size = len(self._pieces)
        names = ("<cls>", "<pad>", "<eos>", "<unk>", "<mask>")
        self.cls_id, self.pad_id, self.eos_id, self.unk_id, self.mask_id = map(self._ids.get, names)
        # ESM has no token between two texts, and its rows end with <eos> where BERT's end with
        # [SEP].
        self.sep_id = self.eos_id
        # Gap characters count as special, so that they are neither masked nor inserted.
        self.special = np.array([not piece.isalpha() for piece in self._pieces])

    @classmethod
    def of(cls, tokens: Sequence[str] = TOKENS) -> "Residues":
        """Returns the tokenizer for an alphabet in the order of its ids, by default ESM's."""
        return cls(json.dumps({"tokens": [*tokens]}).encode())

    @staticmethod
    def has(tokens: Sequence[str]) -> bool:
        """Returns whether the lines of a vocab.txt are an alphabet of residues."""
        return {"<cls>", "<eos>", "<mask>", *STANDARD} <= {*tokens}

    def _encode(self, texts):
        find, unknown = self._letters.get, self.unk_id
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

    def without_boundaries(self, piece):
        return piece

    def hf_files(self):
        special = {f"{name}_token": f"<{name}>" for name in ("cls", "pad", "eos", "unk", "mask")}
        settings = {"tokenizer_class": "EsmTokenizer", **special}
        return {
            "vocab.txt": "\n".join(self._pieces).encode(),
            "tokenizer_config.json": json.dumps(settings).encode(),
        }
