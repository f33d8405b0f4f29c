"""T5's tokenizer: a unigram model of SentencePiece, and the sentinels of span corruption."""

import json

import tokenizers as huggingface

from transformer_jax.data.tokenizers.unigram import Pieces, Unigram

_SPECIAL = ("<pad>", "</s>", "<unk>")  # ids 0 to 2
_NUM_SENTINELS = 100


class T5(Unigram):
    """A unigram tokenizer as T5 has it (Raffel et al. 2020). Ids equal those of T5Tokenizer.

    Ids 0 to 2 are padding, end and unknown. The last `num_sentinels` are <extra_id_99> to
    <extra_id_0>.
    """

    file = "t5.json"
    pad_id, eos_id, unk_id = range(3)

    def hidden(self):
        if tuple(self._pieces[:3]) != _SPECIAL:
            raise ValueError(f"the first pieces are not those of T5: {', '.join(_SPECIAL)}")
        self.num_sentinels = 0
        while self._pieces[-1 - self.num_sentinels] == f"<extra_id_{self.num_sentinels}>":
            self.num_sentinels += 1
        return {*_SPECIAL, *self._sentinels}

    @property
    def _sentinels(self) -> list[str]:
        return [f"<extra_id_{i}>" for i in reversed(range(self.num_sentinels))]

    def _decode(self, ids):
        first_sentinel = self.vocab_size - self.num_sentinels
        return self._tokenizer.decode_batch(
            [[i for i in sequence if self.unk_id < i < first_sentinel] for sequence in ids]
        )

    def hf_files(self):
        library = self._library(self._pieces)
        library.add_special_tokens([*_SPECIAL, *self._sentinels])
        library.post_processor = huggingface.processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", self.eos_id)]
        )
        config = {"tokenizer_class": "T5Tokenizer", "extra_ids": self.num_sentinels}
        return {
            "tokenizer.json": library.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


def with_sentinels(pieces: Pieces, settings: dict) -> Pieces:
    """Returns the pieces of a SentencePiece model, and the sentinels that it lacks.

    `settings` is the content of tokenizer_config.json.
    """
    count = settings.get("extra_ids", _NUM_SENTINELS)
    return pieces + [(f"<extra_id_{i}>", 0.0) for i in reversed(range(count))]
