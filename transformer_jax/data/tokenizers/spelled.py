"""Words as the characters that a model reads them by."""

import functools
from typing import Any

import numpy as np
from jaxtyping import Int

from transformer_jax.data.tokenizers.tokenizer import Tokenizer

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
