"""Audio from manifests, in which each line names an audio file and has its transcript."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from transformer_jax.config import Range, UserError
from transformer_jax.contracts.source import Source
from transformer_jax.data import speech
from transformer_jax.data.sources import text_files
from transformer_jax.data.sources.text_files import Location, Span, from_json, text_lines
from transformer_jax.data.speech import DamagedSound, Utterance
from transformer_jax.pictures.progress import say


class _Entry(NamedTuple):
    """A line of a manifest."""

    location: Location
    path: str
    text: str


@dataclasses.dataclass
class Sound(Source):
    """WAV and FLAC files in the manifests that config.data.train_files names.

    A line of a manifest is FILE<tab>TRANSCRIPT, or only FILE for audio without a transcript. In a
    *.jsonl manifest, a line is {"file": ..., "text": ...}. Files must be in the folder of the
    manifest or below it.
    """

    version = 2  # the first one stored 16 bits of each sample, whatever the file had

    # samples of a file, over all channels; a longer file is refused before it is decoded
    most_samples: Annotated[int, Range(least=1)] = speech.MOST_SAMPLES
    # samples per second to which files are resampled, which is config.model.sampling_rate
    sampling_rate: Annotated[int, Range(least=1_000)] = speech.RATE
    outside: bool = False  # manifests may name files outside their own folders
    # a file that is empty, damaged or too long: an error, or left out and counted
    faulty: Literal["refuse", "skip"] = "refuse"

    def fingerprint(self, split):
        manifests = self.files(split)
        if manifests is None:
            return None
        # Digests of the audio files, too, because a file may change while its manifest stays the
        # same.
        paths = [entry.path for manifest in manifests for entry in self._entries(manifest)]
        return [text_files.sha256(manifests), text_files.sha256(paths)]

    def read(self, split):
        skipped = 0
        for manifest in self.files(split):
            for entry in self._entries(manifest):
                try:
                    samples = speech.read(
                        entry.path,
                        f"{entry.location}: {entry.path}",
                        self.most_samples,
                        self.sampling_rate,
                    )
                except DamagedSound as error:
                    if self.faulty == "refuse":
                        raise UserError(
                            f"{error}; config.source.faulty=skip leaves such files out"
                        ) from None
                    skipped += 1
                    continue
                yield speech.record(Utterance(samples, entry.text))
        if skipped:
            say(f"{split}: {skipped:,} files left out: empty, damaged or too long")

    def _entries(self, manifest: str) -> Iterator[_Entry]:
        """Yields the entries of a manifest. Raises UserError for a line without a valid file."""
        for index, line in enumerate(text_lines(manifest)):
            if not line.strip():
                continue
            location = Location(Span(manifest), index)
            if manifest.endswith(".jsonl"):
                name, text = _json_entry(line, location)
            else:
                name, _, text = line.partition("\t")
            path = self._path(manifest, name.strip(), location)
            # Single spaces, because a boundary token stands for each of them.
            yield _Entry(location, path, " ".join(text.split()))

    def _path(self, manifest: str, name: str, location: Location) -> str:
        """Returns the path of a file. Raises UserError if the manifest may not name it.

        By default, files outside the manifest's folder are refused, so that a manifest from someone
        else can't make the program read other files.
        """
        if "://" in manifest or "://" in name:
            folder = manifest.rpartition("/")[0]
            path = name if "://" in name else f"{folder}/{name}"
            is_inside = path.startswith(f"{folder}/") and ".." not in path.split("/")
        else:
            # Links are resolved first, since a link in the folder could lead out of it.
            folder = pathlib.Path(manifest).resolve().parent
            path = os.fspath((folder / name).resolve())
            is_inside = pathlib.Path(path).is_relative_to(folder)
        if not is_inside and not self.outside:
            raise UserError(
                f"{location}: {name} is outside the manifest's folder; config.source.outside=true "
                "allows it"
            )
        if "://" not in path and not os.path.isfile(path):
            raise UserError(f"{location}: {name}: no such file")
        return path


def _json_entry(line: str, location: Location) -> tuple[str, str]:
    """Returns the name of a file and its transcript. Raises UserError for another value."""
    value = from_json(line, location)
    if not isinstance(value, dict) or not isinstance(value.get("file"), str):
        raise UserError(f'{location}: must be {{"file": ..., "text": ...}}')
    text = value.get("text", "")
    if not isinstance(text, str):
        raise UserError(f"{location}: the value of text is not a string")
    return value["file"], text
