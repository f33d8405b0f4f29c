"""WordPiece, BERT's tokenizer."""

import collections
import json
import re
from collections.abc import Iterable

import numpy as np
import tokenizers as huggingface

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.kinds import in_blocks, in_order, opened
from transformer_jax.data.tokenizers.tokenizer import Tokenizer

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ALPHABET = 1000  # the most frequent characters, as for BERT; words with others are unknown


class WordPiece(Tokenizer):
    """WordPiece (Schuster & Nakajima 2012; Devlin et al. 2018): each word, split at punctuation, by
    its longest pieces from the left, "##" before what continues it.

    Ids as Hugging Face's BertTokenizerFast gives them; uncased text loses accents, too. [SEP] ends
    a document.
    """

    file = "wordpiece.json"

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        self._pieces, self.cased = content["pieces"], content["cased"]
        vocab = {piece: i for i, piece in enumerate(self._pieces)}
        if missing := [piece for piece in _SPECIAL if piece not in vocab]:
            raise ValueError(f"no piece {missing[0]!r} in the vocabulary")
        if len(vocab) < len(self._pieces):
            raise ValueError(
                f"{len(self._pieces) - len(vocab)} pieces of the vocabulary are there twice"
            )
        self._tokenizer = self.pipeline(vocab, self.cased)
        self.vocab_size = len(vocab)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            vocab[piece] for piece in _SPECIAL
        )
        self.eos_id = self.sep_id
        self.continues = np.array([piece.startswith("##") for piece in self._pieces])
        self.special = np.array(
            [
                piece in _SPECIAL or bool(re.fullmatch(r"\[unused\d+\]", piece))
                for piece in self._pieces
            ]
        )

    @classmethod
    def of(cls, pieces: list[str], cased: bool) -> "WordPiece":
        return cls(json.dumps({"pieces": pieces, "cased": cased}).encode())

    @staticmethod
    def pipeline(vocab: dict[str, int], cased: bool) -> huggingface.Tokenizer:
        """The library's tokenizer. It knows no special tokens, so that text can't name them."""
        tokenizer = huggingface.Tokenizer(huggingface.models.WordPiece(vocab, unk_token="[UNK]"))
        tokenizer.normalizer = huggingface.normalizers.BertNormalizer(lowercase=not cased)
        tokenizer.pre_tokenizer = huggingface.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = huggingface.decoders.WordPiece()
        return tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, cased: bool) -> "WordPiece":
        """Reads the texts twice. Merges what occurs at least twice; fewer pieces if the text has no
        more.
        """
        tokenizer, counts = cls.pipeline({}, cased), collections.Counter()
        for text in texts:
            counts.update("".join(tokenizer.normalizer.normalize_str(text).split()))
        alphabet = sorted(character for character, _ in counts.most_common(_ALPHABET))
        # By itself the library numbers the continuing letters in an order that changes from run to
        # run, and numbers decide between equal counts.
        first = [*_SPECIAL, *alphabet, *(f"##{character}" for character in alphabet)]
        if vocab_size < len(first):
            raise UserError(
                f"config.model.vocab_size={vocab_size}: WordPiece needs at least {len(first)} for the {len(alphabet)} characters of this text"
            )
        tokenizer.train_from_iterator(
            texts,
            huggingface.trainers.WordPieceTrainer(
                vocab_size=vocab_size,
                min_frequency=2,
                special_tokens=first,
                initial_alphabet=alphabet,
                limit_alphabet=len(alphabet),
                show_progress=False,
            ),
        )
        vocab = tokenizer.get_vocab()
        return cls.of(sorted(vocab, key=vocab.get), cased)

    def _encode(self, texts):
        return in_blocks(self._tokenizer, texts)

    def encode_masked(self, text: str) -> list[int]:
        """As `encode`, but "[MASK]" in the text is `mask_id`."""
        first, *others = self.encode(text.split("[MASK]"))
        return [*first, *(i for ids in others for i in (self.mask_id, *ids))]

    def _decode(self, ids):
        dropped = (self.pad_id, self.cls_id, self.sep_id)
        return self._tokenizer.decode_batch([[i for i in each if i not in dropped] for each in ids])

    def pieces(self, ids):
        return [self._pieces[i if i < self.vocab_size else self.unk_id] for i in ids]

    def begins_word(self, piece):
        return not piece.startswith("##")

    def shown(self, piece):
        return piece.removeprefix("##")

    def hf_files(self) -> dict[str, bytes]:
        """What Hugging Face's AutoTokenizer reads."""
        config = {"tokenizer_class": "BertTokenizer", "do_lower_case": not self.cased}
        return {
            "vocab.txt": "".join(f"{piece}\n" for piece in self._pieces).encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


def of_vocabulary(pieces: list[str], config: dict) -> WordPiece:
    """From the lines of a vocab.txt and what a tokenizer_config.json says; if it says nothing,
    capital letters in the vocabulary tell that it is cased.
    """
    lowers = config.get(
        "do_lower_case",
        all(piece == piece.lower() for piece in pieces if not re.fullmatch(r"\[.+\]", piece)),
    )
    if not config.get("tokenize_chinese_chars", True) or config.get("strip_accents") not in (
        None,
        lowers,
    ):
        raise ValueError(
            "tokenizer_config.json: accents are kept or Chinese characters joined, unlike in BERT"
        )
    return WordPiece.of(pieces, not lowers)


def of_library(text: str) -> WordPiece:
    """From a `tokenizer.json`, which is all that transformers 5 saves, if it encodes as BERT's
    does.
    """
    content = json.loads(text)
    normalizer = content["normalizer"] or {}
    if normalizer.get("strip_accents") == normalizer.get("lowercase"):
        content["normalizer"] = normalizer | {"strip_accents": None}  # means the same
    vocab, _, manner = opened(huggingface.Tokenizer.from_str(json.dumps(content)))
    vocab |= {token["content"]: token["id"] for token in content["added_tokens"]}
    for cased in (False, True):
        if manner == opened(WordPiece.pipeline({}, cased))[-1]:
            return WordPiece.of(in_order(vocab), cased)
    raise ValueError(
        "tokenizer.json: accents are kept, Chinese characters joined or words split otherwise, unlike in BERT"
    )
