"""Subword tokenizers behind one interface: text to ids and back, saved beside the run that uses them."""
import hashlib
import io
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator

import sentencepiece

from transformer_jax.config import UserError
from transformer_jax.data import store

_THREADS = 8  # fixed: the trained model may depend on it


class SentencePiece:
    """A SentencePiece model (Kudo & Richardson 2018), unigram or BPE. Ids 0 to 3: padding, unknown, start, end."""

    pad_id, unk_id, bos_id, eos_id = range(4)

    def __init__(self, model: bytes):
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)  # unlike the constructor it refuses an empty file
        self.vocab_size = self._processor.vocab_size()

    @classmethod
    def train(cls, lines: Iterable[str], vocab_size: int, model_type: str) -> "SentencePiece":
        """Trains on the lines (a sample of two million, if there are more); fewer pieces if the text has no more."""
        model, failed = io.BytesIO(), []

        def watched():  # SentencePiece turns what the iterator raises into a RuntimeError of its own
            try:
                yield from lines
            except UserError as error:
                failed.append(error)
                raise

        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=watched(), model_writer=model, vocab_size=vocab_size, model_type=model_type,
                character_coverage=1.0 if vocab_size > 2000 else 0.9995, hard_vocab_limit=False, input_sentence_size=2_000_000,
                max_sentence_length=2**16, pad_id=0, unk_id=1, bos_id=2, eos_id=3, num_threads=_THREADS, minloglevel=2)
        except (RuntimeError, OSError) as error:
            raise failed[0] if failed else UserError(f"the tokenizer can't be trained with {vocab_size} pieces on this text: {error}") from None
        return cls(model.getvalue())

    def encode(self, texts: list[str]) -> list[list[int]]:
        return self._processor.encode(texts, num_threads=os.cpu_count())

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Text of the ids; those beyond the vocabulary, which a model may be larger than, count as unknown."""
        return self._processor.decode([[i if i < self.vocab_size else self.unk_id for i in each] for each in ids])

    def pieces(self, ids: list[int]) -> list[str]:
        return [self._processor.id_to_piece(i) for i in ids]

    def fingerprint(self) -> str:
        return hashlib.sha256(self.model).hexdigest()


class Pair:
    """The tokenizers of the two sides of a translation; one object if they share a vocabulary."""

    def __init__(self, source: SentencePiece, target: SentencePiece):
        self.source, self.target = source, target

    def fingerprint(self) -> list[str]:
        return [self.source.fingerprint(), self.target.fingerprint()]

    def save(self, folder: pathlib.Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names = ("shared",) * 2 if self.source is self.target else ("source", "target")
        for name, tokenizer in zip(names, (self.source, self.target)):
            (folder / f"{name}.model").write_bytes(tokenizer.model)

    @classmethod
    def load(cls, folder: pathlib.Path) -> "Pair":
        try:
            if (folder / "shared.model").exists():
                return cls(*[SentencePiece((folder / "shared.model").read_bytes())] * 2)
            return cls(*(SentencePiece((folder / f"{name}.model").read_bytes()) for name in ("source", "target")))
        except (OSError, RuntimeError) as error:
            raise UserError(f"{folder}: no tokenizer that can be read here ({error})") from None


def train_pair(pairs, data, source_vocab_size: int | None, vocab_size: int) -> Pair:
    """Tokenizers trained on the training pairs; shared if there is one vocabulary size. Kept in `config.data.cache`."""
    key = {"text": pairs.fingerprint(), "type": data.tokenizer, "sizes": [source_vocab_size, vocab_size], "sentencepiece": sentencepiece.__version__}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    cache = pathlib.Path(data.cache).expanduser()
    folder, half = cache / f"tokenizer-{digest}", cache / f".tokenizer-{digest}.building"
    cache.mkdir(parents=True, exist_ok=True)
    with store.locked(cache / f".tokenizer-{digest}.lock"):
        if data.rebuild:
            shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            train = lambda lines, size: SentencePiece.train(lines, size, data.tokenizer)
            if source_vocab_size is None:
                pair = Pair(*[train(itertools.chain.from_iterable(pairs), vocab_size)] * 2)
            else:
                pair = Pair(train(_side(pairs, 0), source_vocab_size), train(_side(pairs, 1), vocab_size))
            pair.save(half)
            os.rename(half, folder)
    try:
        return Pair.load(folder)
    except UserError as error:
        raise UserError(f"{error}; train it again with --config.data.rebuild=true") from None


def _side(pairs, index: int) -> Iterator[str]:
    return (pair[index] for pair in pairs)
