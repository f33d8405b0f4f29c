"""T5's tokenizer: a unigram model of SentencePiece, and the sentinels of span corruption."""

import base64
import json
from collections.abc import Iterator

import tokenizers as huggingface

from transformer_jax.data.tokenizers import sentence_piece
from transformer_jax.data.tokenizers.library import LibraryTokenizer
from transformer_jax.data.tokenizers.tokenizer import known_ids, visible

_SPECIAL = ("<pad>", "</s>", "<unk>")  # ids 0 to 2
_NUM_SENTINELS = 100


class T5(LibraryTokenizer):
    """A unigram tokenizer as T5 has it (Raffel et al. 2020). Ids equal those of T5Tokenizer.

    Ids 0 to 2 are padding, end and unknown. The last `num_sentinels` are <extra_id_99> to
    <extra_id_0>. The saved file holds the pieces with their log-probabilities, and SentencePiece's
    table of normalized characters.
    """

    file = "t5.json"
    pad_id, eos_id, unk_id = range(3)

    def __init__(self, model: bytes):
        super().__init__(model)
        content = json.loads(model)
        self._pieces = [piece for piece, _ in content["pieces"]]
        self._scores = [score for _, score in content["pieces"]]
        self._characters = content["characters"]
        if tuple(self._pieces[:3]) != _SPECIAL:
            raise ValueError(f"the first pieces are not those of T5: {', '.join(_SPECIAL)}")
        self.vocab_size = len(self._pieces)
        self.num_sentinels = 0
        while self._pieces[-1 - self.num_sentinels] == f"<extra_id_{self.num_sentinels}>":
            self.num_sentinels += 1
        # Texts must not encode to special pieces. A word has this mark at its beginning alone.
        hidden = {*_SPECIAL, *self._sentinels}
        self._tokenizer = self._library(
            [f"{piece}▁" if piece in hidden else piece for piece in self._pieces]
        )

    @classmethod
    def of(cls, pieces: list[tuple[str, float]], characters: bytes) -> "T5":
        """Returns the tokenizer of pieces with their log-probabilities.

        `characters` is SentencePiece's precompiled table of normalized characters.
        """
        encoded = base64.b64encode(characters).decode()
        return cls(json.dumps({"pieces": pieces, "characters": encoded}).encode())

    @property
    def _sentinels(self) -> list[str]:
        return [f"<extra_id_{i}>" for i in reversed(range(self.num_sentinels))]

    def _library(self, pieces: list[str]) -> huggingface.Tokenizer:
        model = huggingface.models.Unigram(list(zip(pieces, self._scores)), self.unk_id, False)
        library = huggingface.Tokenizer(model)
        if self._characters:
            table = base64.b64decode(self._characters)
            library.normalizer = huggingface.normalizers.Precompiled(table)
        library.pre_tokenizer = huggingface.pre_tokenizers.Sequence(
            [
                huggingface.pre_tokenizers.WhitespaceSplit(),
                huggingface.pre_tokenizers.Metaspace(),
            ]
        )
        library.decoder = huggingface.decoders.Metaspace()
        return library

    def _decode(self, ids):
        first_sentinel = self.vocab_size - self.num_sentinels
        return self._tokenizer.decode_batch(
            [[i for i in sequence if self.unk_id < i < first_sentinel] for sequence in ids]
        )

    def pieces(self, ids):
        return [visible(self._pieces[i]) for i in known_ids(self, ids)]

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


def of_sentence_piece(model: bytes, config: dict) -> T5:
    """Returns the tokenizer of a spiece.model and of the content of tokenizer_config.json.

    The model has no sentinels. They follow its pieces.
    """
    processor = sentence_piece.loaded(model)
    ids = range(processor.vocab_size())
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in ids]
    sentinels = reversed(range(config.get("extra_ids", _NUM_SENTINELS)))
    pieces += [(f"<extra_id_{i}>", 0.0) for i in sentinels]
    return T5.of(pieces, _characters(model))


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


def of_library(text: str) -> T5:
    """Returns the tokenizer of a tokenizer.json. Raises ValueError for other kinds than T5's."""
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
    return T5.of(pieces, base64.b64decode(tables[0]) if tables else b"")
