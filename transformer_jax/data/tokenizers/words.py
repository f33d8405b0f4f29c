"""A tokenizer with one token per word."""

import collections
import json
import re
from collections.abc import Iterable

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.spelled import Spelled
from transformer_jax.data.tokenizers.tokenizer import Tokenizer, known_ids

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
