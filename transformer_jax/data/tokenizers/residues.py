"""The alphabet of ESM: one token for each residue of a protein."""

import json
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.tokenizers.tokenizer import Tokenizer, known_ids

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
