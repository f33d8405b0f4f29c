"""Pairs of texts: sentence pairs for translation, and sources and targets in columns of tables."""

import dataclasses
import html
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol
from xml.etree import ElementTree

from transformer_jax.config import UserError
from transformer_jax.corpora.python_library import PythonFunctions
from transformer_jax.data import sentences
from transformer_jax.data.sources import tables, text_files, tfds
from transformer_jax.data.sources.text_files import (
    Span,
    check_not_empty,
    matching_files,
    sha256,
    text_lines,
    uncompressed_name,
)
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets

# --------------------------------------------------------------------------------------------------
# Sentence pairs from text files, tables, TFDS sets and the built-in grammar.
#
# Each split is an object that can be iterated over repeatedly, because tokenizers are trained on it
# before it is tokenized, and has a fingerprint, by which caches notice another text.

Pair = tuple[str, str]
_GRAMMARS = ("grammar", "ambiguity")
_GRAMMAR_HELD_OUT = 1000  # pairs in each of the grammar's validation and test splits
_GRAMMAR_PAIR_BYTES = 100  # approximate size of a pair, which divides the pairs into parts


@dataclasses.dataclass(frozen=True)
class TextPairs:
    """Two parallel UTF-8 files: line n of one is the translation of line n of the other.

    The lines of an *.sgm file, as WMT publishes them, are its segments.
    """

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
        if any(map(_has_segments, (self.source, self.target))):
            return [TextPairsPart(Span(self.source), Span(self.target))]
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
        lines = itertools.zip_longest(_lines(self.source), _lines(self.target))
        for count, (source, target) in enumerate(lines):
            if source is None or target is None:
                files = (self.source.file, self.target.file)
                counts = (count + (source is not None), count + (target is not None))
                raise text_files.unequal_lengths(files[0], counts[0], files[1], counts[1])
            yield source, target


def _lines(span: Span) -> Iterator[str]:
    return _segments(span.file) if _has_segments(span.file) else text_lines(span)


def _has_segments(file: str) -> bool:
    return uncompressed_name(file).lower().endswith((".sgm", ".sgml"))


def _segments(file: str) -> Iterator[str]:
    """Yields the segments of an SGM file. It is no XML: some files have a bare "&"."""
    content = "".join(text_lines(file, keep_ends=True))
    segments = re.findall(r"<seg\b[^>]*>(.*?)</seg\s*>", content, re.DOTALL | re.IGNORECASE)
    if not segments:
        raise UserError(f"{file}: no <seg> in this SGM file")
    return (_one_line(html.unescape(segment)).strip() for segment in segments)


@dataclasses.dataclass(frozen=True)
class FilePairs:
    """Files of which each has both sides: TMX, XLIFF, and tables.

    The columns of a table are named by the languages or "source" and "target", also within a
    column "translation". A *.tsv file may have no header; then the first two columns are the
    pair. Line ends within a text become spaces.
    """

    paths: tuple[str, ...]
    languages: Pair

    @property
    def target_language(self) -> str:
        return self.languages[1]

    def fingerprint(self) -> dict:
        return {"pairs": sha256(self.paths), "languages": list(self.languages)}

    def parts(self) -> list["FilePairs"]:
        return [FilePairs((path,), self.languages) for path in self.paths]

    def __iter__(self) -> Iterator[Pair]:
        for path in self.paths:
            read = _reader(path)
            for source, target in read(path, self.languages):
                yield _one_line(source).strip(), _one_line(target).strip()


def _one_line(text: str) -> str:
    # A pair is one line on each side. In a file of translations, a further line end would shift all
    # lines behind it.
    return " ".join(text.splitlines())


def _reader(path: str) -> Callable[[str, Pair], Iterator[Pair]]:
    """Returns the reader of a file with both sides. Raises UserError if there is none."""
    name = uncompressed_name(path)
    ending = next((ending for ending in _READERS if name.endswith(ending)), None)
    if ending is None:
        raise UserError(
            f"{path}: not a file with both sides of sentence pairs, which end in "
            f"{', '.join(_READERS)}; text files come in pairs, as config.data.train_source and "
            "train_target"
        )
    return _READERS[ending]


def _table_pairs(path: str, languages: Pair) -> Iterator[Pair]:
    for where, row in tables.objects(path):
        if not isinstance(row, Mapping):
            raise UserError(f"{where}: not a JSON object with the sides of a pair")
        sides = row["translation"] if isinstance(row.get("translation"), Mapping) else row
        columns = next((names for names in _columns(languages) if {*names} & {*sides}), None)
        if columns is None:
            raise UserError(
                f"{where}: no columns {' and '.join(map(repr, languages))} "
                "(config.data.source_language and target_language), nor 'source' and 'target'; "
                f"there are {', '.join(map(str, [*sides][:12]))}"
            )
        if missing := [column for column in columns if column not in sides]:
            raise UserError(f"{where}: no text in the column {missing[0]!r}")
        pair = tuple(sides[column] for column in columns)
        if not all(isinstance(text, str) for text in pair):
            raise UserError(f"{where}: both sides of a pair must be texts")
        yield pair


def _columns(languages: Pair) -> tuple[Pair, Pair]:
    return languages, ("source", "target")


def _tab_separated_pairs(path: str, languages: Pair) -> Iterator[Pair]:
    indices, width, blank = (0, 1), 0, 0
    for number, line in enumerate(text_lines(path), 1):
        row = line.split("\t")
        if not line.strip():
            blank = blank or number  # many editors leave a blank line at the end
            continue
        if blank:
            raise UserError(f"{path}:{blank}: an empty line; only at the end are they left out")
        named = [names for names in _columns(languages) if {*names} <= {*row}]
        if number == 1 and named:
            indices, width = tuple(map(row.index, named[0])), len(row)
            continue
        if len(row) < 2:
            raise UserError(f"{path}:{number}: 1 column, a pair needs two, with a tab")
        if width and len(row) != width:
            raise UserError(f"{path}:{number}: {len(row)} columns, the header has {width}")
        yield tuple(row[index] for index in indices)


def _tmx_pairs(path: str, languages: Pair) -> Iterator[Pair]:
    """Yields the translation units that have both languages; others are counted and left out."""
    found, num_left_out, num_pairs = set(), 0, 0
    for _, unit in _elements(path, "tu"):
        texts = {}
        for variant in _children(unit, "tuv"):
            language = variant.get(_XML_LANGUAGE) or variant.get("lang") or ""
            segment = next(_children(variant, "seg"), None)
            if segment is not None:
                texts.setdefault(language, _text(segment))
        found |= {*texts}
        sides = [_in_language(texts, language) for language in languages]
        if None in sides:
            num_left_out += 1
            continue
        num_pairs += 1
        yield tuple(sides)
    if not num_pairs:
        raise UserError(
            f"{path}: no unit in {' and '.join(languages)} (config.data.source_language and "
            f"target_language); languages of the file: {', '.join(sorted(found)[:12]) or 'none'}"
        )
    if num_left_out:
        say(f"{path}: left out {num_left_out:,} units that lack {' or '.join(languages)}")


def _in_language(texts: Mapping[str, str], language: str) -> str | None:
    """Returns the text of a language, of which "en-GB" is one if "en" is asked for."""

    def plain(name: str) -> str:
        return name.lower().replace("_", "-")

    wanted = plain(language)
    names = [name for name in texts if plain(name) == wanted]
    names += [name for name in texts if plain(name).startswith(f"{wanted}-")]
    return texts[names[0]] if names else None


def _xliff_pairs(path: str, languages: Pair) -> Iterator[Pair]:
    """Yields the pairs of XLIFF 1.2 and 2.0; units that are not translated are left out."""
    # Whole <segment>s in version 2, whose <unit>s may have several.
    for named, unit in _elements(path, "trans-unit", "segment"):
        own = (
            named.get("source-language") or named.get("srcLang"),
            named.get("target-language") or named.get("trgLang"),
        )
        sides = [next(_children(unit, name), None) for name in ("source", "target")]
        if None in sides or not _is_translated(unit, sides[1]):
            continue
        texts = dict(zip(own, map(_text, sides)))
        pair = tuple(_in_language(texts, language) for language in languages if None not in texts)
        if None in pair or len(pair) < 2:
            raise UserError(
                f"{path}: from {own[0]} to {own[1]}, not between {' and '.join(languages)} "
                "(config.data.source_language and target_language)"
            )
        yield pair


def _is_translated(unit: ElementTree.Element, target: ElementTree.Element) -> bool:
    # The state of XLIFF 1.2 is that of the target, and the one of 2.0 that of the segment.
    state = target.get("state") or unit.get("state") or ""
    untranslated = state in ("new", "initial") or state.startswith("needs-")
    return bool(_text(target).strip()) and not untranslated


_XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Elements within a text whose content is markup of another format and no text.
_MARKUP = ("bpt", "ept", "ph", "it", "ut", "x", "bx", "ex")


def _elements(path: str, *names: str) -> Iterator[tuple[dict[str, str], ElementTree.Element]]:
    """Yields (attributes of all enclosing elements, element) for each element of these names.

    Memory does not grow with the file. Python's parser reads no other file, and refuses entities
    that grow without bound.
    """
    enclosing = []
    with text_files.opened(Span(path)) as file:
        try:
            for event, element in ElementTree.iterparse(file, ("start", "end")):
                if event == "start":
                    enclosing.append(element)
                    continue
                enclosing.pop()
                if any(_name(outer) in names for outer in enclosing):
                    continue  # a part of an element that is still to come
                if _name(element) in names:
                    attributes = {}
                    for outer in enclosing:
                        attributes |= outer.attrib
                    yield attributes, element
                # Its parent would otherwise keep all elements of the file.
                if enclosing:
                    del enclosing[-1][:]
        except ElementTree.ParseError as error:
            raise UserError(f"{path}: not XML ({error})") from None


def _children(element: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    return (child for child in element if _name(child) == name)


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]  # without the namespace


def _text(element: ElementTree.Element) -> str:
    inner = (
        ("" if _name(child) in _MARKUP else _text(child)) + (child.tail or "") for child in element
    )
    return (element.text or "") + "".join(inner)


_READERS = {
    ".tmx": _tmx_pairs,
    ".xlf": _xliff_pairs,
    ".xliff": _xliff_pairs,
    ".tsv": _tab_separated_pairs,
    **dict.fromkeys((".csv", ".jsonl", ".json", ".parquet", ".arrow"), _table_pairs),
}


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
            sides = (tfds.decoded(example[name], self.folder) for name in (source, target))
            yield tuple(map(_one_line, sides))


SentencePairs = TextPairs | FilePairs | GrammarPairs | TfdsPairs


def open_pairs(data, split: str) -> SentencePairs | None:
    """Returns the sentence pairs of a split ("train", "valid", "test") that `config.data` names.

    Returns None if it names none. Raises UserError if files or features do not exist, or if two
    sources are named.
    """
    _check_no_mixture(data)
    keys = f"{split}_source", f"{split}_target"
    # With a marker, pairs become running text, whose files `open_documents` reads.
    files = None if data.marker else data[f"{split}_files"]
    if files and any(data[key] for key in keys):
        raise UserError(
            f"config.data.{split}_files and {split}_source: name one source of sentence pairs"
        )
    # Users may evaluate on their own files, whatever the run was trained on.
    has_held_out_files = split != "train" and bool(files or any(data[key] for key in keys))
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
    if files:
        paths = matching_files(f"config.data.{split}_files", files)
        for path in paths:
            _reader(path)  # an unknown ending is refused before any file is read
        return FilePairs(tuple(paths), (data.source_language, data.target_language))
    if not any(data[key] for key in keys):
        return None
    for key in keys:
        if data[key] is None:
            raise UserError(f"config.data.{key} is missing: source and target files come in pairs")
        check_not_empty(f"config.data.{key}", data[key])
    return TextPairs(*(str(buckets.path(data[key])) for key in keys))


def _check_no_mixture(data) -> None:
    """Raises UserError if the config names a mixture, which only running text has."""
    if data.mixture and not data.marker:
        raise UserError(
            "config.data.mixture names running text; sentence pairs are named by "
            "config.data.train_source and train_target, or by config.data.train_files"
        )


def _check_one_source(data) -> None:
    """Raises UserError unless the config names exactly one source of training pairs."""
    corpora = [key for key in ("corpus", "tfds_name") if data[key]]
    files = [key for key in ("train_source", "train_target") if data[key]]
    both = ["train_files"] if data.train_files and not data.marker else []
    named = [*corpora, *files[:1], *both]
    if len(named) != 1:
        is_both = data.corpus and len(named) > 1
        hint = "; --config.data.corpus= leaves out the built-in text" if is_both else ""
        raise UserError(
            "name one source of text: config.data.train_source and train_target, "
            "config.data.train_files, config.data.tfds_name and tfds_dir, or config.data.corpus; "
            f"now: {', '.join(named) or 'none'}{hint}"
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
