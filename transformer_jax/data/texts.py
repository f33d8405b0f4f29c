"""Running text from the sources that `config.data` names, and rows that are windows of it."""

import abc
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt32
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.corpora.python_library import PythonDocstrings, PythonSources
from transformer_jax.data import rows, store
from transformer_jax.data.rows import Component, EvalRows, Row, TrainRows
from transformer_jax.data.sources import pairs, text_files, tfds
from transformer_jax.data.sources.pairs import SentencePairs
from transformer_jax.data.sources.tables import EntailedPairs, Table, is_table
from transformer_jax.data.sources.text_files import (
    Location,
    Span,
    from_json,
    matching_files,
    sha256,
    text_lines,
)
from transformer_jax.data.store import Store
from transformer_jax.data.tokenizers.training import Sample
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# Documents of running text from text files, JSON lines, TFDS sets and built-in corpora.
#
# Each split is an object that can be iterated over repeatedly, because a tokenizer reads the text
# before it is tokenized, and has a fingerprint, because caches must notice another text. Its
# `parts()` are such objects, too.


@dataclasses.dataclass(frozen=True)
class JoinedPairs:
    """Pairs as documents "SOURCE MARKER TARGET" for a causal language model.

    The model learns to continue the source with the target, as in "I am a student <to-fr> je suis
    étudiant" or "ARTICLE <summarize> SUMMARY". The prompt of the trained model is "SOURCE MARKER",
    and the document ends after the target. Liu et al. 2018, section 4.2.3, use such a sequence with
    a delimiter for summarization.
    """

    pairs: SentencePairs
    marker: str

    def fingerprint(self) -> dict:
        return {"pairs": self.pairs.fingerprint(), "marker": self.marker}

    def parts(self) -> list["JoinedPairs"]:
        return [JoinedPairs(part, self.marker) for part in self.pairs.parts()]

    def __iter__(self) -> Iterator[str]:
        return (f"{source} {self.marker} {target}" for source, target in self.pairs)


# The weights are limited because `Phase.slots` is a table with one entry per unit of weight.
_MAX_TOTAL_WEIGHT = 100_000
_CORPORA = {"python": PythonSources, "pydoc": PythonDocstrings, "inference": EntailedPairs}


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """UTF-8 files of documents, which `split_on` separates.

    Files named *.jsonl have one JSON object per line, with the text of a document under `field`.
    In *.csv, *.parquet and *.arrow files, `field` is the column of the texts. Files of the first
    two kinds and texts may be compressed, as *.jsonl.gz and *.txt.zst.
    """

    files: tuple[str, ...]
    split_on: Literal["blank_line", "line", "file"]
    field: str

    def fingerprint(self) -> dict:
        return {
            "files": sha256(self.files),
            "split_on": self.split_on,
            "field": self.field,
        }

    def parts(self) -> list["TextSpans"]:
        spans = []
        # Parts end between documents, so that no document is tokenized in pieces.
        for file_spans in text_files.document_parts(self.files, self._boundary):
            spans.append(TextSpans(file_spans, self.split_on, self.field))
        return spans

    def _boundary(self, file: str):
        """Returns the function that finds a document boundary, or None for an undivided file."""
        if text_files.is_compressed(file) or is_table(file):
            return None
        if file.endswith(".jsonl") or self.split_on == "line":
            return text_files.next_line
        return text_files.next_blank_line if self.split_on == "blank_line" else None

    def __iter__(self) -> Iterator[str]:
        return iter(TextSpans(tuple(map(Span, self.files)), self.split_on, self.field))


@dataclasses.dataclass(frozen=True)
class TextSpans:
    """The documents in spans of files. Raises UserError for a line that is not as expected."""

    spans: tuple[Span, ...]
    split_on: Literal["blank_line", "line", "file"]
    field: str

    def __iter__(self) -> Iterator[str]:
        for span in self.spans:
            if is_table(span.file):
                records = Table((span.file,), (self.field,))
                yield from (text for (text,) in (each.values for each in records) if text)
            elif text_files.uncompressed_name(span.file).endswith(".jsonl"):
                yield from self._json_lines(span)
            else:
                yield from self._documents(span)

    def _documents(self, span: Span) -> Iterator[str]:
        lines = text_lines(span, keep_ends=self.split_on == "file")
        if self.split_on == "file":
            yield "".join(lines)
        elif self.split_on == "line":
            yield from filter(str.strip, lines)
        else:
            # Several blank lines in a row separate documents like a single one.
            for has_text, group in itertools.groupby(lines, key=_has_text):
                if has_text:
                    yield "\n".join(group)

    def _json_lines(self, span: Span) -> Iterator[str]:
        for index, line in enumerate(text_lines(span)):
            # Skipped after counting, so that `index` still is the number of the line in the file.
            if not _has_text(line):
                continue
            location = Location(span, index)
            value = from_json(line, location)
            text = value.get(self.field) if isinstance(value, dict) else None
            if not isinstance(text, str):
                raise UserError(
                    f"{location}: not a JSON object with a text under {self.field!r} "
                    "(config.data.text_field)"
                )
            if text:
                yield text


def _has_text(line: str) -> bool:
    return bool(line.strip())


@dataclasses.dataclass(frozen=True)
class TfdsText:
    """A split of a text set that TFDS has prepared as array_record."""

    folder: str
    split: str
    field: str

    def fingerprint(self) -> dict:
        return {"tfds": tfds.digest(self.folder), "split": self.split, "field": self.field}

    def parts(self) -> list["TfdsText"]:
        splits = tfds.parts(self.folder, self.split)
        return [dataclasses.replace(self, split=split) for split in splits]

    def __iter__(self) -> Iterator[str]:
        remedy = "; set config.data.text_field"
        for example in tfds.examples(self.folder, self.split):
            tfds.check_features(self.folder, example, (self.field,), remedy)
            yield tfds.decoded(example[self.field], self.folder)


@dataclasses.dataclass(frozen=True)
class Concatenation:
    """The concatenation of several texts."""

    texts: tuple

    def fingerprint(self) -> list:
        return [text.fingerprint() for text in self.texts]

    def parts(self) -> list:
        return [part for text in self.texts for part in text.parts()]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self.texts)


Documents = TextFiles | TfdsText | PythonSources | JoinedPairs


def open_documents(data, split: str) -> Documents | None:
    """Returns the documents of a split ("train", "valid", "test") that `config.data` names.

    Returns None if it names none. With `config.data.marker`, documents are made from sentence
    pairs. Raises UserError if files or features do not exist, or if two sources are named.
    """
    _check_no_pairs(data, split)
    files_key = f"{split}_files"
    # Files for evaluation come first, so that any run can be evaluated on the user's own text.
    if split != "train" and data[files_key]:
        return open_text_files(data, f"config.data.{files_key}", data[files_key])
    if data.marker:
        return _joined_pairs(data, split)
    _check_one_source(data, split)
    if data.corpus:
        if data.corpus not in _CORPORA:
            raise UserError(
                f"config.data.corpus={data.corpus}: has no running text; "
                f"must be one of {', '.join(_CORPORA)}"
            )
        return _CORPORA[data.corpus](split)
    if data.tfds_name:
        prepared = tfds.prepared_split(data, split, stored=True)
        return prepared and TfdsText(*prepared, data.text_field)
    return open_text_files(data, f"config.data.{files_key}", data[files_key])


def _check_no_pairs(data, split: str) -> None:
    """Raises UserError if the config names sentence pairs, which would be ignored."""
    keys = ("train_source", "train_target", f"{split}_source", f"{split}_target")
    named = [key for key in keys if data[key]]
    if named and not data.marker and (data.train_files or data.mixture or split != "train"):
        raise UserError(
            f"config.data.{named[0]} names sentence pairs, which become text by "
            f"config.data.marker; running text is named by config.data.{split}_files"
        )


def _joined_pairs(data, split: str) -> JoinedPairs | None:
    """Returns the sentence pairs of a split as documents with a marker, or None."""
    if data.train_files or data.mixture:
        raise UserError(
            f"config.data.marker={data.marker!r}: needs sentence pairs, config.data.train_source "
            "and train_target, not train_files or mixture"
        )
    sentence_pairs = pairs.open_pairs(data, split)
    return sentence_pairs and JoinedPairs(sentence_pairs, data.marker)


def _check_one_source(data, split: str) -> None:
    """Raises UserError if the config names two sources, or none for the training text."""
    named = [key for key in ("corpus", "tfds_name", "train_files", "mixture") if data[key]]
    if len(named) == 1 or (not named and split != "train"):
        return
    hint = " (sentence pairs become text by config.data.marker)" if data.train_source else ""
    if "corpus" in named and len(named) > 1:
        hint = "; --config.data.corpus= leaves out the built-in text"
    raise UserError(
        "name one source of text: config.data.train_files, config.data.mixture, "
        "config.data.tfds_name and tfds_dir, or config.data.corpus; "
        f"now: {', '.join(named) or 'none'}{hint}"
    )


def open_text_files(data, key: str, names: str | None) -> TextFiles | None:
    """Returns the text files that `names` lists, or None without names.

    `key` is the config key of `names`, for error messages.
    """
    if not names:
        return None
    return TextFiles(tuple(matching_files(key, names)), data.split_on, data.text_field)


def mixture(data) -> list[tuple[Documents, int]]:
    """Returns the training texts with their integer weights.

    Without `config.data.mixture`, there is a single text with weight 1. Raises UserError if no
    training text is named or the mixture is invalid.
    """
    if not data.mixture:
        text = open_documents(data, "train")
        if text is None:
            raise UserError("config.data names no training text")
        return [(text, 1)]
    open_documents(data, "valid")  # raises if another source is named besides the mixture
    parts = [_weighted_files(data, part) for part in data.mixture]
    total = sum(weight for _, weight in parts)
    if total > _MAX_TOTAL_WEIGHT:
        raise UserError(
            "config.data.mixture: weights are shares, such as 3 and 1; "
            f"their sum is {total:,}, must be at most {_MAX_TOTAL_WEIGHT:,}"
        )
    return parts


def _weighted_files(data, part) -> tuple[TextFiles, int]:
    """Parses an entry of the mixture into (documents, weight). Raises UserError."""
    match part:
        case (str(names), int(weight)) if isinstance(part, tuple) and names and weight >= 1:
            return open_text_files(data, "config.data.mixture", names), weight
    raise UserError(f"config.data.mixture: {part!r} is not (files, whole weight of at least 1)")


# --------------------------------------------------------------------------------------------------
# The texts of language modeling and denoising: the splits of one text, or a mixture of texts, each
# of which is a component of its own, so that weights apply to rows and not to bytes.


class Countable(abc.ABC):
    """A training text whose tokens can be counted, for the n-gram models beside a model."""

    @abc.abstractmethod
    def training_text(self) -> Any:
        """Returns all training text."""

    def counted(self, tokenizer, num_bytes: int) -> UInt32[np.ndarray, " N"]:
        """Returns the tokens that n-gram models count.

        They are the whole training text, or a `Sample` of `num_bytes` bytes of a larger text.
        """
        sample = Sample(self.training_text(), num_bytes)
        encodings = [encoded(block, tokenizer) for block in blocks(sample)]
        if not sample.is_whole:
            say(f"n-gram models count a sample of {num_bytes:,} bytes, spread over the text")
        return np.concatenate(encodings)


# A key of the fingerprint. If it has another value in a resumed run, the error says "not the ...
# this run was trained with".
_TURNS = "config.train.num_steps, over which config.data.mixture_order divides the texts, that"


@dataclasses.dataclass(frozen=True)
class MixedTexts(Countable):
    """The texts that `config.data` names. Subclasses define the rows."""

    config: ConfigDict

    @cached_property
    def mixture(self) -> list:
        """The training texts with their weights."""
        return mixture(self.config.data)

    def training_text(self) -> Concatenation:
        """Returns the concatenation of all training texts."""
        return Concatenation(tuple(text for text, _ in self.mixture))

    def words(self) -> list[int]:
        """Returns the number of words of each training text, which are separated by white space."""
        return [count_words(text) for text, _ in self.mixture]

    def text(self, split: str):
        """Returns the documents of a split, or None if `config.data` names none."""
        return open_documents(self.config.data, split)

    def fingerprint(self) -> dict:
        content = {"train": [text.fingerprint() for text, _ in self.mixture]}
        # The weight of a single text changes nothing, so it must not change the fingerprint.
        if len(self.mixture) > 1:
            content["mixture"] = [weight for _, weight in self.mixture]
        if self._in_turn:
            # A longer run would read other rows in the updates that are already done.
            content[_TURNS] = self.config.train.num_steps
        return content

    @property
    def _in_turn(self) -> bool:
        return self.config.data.mixture_order == "in_turn"

    def check_streams(self, user: str) -> None:
        """Raises UserError for config keys that can't be combined with streams.

        `user` is the key that requires the streams, for the message.
        """
        for key in ("data.mixture", "train.first_batch", "decode.stride"):
            section, _, name = key.partition(".")
            if value := self.config[section][name]:
                raise UserError(
                    f"config.{key}={value}: not with {user}, where each row of a batch "
                    "reads its own part of one text; leave it out"
                )

    def train_rows(
        self, component: Callable[[Any, str, int], rows.Component], order: str = "shuffled"
    ) -> rows.TrainRows:
        """Returns the rows of all training texts, mixed by weight or one text after the other.

        `component(text, name, number)` returns the rows of one text.
        """
        texts = [text for text, _ in self.mixture]
        names = ["train"] if len(texts) == 1 else [f"train-{n}" for n in range(len(texts))]
        components = [
            component(text, name, number) for number, (text, name) in enumerate(zip(texts, names))
        ]
        weights = [weight for _, weight in self.mixture]
        train = rows.train_rows(
            components,
            self.config.train,
            self.config.data.seed,
            weights,
            order,
            in_turn=self._in_turn,
        )
        if len(components) > 1:
            self._say_epochs(train)
        return train

    def _say_epochs(self, train: rows.TrainRows) -> None:
        """Prints how often the run reads each part of the mixture, as in Brown et al. 2020."""
        (phase,), num_steps = train.phases, self.config.train.num_steps
        lines = [f"mixture of {num_steps:,} updates: files, share, rows, epochs elapsed at the end"]
        epochs = phase.epochs_before(num_steps)
        for (names, weight), part, count in zip(self.config.data.mixture, phase.components, epochs):
            share = weight / sum(phase.weights)
            lines.append(f"  {names}  {share:.1%}  {len(part):,}  {count:.2f}")
        say("\n".join(lines))


# --------------------------------------------------------------------------------------------------
# The text of a task that does not mix texts: the splits that `config.data` names.


def count_words(text: Iterable[str]) -> int:
    """Returns the number of words of a text, which are separated by white space."""
    return sum(len(document.split()) for document in text)


@dataclasses.dataclass(frozen=True)
class SingleText(Countable):
    """The splits of one text. Subclasses define the rows."""

    config: ConfigDict

    def training_text(self):
        return self.text("train")

    def words(self) -> list[int]:
        """Returns [the number of words of the training text]."""
        return [count_words(self.training_text())]

    def fingerprint(self) -> dict:
        return {"train": self.text("train").fingerprint()}

    def text(self, split: str):
        """Returns the documents of a split, or None if `config.data` names none.

        Raises UserError if there is no training text.
        """
        text = open_documents(self.config.data, split)
        if text is None and split == "train":
            raise UserError("config.data.train_files is missing: the training text")
        return text


class OneComponent(SingleText, abc.ABC):
    """The splits of one text, each with rows of one kind and with its own random numbers."""

    @abc.abstractmethod
    def component(self, split: str, tokenizer) -> rows.Component:
        """Returns the rows of a split. The first call tokenizes the text."""

    def train(self, tokenizer) -> rows.TrainRows:
        return rows.train_rows(
            [self.component("train", tokenizer)], self.config.train, self.config.data.seed
        )

    def evaluation(self, tokenizer, split: str) -> rows.EvalRows:
        return rows.EvalRows(self.component(split, tokenizer))

    def key(self, split: str) -> tuple[int, int, int]:
        """Returns (seed, phase, component) of a split."""
        return self.config.data.seed, 0, ("train", "valid", "test").index(split)


# --------------------------------------------------------------------------------------------------
# Token counts of a token store, which are cached: counting reads the whole text, and several runs
# on it need the same counts.

_TOGETHER = 2**24  # tokens in one read, so that a part of any size takes little memory


def count_tokens(stored: store.Store, data, vocab_size: int, name: str) -> np.ndarray:
    """Returns the count of each token (V,). The store is counted once; the counts are cached."""
    key = {"vocab_size": vocab_size}
    title = f"counting the tokens of {name}"
    counted = _derived(stored, data, f"counts-{name}", key, fill=_fill_counts, title=title)
    # `array` joins the counts of all parts end to end.
    return counted.array("counts").reshape(-1, vocab_size).sum(axis=0)


def _derived(
    stored: store.Store, data, name: str, key: dict[str, int], *, fill: Callable, title: str
) -> store.Store:
    """Returns a store of index arrays about the parts of another store, which is built once.

    `fill(writer, part, stored=stored, **key)` writes those of a part. As the construction of a
    store, this is done by the same workers, in parallel, and goes on where it was interrupted.
    """
    content = store.Content(
        parts=lambda: range(len(stored.parts)),
        fill=functools.partial(fill, stored=stored, **key),
        whole=lambda parts: {"parts": len(parts)},
        title=title,
    )
    # The name of the folder ends with a digest of all that its content depends on. The folders
    # above it don't count, so that a cache may be moved.
    key = {"store": str(stored.path).rpartition("/")[2], **key}
    # No part has tokens, so that any number of them would do.
    return store.build(data.cache, name, key, 2, content, rebuild=data.rebuild)


def _fill_counts(writer: store.Writer, part: int, stored: store.Store, vocab_size: int) -> dict:
    """Writes the counts of a part as an index array; the part itself has no tokens."""
    counts = np.zeros(vocab_size, np.int64)
    first, end = stored.values.starts[part : part + 2]
    for start in range(first, end, _TOGETHER):
        (tokens,) = stored.read([(start, min(start + _TOGETHER, end))])
        counts += np.bincount(tokens, minlength=vocab_size)
    writer.array("counts", counts)
    return {}


# --------------------------------------------------------------------------------------------------
# Rows of causal language models: windows of a text that is stored as one stream of tokens, in which
# each document ends with `eos_id`. Because nothing but the end token divides the stream, the
# position of a row in it is a product and needs no index.

_CHARACTERS_PER_BLOCK = 2**21  # tokenized in one call


class Windows:
    """Training rows: L consecutive tokens, and the next token of each as its label.

    An epoch tiles the text with consecutive windows that start at a random offset, which is drawn
    from (seed, phase, component, epoch), so that each epoch cuts the text at other tokens. Row
    n + 1 continues row n.

    Keys, int32 (L,): tokens, labels, weights (all 1), and with `mask_documents` positions and
    segment_ids. With `restarts`, for models that carry a state from row to row, the key "restarts"
    replaces positions and segment_ids.

    Raises UserError if the text has no more than L tokens.
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        mask_documents: bool,
        key: tuple[int, int, int],
        *,
        restarts: bool = False,
    ):
        self.store = stored
        self.length = length
        self.key = key  # (seed, phase, component)
        self.restarts = restarts
        self.size = stored.meta["tokens"]
        self._separator = stored.meta["eos_id"] if mask_documents else None
        if self.size <= length:
            raise UserError(
                f"the text has {self.size:,} tokens: a row of {length:,} tokens needs one more; "
                "give more text or shorter rows"
            )

    def __len__(self) -> int:
        # One window fewer than would fit, because the random offset may skip almost one of them.
        return max(self.size // self.length - 1, 1)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        starts = [number * self.length + self._offset(epoch) for number, epoch in numbers]
        # One token more than a row, because labels are the tokens shifted by one position.
        spans = self.store.read([(start, start + self.length + 1) for start in starts])
        weights = np.ones(self.length)
        return [_row(span, weights, self._separator, self.restarts) for span in spans]

    def _offset(self, epoch: int) -> int:
        # A text shorter than two windows leaves room for fewer offsets.
        num_offsets = min(self.length, self.size - self.length)
        # Not from the generator of a row, because all rows of an epoch must have the same offset.
        seed = np.random.SeedSequence((*self.key, epoch))
        return int(np.random.Generator(np.random.Philox(seed)).integers(num_offsets))


class SlidingWindows:
    """Evaluation rows that together predict every token of the text exactly once.

    The first row predicts `length` tokens, and each further row the next `stride` tokens; the
    tokens before them are only context. A smaller stride gives more context to each prediction, at
    the cost of more rows. The first token of the text is predicted from `eos_id`. The keys are the
    same as in `Windows`, and weights are 1 for the predicted tokens. If `stride` equals `length`,
    row n + 1 continues row n.
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        stride: int,
        mask_documents: bool,
        *,
        restarts: bool = False,
    ):
        self.store = stored
        self.length = length
        self.stride = stride
        self.restarts = restarts
        self.size = stored.meta["tokens"]
        self._separator = stored.meta["eos_id"] if mask_documents else None

    def __len__(self) -> int:
        return 1 + max(-(-(self.size - self.length) // self.stride), 0)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        label_starts = [number * self.stride for number, _ in numbers]
        spans = self.store.read(
            [(max(start - 1, 0), min(start + self.length, self.size)) for start in label_starts]
        )
        return [self._window(start, span) for start, span in zip(label_starts, spans)]

    def _window(self, start: int, span: np.ndarray) -> Row:
        """Returns the row whose first label is the token at index `start` of the text."""
        span, num_labels = _padded_span(self.store, start, span, self.length)
        num_context = 0 if start == 0 else self.length - self.stride
        weights = np.arange(self.length) >= num_context
        weights[num_labels:] = False
        return _row(span, weights, self._separator, self.restarts)


def _padded_span(
    stored: store.Store, start: int, span: np.ndarray, length: int
) -> tuple[np.ndarray, int]:
    """Returns the span of `length` + 1 tokens whose labels begin at `start`, and their number.

    The first token of the text is predicted from the end token. A shorter span is padded, so that
    all rows have one shape, and the weights of the padding are 0.
    """
    if start == 0:
        span = np.concatenate([[stored.meta["eos_id"]], span])
    num_labels = len(span) - 1
    return np.pad(span, (0, length - num_labels)), num_labels


def _row(span: np.ndarray, weights: np.ndarray, separator: int | None, restarts: bool) -> Row:
    """Returns the row for a span of L + 1 tokens.

    If `separator` is not None, it ends documents that must not attend to each other: with
    `restarts`, for a model that carries its state from row to row, the row has that key; otherwise
    it has positions and segment_ids.
    """
    tokens = span[:-1]
    row = {"tokens": tokens, "labels": span[1:], "weights": weights}
    # The end token of a document belongs to the next document as its input, because the first token
    # of that document is predicted from it.
    if restarts:
        none = np.zeros(len(tokens))
        row["restarts"] = none if separator is None else tokens == separator
    elif separator is not None:
        is_first = tokens == separator
        # A row that begins within a document is a segment of its own, without that document's
        # beginning.
        is_first[0] = True
        indices = np.arange(len(tokens))
        starts = np.maximum.accumulate(np.where(is_first, indices, 0))
        row |= {"positions": indices - starts, "segment_ids": np.cumsum(is_first)}
    return {name: values.astype(np.int32) for name, values in row.items()}


class DocumentRows:
    """Training rows that hold one document each: its first L tokens, or L of the tokens after them.

    Its first token is predicted from the end token of the document before it, as in `Windows`, and
    its last label is its own end token. A row with fewer than L labels is padded, and the weights
    there are 0. The keys are those of `Windows`.

    `stored` are the tokens, and `index` is the store of `document_index`.
    """

    def __init__(self, stored: store.Store, index: store.Store, length: int, mask_documents: bool):
        self.store = stored
        self.length = length
        # The evaluation rows have the same keys, and may hold several documents.
        self._separator = stored.meta["eos_id"] if mask_documents else None
        self._index = store.RowIndex(index, stored.values.starts)

    def __len__(self) -> int:
        return len(self._index)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        labels = [self._index.span(number) for number, _ in numbers]
        spans = self.store.read([(max(start - 1, 0), stop) for start, stop in labels])
        return [self._row(start, span) for (start, _), span in zip(labels, spans)]

    def _row(self, start: int, span: np.ndarray) -> Row:
        span, num_labels = _padded_span(self.store, start, span, self.length)
        weights = np.arange(self.length) < num_labels
        return _row(span, weights, self._separator, restarts=False)


def document_index(stored: store.Store, data, length: int, name: str) -> store.Store:
    """Returns where the rows of `DocumentRows` begin, as a store that is built once and cached."""
    title = f"finding the documents of {name}"
    key = {"length": length}
    return _derived(stored, data, f"documents-{name}", key, fill=_fill_starts, title=title)


def _fill_starts(writer: store.Writer, part: int, stored: store.Store, length: int) -> dict:
    """Writes the offsets of the rows of a part, which consists of whole documents."""
    first, end = stored.values.starts[part : part + 2]
    ends = [np.zeros(1, np.int64)]
    for start in range(first, end, _TOGETHER):
        (tokens,) = stored.read([(start, min(start + _TOGETHER, end))])
        ends.append(np.flatnonzero(tokens == stored.meta["eos_id"]) + 1 + start - first)
    bounds = np.concatenate(ends)
    counts = -(-np.diff(bounds) // length)  # rows of each document
    # Row i of all, which is row i - (rows of the documents before) of its document.
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(bounds[:-1], counts) + within * length
    writer.array("rows", np.append(starts, end - first).astype(np.uint32))
    return {"rows": len(starts)}


def tokenised(text, data, tokenizer, name: str) -> store.Store:
    """Returns the token store of a text; builds the parts that do not exist yet.

    `text` has a fingerprint and parts, which are iterables of documents. The metadata of the store
    count tokens (including the end tokens), documents, bytes and characters.
    """
    key = {"text": text.fingerprint(), "tokenizer": tokenizer.fingerprint()}
    content = store.Content(
        parts=text.parts,
        fill=functools.partial(_fill, tokenizer=tokenizer),
        whole=functools.partial(_whole, name=name, eos_id=tokenizer.eos_id),
        title=f"tokenizing {name}",
    )
    stored = store.build(
        data.cache, f"text-{name}", key, tokenizer.vocab_size, content, rebuild=data.rebuild
    )
    meta = stored.meta
    say(
        f"{name}: {meta['documents']:,} documents, {meta['tokens']:,} tokens, "
        f"{meta['bytes'] / meta['tokens']:.2f} bytes a token"
    )
    return stored


def _fill(writer: store.Writer, documents: Iterable[str], tokenizer) -> dict[str, int]:
    """Writes the tokens of a part and returns its counts."""
    counts = {"documents": 0, "bytes": 0, "characters": 0}
    for block in blocks(documents):
        writer.append(encoded(block, tokenizer))
        counts["documents"] += len(block)
        # Bytes and characters are counted because losses per token can't be compared between
        # tokenizers.
        counts["bytes"] += sum(len(document.encode()) for document in block)
        counts["characters"] += sum(map(len, block))
    return counts


def encoded(documents: list[str], tokenizer) -> UInt32[np.ndarray, " N"]:
    """Returns the concatenated tokens of documents, each followed by its end token."""
    ids = tokenizer.encode(documents)
    return np.concatenate([np.array([*each, tokenizer.eos_id], np.uint32) for each in ids])


def _whole(parts: list[dict], name: str, eos_id: int) -> dict[str, int]:
    """Returns the metadata of a store. Raises UserError if the text has no documents."""
    counts = sums(parts, ("tokens", "documents", "bytes", "characters"))
    if not counts["documents"]:
        raise UserError(f"config.data: the {name} text has no document that is not empty")
    return {**counts, "eos_id": eos_id}


def sums(parts: list[dict], names: Iterable[str]) -> dict[str, int]:
    """Returns the sum of each of these counts over all parts."""
    return {name: sum(part[name] for part in parts) for name in names}


def blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yields the texts in lists of about _CHARACTERS_PER_BLOCK characters.

    A list is large enough to keep the tokenizer's threads busy, and small enough for the memory.
    """
    block = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= _CHARACTERS_PER_BLOCK:
            yield block
            block = []
            size = 0
    if block:
        yield block


# --------------------------------------------------------------------------------------------------
# The rows of causal language models for the texts that `config.data` names. Evaluations have rows
# of another kind than training, because they must predict each token exactly once.


@dataclasses.dataclass(frozen=True)
class TextWindows(MixedTexts):
    """Rows of `length` tokens from the splits of a text, or from a mixture of training texts.

    With `carries`, rows are in streams: each row of an update continues the same row of the
    previous update, so that a model can carry its state across updates. Without `pack`, a row has
    one document alone, or a part of it.
    """

    length: int
    carries: bool = False
    pack: bool = True

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call tokenizes the texts."""
        data = self.config.data

        def component(text, name: str, number: int) -> Windows | DocumentRows:
            tokens = tokenised(text, data, tokenizer, name)
            if not self.pack:
                index = document_index(tokens, data, self.length, name)
                return DocumentRows(tokens, index, self.length, data.mask_documents)
            key = (data.seed, 0, number)
            return Windows(tokens, self.length, data.mask_documents, key, restarts=self.carries)

        return self.train_rows(component, "stream" if self.carries else "shuffled")

    def evaluation(self, tokenizer, split: str, stride: int | None = None) -> rows.EvalRows:
        """Returns rows that predict each token of a split once, `stride` tokens per row.

        `stride` defaults to the length of a row. With `carries`, it always is the length of a row,
        because the carried state has already read the context.
        """
        data = self.config.data
        tokens = tokenised(self.text(split), data, tokenizer, split)
        sliding = SlidingWindows(
            tokens,
            self.length,
            self.length if self.carries else stride or self.length,
            data.mask_documents,
            restarts=self.carries,
        )
        return rows.EvalRows(sliding, order="stream" if self.carries else "rows")


# --------------------------------------------------------------------------------------------------
# Rows of a text for two language models, of which one reads it forward and one backward (ELMo). The
# backward one needs a reversed text, not reversed rows, because its state, too, must continue from
# one row to the next.


@dataclasses.dataclass(frozen=True)
class Reversed:
    """A stored text in reverse order, in which an end token still follows each document.

    In the stored text, each document is followed by its end token, which would precede the document
    in plain reverse order. Moving the last end token of the text to the other side puts one after
    each document again.
    """

    store: Store

    @property
    def meta(self) -> dict:
        return self.store.meta

    def read(self, spans: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Returns the tokens [start, stop) of each span."""
        size = self.meta["tokens"]
        # In this order, the token at index p is the one at size - 2 - p of the text, except for the
        # last one, which is the end token. A span with the end token would start before the text,
        # hence the maximum.
        forward_spans = [(max(size - 1 - stop, 0), size - 1 - start) for start, stop in spans]
        end = [self.meta["eos_id"]]
        return [
            np.concatenate([tokens[::-1], end]) if stop == size else tokens[::-1]
            for tokens, (_, stop) in zip(self.store.read(forward_spans), spans)
        ]


@dataclasses.dataclass(frozen=True)
class BothWays:
    """Rows of both directions. The last axis of labels, weights and restarts is the direction.

    `forward` and `backward` are windows of the text and of the reversed text. `characters` (V, C)
    are the characters of each word, and the tokens of a row are (L, 2, C). Row n + 1 of each
    direction continues row n, so the backward row n is from another part of the text than the
    forward row n.
    """

    forward: Component
    backward: Component
    characters: np.ndarray

    def __len__(self) -> int:
        return len(self.forward)

    @property
    def store(self) -> Store:
        return self.forward.store

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        pairs = zip(self.forward.rows(numbers), self.backward.rows(numbers))
        return [self._row(*pair) for pair in pairs]

    def _row(self, forward: Row, backward: Row) -> Row:
        # The direction is the last axis, so that the axis of the length, which windows are cut from
        # and states carry over, stays where other models have it.
        row = {name: np.stack([forward[name], backward[name]], axis=-1) for name in forward}
        return row | {"tokens": self.characters[row["tokens"]].astype(np.int32)}


@dataclasses.dataclass(frozen=True)
class BothWaysTexts(MixedTexts):
    """Rows of `length` words in each direction, in streams that updates continue."""

    length: int
    max_characters: int

    def train(self, tokenizer) -> TrainRows:
        """Returns the training rows. The first call tokenizes the texts."""
        data = self.config.data

        def component(text, name: str, number: int) -> BothWays:
            tokens = tokenised(text, data, tokenizer, name)
            key = (data.seed, 0, number)

            def windows(stored):
                return Windows(stored, self.length, data.mask_documents, key, restarts=True)

            return self._both(windows, tokens, tokenizer)

        return self.train_rows(component, "stream")

    def evaluation(self, tokenizer, split: str) -> EvalRows:
        """Returns rows that predict each token of a split once in each direction."""
        data = self.config.data
        tokens = tokenised(self.text(split), data, tokenizer, split)

        def windows(stored):
            return SlidingWindows(
                stored, self.length, self.length, data.mask_documents, restarts=True
            )

        return EvalRows(self._both(windows, tokens, tokenizer), order="stream")

    def _both(self, windows, tokens: Store, tokenizer) -> BothWays:
        """Returns the rows of both directions. `windows(store)` returns the rows of one of them."""
        characters = tokenizer.spelled(self.max_characters).table
        return BothWays(windows(tokens), windows(Reversed(tokens)), characters)
