"""WordPiece, the tokenizer of BERT."""

import collections
import json
import re
from collections.abc import Iterable

import numpy as np
import tokenizers as huggingface

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.tokenizer import LibraryTokenizer

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The number of characters in the alphabet, as for BERT. The most frequent ones are kept, and words
# with other characters are unknown.
_MAX_ALPHABET = 1000


class WordPiece(LibraryTokenizer):
    """WordPiece (Schuster & Nakajima 2012; Devlin et al. 2018).

    Text is split into words at white space and punctuation. A word is split greedily, by taking the
    longest matching piece from the left; pieces that continue a word start with "##". An uncased
    tokenizer strips accents, too. [SEP] ends a document. Ids are the same as with Hugging Face's
    BertTokenizerFast.

    Raises ValueError if the vocabulary lacks a special token or has duplicates.
    """

    file = "wordpiece.json"

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        self._pieces = content["pieces"]
        self.cased = content["cased"]
        vocab = {piece: i for i, piece in enumerate(self._pieces)}
        missing = [piece for piece in _SPECIAL if piece not in vocab]
        if missing:
            raise ValueError(f"no piece {missing[0]!r} in the vocabulary")
        if len(vocab) < len(self._pieces):
            num_repeated = len(self._pieces) - len(vocab)
            raise ValueError(f"{num_repeated} pieces of the vocabulary occur twice")
        self._tokenizer = self.pipeline(vocab, self.cased)
        self.vocab_size = len(vocab)
        special_ids = (vocab[piece] for piece in _SPECIAL)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special_ids
        # BERT has no token for the end of a document. [SEP] is the one that stands at the end of
        # its rows.
        self.eos_id = self.sep_id
        self.special = np.array([_is_special(piece) for piece in self._pieces])

    @classmethod
    def of(cls, pieces: list[str], cased: bool) -> "WordPiece":
        """Returns a tokenizer with these pieces, in the order of their ids."""
        return cls(json.dumps({"pieces": pieces, "cased": cased}).encode())

    @staticmethod
    def pipeline(vocab: dict[str, int], cased: bool) -> huggingface.Tokenizer:
        """Returns the library tokenizer. It has no special tokens, so no text encodes to them."""
        tokenizer = huggingface.Tokenizer(huggingface.models.WordPiece(vocab, unk_token="[UNK]"))
        tokenizer.normalizer = huggingface.normalizers.BertNormalizer(lowercase=not cased)
        tokenizer.pre_tokenizer = huggingface.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = huggingface.decoders.WordPiece()
        return tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, cased: bool) -> "WordPiece":
        """Returns a tokenizer that is trained by merging pairs that occur at least twice.

        It has fewer than `vocab_size` pieces if the text does not yield more. The texts are read
        twice. Raises UserError if `vocab_size` is too small for the alphabet.
        """
        tokenizer = cls.pipeline({}, cased)
        counts = collections.Counter()
        for text in texts:
            # Counted after normalization, because the pieces consist of normalized characters.
            counts.update("".join(tokenizer.normalizer.normalize_str(text).split()))
        alphabet = sorted(character for character, _ in counts.most_common(_MAX_ALPHABET))
        # Passing the single characters as special tokens fixes their ids. The library would number
        # the continuing characters in an order that changes from run to run, and the ids decide
        # between pairs with equal counts, so the vocabulary would not be reproducible.
        first_pieces = [*_SPECIAL, *alphabet, *(f"##{character}" for character in alphabet)]
        if vocab_size < len(first_pieces):
            raise UserError(
                f"config.model.vocab_size={vocab_size}: WordPiece needs at least "
                f"{len(first_pieces)} for the {len(alphabet)} characters of this text"
            )
        tokenizer.train_from_iterator(
            texts,
            huggingface.trainers.WordPieceTrainer(
                vocab_size=vocab_size,
                min_frequency=2,
                special_tokens=first_pieces,
                initial_alphabet=alphabet,
                limit_alphabet=len(alphabet),
                show_progress=False,
            ),
        )
        vocab = tokenizer.get_vocab()
        return cls.of(sorted(vocab, key=vocab.get), cased)

    def _decode(self, ids):
        # [UNK] and [MASK] stay in the text, because they stand for words.
        dropped = (self.pad_id, self.cls_id, self.sep_id)
        return self._tokenizer.decode_batch(
            [[i for i in sequence if i not in dropped] for sequence in ids]
        )

    def pieces(self, ids):
        return [self._pieces[i if i < self.vocab_size else self.unk_id] for i in ids]

    def begins_word(self, piece):
        return not piece.startswith("##")

    def without_boundaries(self, piece):
        return piece.removeprefix("##")

    def hf_files(self):
        config = {"tokenizer_class": "BertTokenizer", "do_lower_case": not self.cased}
        return {
            "vocab.txt": "".join(f"{piece}\n" for piece in self._pieces).encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


def _is_special(piece: str) -> bool:
    return piece in _SPECIAL or bool(re.fullmatch(r"\[unused\d+\]", piece))


def from_vocabulary(pieces: list[str], config: dict) -> WordPiece:
    """Returns the tokenizer for the lines of a vocab.txt and the content of tokenizer_config.json.

    If the latter does not say whether text is lower-cased, a vocabulary with capital letters is
    taken as cased. Raises ValueError for settings that BERT does not use.
    """
    words = [piece for piece in pieces if not re.fullmatch(r"\[.+\]", piece)]
    lowers = config.get("do_lower_case", all(word == word.lower() for word in words))
    splits_chinese = config.get("tokenize_chinese_chars", True)
    strips_accents = config.get("strip_accents")
    if not splits_chinese or strips_accents not in (None, lowers):
        raise ValueError(
            "tokenizer_config.json: accents are kept or Chinese characters joined, unlike in BERT"
        )
    return WordPiece.of(pieces, not lowers)
