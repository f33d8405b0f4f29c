"""Training tokenizers, once for each text and setting."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator

import sentencepiece
import tokenizers as huggingface

from transformer_jax.config import UserError
from transformer_jax.data import store
from transformer_jax.data.tokenizers import chat
from transformer_jax.data.tokenizers.bpe import ROBERTA, ByteBPE
from transformer_jax.data.tokenizers.characters import Characters
from transformer_jax.data.tokenizers.loading import check_size, load, of_files, read_published
from transformer_jax.data.tokenizers.pair import Pair, check_pair, check_source
from transformer_jax.data.tokenizers.residues import Residues
from transformer_jax.data.tokenizers.sentence_piece import SentencePiece
from transformer_jax.data.tokenizers.tokenizer import Tokenizer
from transformer_jax.data.tokenizers.wordpiece import WordPiece
from transformer_jax.data.tokenizers.words import Words
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets

_SENTENCE_PIECE = ("unigram", "bpe")


def of_run(folder: pathlib.Path | None, data, text: Callable, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer of a run.

    It is read from `folder`, the run's own, or else from `config.data.tokenizer_files`. Without
    either it is trained on the documents that `text()` returns. Raises UserError where it has more
    tokens than the model.
    """
    tokenizer = _read(folder, data) or train_cached(text(), data, vocab_size)
    check_size(tokenizer, vocab_size)
    return tokenizer


def chat_of_run(
    folder: pathlib.Path | None,
    data,
    text: Callable,
    vocab_size: int,
    marks: tuple[str, ...],
) -> chat.ChatTokenizer:
    """Returns the tokenizer of a run on conversations: that of `of_run`, with these marks.

    A tokenizer that is trained leaves room for the marks in the vocabulary of `vocab_size`.
    """
    tokenizer = _read(folder, data) or train_cached(text(), data, vocab_size - len(marks))
    tokenizer = chat.with_marks(tokenizer, marks)
    check_size(tokenizer, vocab_size)
    return tokenizer


def residues_of_run(folder: pathlib.Path | None, data, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer of a run on proteins: read as that of `of_run`, else ESM's alphabet."""
    tokenizer = _read(folder, data) or Residues.of()
    tokenizer.required("cls", "sep", "mask", user="a model of proteins")
    check_size(tokenizer, vocab_size)
    return tokenizer


def _read(folder: pathlib.Path | None, data) -> Tokenizer | None:
    """Returns the tokenizer in `folder`, or of `config.data.tokenizer_files`; None for neither."""
    if folder:
        return load(folder)
    if data.tokenizer_files:
        return read_published(buckets.path(data.tokenizer_files))
    return None


def pair_of_run(
    folder: pathlib.Path | None,
    data,
    pairs: Callable,
    source_vocab_size: int | None,
    vocab_size: int,
) -> Pair:
    """Returns the tokenizers of a run. They are read as those of `of_run`.

    Otherwise they are trained on the pairs that `pairs()` returns. Where a single tokenizer is
    read, and the source has a vocabulary of its own, it is the target's and the source's is
    trained. Raises UserError where one has more tokens than the model.
    """
    pair = None
    if folder:
        pair = Pair.load(folder)
    elif data.tokenizer_files:
        pair = Pair.read_published(buckets.path(data.tokenizer_files))
    if pair is None:
        pair = train_pair(pairs(), data, source_vocab_size, vocab_size)
    elif pair.source is pair.target and source_vocab_size is not None:
        pair = train_pair(pairs(), data, source_vocab_size, vocab_size, target=pair.target)
    check_pair(pair, source_vocab_size, vocab_size)
    return pair


def source_of_run(folder: pathlib.Path | None, data, model) -> Tokenizer:
    """Returns the tokenizer of the sources of an encoder-decoder, read as those of `pair_of_run`.

    `folder` may hold that tokenizer alone. Raises UserError where it has more tokens than the
    model.
    """
    pair = Pair.load(folder) if folder else Pair.read_published(buckets.path(data.tokenizer_files))
    check_source(pair.source, model.source_vocab_size, model.vocab_size)
    return pair.source


def train(
    texts: Iterable[str], kind: str, vocab_size: int, cased: bool = False, min_count: int = 1
) -> Tokenizer:
    """Returns a tokenizer trained on documents, which are read more than once.

    `kind`, `cased` and `min_count` are those of `config.data`. Raises UserError where the text does
    not suffice.
    """
    if not any(texts):
        raise UserError(
            "the tokenizer can't be trained: there is no training text, or all of it is empty"
        )
    match kind:
        case "byte_bpe":
            return ByteBPE.train(texts, vocab_size)
        case "roberta_bpe":
            return ByteBPE.train(texts, vocab_size, ROBERTA)
        case "characters":
            return Characters.train(texts, vocab_size)
        case "wordpiece":
            return WordPiece.train(texts, vocab_size, cased)
        case "words":
            return Words.train(texts, vocab_size, cased, min_count)
    return SentencePiece.train_documents(texts, vocab_size, kind)


class Sample:
    """The text that a tokenizer is trained on: the first texts of each part, evenly.

    It has at most `num_bytes` and one text of each part, so a text with fewer bytes is whole. The
    sample is a function of text and `num_bytes` alone. Texts are documents or pairs of sentences.
    """

    def __init__(self, text, num_bytes: int):
        self._text = text
        self._num_bytes = num_bytes
        self.is_whole = True  # whether the last pass has read the whole text

    def __iter__(self) -> Iterator:
        self.is_whole = True
        parts = self._text.parts()
        for part in parts:
            size = 0
            for text in part:
                if size >= self._num_bytes / len(parts):
                    self.is_whole = False
                    break
                yield text
                sides = [text] if isinstance(text, str) else text
                size += sum(len(side.encode()) for side in sides)

    def say(self) -> None:
        """Says that the tokenizer was trained on a sample, if it was."""
        if not self.is_whole:
            say(
                f"the tokenizer is trained on a sample of {self._num_bytes:,} bytes, spread evenly "
                "over the text (config.data.tokenizer_bytes)"
            )


def train_cached(documents, data, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer of `config.data.tokenizer` for the documents.

    It is trained once, on a `Sample`, and then read from `config.data.cache`. The documents have
    parts and a fingerprint.
    """
    key = {
        "text": documents.fingerprint(),
        **_kind_key(data),
        "cased": data.cased,
        "size": vocab_size,
        "sample": data.tokenizer_bytes,
        "sentencepiece": sentencepiece.__version__,
        "tokenizers": huggingface.__version__,
    }

    def make() -> dict[str, bytes]:
        sample = Sample(documents, _sample_bytes(data))
        tokenizer = train(sample, data.tokenizer, vocab_size, data.cased, data.min_count)
        sample.say()
        return tokenizer.files()

    return of_files(store.cached_files(data.cache, "tokenizer", key, make, rebuild=data.rebuild))


def train_pair(
    pairs, data, source_vocab_size: int | None, vocab_size: int, target: Tokenizer | None = None
) -> Pair:
    """Returns the tokenizers of the training pairs.

    They are trained once, on a `Sample`, and then read from `config.data.cache`. Both sides share
    one tokenizer where there is no `source_vocab_size`. Where `target` exists already, only the
    source's is trained. The pairs have parts and a fingerprint.
    """
    key = {
        "text": pairs.fingerprint(),
        **_kind_key(data),
        "sizes": [source_vocab_size, target.fingerprint() if target else vocab_size],
        "sample": data.tokenizer_bytes,
        "sentencepiece": sentencepiece.__version__,
    }
    if data.tokenizer not in _SENTENCE_PIECE:
        key |= {"cased": data.cased, "tokenizers": huggingface.__version__}

    def make() -> dict[str, bytes]:
        sample = Sample(pairs, _sample_bytes(data))
        if source_vocab_size is None:
            shared = _train_on_lines(_Sides(sample, (0, 1)), data, vocab_size)
            pair = Pair(shared, shared)
        else:
            pair = Pair(
                _train_on_lines(_Sides(sample, (0,)), data, source_vocab_size),
                target or _train_on_lines(_Sides(sample, (1,)), data, vocab_size),
            )
        sample.say()
        return pair.files()

    files = store.cached_files(data.cache, "tokenizer", key, make, rebuild=data.rebuild)
    return Pair.of_files(files)


@dataclasses.dataclass(frozen=True)
class _Sides:
    """The texts on some sides of pairs, which are read more than once."""

    pairs: Iterable[tuple[str, str]]
    indices: tuple[int, ...]

    def __iter__(self) -> Iterator[str]:
        return (pair[index] for pair in self.pairs for index in self.indices)


def _train_on_lines(lines: _Sides, data, vocab_size: int) -> Tokenizer:
    """Returns a tokenizer trained on lines; that of SentencePiece joins neighbouring spaces."""
    if data.tokenizer in _SENTENCE_PIECE:
        return SentencePiece.train(lines, vocab_size, data.tokenizer)
    return train(lines, data.tokenizer, vocab_size, data.cased, data.min_count)


def _kind_key(data) -> dict:
    """Returns the kind of tokenizer as the key of a cached one has it."""
    words = {"min_count": data.min_count} if data.tokenizer == "words" else {}
    return {"type": data.tokenizer} | words


def _sample_bytes(data) -> float:
    """Returns the size of the sample that a tokenizer is trained on."""
    # No character of the text may be unknown to a tokenizer of characters.
    return math.inf if data.tokenizer == "characters" else data.tokenizer_bytes
