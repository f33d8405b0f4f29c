"""SentencePiece, and the unigram tokenizers of published models (T5, ALBERT, XLNet, Marian)."""

import base64
import io
import json
import os
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np
import sentencepiece
import tokenizers as huggingface

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.tokenizer import (
    LibraryTokenizer,
    Tokenizer,
    known_ids,
    visible,
)

# --------------------------------------------------------------------------------------------------
# SentencePiece, the tokenizer of translation models and the default of language models, because it
# needs no rules for the words of a language.

# Fixed instead of the number of cores, because the trained model may depend on it.
_THREADS = 8
_MAX_LINE_BYTES = 2**16
# Longer lines are split before training, because they could exceed `_MAX_LINE_BYTES`, and
# SentencePiece skips such lines.
_MAX_LINE_CHARACTERS = 2**13


class SentencePiece(Tokenizer):
    """A SentencePiece model (Kudo & Richardson 2018), unigram or BPE.

    The model defines the ids of its special tokens. In models that are trained here, ids 0 to 3 are
    padding, unknown, start and end. Raises ValueError if the model has no end token.
    """

    file = "sentencepiece.model"

    def __init__(self, model: bytes):
        super().__init__(model)
        self._processor = loaded(model)
        self.vocab_size = self._processor.vocab_size()
        self.unk_id = self._processor.unk_id()
        self.eos_id = self._processor.eos_id()
        # SentencePiece gives -1 for a special token that a model lacks.
        if self.eos_id < 0:
            raise ValueError("the SentencePiece model has no piece for the end of a text")
        others = (self._processor.pad_id(), self._processor.bos_id())
        self.pad_id, self.bos_id = (None if i < 0 else i for i in others)

    @classmethod
    def train(
        cls, lines: Iterable[str], vocab_size: int, model_type: str, **options
    ) -> "SentencePiece":
        """Returns a model that is trained on the lines, or on a sample of two million of them.

        It has fewer than `vocab_size` pieces if the text does not yield more. Raises UserError if
        SentencePiece can't train a model on this text.
        """
        model = io.BytesIO()
        recorder = _ErrorRecorder(lines)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(recorder),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=model_type,
                # A small vocabulary has no room for rare characters, which would displace words.
                character_coverage=1.0 if vocab_size > 2000 else 0.9995,
                # Otherwise, training on a small text would fail and not stop at the pieces that
                # there are.
                hard_vocab_limit=False,
                input_sentence_size=2_000_000,
                max_sentence_length=_MAX_LINE_BYTES,
                pad_id=0,
                unk_id=1,
                bos_id=2,
                eos_id=3,
                num_threads=_THREADS,
                minloglevel=2,
                **options,
            )
        except (RuntimeError, OSError) as error:
            # The user's mistake, such as a line that is not UTF-8, and not SentencePiece's report
            # of it.
            if recorder.error:
                raise recorder.error from None
            raise UserError(
                f"the tokenizer can't be trained with {vocab_size} pieces on this text: {error}"
            ) from None
        return cls(model.getvalue())

    @classmethod
    def train_documents(
        cls, texts: Iterable[str], vocab_size: int, model_type: str
    ) -> "SentencePiece":
        """Returns a model that preserves newlines and all spaces; a newline is one piece."""
        lines = (
            line[start : start + _MAX_LINE_CHARACTERS]
            for text in texts
            for line in text.split("\n")
            for start in range(0, len(line), _MAX_LINE_CHARACTERS)
        )
        return cls.train(
            lines,
            vocab_size,
            model_type,
            user_defined_symbols=["\n"],
            # No normalization and no further spaces, so that decoding restores every document
            # exactly.
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
        )

    def _encode(self, texts):
        return self._processor.encode(texts, num_threads=os.cpu_count())

    def encode_spans(self, texts):
        return _encoded_spans(self._processor, texts)

    def _decode(self, ids):
        return self._processor.decode([known_ids(self, sequence) for sequence in ids])

    def pieces(self, ids):
        return [visible(self._processor.id_to_piece(i)) for i in known_ids(self, ids)]


def loaded(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Returns the processor for a serialized model. Raises RuntimeError for other content."""
    processor = sentencepiece.SentencePieceProcessor()
    # Passed to the constructor, an empty file would be accepted as a model.
    processor.LoadFromSerializedProto(model)
    return processor


_Spans = list[tuple[int, int]]


def _encoded_spans(
    processor: sentencepiece.SentencePieceProcessor, texts: list[str]
) -> list[tuple[list[int], _Spans]]:
    """Returns the ids of each text, and the range of its characters that each id stands for.

    Normalization may replace a character by several, such as one half by 1, a slash and 2. A piece
    with any of them has the whole character, as in the offsets of Hugging Face's tokenizers,
    whereas SentencePiece's own offsets give it to the last of the pieces alone. A space that is put
    in front of the text has no characters.
    """
    if not texts:
        return []
    # Bytes are counted, because a piece may be one byte of a character.
    sizes = np.array(
        [
            1 if processor.is_byte(i) else len(processor.id_to_piece(i).encode())
            for i in range(processor.vocab_size())
        ]
    )
    threads = os.cpu_count()
    encoded = processor.encode(texts, return_type="offset_mapping", num_threads=threads)
    results = []
    for text, each in zip(texts, encoded):
        ids, pieces = each["ids"], each["pieces"]
        piece_sizes = sizes[ids] if ids else sizes[:0]
        # An unknown piece has no size of its own: it is as long as the characters that it replaces.
        for index in np.flatnonzero(np.equal(ids, processor.unk_id())):
            piece_sizes[index] = len(pieces[index].encode())
        results.append((ids, _piece_spans(processor, text, pieces, piece_sizes)))
    return results


def _piece_spans(processor, text: str, pieces: list[str], sizes: np.ndarray) -> _Spans:
    """Returns the spans of the pieces of a text, which have `sizes` bytes of normalized text."""
    if not pieces:
        return []
    normalized, starts = processor.normalize(text, with_offsets=True)
    starts = np.array(starts)  # in `text`, of each normalized character, and of the end
    # An array of code points avoids a loop in Python over the characters of all texts.
    points = np.frombuffer(normalized.encode("utf-32-le"), np.uint32)
    lengths = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)  # in UTF-8
    start_of_byte = np.repeat(starts[:-1], lengths)
    ends = np.cumsum(sizes)
    first, last = start_of_byte[ends - sizes], start_of_byte[ends - 1]
    after = np.searchsorted(starts, last, side="right")
    stops = starts[np.minimum(after, len(starts) - 1)]
    # Only the space that SentencePiece puts in front: it starts where the first character does.
    if pieces[0] == "▁" and starts[0] == starts[1]:
        stops[0] = first[0]
    return list(zip(first.tolist(), stops.tolist()))


class _ErrorRecorder:
    """Iterates over lines and records a UserError, which SentencePiece replaces by its own."""

    def __init__(self, lines: Iterable[str]):
        self._lines = lines
        self.error: UserError | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            yield from self._lines
        except UserError as error:
            self.error = error
            raise


# --------------------------------------------------------------------------------------------------
# Unigram tokenizers of published models (T5, ALBERT, XLNet), whose pieces have log-probabilities
# that SentencePiece has trained (Kudo 2018). The library `tokenizers` runs them, because it can be
# given the pieces of a spiece.model as well as those of a tokenizer.json.

Pieces = list[tuple[str, float]]


class Unigram(LibraryTokenizer):
    """A unigram tokenizer that splits words at white space. Subclasses define `hidden`.

    The saved file contains the pieces with their log-probabilities, and SentencePiece's table of
    normalized characters. Raises ValueError if a special token is missing.
    """

    unk_id: int

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        self._pieces = [piece for piece, _ in content["pieces"]]
        self._scores = [score for _, score in content["pieces"]]
        self._characters = content["characters"]
        self.vocab_size = len(self._pieces)
        # No text may encode to a special token. The pre-tokenizer puts "▁" only at the start of a
        # word, so a piece that ends with it never matches.
        hidden = self.hidden()
        self._tokenizer = self._library(
            [f"{piece}▁" if piece in hidden else piece for piece in self._pieces]
        )

    @classmethod
    def of(cls, pieces: Pieces, characters: bytes, **settings) -> "Unigram":
        """Returns a tokenizer with these pieces and their log-probabilities.

        `characters` is SentencePiece's precompiled table of normalized characters.
        """
        encoded = base64.b64encode(characters).decode()
        content = {"pieces": pieces, "characters": encoded, **settings}
        return cls(json.dumps(content).encode())

    def hidden(self) -> set[str]:
        """Returns the pieces that no text may encode to. Raises ValueError if one is missing."""
        raise NotImplementedError

    def normalizers(self) -> list[huggingface.normalizers.Normalizer]:
        """Returns the normalizers that are applied before SentencePiece's table."""
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
    """The unigram tokenizer of an encoder, whose first pieces are the special tokens.

    Accents are stripped, and text is lower-cased with `lowercase`. Two grave accents or two
    apostrophes become a quotation mark.
    """

    first: tuple[str, ...]  # the special tokens, in the order of their ids
    single: str  # the library's template for a row of one text
    pair: str  # the library's template for a row of two texts
    hf_class: str

    def __init__(self, model: bytes):
        self.lowercase = json.loads(model)["lowercase"]
        super().__init__(model)
        self.special = np.arange(self.vocab_size) < len(self.first)

    @classmethod
    def has(cls, pieces: Pieces) -> bool:
        """Returns whether the pieces start with this tokenizer's special tokens."""
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
        ids = (self.sep_id, self.cls_id)
        library.post_processor = huggingface.processors.TemplateProcessing(
            single=self.single,
            pair=self.pair,
            special_tokens=[(self._pieces[i], i) for i in ids],
        )
        config = {"tokenizer_class": self.hf_class, "do_lower_case": self.lowercase}
        return {
            "tokenizer.json": library.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


def from_sentence_piece(model: bytes) -> tuple[Pieces, bytes]:
    """Returns the pieces of a SentencePiece model, and its table of normalized characters."""
    processor = loaded(model)
    ids = range(processor.vocab_size())
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in ids]
    return pieces, _characters(model)


def read(model: bytes, settings: dict) -> Unigram:
    """Returns the tokenizer of a spiece.model. Its first pieces tell whose it is.

    `settings` is the content of tokenizer_config.json.
    """
    pieces, characters = from_sentence_piece(model)
    if ALBERT.has(pieces):
        return ALBERT.of(pieces, characters, lowercase=settings.get("do_lower_case", True))
    if XLNet.has(pieces):
        return XLNet.of(pieces, characters, lowercase=settings.get("do_lower_case", False))
    # The model does not contain T5's sentinels.
    sentinels = reversed(range(settings.get("extra_ids", _NUM_SENTINELS)))
    return T5.of(pieces + [(f"<extra_id_{i}>", 0.0) for i in sentinels], characters)


def _characters(model: bytes) -> bytes:
    """Returns the table of normalized characters of a SentencePiece model."""
    # The fields of sentencepiece_model.proto are parsed by hand, because the Python module for it
    # needs the newest protobuf.
    specs = (content for number, content in _fields(model) if number == 3)  # normalizer_spec
    tables = (table for spec in specs for number, table in _fields(spec) if number == 2)
    return next(tables, b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (number, content) for each length-delimited field of a protocol buffer message."""
    offset = 0
    while offset < len(message):
        key, offset = _varint(message, offset)
        # The low three bits are the wire type: 0 varint, 1 64-bit, 2 length-delimited, 5 32-bit.
        size = {1: 8, 5: 4}.get(key & 7, 0)
        if key & 7 in (0, 2):
            value, offset = _varint(message, offset)
        if key & 7 == 2:
            size = value
            yield key >> 3, message[offset : offset + size]
        offset += size


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    """Returns the varint at `offset`, and the offset after it."""
    value, shift = 0, 0
    while True:
        byte = message[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset


class ALBERT(EncoderUnigram):
    """ALBERT's unigram tokenizer. Ids are the same as with Hugging Face's AlbertTokenizer.

    Ids 0 to 4 are special tokens; [SEP] ends a document.
    """

    file = "albert.json"
    first = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    single = "[CLS]:0 $A:0 [SEP]:0"
    pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    hf_class = "AlbertTokenizer"
    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)
    eos_id = sep_id


class XLNet(EncoderUnigram):
    """XLNet's unigram tokenizer. Ids are the same as with Hugging Face's XLNetTokenizer.

    Ids 0 to 8 are special tokens; <eod> ends a document.
    """

    file = "xlnet.json"
    first = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    single = "$A:0 <sep>:0 <cls>:2"
    pair = "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2"
    hf_class = "XLNetTokenizer"
    unk_id, bos_id = 0, 1
    cls_id, sep_id, pad_id, mask_id, eos_id = range(3, 8)


_SPECIAL = ("<pad>", "</s>", "<unk>")  # in the order of the ids of `T5`
_NUM_SENTINELS = 100


class T5(Unigram):
    """T5's unigram tokenizer (Raffel et al. 2020).

    Ids are the same as with Hugging Face's T5Tokenizer. Ids 0 to 2 are padding, end and unknown.
    The last `num_sentinels` ids are <extra_id_99> to <extra_id_0>, in descending order.
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


# --------------------------------------------------------------------------------------------------
# The tokenizers of Marian's translation models, such as OPUS-MT (Tiedemann & Thottingal 2020). The
# pieces come from SentencePiece, but its ids differ from the model's.


class Marian(Tokenizer):
    """The tokenizer of one language of a Marian model.

    Pieces come from a SentencePiece model and their ids from vocab.json. Ids are the same as with
    Hugging Face's MarianTokenizer. Source and target may share the ids, although each side has its
    own SentencePiece model. A text may start with the code of the language to translate to, such as
    ">>fra<<". The saved file contains the ids by piece, and the SentencePiece model.

    Raises ValueError if the vocabulary lacks a special token.
    """

    file = "marian.json"

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        self.vocab = content["vocab"]
        self.sentence_piece = base64.b64decode(content["sentence_piece"])
        self._processor = loaded(self.sentence_piece)
        self.vocab_size = 1 + max(self.vocab.values())
        missing = [piece for piece in ("</s>", "<unk>", "<pad>") if piece not in self.vocab]
        if missing:
            raise ValueError(f"no piece {missing[0]!r} in vocab.json")
        self.eos_id, self.unk_id, self.pad_id = (
            self.vocab[piece] for piece in ("</s>", "<unk>", "<pad>")
        )
        # The decoder's start token is padding, which must never be generated.
        self.never = (self.pad_id,)
        # The ids of a published vocabulary may have gaps.
        self._pieces = ["<unk>"] * self.vocab_size
        for piece, i in self.vocab.items():
            self._pieces[i] = piece
        special = {self.eos_id, self.unk_id, self.pad_id}
        self._ids = {piece: i for piece, i in self.vocab.items() if i not in special}

    @classmethod
    def of(cls, vocab: dict[str, int], model: bytes) -> "Marian":
        """Returns a tokenizer with these ids by piece and a SentencePiece model."""
        content = {"vocab": vocab, "sentence_piece": base64.b64encode(model).decode()}
        return cls(json.dumps(content).encode())

    def _encode(self, texts):
        codes, rests = zip(*map(_split_code, texts)) if texts else ((), ())
        pieces = self._processor.encode([*rests], out_type=str, num_threads=os.cpu_count())
        return [
            [self._ids.get(piece, self.unk_id) for piece in (*code, *sequence)]
            for code, sequence in zip(codes, pieces)
        ]

    def encode_spans(self, texts):
        codes, rests = zip(*map(_split_code, texts)) if texts else ((), ())
        encoded = []
        for ids, code, (_, spans) in zip(
            self.encode(texts), codes, _encoded_spans(self._processor, [*rests])
        ):
            # Positions count from the start of the text, including the code.
            shift = sum(map(len, code))
            spans = [(shift + start, shift + stop) for start, stop in spans]
            encoded.append((ids, [*((0, shift) for _ in code), *spans]))
        return encoded

    def _decode(self, ids):
        dropped = {self.eos_id, self.unk_id, self.pad_id}
        pieces = [
            [self._pieces[i] for i in known_ids(self, sequence) if i not in dropped]
            for sequence in ids
        ]
        texts = (self._processor.decode_pieces(sequence) for sequence in pieces)
        # As transformers' MarianTokenizer does.
        return [text.replace("▁", " ").strip() for text in texts]

    def pieces(self, ids):
        return [visible(self._pieces[i]) for i in known_ids(self, ids)]


def _split_code(text: str) -> tuple[list[str], str]:
    """Returns the language code at the start of a text, if there is one, and the rest of it."""
    end = text.find("<<")
    if not text.startswith(">>") or end < 0:
        return [], text
    return [text[: end + 2]], text[end + 2 :]


def marian_of_folder(folder: pathlib.Path) -> tuple[Marian, Marian]:
    """Returns the source and target tokenizers of a published model.

    If the target does not share the ids of the source, its ids are in `target_vocab.json`.
    """
    vocab = json.loads((folder / "vocab.json").read_bytes())
    path = folder / "target_vocab.json"
    target_vocab = json.loads(path.read_bytes()) if path.exists() else vocab
    return (
        Marian.of(vocab, (folder / "source.spm").read_bytes()),
        Marian.of(target_vocab, (folder / "target.spm").read_bytes()),
    )


def marian_of_sentence_piece(tokenizer: SentencePiece, size: int) -> tuple[Marian, list[int]]:
    """Returns a Marian tokenizer with the same pieces, and the old id of each of its ids.

    It has `size` ids. The last one, <pad>, is the decoder's start token.
    """
    processor = loaded(tokenizer.model)
    first = [tokenizer.eos_id, tokenizer.unk_id]
    # Marian's start token is its padding, so <pad> takes the row of the old start token, and the
    # row of the old padding becomes an unused piece.
    others = [i for i in range(size) if i not in (*first, tokenizer.start_id)]
    names = [
        processor.id_to_piece(i)
        if i < tokenizer.vocab_size and i != tokenizer.pad_id
        else f"<unused {i}>"
        for i in others
    ]
    vocab = {piece: i for i, piece in enumerate(["</s>", "<unk>", *names, "<pad>"])}
    return Marian.of(vocab, tokenizer.model), [*first, *others, tokenizer.start_id]


def hf_files(source: Marian, target: Marian) -> dict[str, bytes]:
    """Returns the files that Hugging Face's MarianTokenizer reads."""
    is_separate = source.vocab != target.vocab
    config = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": is_separate,
        "clean_up_tokenization_spaces": False,
    }
    files = {
        "source.spm": source.sentence_piece,
        "target.spm": target.sentence_piece,
        "vocab.json": json.dumps(source.vocab, ensure_ascii=False, indent=2).encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    if is_separate:
        files["target_vocab.json"] = json.dumps(target.vocab, ensure_ascii=False, indent=2).encode()
    return files
