"""Tokenizers of runs and of published models, read from files or trained once and cached."""

import contextlib
import copy
import dataclasses
import functools
import importlib
import json
import math
import pathlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator

import sentencepiece
import tokenizers as huggingface

from transformer_jax.config import UserError
from transformer_jax.data import store
from transformer_jax.data.sources.text_files import text_lines
from transformer_jax.data.tokenizers import bpe, chat, unigram, wordpiece
from transformer_jax.data.tokenizers.bpe import ROBERTA, ByteBPE
from transformer_jax.data.tokenizers.chat_template import TemplateTokenizer, conversational
from transformer_jax.data.tokenizers.published import Published
from transformer_jax.data.tokenizers.tokenizer import PREFIX_FILE, Tokenizer, write_files
from transformer_jax.data.tokenizers.unigram import SentencePiece
from transformer_jax.data.tokenizers.wordpiece import WordPiece
from transformer_jax.data.tokenizers.words import Characters, Residues, Words
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# Reading tokenizers from the files of a run or of a published model. The class follows from the
# files that are there, so that neither a run nor a user has to name it.

SHARED = "shared.model"  # a SentencePiece model that both sides of a pair share


@functools.cache
def kinds() -> dict[str, type[Tokenizer]]:
    """Returns {file: class} of all tokenizers: the classes in this folder that name a `file`."""
    package = importlib.import_module(__package__)
    modules = [
        importlib.import_module(f"{__package__}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
    classes = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Tokenizer)
    ]
    # `vars` and not `hasattr`, because a subclass that only inherits `file` is no kind of its own.
    found = {kind.file: kind for kind in classes if "file" in vars(kind)}
    return dict(sorted(found.items()))


def load(folder: pathlib.Path) -> Tokenizer:
    """Returns the tokenizer that a run has saved in a folder. Raises UserError if there is none."""
    with unreadable_as_user_error(folder):
        return from_files(files_of(folder))


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns {name: content} of the files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def from_files(files: dict[str, bytes]) -> Tokenizer:
    """Returns the tokenizer of saved files, whose class follows from the name of the file.

    A chat tokenizer has a further file, which lists its special tokens. Raises ValueError unless
    there is exactly one tokenizer.
    """
    classes = kinds() | {SHARED: SentencePiece, "published_bpe.json": Published}
    names = [name for name in classes if name in files]
    # Two tokenizers in a folder are a mistake that would otherwise be decided by the order of
    # names.
    if len(names) != 1:
        raise ValueError(
            f"it should hold one of {', '.join(kinds())}; it holds {' and '.join(names) or 'none'}"
        )
    tokenizer = classes[names[0]](files[names[0]])
    if PREFIX_FILE in files:
        tokenizer.prefix = tuple(json.loads(files[PREFIX_FILE])["prefix"])
    if chat.FILE not in files:
        return tokenizer
    content = json.loads(files[chat.FILE])
    if not content["marks"]:
        return TemplateTokenizer(tokenizer)
    return chat.ChatTokenizer(tokenizer, content["marks"], tuple(content.get("prefix", ())))


def check_size(tokenizer: Tokenizer, size: int, key: str = "vocab_size") -> None:
    """Raises UserError if the tokenizer has more tokens than config.model.`key`."""
    if tokenizer.vocab_size > size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens: "
            f"more than config.model.{key}={size:,}"
        )


def read_published(folder: pathlib.Path) -> Tokenizer:
    """Returns a published tokenizer, such as GPT-2's, BERT's, Llama's, T5's, XLNet's or ESM's.

    tokenizer.json takes precedence, because it alone says how texts are normalized and split. The
    formats of OpenAI, Google and earlier releases of Hugging Face's library are read, too. Raises
    UserError for other content.
    """
    with unreadable_as_user_error(folder):
        settings = _content(folder, "tokenizer_config.json")
        # Earlier releases of transformers name the special tokens in a file of their own, too.
        settings = _content(folder, "special_tokens_map.json") | settings
        if (folder / "tokenizer.json").exists():
            text = (folder / "tokenizer.json").read_bytes().decode()
            if (folder / "chat_template.jinja").exists():
                template = (folder / "chat_template.jinja").read_text("utf-8")
                settings = settings | {"chat_template": template}
            return Published.of(text, settings, _special_ids(folder))
        if (folder / "vocab.txt").exists():
            pieces = list(text_lines(str(folder / "vocab.txt")))
            if Residues.has(pieces):
                return Residues.of(pieces)
            return wordpiece.from_vocabulary(pieces, settings)
        for vocab, merges in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
            if (folder / vocab).exists() and (folder / merges).exists():
                content = _content(folder, vocab)
                return bpe.from_vocabulary(content, _merges(folder / merges), settings)
        if (folder / "spiece.model").exists():
            older = unigram.read((folder / "spiece.model").read_bytes(), settings)
            return Published.from_files(older.hf_files())
        if (folder / "tokenizer.model").exists():
            return SentencePiece((folder / "tokenizer.model").read_bytes())
        raise ValueError(
            "it should hold tokenizer.json, vocab.txt (BERT, ESM), vocab.json and merges.txt, "
            "encoder.json and vocab.bpe, spiece.model (T5, XLNet, ALBERT), or tokenizer.model"
        )


def _content(folder: pathlib.Path, name: str) -> dict:
    """Returns the content of a JSON file, or {} if there is no such file."""
    path = folder / name
    return json.loads(path.read_bytes()) if path.exists() else {}


def _special_ids(folder: pathlib.Path) -> dict[str, int]:
    """Returns the ids of special tokens that the configs of a published model give, by name."""
    ids = {}
    for file in ("config.json", "generation_config.json"):
        for name in ("bos", "eos", "pad"):
            value = _content(folder, file).get(f"{name}_token_id")
            # Of several ends, the first ends a document.
            value = value[0] if isinstance(value, list) and value else value
            # -1 stands for none in some files. True is an instance of int.
            if type(value) is int and 0 <= value < 2**32:
                ids[name] = value
    return ids


def published_frame(
    folder: pathlib.Path, tokenizer: Tokenizer
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids that a published tokenizer puts before and after each text.

    Its tokenizer.json says so, if there is one, as in transformers 5. Otherwise it is
    `add_bos_token` in tokenizer_config.json, and BERT's vocab.txt has [CLS] and [SEP]. `tokenizer`
    is what `read_published` returns for the folder.
    """
    if (folder / "tokenizer.json").exists():
        processor = json.loads((folder / "tokenizer.json").read_bytes()).get("post_processor")
        return _frame(processor or {})
    if (folder / "vocab.txt").exists():
        return (tokenizer.cls_id,), (tokenizer.sep_id,)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_bytes()) if path.exists() else {}
    return tuple(
        _named(folder, settings.get(f"{name}_token")) if settings.get(f"add_{name}_token") else ()
        for name in ("bos", "eos")
    )


def _named(folder: pathlib.Path, token: str | dict | None) -> tuple[int, ...]:
    """Returns the id of a special token that tokenizer_config.json names, by default GPT-2's."""
    piece = token["content"] if isinstance(token, dict) else token or "<|endoftext|>"
    paths = (folder / name for name in ("encoder.json", "vocab.json"))
    vocab = next((json.loads(path.read_bytes()) for path in paths if path.exists()), {})
    return (vocab[piece],) if piece in vocab else ()


def _frame(processor: dict) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids before and after a text, by the post-processor of a tokenizer.json."""
    match processor.get("type"):
        case "Sequence":  # such as Llama 3's: offsets of bytes, then a template
            frames = [_frame(each) for each in processor["processors"]]
            # Reversed, because a later processor puts its tokens outside an earlier one's.
            before = (i for first, _ in reversed(frames) for i in first)
            return tuple(before), tuple(i for _, last in frames for i in last)
        case "TemplateProcessing":
            parts, ids = processor["single"], processor["special_tokens"]
            text = next(i for i, part in enumerate(parts) if "Sequence" in part)
            return tuple(
                tuple(i for part in side for i in ids[part["SpecialToken"]["id"]]["ids"])
                for side in (parts[:text], parts[text + 1 :])
            )
        case "BertProcessing" | "RobertaProcessing":
            return (processor["cls"][1],), (processor["sep"][1],)
    return (), ()


def _merges(path: pathlib.Path) -> list[str]:
    """Returns the merges in a file, without the line that gives its version."""
    # Only "\n" ends a line, because some merges contain other characters that `splitlines` would
    # split at.
    first, *others = path.read_bytes().decode().split("\n")
    lines = others if first.startswith("#version") else [first, *others]
    return [line for line in lines if line]


@contextlib.contextmanager
def unreadable_as_user_error(folder: pathlib.Path):
    """Turns any error within the context into a UserError that names the folder."""
    try:
        yield
    except Exception as error:  # The libraries raise plain exceptions.
        reason = str(error).partition("\n")[0]
        raise UserError(f"{folder}: no tokenizer that can be read here ({reason})") from None


# --------------------------------------------------------------------------------------------------
# The two tokenizers of an encoder-decoder model. One object has both, even if they are the same, so
# that tasks need not tell the two cases apart.


class Pair:
    """The tokenizers of the source and the target, of any class.

    If both sides share a vocabulary, they are the same object.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer):
        self.source = source
        self.target = target

    @property
    def vocab_size(self) -> int:
        """The size of the larger vocabulary."""
        return max(self.source.vocab_size, self.target.vocab_size)

    def fingerprint(self) -> list[str]:
        return [self.source.fingerprint(), self.target.fingerprint()]

    def files(self) -> dict[str, bytes]:
        """Returns the files of both tokenizers, or of the shared one."""
        if self.source is not self.target:
            sides = {"source": self.source, "target": self.target}
            return {_name(side, type(each)): each.model for side, each in sides.items()}
        if isinstance(self.source, SentencePiece):
            return {SHARED: self.source.model}
        return self.source.files()

    def hf_files(self) -> dict[str, bytes]:
        """Returns the files that AutoTokenizer reads, or {} if there are two tokenizers."""
        return self.source.hf_files() if self.source is self.target else {}

    def save(self, folder: pathlib.Path) -> None:
        write_files(self.files(), folder)

    @classmethod
    def from_files(cls, files: dict[str, bytes]) -> "Pair":
        """Returns the tokenizers of saved files, which may be those of a single tokenizer."""
        sides = [
            kind(files[_name(side, kind)])
            for side in ("source", "target")
            for kind in kinds().values()
            if _name(side, kind) in files
        ]
        if len(sides) == 2:
            return cls(*sides)
        shared = from_files(files)
        return cls(shared, shared)

    @classmethod
    def read_published(cls, folder: pathlib.Path) -> "Pair":
        """Returns the tokenizers of a published model. Raises UserError for other content."""
        if not (folder / "source.spm").exists():
            shared = read_published(folder)
            return cls(shared, shared)
        with unreadable_as_user_error(folder):
            return cls(*unigram.marian_of_folder(folder))

    @classmethod
    def load(cls, folder: pathlib.Path) -> "Pair":
        """Returns the tokenizers that a run has saved. Raises UserError if there are none."""
        with unreadable_as_user_error(folder):
            return cls.from_files(files_of(folder))


class ContinuedPair(Pair):
    """One tokenizer for a source and for a target that continues it in the same row.

    The target has no start token of its own. Generation feeds the mask token as the decoder's
    input, and never generates the mask or the start token.
    """

    def __init__(self, shared: Tokenizer):
        # A copy, because the target has other special tokens than the source, but the same ids.
        target = copy.copy(shared)
        target.never = (*shared.never, shared.cls_id, shared.mask_id)
        target.cls_id, target.bos_id = None, shared.mask_id
        super().__init__(shared, target)

    def fingerprint(self) -> list[str]:
        return [*super().fingerprint(), "continued"]

    def files(self) -> dict[str, bytes]:
        return Pair(self.source, self.source).files()

    def hf_files(self) -> dict[str, bytes]:
        return self.source.hf_files()


def _name(side: str, kind: type[Tokenizer]) -> str:
    """Returns the name of the file for one side, such as "source.model"."""
    return f"{side}.{kind.file.removeprefix('sentencepiece.')}"


def check_pair(pair: Pair, source_vocab_size: int | None, vocab_size: int) -> None:
    """Raises UserError if a tokenizer has more tokens than the model's vocabulary."""
    check_source(pair.source, source_vocab_size, vocab_size)
    check_size(pair.target, vocab_size)


def check_source(source: Tokenizer, source_vocab_size: int | None, vocab_size: int) -> None:
    """Raises UserError if the source tokenizer has more tokens than the model's vocabulary."""
    if source_vocab_size is None:
        check_size(source, vocab_size)
    else:
        check_size(source, source_vocab_size, "source_vocab_size")


# --------------------------------------------------------------------------------------------------
# Training tokenizers, once for each combination of text and settings, because training is slow on a
# large text.

_SENTENCE_PIECE = ("unigram", "bpe")


def run_tokenizer(folder: pathlib.Path | None, data, text: Callable, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer of a run.

    It is read from `folder`, the run's own files, or from `config.data.tokenizer_files`. If neither
    is given, it is trained on the documents that `text()` returns. Raises UserError if it has more
    tokens than the model's vocabulary.
    """
    tokenizer = _read(folder, data) or train_cached(text(), data, vocab_size)
    check_size(tokenizer, vocab_size)
    return tokenizer


def chat_of_run(
    folder: pathlib.Path | None,
    data,
    text: Callable,
    vocab_size: int,
    special_tokens: tuple[str, ...],
) -> chat.ChatTokenizer:
    """Returns the tokenizer of a run on conversations, which has these special tokens.

    If the tokenizer is trained, its vocabulary leaves room for these tokens within `vocab_size`.
    Without any, conversations have the form of the tokenizer's own chat template. Raises UserError
    if it has none.
    """
    if not special_tokens:
        template = conversational(_read(folder, data))
        if template is None:
            raise UserError(
                "config.task.special_tokens=(): the tokenizer of the run in config.init_from has "
                "no chat template; leave this key out"
            )
        check_size(template, vocab_size)
        return template
    tokenizer = _read(folder, data) or train_cached(text(), data, vocab_size - len(special_tokens))
    tokenizer = chat.with_special_tokens(tokenizer, special_tokens)
    check_size(tokenizer, vocab_size)
    return tokenizer


def residues_of_run(folder: pathlib.Path | None, data, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer of a run on proteins, which defaults to ESM's alphabet."""
    tokenizer = _read(folder, data) or Residues.of()
    tokenizer.required("cls", "sep", "mask", user="a model of proteins")
    check_size(tokenizer, vocab_size)
    return tokenizer


def _read(folder: pathlib.Path | None, data) -> Tokenizer | None:
    """Reads the tokenizer in `folder` or `config.data.tokenizer_files`; None if neither is set."""
    if folder:
        return load(folder)
    if data.tokenizer_files:
        return read_published(_published(data))
    return None


def _published(data) -> pathlib.Path:
    """Returns the folder of `config.data.tokenizer_files`, which may be a name on the Hub."""
    from transformer_jax.storage import hub

    return hub.folder(data.tokenizer_files, hub.TOKENIZER)


def pair_of_run(
    folder: pathlib.Path | None,
    data,
    pairs: Callable,
    source_vocab_size: int | None,
    vocab_size: int,
) -> Pair:
    """Returns the source and target tokenizers of a run.

    They are read from the same folders as in `run_tokenizer`, or else trained on the pairs that
    `pairs()` returns. If a single tokenizer is read but the source has its own vocabulary, that
    tokenizer is used for the target, and the source's is trained. Raises UserError if one has more
    tokens than the model's vocabulary.
    """
    pair = None
    if folder:
        pair = Pair.load(folder)
    elif data.tokenizer_files:
        pair = Pair.read_published(_published(data))
    if pair is None:
        pair = train_pair(pairs(), data, source_vocab_size, vocab_size)
    elif pair.source is pair.target and source_vocab_size is not None:
        pair = train_pair(pairs(), data, source_vocab_size, vocab_size, target=pair.target)
    check_pair(pair, source_vocab_size, vocab_size)
    return pair


def source_of_run(folder: pathlib.Path | None, data, model) -> Tokenizer:
    """Returns the source tokenizer of an encoder-decoder model, read as in `pair_of_run`.

    `folder` may contain only that tokenizer. Raises UserError if it has more tokens than the
    model's vocabulary.
    """
    if folder:
        pair = Pair.load(folder)
    else:
        pair = Pair.read_published(_published(data))
    check_source(pair.source, model.source_vocab_size, model.vocab_size)
    return pair.source


def train(
    texts: Iterable[str], kind: str, vocab_size: int, cased: bool = False, min_count: int = 1
) -> Tokenizer:
    """Returns a tokenizer that is trained on documents, which are read more than once.

    `kind`, `cased` and `min_count` have the same meaning as in `config.data`, where `kind` is
    `tokenizer`. Raises UserError if there is not enough text.
    """
    # Each library would fail on this in its own way.
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
    """The text that a tokenizer is trained on: the first texts of each part, in equal shares.

    The sample has about `num_bytes` bytes. Each part contributes texts until it has reached its
    share, so the sample exceeds `num_bytes` by at most one text per part, and a text with fewer
    bytes is used in full. The sample depends only on the text and on `num_bytes`, and is therefore
    reproducible. Texts are documents or pairs of sentences.
    """

    def __init__(self, text, num_bytes: int):
        self._text = text
        self._num_bytes = num_bytes
        self.is_whole = True  # whether the last pass has read the whole text

    def __iter__(self) -> Iterator:
        self.is_whole = True
        parts = self._text.parts()
        for part in parts:
            # The first texts of a part, so that the rest of a large text need not be read.
            size = 0
            for text in part:
                # Checked before a text is taken, so that every part gives at least one.
                if size >= self._num_bytes / len(parts):
                    self.is_whole = False
                    break
                yield text
                sides = [text] if isinstance(text, str) else text
                size += sum(len(side.encode()) for side in sides)

    def say(self) -> None:
        """Prints a note if the tokenizer was trained on a sample instead of the whole text."""
        if not self.is_whole:
            say(
                f"the tokenizer is trained on a sample of {self._num_bytes:,} bytes, spread evenly "
                "over the text (config.data.tokenizer_bytes)"
            )


def train_cached(documents, data, vocab_size: int) -> Tokenizer:
    """Returns a tokenizer of the kind `config.data.tokenizer` for the documents.

    It is trained once, on a `Sample`, and later read from `config.data.cache`. `documents` has
    parts and a fingerprint.
    """
    # The key contains the versions of the libraries, because another version may train another
    # tokenizer from the same text.
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

    # Also a tokenizer that was just trained is read from its files, so that a run does not depend
    # on whether the cache had it.
    return from_files(store.cached_files(data.cache, "tokenizer", key, make, rebuild=data.rebuild))


def train_pair(
    pairs, data, source_vocab_size: int | None, vocab_size: int, target: Tokenizer | None = None
) -> Pair:
    """Returns tokenizers for the training pairs.

    They are trained once, on a `Sample`, and later read from `config.data.cache`. Both sides share
    one tokenizer if `source_vocab_size` is None. If `target` is given, only the source tokenizer is
    trained. `pairs` has parts and a fingerprint.
    """
    key = {
        "text": pairs.fingerprint(),
        **_kind_key(data),
        "sizes": [source_vocab_size, target.fingerprint() if target else vocab_size],
        "sample": data.tokenizer_bytes,
        "sentencepiece": sentencepiece.__version__,
    }
    # SentencePiece models depend neither on `cased` nor on the other library.
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
    return Pair.from_files(files)


@dataclasses.dataclass(frozen=True)
class _Sides:
    """An iterable over the texts on one or both sides of pairs, which can be read repeatedly."""

    pairs: Iterable[tuple[str, str]]
    indices: tuple[int, ...]

    def __iter__(self) -> Iterator[str]:
        return (pair[index] for pair in self.pairs for index in self.indices)


def _train_on_lines(lines: _Sides, data, vocab_size: int) -> Tokenizer:
    """Returns a tokenizer that is trained on lines.

    With SentencePiece, consecutive spaces are collapsed, unlike for documents.
    """
    if data.tokenizer in _SENTENCE_PIECE:
        return SentencePiece.train(lines, vocab_size, data.tokenizer)
    return train(lines, data.tokenizer, vocab_size, data.cased, data.min_count)


def _kind_key(data) -> dict:
    """Returns the part of a cache key that describes the kind of tokenizer."""
    # Only for words, so that the key does not change with a setting that the other kinds ignore.
    words = {"min_count": data.min_count} if data.tokenizer == "words" else {}
    return {"type": data.tokenizer} | words


def _sample_bytes(data) -> float:
    """Returns the size of the sample that a tokenizer is trained on, in bytes."""
    # A character tokenizer reads the whole text, so that it knows every character in it.
    return math.inf if data.tokenizer == "characters" else data.tokenizer_bytes
