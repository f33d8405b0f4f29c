"""Byte-pair encoding: the tokenizers of GPT, GPT-2 and RoBERTa."""

import json
from collections.abc import Iterable

import tokenizers as huggingface

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.tokenizer import (
    LibraryTokenizer,
    named_piece,
    pieces_by_id,
    visible,
)

# --------------------------------------------------------------------------------------------------
# The base class of the tokenizers of GPT and GPT-2. Their vocabularies and merges are kept and not
# the library's file, so that one saved form serves the files of OpenAI and of Hugging Face.


class BPE(LibraryTokenizer):
    """Byte-pair encoding (Sennrich et al. 2016).

    The saved file lists the pieces in the order of their ids, and the merges in the order of their
    ranks. It names the end token if that is not one of `special_pieces`. Raises ValueError if the
    vocabulary or the merges are incomplete.
    """

    needed: tuple[str, ...] = ()  # pieces that the vocabulary must have
    hf_class: str
    # {name of a special token: candidate pieces}, of which the first in the vocabulary is used.
    # Every vocabulary must have an eos.
    special_pieces: dict[str, tuple[str, ...]]

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        self._vocab = {piece: i for i, piece in enumerate(content["pieces"])}
        self._merges = content["merges"]
        self._named_end = content.get("eos")
        self._check()
        # Only at the space: a piece may contain other characters that count as white space.
        merges = [tuple(merge.split(" ")) for merge in self._merges]
        self._tokenizer = self.pipeline(self._vocab, merges)
        self.vocab_size = len(self._vocab)
        special = {name: self._special_id(name) for name in self.special_pieces}
        self.eos_id = special["eos"]
        self.bos_id, self.pad_id, self.unk_id = map(special.get, ("bos", "pad", "unk"))
        self.cls_id, self.sep_id, self.mask_id = map(special.get, ("cls", "sep", "mask"))

    def _special_id(self, name: str) -> int | None:
        """Returns the id of a special token, or None if the vocabulary has no such token."""
        pieces = self.special_pieces[name]
        if name == "eos" and self._named_end:
            pieces = (self._named_end,)
        return next((self._vocab[piece] for piece in pieces if piece in self._vocab), None)

    def _check(self) -> None:
        """Raises ValueError for an incomplete vocabulary or incomplete merges."""
        missing = [piece for piece in self.needed if piece not in self._vocab]
        if self._special_id("eos") is None:
            missing.insert(0, self.special_pieces["eos"][0])
        if missing:
            remedy = ""
            if missing[0] in self.special_pieces["eos"]:
                remedy = ', the end; name another one in tokenizer_config.json: {"eos_token": ...}'
            raise ValueError(f"no piece {missing[0]!r} in the vocabulary{remedy}")
        # With some of the merges missing, texts would silently be encoded to other ids.
        merged = {merge.replace(" ", "") for merge in self._merges}
        unmade = [
            piece
            for piece in self._vocab
            if piece not in merged and not _needs_no_merge(piece) and piece != self._named_end
        ]
        if unmade:
            raise ValueError(f"no merge makes {len(unmade)} of the pieces, {unmade[0]!r} the first")

    @classmethod
    def of(cls, vocab: dict[str, int], merges: list[str], end: str | None = None) -> "BPE":
        """Returns a tokenizer with these ids by piece and the lines of a merges.txt.

        `end` is the end token that the files of the tokenizer name.
        """
        content = {"pieces": pieces_by_id(vocab), "merges": merges}
        usual = next((piece for piece in cls.special_pieces["eos"] if piece in vocab), None)
        # Only then, so that the file, and with it the fingerprint, of other tokenizers stays as it
        # was.
        if end in vocab and end != usual:
            content["eos"] = end
        return cls(json.dumps(content).encode())

    @staticmethod
    def pipeline(vocab: dict[str, int], merges: list[tuple[str, str]]) -> huggingface.Tokenizer:
        """Returns the library tokenizer. It has no special tokens, so no text encodes to them."""
        raise NotImplementedError

    def _decode(self, ids):
        # A mask or an unknown piece stays in the text, because it stands for a part of it.
        dropped = {self.eos_id, self.bos_id, self.pad_id, self.cls_id, self.sep_id}
        return self._tokenizer.decode_batch(
            [[i for i in sequence if i not in dropped] for sequence in ids]
        )

    def hf_files(self):
        return {
            "vocab.json": json.dumps(self._vocab).encode(),
            "merges.txt": "\n".join(["#version: 0.2", *self._merges, ""]).encode(),
            "tokenizer_config.json": json.dumps(self._hf_settings()).encode(),
        }

    def _hf_settings(self) -> dict:
        settings = {"tokenizer_class": self.hf_class}
        if self._named_end:
            # Otherwise the class would add its own tokens for these to the vocabulary.
            settings |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), self._named_end)
        if self.prefix:
            start = list(self._vocab)[self.prefix[0]]
            settings |= {"add_bos_token": True, "bos_token": start}
        return settings


def _needs_no_merge(piece: str) -> bool:
    """Returns whether a piece is a single character or a special token."""
    is_special = piece.startswith("<") and piece.endswith(">")
    return is_special or len(piece.removesuffix("</w>")) == 1


# --------------------------------------------------------------------------------------------------
# The tokenizers of GPT-2 and RoBERTa, which merge bytes, and of GPT, which merges characters and
# therefore has an unknown piece.

# The special tokens before and after all other pieces, for GPT-2 and RoBERTa (Liu et al. 2019).
GPT2 = ((), ("<|endoftext|>",))
ROBERTA = (("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",))


class ByteBPE(BPE):
    """GPT-2's BPE over the bytes of UTF-8 (Radford et al. 2019, section 2.2).

    Because every byte is a piece, no text is unknown, and decoding restores every text exactly.
    """

    file = "byte_bpe.json"
    # A printable character for each of the 256 bytes. Without one of them, some text would have no
    # ids.
    needed = tuple(huggingface.pre_tokenizers.ByteLevel.alphabet())
    # GPT-2's vocabulary has only "<|endoftext|>", and RoBERTa's has the others.
    special_pieces = {
        "eos": ("<|endoftext|>", "</s>"),
        "bos": ("<s>",),
        "pad": ("<pad>",),
        "unk": ("<unk>",),
        "cls": ("<s>",),
        "sep": ("</s>",),
        "mask": ("<mask>",),
    }

    @property
    def hf_class(self) -> str:
        return "GPT2Tokenizer" if self.cls_id is None else "RobertaTokenizer"

    @property
    def pair_separators(self) -> int:
        # RoBERTa has two separators between the texts of a pair (Liu et al. 2019).
        return 1 if self.cls_id is None else 2

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        special: tuple[tuple[str, ...], tuple[str, ...]] = GPT2,
    ) -> "ByteBPE":
        """Returns a tokenizer that is trained by merging pairs that occur at least twice.

        It has fewer than `vocab_size` pieces if the text does not yield more. As in GPT-2, the
        bytes come first, followed by the merged pieces. `special` are the special tokens before and
        after these. Raises UserError if `vocab_size` is too small for the bytes.
        """
        before, after = special
        num_special = len(before) + len(after)
        if vocab_size < 256 + num_special:
            raise UserError(
                f"config.model.vocab_size={vocab_size}: byte-level BPE needs at least "
                f"{256 + num_special}, the bytes and {', '.join(before + after)}"
            )
        tokenizer = cls.pipeline({}, [])
        tokenizer.train_from_iterator(
            texts,
            huggingface.trainers.BpeTrainer(
                # The trainer would put special tokens first, but the last ones belong at the end.
                vocab_size=vocab_size - num_special,
                min_frequency=2,
                initial_alphabet=list(cls.needed),
                show_progress=False,
            ),
        )
        model = json.loads(tokenizer.to_str())["model"]
        pieces = [*before, *pieces_by_id(model["vocab"]), *after]
        merges = [" ".join(merge) for merge in model["merges"]]
        return cls.of({piece: i for i, piece in enumerate(pieces)}, merges)

    @staticmethod
    def pipeline(vocab, merges):
        tokenizer = huggingface.Tokenizer(huggingface.models.BPE(vocab, merges))
        # No space before the text, so that decoding restores it exactly.
        tokenizer.pre_tokenizer = huggingface.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = huggingface.decoders.ByteLevel()
        return tokenizer

    def pieces(self, ids):
        return [visible(self._tokenizer.decode([i])) for i in ids]


class GPT1BPE(BPE):
    """GPT's BPE over the characters of lower-cased words, each of which ends with "</w>".

    It is the tokenizer of Radford et al. 2018, and is equivalent to Hugging Face's
    OpenAIGPTTokenizer without spacy and ftfy, which splits words as BERT does. The published
    vocabulary has no token for the end of a document. The token for the end of a line is used
    instead, because no text encodes to it.
    """

    file = "gpt1_bpe.json"
    hf_class = "OpenAIGPTTokenizer"
    needed = ("<unk>",)
    special_pieces = {"eos": ("\n</w>", "<unk>"), "unk": ("<unk>",)}

    @staticmethod
    def pipeline(vocab, merges):
        tokenizer = huggingface.Tokenizer(
            huggingface.models.BPE(
                vocab, merges, unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=False
            )
        )
        tokenizer.normalizer = huggingface.normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = huggingface.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = huggingface.decoders.BPEDecoder(suffix="</w>")
        return tokenizer

    def pieces(self, ids):
        return [visible(self._tokenizer.id_to_token(i) or "<unk>") for i in ids]

    def ends_word(self, piece):
        return piece.endswith("</w>")

    def without_boundaries(self, piece):
        return piece.removesuffix("</w>")


def from_vocabulary(vocab: dict[str, int], merges: list[str], config: dict) -> ByteBPE | GPT1BPE:
    """Returns the tokenizer for these pieces: GPT's if some end with "</w>", otherwise GPT-2's.

    `config` is the content of tokenizer_config.json, which may name the end token, and define it
    and the tokens before it behind the vocabulary's.
    """
    is_gpt1 = any(piece.endswith("</w>") for piece in vocab)
    end = named_piece(config, "eos")
    added = config.get("added_tokens_decoder") or {}
    ids = {token["content"]: int(i) for i, token in added.items()}
    if end in ids and end not in vocab:
        # Tokens after the end token, such as the tokens of a chat format, are not part of the
        # vocabulary.
        vocab = vocab | {piece: i for piece, i in ids.items() if i <= ids[end]}
    return (GPT1BPE if is_gpt1 else ByteBPE).of(vocab, merges, end)
