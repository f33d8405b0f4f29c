"""Unigram tokenizers of published models (T5, ALBERT, XLNet): pieces with log-probabilities, as
SentencePiece trains them (Kudo 2018).
"""

import base64
import json
from collections.abc import Iterator

import numpy as np
import tokenizers as huggingface

from transformer_jax.data.tokenizers import sentence_piece
from transformer_jax.data.tokenizers.library import LibraryTokenizer
from transformer_jax.data.tokenizers.tokenizer import known_ids, visible

Pieces = list[tuple[str, float]]


class Unigram(LibraryTokenizer):
    """A unigram tokenizer that splits words at white space. A kind defines `hidden`.

    The saved file holds the pieces with their log-probabilities, and SentencePiece's table of
    normalized characters.
    """

    unk_id: int

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        self._pieces = [piece for piece, _ in content["pieces"]]
        self._scores = [score for _, score in content["pieces"]]
        self._characters = content["characters"]
        self.vocab_size = len(self._pieces)
        # Texts must not encode to special pieces. A word has this mark at its beginning alone.
        hidden = self.hidden()
        self._tokenizer = self._library(
            [f"{piece}▁" if piece in hidden else piece for piece in self._pieces]
        )

    @classmethod
    def of(cls, pieces: Pieces, characters: bytes, **settings) -> "Unigram":
        """Returns the tokenizer of pieces with their log-probabilities.

        `characters` is SentencePiece's precompiled table of normalized characters.
        """
        encoded = base64.b64encode(characters).decode()
        content = {"pieces": pieces, "characters": encoded, **settings}
        return cls(json.dumps(content).encode())

    def hidden(self) -> set[str]:
        """Returns the pieces that no text encodes to. Raises ValueError where one is missing."""
        raise NotImplementedError

    def normalizers(self) -> list[huggingface.normalizers.Normalizer]:
        """Returns the normalizers in front of SentencePiece's table."""
        return []

    def _library(self, pieces: list[str]) -> huggingface.Tokenizer:
        model = huggingface.models.Unigram(list(zip(pieces, self._scores)), self.unk_id, False)
        library = huggingface.Tokenizer(model)
        normalizers = self.normalizers()
        if self._characters:
            table = base64.b64decode(self._characters)
            normalizers = [*normalizers, huggingface.normalizers.Precompiled(table)]
        if normalizers:
            is_one = len(normalizers) == 1
            sequence = huggingface.normalizers.Sequence
            library.normalizer = normalizers[0] if is_one else sequence(normalizers)
        library.pre_tokenizer = huggingface.pre_tokenizers.Sequence(
            [
                huggingface.pre_tokenizers.WhitespaceSplit(),
                huggingface.pre_tokenizers.Metaspace(),
            ]
        )
        library.decoder = huggingface.decoders.Metaspace()
        return library

    def pieces(self, ids):
        return [visible(self._pieces[i]) for i in known_ids(self, ids)]


class EncoderUnigram(Unigram):
    """The unigram tokenizer of an encoder, whose first pieces are special.

    Texts lose their accents, and their capitals with `lowercase`. Two grave accents, or two
    apostrophes, become a quotation mark.
    """

    first: tuple[str, ...]  # the special pieces, in the order of their ids
    single: str  # a row of one text, for the library
    pair: str  # a row of two texts
    hf_class: str

    def __init__(self, model: bytes):
        self.lowercase = json.loads(model)["lowercase"]
        super().__init__(model)
        self.special = np.arange(self.vocab_size) < len(self.first)

    @classmethod
    def has(cls, pieces: Pieces) -> bool:
        """Whether the pieces begin with the special ones."""
        return tuple(piece for piece, _ in pieces[: len(cls.first)]) == cls.first

    def hidden(self):
        if tuple(self._pieces[: len(self.first)]) != self.first:
            names = ", ".join(self.first)
            raise ValueError(f"the first pieces are not those of {type(self).__name__}: {names}")
        return set(self.first)

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
            [[i for i in sequence if len(self.first) <= i < self.vocab_size] for sequence in ids]
        )

    def hf_files(self):
        library = self._library(self._pieces)
        library.add_special_tokens([*self.first])
        marks = (self.sep_id, self.cls_id)
        library.post_processor = huggingface.processors.TemplateProcessing(
            single=self.single,
            pair=self.pair,
            special_tokens=[(self._pieces[i], i) for i in marks],
        )
        config = {"tokenizer_class": self.hf_class, "do_lower_case": self.lowercase}
        return {
            "tokenizer.json": library.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


def of_sentence_piece(model: bytes) -> tuple[Pieces, bytes]:
    """Returns the pieces of a SentencePiece model, and its table of normalized characters."""
    processor = sentence_piece.loaded(model)
    ids = range(processor.vocab_size())
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in ids]
    return pieces, _characters(model)


def of_library(text: str) -> tuple[Pieces, bytes]:
    """Returns the pieces of a tokenizer.json, and its table of normalized characters.

    Tokens that were added to the model follow its pieces.
    """
    content = json.loads(text)
    pieces = [tuple(entry) for entry in content["model"]["vocab"]]
    added = sorted(content["added_tokens"], key=lambda token: token["id"])
    pieces += [(token["content"], 0.0) for token in added if token["id"] >= len(pieces)]
    normalizer = content["normalizer"] or {}
    tables = [
        each["precompiled_charsmap"]
        for each in normalizer.get("normalizers", [normalizer])
        if each.get("type") == "Precompiled"
    ]
    return pieces, base64.b64decode(tables[0]) if tables else b""


def _characters(model: bytes) -> bytes:
    """Returns the table of normalized characters of a SentencePiece model."""
    # Fields of sentencepiece_model.proto. Its Python module needs the newest protobuf.
    specs = (content for number, content in _fields(model) if number == 3)  # normalizer_spec
    tables = (table for spec in specs for number, table in _fields(spec) if number == 2)
    return next(tables, b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (number, content) of each field of a protocol buffer that has a length."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        size = {1: 8, 5: 4}.get(key & 7, 0)  # of numbers of 64 and 32 bits
        if key & 7 in (0, 2):
            value, place = _varint(message, place)
        if key & 7 == 2:
            size = value
            yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Returns the integer at `place`, and the place behind it."""
    value, shift = 0, 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


class ALBERT(EncoderUnigram):
    """A unigram tokenizer as ALBERT has it. Ids equal those of AlbertTokenizer.

    Ids 0 to 4 are special; [SEP] ends a document.
    """

    file = "albert.json"
    first = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    single = "[CLS]:0 $A:0 [SEP]:0"
    pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    hf_class = "AlbertTokenizer"
    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)
    eos_id = sep_id


class XLNet(EncoderUnigram):
    """A unigram tokenizer as XLNet has it. Ids equal those of XLNetTokenizer.

    Ids 0 to 8 are special; <eod> ends a document.
    """

    file = "xlnet.json"
    first = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    single = "$A:0 <sep>:0 <cls>:2"
    pair = "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2"
    hf_class = "XLNetTokenizer"
    unk_id, bos_id = 0, 1
    cls_id, sep_id, pad_id, mask_id, eos_id = range(3, 8)


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
