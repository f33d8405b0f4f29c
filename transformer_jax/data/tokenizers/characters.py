"""A tokenizer with one token per character."""

import json
import sys
from collections.abc import Iterable

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.tokenizer import Tokenizer, known_ids, visible


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
