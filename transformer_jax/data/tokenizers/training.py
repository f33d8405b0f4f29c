"""Training tokenizers, once for each text and setting."""

import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator

import sentencepiece
import tokenizers as huggingface

from transformer_jax.config import UserError
from transformer_jax.data import store
from transformer_jax.data.tokenizers.bpe import ByteBPE
from transformer_jax.data.tokenizers.characters import Characters
from transformer_jax.data.tokenizers.loading import (
    Pair,
    check_size,
    load,
    of_files,
    read_published,
)
from transformer_jax.data.tokenizers.sentence_piece import SentencePiece
from transformer_jax.data.tokenizers.tokenizer import Tokenizer
from transformer_jax.data.tokenizers.wordpiece import WordPiece
from transformer_jax.storage import buckets


def of_run(folder: pathlib.Path | None, data, text: Callable, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer of a run.

    It is read from `folder`, the run's own, or else from `config.data.tokenizer_files`. Without
    either it is trained on the documents that `text()` returns. Raises UserError where it has more
    tokens than the model.
    """
    if folder:
        tokenizer = load(folder)
    elif data.tokenizer_files:
        tokenizer = read_published(buckets.path(data.tokenizer_files))
    else:
        tokenizer = train_cached(text(), data, vocab_size)
    check_size(tokenizer, vocab_size)
    return tokenizer


def train(texts: Iterable[str], kind: str, vocab_size: int, cased: bool = False) -> Tokenizer:
    """Returns a tokenizer trained on documents, which are read more than once.

    `kind` and `cased` are those of `config.data`. Raises UserError where the text does not suffice.
    """
    if not any(texts):
        raise UserError(
            "the tokenizer can't be trained: there is no training text, or all of it is empty"
        )
    match kind:
        case "byte_bpe":
            return ByteBPE.train(texts, vocab_size)
        case "characters":
            return Characters.train(texts, vocab_size)
        case "wordpiece":
            return WordPiece.train(texts, vocab_size, cased)
    return SentencePiece.train_documents(texts, vocab_size, kind)


def train_cached(documents: Iterable[str], data, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer of `config.data.tokenizer` for the documents.

    It is trained once and then read from `config.data.cache`. The documents have a fingerprint.
    """
    key = {
        "text": documents.fingerprint(),
        "type": data.tokenizer,
        "cased": data.cased,
        "size": vocab_size,
        "sentencepiece": sentencepiece.__version__,
        "tokenizers": huggingface.__version__,
    }

    def make() -> dict[str, bytes]:
        return train(documents, data.tokenizer, vocab_size, data.cased).files()

    return of_files(store.cached_files(data.cache, "tokenizer", key, make, rebuild=data.rebuild))


def train_pair(
    pairs: Iterable[tuple[str, str]], data, source_vocab_size: int | None, vocab_size: int
) -> Pair:
    """Returns the tokenizers of the training pairs.

    They are trained once and then read from `config.data.cache`. Both sides share one tokenizer
    where there is no `source_vocab_size`. The pairs have a fingerprint.
    """
    kind = data.tokenizer
    if kind not in ("unigram", "bpe"):
        raise UserError(f"config.data.tokenizer={kind}: must be unigram or bpe for sentence pairs")
    key = {
        "text": pairs.fingerprint(),
        "type": kind,
        "sizes": [source_vocab_size, vocab_size],
        "sentencepiece": sentencepiece.__version__,
    }

    def make() -> dict[str, bytes]:
        if source_vocab_size is None:
            shared = SentencePiece.train(itertools.chain.from_iterable(pairs), vocab_size, kind)
            return Pair(shared, shared).files()
        source = SentencePiece.train(_side(pairs, 0), source_vocab_size, kind)
        return Pair(source, SentencePiece.train(_side(pairs, 1), vocab_size, kind)).files()

    files = store.cached_files(data.cache, "tokenizer", key, make, rebuild=data.rebuild)
    return Pair.of_files(files)


def _side(pairs: Iterable[tuple[str, str]], index: int) -> Iterator[str]:
    return (pair[index] for pair in pairs)
