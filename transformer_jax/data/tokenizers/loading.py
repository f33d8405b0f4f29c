"""Tokenizers from files: those of a run, and those of published models."""

import contextlib
import json
import pathlib

from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import text_lines
from transformer_jax.data.tokenizers import bpe, chat, unigram, wordpiece
from transformer_jax.data.tokenizers.bpe import GPT1BPE, ByteBPE, PublishedBPE
from transformer_jax.data.tokenizers.characters import Characters
from transformer_jax.data.tokenizers.marian import Marian
from transformer_jax.data.tokenizers.residues import Residues
from transformer_jax.data.tokenizers.sentence_piece import SentencePiece
from transformer_jax.data.tokenizers.tokenizer import Tokenizer
from transformer_jax.data.tokenizers.unigram import ALBERT, T5, XLNet
from transformer_jax.data.tokenizers.wordpiece import WordPiece
from transformer_jax.data.tokenizers.words import Words

KINDS = {
    kind.file: kind
    for kind in (
        SentencePiece,
        ByteBPE,
        GPT1BPE,
        PublishedBPE,
        Characters,
        WordPiece,
        Words,
        T5,
        ALBERT,
        XLNet,
        Marian,
        Residues,
    )
}
SHARED = "shared.model"  # the SentencePiece model of both sides of a pair


def load(folder: pathlib.Path) -> Tokenizer:
    """Returns the tokenizer that a run has saved. Raises UserError where there is none."""
    with unreadable_as_user_error(folder):
        return of_files(files_of(folder))


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns {name: content} of the files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def of_files(files: dict[str, bytes]) -> Tokenizer:
    """Returns the tokenizer of saved files. The name of the file gives the kind.

    A tokenizer of conversations has a further file, with its marks.
    """
    kinds = KINDS | {SHARED: SentencePiece}
    names = [name for name in kinds if name in files]
    if len(names) != 1:
        raise ValueError(
            f"it should hold one of {', '.join(KINDS)}; it holds {' and '.join(names) or 'none'}"
        )
    tokenizer = kinds[names[0]](files[names[0]])
    if chat.FILE not in files:
        return tokenizer
    return chat.with_marks(tokenizer, json.loads(files[chat.FILE])["marks"])


def check_size(tokenizer: Tokenizer, size: int, key: str = "vocab_size") -> None:
    """Raises UserError where the tokenizer has more tokens than config.model.`key`."""
    if tokenizer.vocab_size > size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens: "
            f"more than config.model.{key}={size:,}"
        )


def read_published(folder: pathlib.Path) -> Tokenizer:
    """Returns a published tokenizer, such as that of GPT-2, BERT, Llama, T5, XLNet or ESM.

    Reads the files of OpenAI, Google or Hugging Face. Raises UserError for other content.
    """
    with unreadable_as_user_error(folder):
        config = folder / "tokenizer_config.json"
        settings = json.loads(config.read_bytes()) if config.exists() else {}
        if (folder / "vocab.txt").exists():
            pieces = list(text_lines(str(folder / "vocab.txt")))
            if Residues.has(pieces):
                return Residues.of(pieces)
            return wordpiece.of_vocabulary(pieces, settings)
        of_library = None
        if (folder / "tokenizer.json").exists():
            text = (folder / "tokenizer.json").read_bytes().decode()
            of_library = _of_library(text, settings)
        # Qwen2's vocab.json and merges.txt do not say how words are split.
        if isinstance(of_library, PublishedBPE):
            return of_library
        for vocab, merges in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
            if (folder / vocab).exists() and (folder / merges).exists():
                content = json.loads((folder / vocab).read_bytes())
                return bpe.of_vocabulary(content, _merges(folder / merges))
        if of_library:
            return of_library
        if (folder / "spiece.model").exists():
            pieces, table = unigram.of_sentence_piece((folder / "spiece.model").read_bytes())
            if not ALBERT.has(pieces) and not XLNet.has(pieces):
                pieces = unigram.with_sentinels(pieces, settings)
            return _of_unigram(pieces, table, settings)
        raise ValueError(
            "it should hold vocab.txt (BERT, ESM), vocab.json and merges.txt, encoder.json and "
            "vocab.bpe, tokenizer.json, or spiece.model (T5, XLNet, ALBERT)"
        )


def _of_library(text: str, settings: dict) -> Tokenizer:
    """Returns the tokenizer of a tokenizer.json and of the content of tokenizer_config.json."""
    match json.loads(text)["model"]["type"]:
        case "WordPiece":
            return wordpiece.of_library(text)
        case "BPE":
            return bpe.of_library(text) or PublishedBPE.of(text, settings)
        case "Unigram":
            return _of_unigram(*unigram.of_library(text), settings)
        case kind:
            raise ValueError(f"tokenizer.json is of the kind {kind}: not BPE, WordPiece or Unigram")


def _of_unigram(pieces: unigram.Pieces, characters: bytes, settings: dict) -> Tokenizer:
    """Returns the tokenizer of pieces. The special ones among them give the kind."""
    if ALBERT.has(pieces):
        return ALBERT.of(pieces, characters, lowercase=settings.get("do_lower_case", True))
    if XLNet.has(pieces):
        return XLNet.of(pieces, characters, lowercase=settings.get("do_lower_case", False))
    return T5.of(pieces, characters)


def _merges(path: pathlib.Path) -> list[str]:
    """Returns the merges in a file, without the line of its version."""
    # Only "\n" ends a line: some merges hold other characters that `splitlines` would split at.
    first, *others = path.read_bytes().decode().split("\n")
    lines = others if first.startswith("#version") else [first, *others]
    return [line for line in lines if line]


@contextlib.contextmanager
def unreadable_as_user_error(folder: pathlib.Path):
    """Raises UserError that names the folder for any error within the context."""
    try:
        yield
    except Exception as error:  # The libraries raise nothing narrower.
        reason = str(error).partition("\n")[0]
        raise UserError(f"{folder}: no tokenizer that can be read here ({reason})") from None
