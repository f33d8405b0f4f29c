"""Where text comes from: text files, TFDS directories, built-in corpora. Each split is a
re-iterable of pairs.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, TypeVar

from transformer_jax.config import UserError
from transformer_jax.storage import buckets

Pair = tuple[str, str]
Data = TypeVar("Data")


@dataclasses.dataclass(frozen=True)
class TextPairs:
    """Two UTF-8 text files; line n of one belongs to line n of the other."""

    source: str
    target: str

    @property
    def target_language(self) -> str | None:
        """The two-letter code that the target's name ends in (train.fr, train.fr.txt)."""
        endings = [ending.lower() for ending in self.target.rpartition("/")[2].split(".")[1:]]
        return next((ending for ending in reversed(endings) if len(ending) == 2), None)

    def fingerprint(self) -> dict:
        return {"files": [sha256(self.source), sha256(self.target)]}

    def __iter__(self) -> Iterator[Pair]:
        count = 0
        for source, target in itertools.zip_longest(
            text_lines(self.source), text_lines(self.target)
        ):
            if source is None or target is None:
                longer, shorter = (
                    (self.target, self.source) if source is None else (self.source, self.target)
                )
                raise UserError(
                    f"{shorter} has {count} lines, {longer} has more: line n of one must belong to line n of the other"
                )
            count += 1
            yield source, target


@dataclasses.dataclass(frozen=True)
class GrammarPairs:
    """The built-in English-German grammar."""

    split: str
    size: int
    target_language: ClassVar[str] = "de"

    def fingerprint(self) -> dict:
        from transformer_jax.data import grammar  # its lexicon is read only by those who want it

        return {"grammar": grammar.VERSION, "split": self.split, "size": self.size}

    def __iter__(self) -> Iterator[Pair]:
        from transformer_jax.data import grammar

        return grammar.pairs(0, self.split, self.size)


@dataclasses.dataclass(frozen=True)
class TfdsPairs:
    """A split of a translation set that TFDS has prepared as array_record; TensorFlow is not
    needed.
    """

    folder: str
    split: str
    languages: Pair

    @property
    def target_language(self) -> str:
        return self.languages[1]

    def fingerprint(self) -> dict:
        return {
            "tfds": sha256(f"{self.folder}/dataset_info.json"),
            "split": self.split,
            "languages": list(self.languages),
        }

    def __iter__(self) -> Iterator[Pair]:
        source, target = self.languages
        for example in tfds_examples(self.folder, self.split):
            if missing := {source, target} - set(example):
                raise UserError(
                    f"{self.folder}: no feature {sorted(missing)[0]!r}, only {', '.join(example)}; "
                    "set config.data.source_language and config.data.target_language"
                )
            yield tuple(
                " ".join(decoded(text, self.folder).splitlines())
                for text in (example[source], example[target])
            )


def pairs(data, split: str):
    """The sentence pairs of a split ("train", "valid", "test") that `config.data` names; None if it
    names none.

    Raises UserError where the split's files or features are not there, or where two sources are
    named.
    """
    if not data.marker and (
        running := [key for key in ("train_files", f"{split}_files", "mixture") if data[key]]
    ):
        raise UserError(
            f"config.data.{running[0]} names running text; sentence pairs are named by config.data.{split}_source and {split}_target"
        )
    files = data[f"{split}_source"], data[f"{split}_target"]
    # a user's own text, beside whatever the run was trained on
    own = split != "train" and any(files)
    named = {
        key.partition("_")[0]: key
        for key in ("corpus", "tfds_name", "train_target", "train_source")
        if data[key]
    }
    if len(named) != 1:
        raise UserError(
            "name one source of text: config.data.train_source and train_target, config.data.tfds_name and tfds_dir, "
            f"or config.data.corpus; now: {', '.join(named.values()) or 'none'}"
        )
    if data.corpus and not own:
        if data.corpus != "grammar":
            raise UserError(
                f"config.data.corpus={data.corpus}: no sentence pairs; there is: grammar"
            )
        return GrammarPairs(split, data.corpus_size if split == "train" else 1000)
    if data.tfds_name and not own:
        found = tfds_folder(data, split)
        return found and TfdsPairs(*found, (data.source_language, data.target_language))
    if not any(files):
        return None
    for key, file in zip((f"config.data.{split}_source", f"config.data.{split}_target"), files):
        if file is None:
            raise UserError(f"{key} is missing: source and target files come in pairs")
        filled(key, file)
    return TextPairs(*(str(buckets.path(f)) for f in files))


def filled(key: str, file: str) -> None:
    """Raises UserError where there is no such file, on a disk or in a bucket, or nothing in it.
    `key` is who names it.
    """
    if not buckets.path(file).is_file():
        raise UserError(f"{key}={file}: no such file")
    with buckets.path(file).open("rb") as content:
        if not content.read(1):
            raise UserError(f"{key}={file}: the file is empty")


def held_out(read: Callable[[str], Data | None], split: str, *endings: str) -> Data:
    """Returns the data of a split that is not trained on, `read(split)`.

    Raises UserError where `split` is not "valid" or "test", and where the run has no such data.
    The error then asks for the keys `config.data.<split>_<ending>`.
    """
    if split not in ("valid", "test"):
        raise UserError(f"split {split!r}: only 'valid' and 'test' can be evaluated")
    data = read(split)
    if data is None:
        keys = " and ".join(f"--config.data.{split}_{ending}" for ending in endings)
        raise UserError(f"--set={split}: this run has no such data; give {keys}")
    return data


def several(texts: Iterable[str]) -> Iterable[str]:
    """The texts. Raises TypeError for a single one, which would else be taken for as many texts as
    it has characters.
    """
    if isinstance(texts, str):
        raise TypeError(f"a list of texts is asked for: [{texts[:30]!r}], not the text alone")
    return texts


def text_lines(path: str, keep_ends: bool = False) -> Iterator[str]:
    """The lines of a UTF-8 file, "-" being stdin, without their ends unless they are kept; only
    "\\n" and "\\r\\n" end a line, a byte-order mark is dropped.
    """
    with (
        contextlib.nullcontext(sys.stdin.buffer)
        if path == "-"
        else buckets.path(path).open("rb") as file
    ):
        for number, raw in enumerate(file, 1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{'stdin' if path == '-' else path}:{number}: not UTF-8 ({error.reason} at byte {error.start} of the line)"
                ) from None
            line = line.removeprefix("\ufeff" if number == 1 else "")
            yield line if keep_ends else line.rstrip("\n").removesuffix("\r")


def from_json(text: str, where: str):
    """The value. Raises UserError where it is none, or holds half a character (\\ud83d without its
    other half), which no tokenizer takes.
    """
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: half a character (a lone surrogate \\ud800 to \\udfff)"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    return found


def tfds_folder(data, split: str) -> tuple[str, str] | None:
    """(folder, its name of the split) of the prepared set `config.data.tfds_name` names; None if it
    has no such split.
    """
    if not data.tfds_dir:
        raise UserError(
            "config.data.tfds_name needs config.data.tfds_dir, the data_dir the set was prepared in"
        )
    if "://" in data.tfds_dir:
        raise UserError(
            f"config.data.tfds_dir={data.tfds_dir}: prepared TFDS sets are read from disks only"
        )
    base = buckets.path(data.tfds_dir)
    root = base / data.tfds_name
    # a killed preparation leaves others
    found = [
        p.parent
        for p in root.rglob("dataset_info.json")
        if re.fullmatch(r"\d+\.\d+\.\d+", p.parent.name)
    ]
    if not found:
        raise UserError(
            f"{root}: no prepared TFDS set here (dataset_info.json); prepare it with launch/prepare_tfds.sh {data.tfds_name} {data.tfds_dir}"
        )
    if len(sets := sorted({str(p.parent.relative_to(base)) for p in found})) > 1:
        raise UserError(
            f"config.data.tfds_name={data.tfds_name}: several sets are prepared there, name one: {', '.join(sets)}"
        )
    folder = max(found, key=lambda p: [int(number) for number in p.name.split(".")])
    info = from_json(
        (folder / "dataset_info.json").read_text(errors="replace"),
        str(folder / "dataset_info.json"),
    )
    if info.get("fileFormat") != "array_record":
        raise UserError(
            f"{folder}: prepared as {info.get('fileFormat', 'tfrecord')}; prepare it with --file_format=array_record"
        )
    asked, there = data[f"{split}_split"], [s["name"] for s in info["splits"]]
    name = asked or {"valid": "validation"}.get(split, split)
    if name not in there:
        if split == "train" or asked:
            raise UserError(
                f"{folder}: no split {name!r}; config.data.{split}_split may be one of {', '.join(there)}"
            )
        return None
    return str(folder), name


def tfds_examples(folder: str, split: str) -> Iterator[dict]:
    import tensorflow_datasets as tfds  # slow to import

    yield from tfds.builder_from_directory(folder).as_data_source(split=split)


def tfds_class_names(folder: str, feature: str) -> list[str] | None:
    """The names of a class label's values; None where the feature is none."""
    import tensorflow_datasets as tfds

    features = tfds.builder_from_directory(folder).info.features
    return getattr(features[feature], "names", None) if feature in features else None


def decoded(text: bytes | str, where: str) -> str:
    if isinstance(text, str):
        return text
    if not isinstance(text, bytes):
        raise UserError(
            f"{where}: a {type(text).__name__} where text should be; config.data.text_field names the feature"
        )
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{where}: an example is not UTF-8") from None


def sha256(path: str) -> str:
    """Of a file's bytes."""
    return _digest(path, buckets.version(path))


@functools.lru_cache
def _digest(path: str, _version) -> str:
    with buckets.path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
