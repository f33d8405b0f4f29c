"""Byte-pair encoding as a published tokenizer.json describes it: the tokenizers of Llama and Qwen2.

They split words by rules of their own, which the file holds.
"""

import json

import numpy as np
import tokenizers as huggingface

from transformer_jax.data.tokenizers.library import LibraryTokenizer
from transformer_jax.data.tokenizers.tokenizer import visible

_NAMES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
# The end of a document where no file names it.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>")


class PublishedBPE(LibraryTokenizer):
    """The BPE of a tokenizer.json.

    The saved file holds the content of tokenizer.json and the names of the special tokens.
    """

    file = "published_bpe.json"

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        self._library = content["library"]
        self._names = content["special"]
        self._tokenizer = huggingface.Tokenizer.from_str(json.dumps(self._library))
        # Texts must not encode to special tokens.
        self._tokenizer.encode_special_tokens = True
        self._is_byte_level = (self._library["decoder"] or {}).get("type") == "ByteLevel"
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        ids = {name: self._tokenizer.token_to_id(piece) for name, piece in self._names.items()}
        if ids.get("eos") is None:
            raise ValueError("tokenizer_config.json names no eos_token of the vocabulary")
        self.eos_id = ids["eos"]
        self.bos_id, self.pad_id, self.unk_id = map(ids.get, ("bos", "pad", "unk"))
        self.cls_id, self.sep_id, self.mask_id = map(ids.get, ("cls", "sep", "mask"))
        added = self._tokenizer.get_added_tokens_decoder().items()
        special = [i for i, token in added if token.special]
        self.special = np.isin(np.arange(self.vocab_size), special)

    @classmethod
    def of(cls, text: str, config: dict) -> "PublishedBPE":
        """Returns the tokenizer of a tokenizer.json and the content of tokenizer_config.json.

        Raises ValueError where no special token ends a document.
        """
        library = json.loads(text)
        added = {token["content"] for token in library["added_tokens"]}
        names = {"eos": next((piece for piece in _ENDS if piece in added), None)}
        for name in _NAMES:
            token = config.get(f"{name}_token")
            names[name] = token["content"] if isinstance(token, dict) else token or names.get(name)
        special = {name: piece for name, piece in names.items() if piece}
        return cls(json.dumps({"library": library, "special": special}).encode())

    def _decode(self, ids):
        return self._tokenizer.decode_batch(ids, skip_special_tokens=True)

    def pieces(self, ids):
        if self._is_byte_level:
            return [visible(self._tokenizer.decode([i], skip_special_tokens=False)) for i in ids]
        return [visible(self._tokenizer.id_to_token(i) or "") for i in ids]

    def hf_files(self):
        config = {f"{name}_token": piece for name, piece in self._names.items()}
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        return {
            "tokenizer.json": json.dumps(self._library).encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }
