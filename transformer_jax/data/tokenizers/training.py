"""Tokenizers: trained once and kept, saved beside the run that uses them, read from published
checkpoints.
"""

import contextlib
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator

import sentencepiece
import tokenizers as huggingface

from transformer_jax.config import UserError
from transformer_jax.data import store
from transformer_jax.data.sources.text_files import text_lines
from transformer_jax.data.tokenizers import kinds as tokenizer_kinds
from transformer_jax.data.tokenizers import wordpiece
from transformer_jax.data.tokenizers.kinds import GPT1BPE, ByteBPE, Characters, SentencePiece
from transformer_jax.data.tokenizers.tokenizer import Tokenizer, write
from transformer_jax.data.tokenizers.wordpiece import WordPiece
from transformer_jax.storage import buckets


class Pair:
    """The tokenizers of the two sides of a translation; one object if they share a vocabulary."""

    def __init__(self, source: SentencePiece, target: SentencePiece):
        self.source, self.target = source, target

    def fingerprint(self) -> list[str]:
        return [self.source.fingerprint(), self.target.fingerprint()]

    def files(self) -> dict[str, bytes]:
        names = ("shared",) * 2 if self.source is self.target else ("source", "target")
        return {
            f"{name}.model": tokenizer.model
            for name, tokenizer in zip(names, (self.source, self.target))
        }

    def save(self, folder: pathlib.Path) -> None:
        write(self.files(), folder)

    @classmethod
    def of(cls, files: dict[str, bytes]) -> "Pair":
        if "shared.model" in files:
            return cls(*[SentencePiece(files["shared.model"])] * 2)
        return cls(*(SentencePiece(files[f"{name}.model"]) for name in ("source", "target")))

    @classmethod
    def load(cls, folder: pathlib.Path) -> "Pair":
        with _readable(folder):
            return cls.of({path.name: path.read_bytes() for path in folder.glob("*.model")})


def load(folder: pathlib.Path) -> Tokenizer:
    """The tokenizer a run has saved in the folder."""
    with _readable(folder):
        return _of({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})


def _of(files: dict[str, bytes]) -> Tokenizer:
    """The kind is told by the name of its file."""
    kinds = {kind.file: kind for kind in (SentencePiece, ByteBPE, GPT1BPE, Characters, WordPiece)}
    found = [name for name in kinds if name in files]
    if len(found) != 1:
        raise ValueError(
            f"it should hold one of {', '.join(kinds)}; it holds {' and '.join(found) or 'none'}"
        )
    return kinds[found[0]](files[found[0]])


def of_run(folder: pathlib.Path | None, data, text: Callable, vocab_size: int) -> Tokenizer:
    """What a run has left in `folder`; else what `config.data.tokenizer_files` holds, else what is
    trained on the documents `text()`.

    Raises UserError where it has more tokens than the model.
    """
    if folder:
        found = load(folder)
    elif data.tokenizer_files:
        found = read(buckets.path(data.tokenizer_files))
    else:
        found = trained(text(), data, vocab_size)
    _check_size(found, vocab_size)
    return found


def check_pair(pair: Pair, source_vocab_size: int | None, vocab_size: int) -> None:
    """Raises UserError where a side has more tokens than the model."""
    if source_vocab_size is None:
        _check_size(pair.source, vocab_size)
    else:
        _check_size(pair.source, source_vocab_size, "source_vocab_size")
    _check_size(pair.target, vocab_size)


def _check_size(tokenizer: Tokenizer, size: int, key: str = "vocab_size") -> None:
    if tokenizer.vocab_size > size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens: "
            f"more than config.model.{key}={size:,}"
        )


def read(folder: pathlib.Path) -> ByteBPE | GPT1BPE | WordPiece:
    """The tokenizer of a published GPT, GPT-2 or BERT, from OpenAI's files, Google's or Hugging
    Face's.
    """
    with _readable(folder):
        if (folder / "vocab.txt").exists():
            config = folder / "tokenizer_config.json"
            return wordpiece.of_vocabulary(
                list(text_lines(str(folder / "vocab.txt"))),
                json.loads(config.read_bytes()) if config.exists() else {},
            )
        for vocab, merges in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
            if (folder / vocab).exists() and (folder / merges).exists():
                # some merges hold characters that also end lines
                lines = (folder / merges).read_bytes().decode().split("\n")
                lines = [
                    line
                    for i, line in enumerate(lines)
                    if line and not (i == 0 and line.startswith("#version"))
                ]
                return tokenizer_kinds.bpe(json.loads((folder / vocab).read_bytes()), lines)
        if (folder / "tokenizer.json").exists():
            text = (folder / "tokenizer.json").read_bytes().decode()
            of_library = (
                wordpiece.of_library
                if json.loads(text)["model"]["type"] == "WordPiece"
                else tokenizer_kinds.bpe_of_library
            )
            return of_library(text)
        raise ValueError(
            "it should hold vocab.txt (BERT), vocab.json and merges.txt, encoder.json and vocab.bpe, or tokenizer.json"
        )


@contextlib.contextmanager
def _readable(folder):
    try:
        yield
    except Exception as error:  # the libraries raise nothing narrower
        raise UserError(
            f"{folder}: no tokenizer that can be read here ({str(error).partition(chr(10))[0]})"
        ) from None


def train(texts: Iterable[str], kind: str, vocab_size: int, cased: bool = False) -> Tokenizer:
    """Trains on documents, which are read more than once; `kind` and `cased` as in `config.data`.
    Raises UserError where the text doesn't suffice.
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


def trained(documents, data, vocab_size: int) -> Tokenizer:
    """The tokenizer trained on the documents as `config.data.tokenizer` says. Kept in
    `config.data.cache`.
    """
    key = {
        "text": documents.fingerprint(),
        "type": data.tokenizer,
        "cased": data.cased,
        "size": vocab_size,
        "sentencepiece": sentencepiece.__version__,
        "tokenizers": huggingface.__version__,
    }
    return _kept(data, key, lambda: train(documents, data.tokenizer, vocab_size, data.cased), _of)


def train_pair(pairs, data, source_vocab_size: int | None, vocab_size: int) -> Pair:
    """Tokenizers trained on the training pairs; shared if there is one vocabulary size. Kept in
    `config.data.cache`.
    """
    if data.tokenizer not in ("unigram", "bpe"):
        raise UserError(
            f"config.data.tokenizer={data.tokenizer}: sentence pairs take unigram or bpe"
        )
    key = {
        "text": pairs.fingerprint(),
        "type": data.tokenizer,
        "sizes": [source_vocab_size, vocab_size],
        "sentencepiece": sentencepiece.__version__,
    }
    one = lambda lines, size: SentencePiece.train(lines, size, data.tokenizer)

    def both():
        if source_vocab_size is None:
            return Pair(*[one(itertools.chain.from_iterable(pairs), vocab_size)] * 2)
        return Pair(one(_side(pairs, 0), source_vocab_size), one(_side(pairs, 1), vocab_size))

    return _kept(data, key, both, Pair.of)


def _side(pairs, index: int) -> Iterator[str]:
    return (pair[index] for pair in pairs)


def _kept(data, key: dict, train: Callable, opened: Callable):
    """What `train` gives, its files kept in `config.data.cache` under `key` (all that decides them)
    and opened from there.
    """
    files = store.cached_files(
        data.cache, "tokenizer", key, lambda: train().files(), rebuild=data.rebuild
    )
    return opened(files)
