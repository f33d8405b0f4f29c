"""What all tokenizers of Hugging Face's library `tokenizers` share."""

import dataclasses
import json

import tokenizers as huggingface

from transformer_jax.data.tokenizers.tokenizer import Tokenizer

_TEXTS_PER_BLOCK = 10_000


class LibraryTokenizer(Tokenizer):
    """A tokenizer whose `_tokenizer` is one of the library."""

    _tokenizer: huggingface.Tokenizer

    def _encode(self, texts):
        # The library's results take many times the memory of their ids, so few exist at a time.
        blocks = (
            texts[start : start + _TEXTS_PER_BLOCK]
            for start in range(0, len(texts), _TEXTS_PER_BLOCK)
        )
        return [
            encoding.ids
            for block in blocks
            for encoding in self._tokenizer.encode_batch_fast(block, add_special_tokens=False)
        ]

    def encode_spans(self, texts):
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def hf_with(self, pieces, settings):
        library = huggingface.Tokenizer.from_str(self._tokenizer.to_str())
        library.add_special_tokens([*pieces])
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
        return {
            "tokenizer.json": library.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a library's tokenizer that decide the ids of a text."""

    vocab: dict[str, int]  # the id of each piece
    merges: list[str]
    settings: list  # all else: model, normalizer, pre-tokenizer


def parts_of(tokenizer: huggingface.Tokenizer) -> Parts:
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    pre_tokenizer = content["pre_tokenizer"] or {}
    vocab = model.pop("vocab")
    merges = [" ".join(merge) for merge in model.pop("merges", ())]
    # None, "" and False all mean no.
    model = {key: value for key, value in model.items() if value and key != "unk_token"}
    pre_tokenizer = {key: value for key, value in pre_tokenizer.items() if key != "trim_offsets"}
    return Parts(vocab, merges, [model, content["normalizer"], pre_tokenizer])


def pieces_by_id(vocab: dict[str, int]) -> list[str]:
    """Returns the pieces in the order of their ids.

    Raises ValueError unless the ids are 0, 1, 2, ...
    """
    pieces = sorted(vocab, key=vocab.get)
    if [vocab[piece] for piece in pieces] != list(range(len(pieces))):
        raise ValueError(f"the ids of the {len(pieces)} pieces are not 0 to {len(pieces) - 1}")
    return pieces
