"""Kinds of tokenizers behind one interface: text to ids and back."""

import io
import itertools
import json
import os
import sys
from collections.abc import Iterable

import numpy as np
import sentencepiece
import tokenizers as huggingface

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.tokenizer import Tokenizer

_THREADS = 8  # fixed: the trained model may depend on it
_VISIBLE = str.maketrans({" ": "▁", "\n": "↵", "\t": "⇥"})


def in_blocks(tokenizer: huggingface.Tokenizer, texts: list[str]) -> list[list[int]]:
    """Ids of each text. What the library gives for one takes many times their memory: so it holds
    no more than 10,000 of them.
    """
    blocks = (texts[start : start + 10_000] for start in range(0, len(texts), 10_000))
    return [
        found.ids
        for block in blocks
        for found in tokenizer.encode_batch_fast(block, add_special_tokens=False)
    ]


def _known(tokenizer, ids):
    return [i if i < tokenizer.vocab_size else tokenizer.unk_id for i in ids]


class SentencePiece(Tokenizer):
    """A SentencePiece model (Kudo & Richardson 2018), unigram or BPE. Ids 0 to 3: padding, unknown,
    start, end.
    """

    file = "sentencepiece.model"
    pad_id, unk_id, bos_id, eos_id = range(4)

    def __init__(self, model: bytes):
        super().__init__(model)
        self._processor = sentencepiece.SentencePieceProcessor()
        # unlike the constructor it refuses an empty file
        self._processor.LoadFromSerializedProto(model)
        self.vocab_size = self._processor.vocab_size()

    @classmethod
    def train(
        cls, lines: Iterable[str], vocab_size: int, model_type: str, **options
    ) -> "SentencePiece":
        """Trains on the lines (a sample of two million, if there are more); fewer pieces if the
        text has no more.
        """
        model, failed = io.BytesIO(), []

        # SentencePiece turns what the iterator raises into a RuntimeError of its own
        def watched():
            try:
                yield from lines
            except UserError as error:
                failed.append(error)
                raise

        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=watched(),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=model_type,
                character_coverage=1.0 if vocab_size > 2000 else 0.9995,
                hard_vocab_limit=False,
                input_sentence_size=2_000_000,
                max_sentence_length=2**16,
                pad_id=0,
                unk_id=1,
                bos_id=2,
                eos_id=3,
                num_threads=_THREADS,
                minloglevel=2,
                **options,
            )
        except (RuntimeError, OSError) as error:
            raise (
                failed[0]
                if failed
                else UserError(
                    f"the tokenizer can't be trained with {vocab_size} pieces on this text: {error}"
                )
            ) from None
        return cls(model.getvalue())

    @classmethod
    def train_documents(
        cls, texts: Iterable[str], vocab_size: int, model_type: str
    ) -> "SentencePiece":
        """As `train`, but newlines and every space survive: one newline is one piece."""
        # characters; longer lines than `max_sentence_length` bytes would be left out
        longest = 2**13
        lines = (
            line[start : start + longest]
            for text in texts
            for line in text.split("\n")
            for start in range(0, len(line), longest)
        )
        return cls.train(
            lines,
            vocab_size,
            model_type,
            user_defined_symbols=["\n"],
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
        )

    def _encode(self, texts):
        return self._processor.encode(texts, num_threads=os.cpu_count())

    def encode_spans(self, texts):
        # trained on documents, it changes no character
        ends = [
            itertools.accumulate(map(len, pieces), initial=0)
            for pieces in self._processor.encode(texts, out_type=str)
        ]
        return [
            (ids, list(itertools.pairwise(each))) for ids, each in zip(self.encode(texts), ends)
        ]

    def _decode(self, ids):
        return self._processor.decode([_known(self, each) for each in ids])

    def pieces(self, ids):
        return [self._processor.id_to_piece(i).translate(_VISIBLE) for i in _known(self, ids)]


class BPE(Tokenizer):
    """Byte-pair encoding (Sennrich et al. 2016): pieces, their indices the ids, and the merges that
    make them in order of rank.
    """

    symbols: tuple[str, ...] = ()  # pieces there must be
    hf_class: str
    ends: tuple[str, ...]  # the first of them that is a piece is the end of a document

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        self._vocab, self._merges = (
            {piece: i for i, piece in enumerate(content["pieces"])},
            content["merges"],
        )
        if missing := [
            piece for piece in (self.ends[-1], *self.symbols) if piece not in self._vocab
        ]:
            raise ValueError(f"no piece {missing[0]!r} in the vocabulary")
        special = lambda piece: (
            len(piece.removesuffix("</w>")) == 1 or piece.startswith("<") and piece.endswith(">")
        )
        merged = {merge.replace(" ", "") for merge in self._merges}
        # merges cut short would give other ids
        if lost := [piece for piece in self._vocab if piece not in merged and not special(piece)]:
            raise ValueError(f"{len(lost)} pieces that no merge makes, {lost[0]!r} the first")
        self._tokenizer = self.pipeline(
            self._vocab, [tuple(merge.split(" ")) for merge in self._merges]
        )
        self.vocab_size = len(self._vocab)
        self.eos_id = next(self._vocab[piece] for piece in self.ends if piece in self._vocab)

    @classmethod
    def of(cls, vocab: dict[str, int], merges: list[str]) -> "BPE":
        """From each piece's id, and the merges as the lines of a merges.txt."""
        return cls(json.dumps({"pieces": in_order(vocab), "merges": merges}).encode())

    @staticmethod
    def pipeline(vocab: dict[str, int], merges: list[tuple[str, str]]) -> huggingface.Tokenizer:
        """The library's tokenizer. It knows no special tokens, so that text can't name them."""
        raise NotImplementedError

    def _encode(self, texts):
        return in_blocks(self._tokenizer, texts)

    def _decode(self, ids):
        return self._tokenizer.decode_batch([[i for i in each if i != self.eos_id] for each in ids])

    def hf_files(self) -> dict[str, bytes]:
        """What Hugging Face's AutoTokenizer reads."""
        return {
            "vocab.json": json.dumps(self._vocab).encode(),
            "merges.txt": "\n".join(["#version: 0.2", *self._merges, ""]).encode(),
            "tokenizer_config.json": json.dumps({"tokenizer_class": self.hf_class}).encode(),
        }

    def hf_marked(self, marks: tuple[int, int, int]) -> dict[str, bytes]:
        """The same, for a model whose texts stand between tokens with these ids, the last it has:
        what begins a text, parts two, and ends them.
        """
        library, names = (
            huggingface.Tokenizer.from_str(self._tokenizer.to_str()),
            ("<start>", "<delimiter>", "<extract>"),
        )
        library.add_special_tokens(
            [*(f"<unused {i}>" for i in range(self.vocab_size, marks[0])), *names]
        )
        library.post_processor = huggingface.processors.TemplateProcessing(
            single="<start> $A <extract>",
            pair="<start> $A <delimiter> $B <extract>",
            special_tokens=list(zip(names, marks)),
        )
        return {
            "tokenizer.json": library.to_str().encode(),
            "tokenizer_config.json": json.dumps(
                {"tokenizer_class": "PreTrainedTokenizerFast"}
            ).encode(),
        }


class ByteBPE(BPE):
    """GPT-2's BPE over the bytes of UTF-8 (Radford et al. 2019, section 2.2): any text comes back
    as it was.
    """

    file = "byte_bpe.json"
    # a printable character for each of the 256 bytes
    symbols = tuple(huggingface.pre_tokenizers.ByteLevel.alphabet())
    hf_class, ends = "GPT2Tokenizer", ("<|endoftext|>",)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "ByteBPE":
        """Merges what occurs at least twice; fewer pieces if the text has no more. Ids in GPT-2's
        order: bytes, merges, the end.
        """
        if vocab_size < 257:
            raise UserError(
                f"config.model.vocab_size={vocab_size}: byte-level BPE needs at least 257, the bytes and the end of a document"
            )
        tokenizer = cls.pipeline({}, [])
        tokenizer.train_from_iterator(
            texts,
            huggingface.trainers.BpeTrainer(
                vocab_size=vocab_size - 1,
                min_frequency=2,
                initial_alphabet=list(cls.symbols),
                show_progress=False,
            ),
        )
        vocab, merges, _ = opened(tokenizer)
        return cls.of(vocab | {cls.ends[0]: len(vocab)}, merges)

    @staticmethod
    def pipeline(vocab, merges):
        tokenizer = huggingface.Tokenizer(huggingface.models.BPE(vocab, merges))
        tokenizer.pre_tokenizer = huggingface.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = huggingface.decoders.ByteLevel()
        return tokenizer

    def pieces(self, ids):
        return [self._tokenizer.decode([i]).translate(_VISIBLE) for i in ids]


class GPT1BPE(BPE):
    """GPT's BPE over the characters of lower-cased words, "</w>" closing each (Radford et al.
    2018).

    As Hugging Face's OpenAIGPTTokenizer without spacy and ftfy, which splits words as BERT does.
    The published vocabulary has no end of a document: the end of a line, which no text encodes to,
    stands for it.
    """

    file = "gpt1_bpe.json"
    hf_class, ends = "OpenAIGPTTokenizer", ("\n</w>", "<unk>")

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
        return [(self._tokenizer.id_to_token(i) or "<unk>").translate(_VISIBLE) for i in ids]

    def ends_word(self, piece):
        return piece.endswith("</w>")

    def shown(self, piece):
        return piece.removesuffix("</w>")


def bpe(vocab: dict[str, int], merges: list[str]) -> ByteBPE | GPT1BPE:
    """The kind is told by GPT's ends of words."""
    return (GPT1BPE if any(piece.endswith("</w>") for piece in vocab) else ByteBPE).of(
        vocab, merges
    )


def bpe_of_library(text: str) -> ByteBPE | GPT1BPE:
    """From a `tokenizer.json`, if it encodes as one of the two kinds does."""
    vocab, merges, manner = opened(huggingface.Tokenizer.from_str(text))
    for kind in (ByteBPE, GPT1BPE):
        if manner == opened(kind.pipeline({}, []))[-1]:
            return kind.of(
                vocab
                | {token["content"]: token["id"] for token in json.loads(text)["added_tokens"]},
                merges,
            )
    raise ValueError("tokenizer.json is neither GPT-2's byte-level BPE nor GPT's BPE")


def in_order(vocab: dict[str, int]) -> list[str]:
    """The pieces by their ids, which must be 0, 1, 2, ..."""
    pieces = sorted(vocab, key=vocab.get)
    if [vocab[piece] for piece in pieces] != list(range(len(pieces))):
        raise ValueError(f"the ids of the {len(pieces)} pieces are not 0 to {len(pieces) - 1}")
    return pieces


def opened(tokenizer: huggingface.Tokenizer) -> tuple[dict[str, int], list[str], list]:
    """Each piece's id, the merges, and whatever else decides a text's ids."""
    content = json.loads(tokenizer.to_str())
    model, splitting = content["model"], content["pre_tokenizer"] or {}
    vocab, merges = model.pop("vocab"), [" ".join(merge) for merge in model.pop("merges", ())]
    # None, "" and False all mean no
    model = {key: value for key, value in model.items() if value and key != "unk_token"}
    return (
        vocab,
        merges,
        [
            model,
            content["normalizer"],
            {key: value for key, value in splitting.items() if key != "trim_offsets"},
        ],
    )


class Characters(Tokenizer):
    """A character is a token. Ids: 0 the end of a document, 1 any character the training text
    lacks, then its own in order.
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
        characters = set()
        for text in texts:
            characters.update(text)
        if len(characters) + 2 > vocab_size:
            raise UserError(
                f"the training text has {len(characters)} characters, with the end of a document and the unknown one "
                f"{len(characters) + 2}: more than config.model.vocab_size={vocab_size}"
            )
        return cls(json.dumps({"characters": "".join(sorted(characters))}).encode())

    def _encode(self, texts):
        return [
            self._ids[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)].tolist()
            for text in texts
        ]

    def encode_spans(self, texts):
        return [
            (ids, [(place, place + 1) for place in range(len(ids))]) for ids in self.encode(texts)
        ]

    def _decode(self, ids):
        return ["".join(self._characters[i] for i in _known(self, each)) for each in ids]

    def pieces(self, ids):
        named = ["<end>", "<unk>", *self._characters[2:]]
        return [named[i].translate(_VISIBLE) for i in _known(self, ids)]
