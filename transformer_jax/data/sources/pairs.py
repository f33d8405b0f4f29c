"""Pairs of texts: sentence pairs for translation, and sources and targets in columns of tables."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Protocol

from transformer_jax.config import UserError
from transformer_jax.corpora.python_library import PythonFunctions
from transformer_jax.data import sentences
from transformer_jax.data.sources import tables, text_files, tfds
from transformer_jax.data.sources.text_files import Span, check_not_empty, sha256, text_lines
from transformer_jax.storage import buckets

# --------------------------------------------------------------------------------------------------
# Sentence pairs from text files, TFDS sets and the built-in grammar.
#
# Each split is an object that can be iterated over repeatedly, because tokenizers are trained on it
# before it is tokenized, and has a fingerprint, by which caches notice another text.

Pair = tuple[str, str]
_GRAMMARS = ("grammar", "ambiguity")
_GRAMMAR_HELD_OUT = 1000  # pairs in each of the grammar's validation and test splits
_GRAMMAR_PAIR_BYTES = 100  # approximate size of a pair, which divides the pairs into parts


@dataclasses.dataclass(frozen=True)
class TextPairs:
    """Two parallel UTF-8 text files: line n of one is the translation of line n of the other."""

    source: str
    target: str

    @property
    def target_language(self) -> str | None:
        """The last two-letter suffix of the target file, as in train.fr or train.fr.txt."""
        endings = self.target.rpartition("/")[2].lower().split(".")[1:]
        return next((ending for ending in reversed(endings) if len(ending) == 2), None)

    def fingerprint(self) -> dict:
        return {"files": sha256([self.source, self.target])}

    def parts(self) -> list["TextPairsPart"]:
        return [
            TextPairsPart(*spans) for spans in text_files.aligned_parts(self.source, self.target)
        ]

    def __iter__(self) -> Iterator[Pair]:
        return iter(TextPairsPart(Span(self.source), Span(self.target)))


@dataclasses.dataclass(frozen=True)
class TextPairsPart:
    """The parallel lines of two spans. Iterating raises UserError if their numbers differ."""

    source: Span
    target: Span

    def __iter__(self) -> Iterator[Pair]:
        # Not `zip`, which would drop the rest of the longer file without a word.
        lines = itertools.zip_longest(text_lines(self.source), text_lines(self.target))
        for count, (source, target) in enumerate(lines):
            if source is None or target is None:
                files = (self.source.file, self.target.file)
                counts = (count + (source is not None), count + (target is not None))
                raise text_files.unequal_lengths(files[0], counts[0], files[1], counts[1])
            yield source, target


@dataclasses.dataclass(frozen=True)
class GrammarPairs:
    """Sentence pairs of the built-in English-German grammar, or those with ambiguous words, too."""

    split: str
    size: int  # the end of the range of pairs
    start: int = 0  # the start of the range
    target_language: str = "de"  # or "en"
    corpus: str = "grammar"  # or "ambiguity"

    def fingerprint(self) -> dict:
        # Imported here because reading the lexicon takes time.
        from transformer_jax.corpora import grammar
        from transformer_jax.corpora.grammar import ambiguity

        versions = {"grammar": grammar.VERSION}
        if self.corpus == "ambiguity":
            versions["ambiguity"] = ambiguity.VERSION
        # The direction into German has no entry of its own, as in earlier versions.
        direction = {} if self.target_language == "de" else {"target": self.target_language}
        return {**versions, "split": self.split, "size": self.size} | direction

    def parts(self) -> list["GrammarPairs"]:
        ranges = text_files.ranges(self.size, self.size * _GRAMMAR_PAIR_BYTES)
        return [dataclasses.replace(self, start=start, size=stop) for start, stop in ranges]

    def __iter__(self) -> Iterator[Pair]:
        from transformer_jax.corpora.grammar import ambiguity, corpus

        draw = {"grammar": corpus.sentence, "ambiguity": ambiguity.sentence}[self.corpus]
        indices = range(self.start, self.size)
        # Seed 0 and not config.data.seed, so that runs with other seeds have the same text, and
        # share its store.
        order = slice(None, None, 1 if self.target_language == "de" else -1)
        return (corpus.sentence_pair(0, self.split, index, draw)[order] for index in indices)


@dataclasses.dataclass(frozen=True)
class TfdsPairs:
    """A split of a translation set that TFDS has prepared as array_record."""

    folder: str
    split: str
    languages: Pair

    @property
    def target_language(self) -> str:
        return self.languages[1]

    def fingerprint(self) -> dict:
        return {
            "tfds": tfds.digest(self.folder),
            "split": self.split,
            "languages": list(self.languages),
        }

    def parts(self) -> list["TfdsPairs"]:
        splits = tfds.parts(self.folder, self.split)
        return [dataclasses.replace(self, split=split) for split in splits]

    def __iter__(self) -> Iterator[Pair]:
        source, target = self.languages
        remedy = "; set config.data.source_language and config.data.target_language"
        for example in tfds.examples(self.folder, self.split):
            tfds.check_features(self.folder, example, self.languages, remedy)
            yield self._one_line(example[source]), self._one_line(example[target])

    def _one_line(self, text: bytes | str) -> str:
        # A pair is one line on each side. In a file of translations, a further line end would shift
        # all lines behind it.
        return " ".join(tfds.decoded(text, self.folder).splitlines())


SentencePairs = TextPairs | GrammarPairs | TfdsPairs


def open_pairs(data, split: str) -> SentencePairs | None:
    """Returns the sentence pairs of a split ("train", "valid", "test") that `config.data` names.

    Returns None if it names none. Raises UserError if files or features do not exist, or if two
    sources are named.
    """
    _check_no_running_text(data, split)
    keys = f"{split}_source", f"{split}_target"
    # Users may evaluate on their own files, whatever the run was trained on.
    has_held_out_files = split != "train" and any(data[key] for key in keys)
    _check_one_source(data)
    if data.corpus and not has_held_out_files:
        if data.corpus not in _GRAMMARS:
            raise UserError(
                f"config.data.corpus={data.corpus}: has no sentence pairs; "
                f"{' and '.join(_GRAMMARS)} do"
            )
        languages = (data.source_language, data.target_language)
        if sorted(languages) != ["de", "en"]:
            raise UserError(
                f"config.data.source_language={languages[0]} and target_language={languages[1]}: "
                "the grammar has en and de, one of them as the source"
            )
        size = data.corpus_size if split == "train" else _GRAMMAR_HELD_OUT
        return GrammarPairs(split, size, target_language=languages[1], corpus=data.corpus)
    if data.tfds_name and not has_held_out_files:
        prepared = tfds.prepared_split(data, split, stored=True)
        if split == "train":
            tfds.keep_held_out(data)
        return prepared and TfdsPairs(*prepared, (data.source_language, data.target_language))
    if not any(data[key] for key in keys):
        return None
    for key in keys:
        if data[key] is None:
            raise UserError(f"config.data.{key} is missing: source and target files come in pairs")
        check_not_empty(f"config.data.{key}", data[key])
    return TextPairs(*(str(buckets.path(data[key])) for key in keys))


def _check_no_running_text(data, split: str) -> None:
    """Raises UserError if the config names running text.

    With `config.data.marker`, sentence pairs become running text, and `documents` checks the keys.
    """
    keys = [key for key in ("train_files", f"{split}_files", "mixture") if data[key]]
    if keys and not data.marker:
        raise UserError(
            f"config.data.{keys[0]} names running text; "
            f"sentence pairs are named by config.data.{split}_source and {split}_target"
        )


def _check_one_source(data) -> None:
    """Raises UserError unless the config names exactly one source of training pairs."""
    corpora = [key for key in ("corpus", "tfds_name") if data[key]]
    files = [key for key in ("train_source", "train_target") if data[key]]
    named = [*corpora, *files[:1]]
    if len(named) != 1:
        raise UserError(
            "name one source of text: config.data.train_source and train_target, "
            "config.data.tfds_name and tfds_dir, or config.data.corpus; "
            f"now: {', '.join(named) or 'none'}"
        )


# --------------------------------------------------------------------------------------------------
# Text-to-text pairs: columns of tables and TFDS sets, and built-in summaries. Each has a baseline,
# the start of the source, which a useful summary must beat.

TextPair = tuple[str, str]
_BUILT_IN = {"functions": PythonFunctions}


class LeadPairs(Protocol):
    """Pairs (source, target), each of one line, with a baseline taken from the source's start."""

    def __iter__(self) -> Iterator[TextPair]: ...
    def fingerprint(self) -> dict: ...
    def parts(self) -> list: ...
    def lead(self, source: str) -> str:
        """Returns the baseline's output for a source, such as its first sentences."""


@dataclasses.dataclass(frozen=True)
class ColumnPairs:
    """Two columns of a table. Each run of white space in a text becomes one space."""

    table: tables.Table | tables.TfdsTable
    lead_sentences: int

    def fingerprint(self) -> dict:
        return self.table.fingerprint()

    def parts(self) -> list["ColumnPairs"]:
        # A table is read in order, so it is one part.
        return [self]

    def __iter__(self) -> Iterator[TextPair]:
        for record in self.table:
            source, target = (" ".join(value.split()) for value in record.values)
            yield source, target

    def lead(self, source: str) -> str:
        """Returns the first sentences of a source."""
        return " ".join(sentences.split(source, "punctuation")[: self.lead_sentences])


@dataclasses.dataclass(frozen=True)
class Prefixed:
    """Pairs with a prefix before each nonempty source (Raffel et al. 2020, section 2.4)."""

    pairs: LeadPairs
    prefix: str

    def fingerprint(self) -> dict:
        return self.pairs.fingerprint() | {"prefix": self.prefix}

    def parts(self) -> list["Prefixed"]:
        return [Prefixed(part, self.prefix) for part in self.pairs.parts()]

    def __iter__(self) -> Iterator[TextPair]:
        # An empty source stays empty, so that its pair is still dropped as such.
        return ((self.prefix + source if source else "", target) for source, target in self.pairs)


def open_column_pairs(data, split: str, columns: TextPair, lead_sentences: int) -> LeadPairs | None:
    """Returns the pairs of a split that `config.data` names, or None if it names none.

    Raises UserError if files or features do not exist, or if two sources are named.
    """
    if data.corpus and (data.train_files or data.tfds_name):
        other = "train_files" if data.train_files else "tfds_name"
        raise UserError(
            f"config.data.corpus={data.corpus} and config.data.{other}: name one source of examples"
        )
    # Users may evaluate on their own files, whatever the run was trained on.
    if data.corpus and (split == "train" or not data[f"{split}_files"]):
        if data.corpus not in _BUILT_IN:
            raise UserError(
                f"config.data.corpus={data.corpus}: has no sources and targets; "
                f"must be one of {', '.join(_BUILT_IN)}"
            )
        return _BUILT_IN[data.corpus](split)
    table = tables.open_table(data, split, columns, stored=True)
    return table and ColumnPairs(table, lead_sentences)
