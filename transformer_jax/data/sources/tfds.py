"""Data sets that TensorFlow Datasets (TFDS) has prepared as array_record.

Reading them does not need TensorFlow. The functions import tensorflow_datasets when they run,
because the import is slow.
"""

import pathlib
import re
from collections.abc import Iterator

from transformer_jax.config import UserError
from transformer_jax.data.sources import text_files as cutting
from transformer_jax.data.sources.text_files import from_json, sha256
from transformer_jax.storage import buckets

NO_LABEL = -1  # by which TFDS says that the label of an example is not known
_DEFAULT_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def prepared_split(data, split: str) -> tuple[str, str] | None:
    """Returns (folder, split name) for a split of the set that `config.data.tfds_name` names.

    The folder is the one of the newest prepared version. Returns None if the set has no validation
    or test split and the config does not name one. Raises UserError if the set has not been
    prepared, is ambiguous, or has another format.
    """
    if not data.tfds_dir:
        raise UserError(
            f"config.data.tfds_name={data.tfds_name}: needs config.data.tfds_dir, "
            "the data_dir that the set was prepared in"
        )
    if "://" in data.tfds_dir:
        raise UserError(
            f"config.data.tfds_dir={data.tfds_dir}: prepared TFDS sets are read from disks only"
        )
    folder = _newest_version(data)
    info_file = folder / "dataset_info.json"
    info = from_json(info_file.read_text(errors="replace"), str(info_file))
    if info.get("fileFormat") != "array_record":
        raise UserError(
            f"{folder}: prepared as {info.get('fileFormat', 'tfrecord')}; "
            "prepare it with --file_format=array_record"
        )
    configured_name = data[f"{split}_split"]
    name = configured_name or _DEFAULT_SPLITS[split]
    available = [entry["name"] for entry in info["splits"]]
    if name in available:
        return str(folder), name
    if split == "train" or configured_name:
        raise UserError(
            f"{folder}: no split {name!r}; "
            f"config.data.{split}_split may be one of {', '.join(available)}"
        )
    return None


def _newest_version(data) -> pathlib.Path:
    """Returns the folder of the newest version of the set. Raises UserError if there is none."""
    data_dir = buckets.path(data.tfds_dir)
    root = data_dir / data.tfds_name
    # A preparation that was killed leaves folders with other names.
    folders = [
        file.parent
        for file in root.rglob("dataset_info.json")
        if re.fullmatch(r"\d+\.\d+\.\d+", file.parent.name)
    ]
    if not folders:
        raise UserError(
            f"{root}: no prepared TFDS set here (dataset_info.json); "
            f"prepare it with launch/prepare_tfds.sh {data.tfds_name} {data.tfds_dir}"
        )
    names = sorted({str(folder.parent.relative_to(data_dir)) for folder in folders})
    if len(names) > 1:
        raise UserError(
            f"config.data.tfds_name={data.tfds_name}: several sets are prepared there, "
            f"name one: {', '.join(names)}"
        )
    # By number, because as texts 10.0.0 would come before 9.0.0.
    return max(folders, key=_version_number)


def _version_number(folder: pathlib.Path) -> list[int]:
    return [int(number) for number in folder.name.split(".")]


def digest(folder: str) -> str:
    """Returns the digest of the dataset_info.json that TFDS has written for a prepared set.

    It is used instead of the digests of all data files, which would take long to compute.
    """
    [digest] = sha256([f"{folder}/dataset_info.json"])
    return digest


def examples(folder: str, split: str, encoded: tuple[str, ...] = ()) -> Iterator[dict]:
    """Yields the examples of a prepared split as dictionaries of features.

    The features in `encoded`, such as images, are returned as the bytes of their files. Raises
    UserError if the set lacks one of them.
    """
    import tensorflow_datasets

    # From the folder, because without TensorFlow the library does not list all of its builders by
    # name.
    builder = tensorflow_datasets.builder_from_directory(folder)
    check_features(folder, dict(builder.info.features or {}), encoded)
    # Records keep the files as they are, and all images are decoded with the same limits.
    skipped = {name: tensorflow_datasets.decode.SkipDecoding() for name in encoded}
    yield from builder.as_data_source(split=split, decoders=skipped or None)


def parts(folder: str, split: str) -> list[str]:
    """Returns the names of the parts of a prepared split, such as "train[0:1000]"."""
    import tensorflow_datasets

    info = tensorflow_datasets.builder_from_directory(folder).info.splits[split]
    ranges = cutting.ranges(info.num_examples, info.num_bytes)
    return [f"{split}[{start}:{stop}]" for start, stop in ranges]


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
