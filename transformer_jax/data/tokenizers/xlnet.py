"""XLNet's tokenizer: a unigram model of SentencePiece (Yang et al. 2019)."""

import json

import numpy as np
import tokenizers as huggingface

from transformer_jax.data.tokenizers.unigram import Unigram

_SPECIAL = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")


class XLNet(Unigram):
    """A unigram tokenizer as XLNet has it. Ids equal those of XLNetTokenizer.

    Ids 0 to 8 are special; <eod> ends a document. Texts lose their accents. Two grave accents, or
    two apostrophes, become a quotation mark.
    """

    file = "xlnet.json"
    unk_id, bos_id = 0, 1
    cls_id, sep_id, pad_id, mask_id, eos_id = range(3, 8)

    def __init__(self, model: bytes):
        self.lowercase = json.loads(model)["lowercase"]
        super().__init__(model)
        self.special = np.arange(self.vocab_size) < len(_SPECIAL)

    def hidden(self):
        if tuple(self._pieces[: len(_SPECIAL)]) != _SPECIAL:
            raise ValueError(f"the first pieces are not those of XLNet: {', '.join(_SPECIAL)}")
        return set(_SPECIAL)

    def normalizers(self):
        normalizers = huggingface.normalizers
        lowercase = [normalizers.Lowercase()] if self.lowercase else []
        return [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            *lowercase,
        ]

    def _decode(self, ids):
        return self._tokenizer.decode_batch(
            [[i for i in sequence if len(_SPECIAL) <= i < self.vocab_size] for sequence in ids]
        )

    def hf_files(self):
        library = self._library(self._pieces)
        library.add_special_tokens([*_SPECIAL])
        library.post_processor = huggingface.processors.TemplateProcessing(
            single="$A:0 <sep>:0 <cls>:2",
            pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
            special_tokens=[("<sep>", self.sep_id), ("<cls>", self.cls_id)],
        )
        config = {"tokenizer_class": "XLNetTokenizer", "do_lower_case": self.lowercase}
        return {
            "tokenizer.json": library.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


def is_of(pieces: list[tuple[str, float]]) -> bool:
    """Whether the pieces are those of an XLNet."""
    return tuple(piece for piece, _ in pieces[: len(_SPECIAL)]) == _SPECIAL
