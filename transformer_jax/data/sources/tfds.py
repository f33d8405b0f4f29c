"""Data sets that TensorFlow Datasets (TFDS) has prepared as array_record, on a disk or in a bucket.

Reading them does not need TensorFlow. The functions import tensorflow_datasets when they run,
because the import is slow.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator

from transformer_jax.config import UserError
from transformer_jax.data.sources import text_files as cutting
from transformer_jax.data.sources.text_files import from_json, sha256
from transformer_jax.data.store import Folder
from transformer_jax.pictures.progress import doing, say
from transformer_jax.storage import buckets

NO_LABEL = -1  # by which TFDS says that the label of an example is not known
_DEFAULT_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def prepared_split(data, split: str, stored: bool = False) -> tuple[str, str] | None:
    """Returns (folder, split name) for a split of the set that `config.data.tfds_name` names.

    The folder is the one of the newest prepared version. With `stored`, for data that is kept in
    stores, it is the copy of its description in `config.data.cache` if the set itself is not there.
    A slice such as "train[:95%]" is returned with numbers of examples, as in "train[0:950]".
    Returns None if the set has no validation or test split and the config does not name one. Raises
    UserError if the set has not been prepared, is ambiguous, or has another format, or if a
    held-out slice overlaps the training split.
    """
    folder = _described(data) if stored else _prepared(data)
    if folder is None:
        raise UserError(_not_prepared(data))
    info_file = folder / "dataset_info.json"
    info = from_json(info_file.read_bytes().decode(errors="replace"), str(info_file))
    if info.get("fileFormat") != "array_record":
        raise UserError(
            f"{folder}: prepared as {info.get('fileFormat', 'tfrecord')}; "
            "prepare it with --file_format=array_record"
        )
    available = [entry["name"] for entry in info["splits"]]

    def absolute(split: str) -> str | None:
        """Returns the name of a split or slice, or None if the set lacks a split by default."""
        configured_name = data[f"{split}_split"]
        name = configured_name or _DEFAULT_SPLITS[split]
        if name in available:
            return name
        if re.search(r"[\[+]", name):
            return _absolute(str(folder), f"config.data.{split}_split={name}", name)
        if split == "train" or configured_name:
            raise UserError(
                f"{folder}: no split {name!r}; "
                f"config.data.{split}_split may be one of {', '.join(available)}"
            )
        return None

    name = absolute(split)
    training = data.train_split or "train"
    # Not for whole splits: who names the same one for both, wants the scores on the training
    # examples. But that a slice needs another one for training is easily forgotten.
    if split != "train" and name and re.search(r"[\[+]", name + training):
        if training not in available:
            training = absolute("train")
        if _overlap(name, training):
            raise UserError(
                f"config.data.{split}_split={data[f'{split}_split'] or name}: has training "
                f"examples in it, because config.data.train_split={data.train_split or 'train'}; "
                "name parts without common examples, such as train[:95%] and train[95%:]"
            )
    return None if name is None else (str(folder), name)


def _not_prepared(data) -> str:
    if not data.tfds_dir:
        return (
            f"config.data.tfds_name={data.tfds_name}: needs config.data.tfds_dir, "
            "the data_dir that the set was prepared in"
        )
    return (
        f"{data.tfds_dir.rstrip('/')}/{data.tfds_name}: no prepared TFDS set here "
        "(dataset_info.json); "
        f"prepare it with launch/prepare_tfds.sh {data.tfds_name} {data.tfds_dir}"
    )


def _prepared(data) -> pathlib.Path | buckets.Path | None:
    """Returns the folder of the newest version of the set in `config.data.tfds_dir`, or None."""
    if not data.tfds_dir:
        return None
    with buckets.reading(f"config.data.tfds_dir={data.tfds_dir}"):
        return _newest_version(buckets.path(data.tfds_dir), data.tfds_name)


def _newest_version(data_dir, name: str) -> pathlib.Path | buckets.Path | None:
    """Returns the folder of the newest version of the set `name` in `data_dir`, or None."""
    # A preparation that was killed leaves folders with other names.
    folders = [
        file.parent
        for file in (data_dir / name).rglob("dataset_info.json")
        if re.fullmatch(r"\d+\.\d+\.\d+", file.parent.name)
    ]
    if not folders:
        return None
    names = sorted({str(folder.parent.relative_to(data_dir)) for folder in folders})
    if len(names) > 1:
        raise UserError(
            f"config.data.tfds_name={name}: several sets are prepared there, "
            f"name one: {', '.join(names)}"
        )
    # By number, because as texts 10.0.0 would come before 9.0.0.
    return max(folders, key=_version_number)


def _version_number(folder) -> list[int]:
    return [int(number) for number in folder.name.split(".")]


# --------------------------------------------------------------------------------------------------
# Slices of splits, such as "train[95%:]" or "train[:1000]+test", in TFDS's notation.


def _absolute(folder: str, key: str, name: str) -> str:
    """Returns a slice with numbers of examples instead of percentages, as in "train[0:950]".

    So equal slices have equal fingerprints. `key` is the config key with its value. Raises
    UserError if the slice is not well formed or has no examples.
    """
    import tensorflow_datasets

    splits = tensorflow_datasets.builder_from_directory(folder).info.splits
    try:
        slices = tensorflow_datasets.core.ReadInstruction.from_spec(name).to_absolute(splits)
    except (ValueError, NotImplementedError):
        sizes = ", ".join(f"{name} ({splits[name].num_examples:,})" for name in splits)
        raise UserError(
            f"{key}: not a slice such as train[:95%] or train[:1000] of the splits in {folder}, "
            f"which are, with their numbers of examples, {sizes}"
        ) from None
    bounds = []
    for part in slices:
        # TFDS has None for the start and the end of the split.
        stop = splits[part.splitname].num_examples if part.to is None else part.to
        if (start := part.from_ or 0) < stop:
            bounds.append(f"{part.splitname}[{start}:{stop}]")
    if not bounds:
        raise UserError(f"{key}: has no examples")
    return "+".join(bounds)


def _ranges(split: str) -> list[tuple[str, int, float]]:
    """Returns the split, start and stop of each part of a split or of an absolute slice."""
    slices = re.findall(r"([^+\[]+)\[(\d+):(\d+)\]", split)
    return [(name, int(start), int(stop)) for name, start, stop in slices] or [(split, 0, math.inf)]


def _overlap(first: str, second: str) -> bool:
    return any(
        name == other and max(start, other_start) < min(stop, other_stop)
        for name, start, stop in _ranges(first)
        for other, other_start, other_stop in _ranges(second)
    )


# --------------------------------------------------------------------------------------------------
# Copies of the descriptions of sets, so that training needs the token stores alone.
#
# The folder `tfds` of `config.data.cache` has the same layout as the data_dir of TFDS, with the
# description of each set (dataset_info.json, the features and the names of classes) but not its
# shards. The keys of stores and the bounds of parts depend on nothing else. Held-out texts are read
# at every evaluation, so the small shards of such splits are copied, too.

_DESCRIPTION_BYTES = 2**24  # in a file; larger ones belong to no description
_SMALL_SPLIT = 2**26  # bytes; the validation and test splits of WMT and of most other sets


def _described(data) -> pathlib.Path | buckets.Path | None:
    """Returns the folder of the set, or else of the copy of its description, or None."""
    copies = Folder(f"{str(data.cache).rstrip('/')}/tfds")
    folder = _prepared(data)
    if folder is not None:
        name = str(folder.relative_to(buckets.path(data.tfds_dir)))
        _keep_description(folder, name, copies)
        return folder
    with buckets.reading(f"config.data.cache={data.cache}"):
        folder = _newest_version(buckets.path(copies.path), data.tfds_name)
    if folder is not None:
        _say_described(data.tfds_name, data.tfds_dir, str(folder))
    return folder


@functools.cache
def _say_described(name: str, tfds_dir: str | None, folder: str) -> None:
    where = f"config.data.tfds_dir={tfds_dir} does not have it" if tfds_dir else "no tfds_dir"
    say(f"TFDS set {name}: {where}; training reads its token stores, as {folder} describes it")


def _keep_description(folder, name: str, kept: Folder) -> None:
    """Copies what describes a set to `name` in the folder `kept`, dataset_info.json last."""
    # Without permission to write, or if the disk is full, there is merely no copy.
    with contextlib.suppress(UserError, OSError):
        info = (folder / "dataset_info.json").read_bytes()
        if kept.read(f"{name}/dataset_info.json") == info:
            return
        with kept.exclusive():
            # Shards of another preparation do not belong to this description.
            for old in kept.names():
                if old.startswith(f"{name}/"):
                    kept.delete(old)
            for file in folder.iterdir():
                is_shard = ".array_record" in file.name
                if is_shard or file.name.startswith(".") or not file.is_file():
                    continue
                if file.name != "dataset_info.json" and buckets.size(file) <= _DESCRIPTION_BYTES:
                    kept.write(f"{name}/{file.name}", file.read_bytes())
            kept.write(f"{name}/dataset_info.json", info)


def keep_held_out(data) -> None:
    """Copies the shards of small validation and test splits beside the description of the set."""
    copies = Folder(f"{str(data.cache).rstrip('/')}/tfds")
    for split in ("valid", "test"):
        prepared = prepared_split(data, split, stored=True)
        if prepared and not prepared[0].startswith(str(copies.path)):
            _keep_shards(*prepared, str(buckets.path(data.tfds_dir)), copies)


def _keep_shards(folder: str, split: str, data_dir: str, kept: Folder) -> None:
    import tensorflow_datasets

    splits = tensorflow_datasets.builder_from_directory(folder).info.splits
    whole = {name: splits[name] for name, _, _ in _ranges(split)}
    shards = splits[split].file_instructions
    share = sum(shard.examples_in_shard for shard in shards) / max(
        sum(info.num_examples for info in whole.values()), 1
    )
    if share * sum(int(info.num_bytes) for info in whole.values()) > _SMALL_SPLIT:
        return
    with contextlib.suppress(UserError, OSError):
        for shard in shards:
            name = shard.filename.removeprefix(data_dir).lstrip("/")
            if not kept.has(name):
                with kept.exclusive():
                    kept.write(name, buckets.path(shard.filename).read_bytes())


# --------------------------------------------------------------------------------------------------
# Reading a prepared set.


def digest(folder: str) -> str:
    """Returns the digest of the dataset_info.json that TFDS has written for a prepared set.

    It is used instead of the digests of all data files, which would take long to compute.
    """
    [digest] = sha256([f"{folder}/dataset_info.json"])
    return digest


def examples(folder: str, split: str, encoded: tuple[str, ...] = ()) -> Iterator[dict]:
    """Yields the examples of a prepared split or slice as dictionaries of features.

    The features in `encoded`, such as images, are returned as the bytes of their files. Raises
    UserError if the set lacks one of them, or a shard.
    """
    import tensorflow_datasets
    from array_record.python import array_record_data_source

    # From the folder, because without TensorFlow the library does not list all of its builders by
    # name.
    info = tensorflow_datasets.builder_from_directory(folder).info
    check_features(folder, dict(info.features or {}), encoded)
    # Records keep the files as they are, and all images are decoded with the same limits.
    skipped = {name: tensorflow_datasets.decode.SkipDecoding() for name in encoded}
    # Not builder.as_data_source: array_record reads from disks only, so that the shards of a set in
    # a bucket are copied, one after the other.
    for shard in info.splits[split].file_instructions:
        file = buckets.path(shard.filename)
        if not file.is_file():
            raise UserError(
                f"{file}: no such file. Without the files of the set, training needs complete "
                "stores in config.data.cache, which `prepare` builds where the set is"
            )
        copy = None
        if isinstance(file, buckets.Path):
            # A variable holds it, because the copy is deleted with the last reference.
            copy = _copied(str(file), buckets.version(file))
        on_disk = dataclasses.replace(shard, filename=copy.path if copy else str(file))
        for record in array_record_data_source.ArrayRecordDataSource(on_disk):
            yield info.features.deserialize_example_np(record, decoders=skipped or None)


class _Copy:
    """A copy of a file of a bucket on the disk. It is deleted with this object."""

    def __init__(self, file: str):
        descriptor, self.path = tempfile.mkstemp(prefix="transformer_jax-")
        weakref.finalize(self, pathlib.Path(self.path).unlink, missing_ok=True)
        try:
            with (
                doing(f"copying {file} to {self.path}"),
                open(descriptor, "wb") as target,
                buckets.path(file).open("rb") as source,
            ):
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise UserError(
                f"{file}: can't be copied to {tempfile.gettempdir()} "
                f"({error.strerror or error}); TMPDIR names another folder"
            ) from None


@functools.lru_cache(maxsize=2)  # the parts of a text follow each other, so they share shards
def _copied(file: str, _version: tuple) -> _Copy:
    return _Copy(file)


def parts(folder: str, split: str) -> list[str]:
    """Returns the names of the parts of a prepared split or slice, such as "train[0:1000]"."""
    import tensorflow_datasets

    splits = tensorflow_datasets.builder_from_directory(folder).info.splits
    names = []
    for name, first, last in _ranges(split):
        info = splits[name]
        count = min(last, info.num_examples) - first
        num_bytes = int(info.num_bytes) * count // max(info.num_examples, 1)
        ranges = cutting.ranges(count, num_bytes)
        names += [f"{name}[{first + start}:{first + stop}]" for start, stop in ranges]
    return names


def check_features(folder: str, example: dict, features: tuple[str, ...], remedy: str = "") -> None:
    """Raises UserError if the example lacks one of the features."""
    missing = [feature for feature in features if feature not in example]
    if missing:
        available = ", ".join(example)
        raise UserError(f"{folder}: no feature {missing[0]!r}, only {available}{remedy}")


def class_names(folder: str, feature: str) -> list[str] | None:
    """Returns the class names of a feature, or None if the feature is not a class label."""
    import tensorflow_datasets

    features = tensorflow_datasets.builder_from_directory(folder).info.features
    return getattr(features[feature], "names", None) if feature in features else None


def decoded(text: bytes | str, where: str) -> str:
    """Returns a text feature as a string; `where` is its location for error messages.

    Raises UserError if it is not a text or not UTF-8.
    """
    if isinstance(text, str):
        return text
    if not isinstance(text, bytes):
        raise UserError(
            f"{where}: a feature of type {type(text).__name__} where text should be; "
            "config.data.text_field names the feature"
        )
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{where}: an example is not UTF-8") from None
