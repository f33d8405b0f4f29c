"""The user's own images: a folder of files for each class, arrays of pixels, or a TFDS set."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator
from functools import cached_property

from transformer_jax.config import UserError
from transformer_jax.contracts.source import ImageSource
from transformer_jax.data import array_files, images
from transformer_jax.data import images as image_files
from transformer_jax.data.images import NO_LABEL
from transformer_jax.data.sources import text_files, tfds
from transformer_jax.data.store import Record
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets

# Bytes. If the files are larger, the fingerprint has their sizes instead of digests of their
# contents, because reading them would delay the start of training.
_DIGESTED = 2**30
_MOST_NAMED = 5  # damaged files that are named; a set may have thousands of them


@dataclasses.dataclass
class Images(ImageSource):
    """Image files (PNG, JPEG, WEBP, BMP, GIF), arrays uint8 (N, H, W, C), or a TFDS set.

    config.data.train_files names folders, files or patterns; folders are searched recursively. The
    class of an image file is the name of the folder that contains it. An .npz file has the arrays
    "images" and "labels", and the labels of FILE.npy are in FILE.labels.npy. With
    config.data.tfds_name, images come from a TFDS set instead of files.
    """

    # leave out, and count, files that are damaged, too large or of another format; false: they are
    # errors
    skip_damaged: bool = False
    image_feature: str = "image"  # feature of a TFDS set that is the image
    label_feature: str = "label"  # feature of a TFDS set that is the class

    # A cached property and not a field, because the fields of a source are its config keys. Listing
    # a large folder takes time, and labels, fingerprint and records all need the list.
    @cached_property
    def _listed(self) -> dict[str, list[str] | None]:
        """The files of each split that was requested so far."""
        return {}

    def files(self, split: str) -> list[str] | None:
        """Returns the files of a split, including those in named folders."""
        if split not in self._listed:
            self._listed[split] = self._files(split)
        return self._listed[split]

    def _files(self, split: str) -> list[str] | None:
        key = f"config.data.{split}_files"
        patterns = self.data[f"{split}_files"]
        if not patterns:
            return super().files(split)  # None, or an error for the training files
        files = []
        for name in patterns.split(","):
            path = buckets.path(name.strip())
            matches = _in_folder(path) if path.is_dir() else buckets.matches(name.strip())
            if not matches:
                kinds = ", ".join(image_files.ENDINGS)
                raise UserError(f"{key}={name}: no such file, or a folder without images ({kinds})")
            files += matches
        # A pattern such as *.npy matches the labels, too.
        files = [file for file in files if not array_files.is_labels(file)]
        if len({file.endswith(array_files.ENDINGS) for file in files}) > 1:
            raise UserError(f"{key}={patterns}: names arrays and image files; name one kind")
        return files

    def label_names(self, split: str) -> tuple[str, ...]:
        if self.data.tfds_name:
            prepared = tfds.prepared_split(self.data, split, stored=True)
            names = prepared and tfds.class_names(prepared[0], self.label_feature)
            return tuple(names or ())
        files = self.files(split) or []
        if _are_arrays(files):
            labels = [array_files.labels(file) for file in files]
            if any(each is None for each in labels):
                return ()
            return tuple(map(str, range(1 + max(int(each.max(initial=0)) for each in labels))))
        # Sorted, because the order of the names defines the labels, and folders are listed in any
        # order.
        return tuple(sorted({_class_of(file) for file in files}))

    def fingerprint(self, split: str) -> list | None:
        if self.data.tfds_name:
            prepared = tfds.prepared_split(self.data, split, stored=True)
            return prepared and [tfds.digest(prepared[0]), prepared[1]]
        files = self.files(split)
        return None if files is None else [_digest(files)]

    def read(self, split: str) -> Iterator[Record]:
        if self.data.tfds_name:
            yield from self._without_damaged(self._prepared(split))
        elif _are_arrays(self.files(split)):
            yield from self._array_records(split)
        else:
            yield from self._without_damaged(self._file_records(split))

    def _array_records(self, split: str) -> Iterator[Record]:
        for file in self.files(split):
            labels = array_files.labels(file)
            for number, pixels in enumerate(array_files.images(file, self.max_pixels)):
                label = NO_LABEL if labels is None else int(labels[number])
                yield images.record_of_pixels(pixels, label)

    def _file_records(self, split: str) -> Iterator[Record | UserError]:
        """Yields the record of each file, or the error that reading it raised."""
        labels = {name: label for label, name in enumerate(self.label_names(split))}
        for file in self.files(split):
            try:
                content = image_files.file_bytes(file, self.max_bytes)
                size = image_files.check_file(content, file, self.max_pixels)
                yield images.record_of_file(content, size, labels[_class_of(file)])
            except UserError as error:
                # Not raised here: a generator ends with the first exception that it raises, and the
                # next files would be lost.
                yield error

    def _prepared(self, split: str) -> Iterator[Record | UserError]:
        """Yields the record of each example of a TFDS set, or the error that reading it raised."""
        folder, name = tfds.prepared_split(self.data, split, stored=True)
        has_labels = bool(self.label_names(split))
        encoded = (self.image_feature,)
        for number, example in enumerate(tfds.examples(folder, name, encoded)):
            where = f"{folder}: {name}: example {number}"
            label = int(example[self.label_feature]) if has_labels else NO_LABEL
            try:
                content = bytes(example[self.image_feature])
                size = image_files.check_file(content, where, self.max_pixels)
                yield images.record_of_file(content, size, label)
            except UserError as error:
                yield error

    def _without_damaged(self, records: Iterator[Record | UserError]) -> Iterator[Record]:
        """Yields the records. Raises the first error, unless `skip_damaged`: then counts them."""
        skipped = 0
        for record in records:
            if isinstance(record, Record):
                yield record
            elif not self.skip_damaged:
                raise record
            else:
                skipped += 1
                if skipped <= _MOST_NAMED:
                    say(f"left out: {record}")
        if skipped:
            say(f"{skipped:,} damaged images are left out")


def _in_folder(folder: pathlib.Path | buckets.Path) -> list[str]:
    """Returns the image files in a folder and its subfolders, in sorted order.

    Hidden files and folders are left out: programs write previews and copies of images there, such
    as ._cat.jpg and .ipynb_checkpoints, which would become examples and classes.
    """
    endings = image_files.ENDINGS
    with buckets.reading(folder):
        files = [file for file in folder.glob("**/*") if file.suffix.lower() in endings]
    return sorted(str(file) for file in files if not buckets.is_hidden(file, folder))


def _are_arrays(files: list[str]) -> bool:
    return bool(files) and files[0].endswith(array_files.ENDINGS)


def _class_of(file: str) -> str:
    """Returns the name of the folder that contains a file."""
    return file.rpartition("/")[0].rpartition("/")[2]


def _digest(files: list[str]) -> str:
    """Returns a digest of the classes, names and contents of files."""
    # The last two parts of a path are the class and the name. Folders above them don't count, so
    # that a set that is moved keeps its digest.
    sizes = [buckets.size(file) for file in files]
    contents = sizes if sum(sizes) > _DIGESTED else text_files.sha256(files)
    named = [[*file.rsplit("/", 2)[-2:], content] for file, content in zip(files, contents)]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()
