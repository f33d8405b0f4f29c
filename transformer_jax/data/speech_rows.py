"""Rows of sound: crops with masked frames, and utterances with their transcripts."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int64

from transformer_jax.config import UserError
from transformer_jax.data.rows import Row, generator, padded, philox_key
from transformer_jax.data.sound import Utterances, normalised
from transformer_jax.data.spelling import Spelling
from transformer_jax.data.store import Records
from transformer_jax.layers.convolutions import num_windows
from transformer_jax.pictures.progress import say


@dataclasses.dataclass(frozen=True)
class Masking:
    """How the frames of a row are masked.

    Attributes:
      share: total length of the spans over the frames of the row.
      span: frames of a span.
      least: the fewest spans of a row.
    """

    share: float
    span: int
    least: int = 0

    def drawn(self, rng: np.random.Generator, frames: int) -> np.ndarray:
        return spans(rng, frames, self.share, self.span, least=self.least)

    def most(self, frames: int) -> int:
        """Returns the largest number of masked frames of a row."""
        return most_masked(frames, self.share, self.span, self.least)


class MaskedRows:
    """Crops of utterances, with the masked frames and the distractors of each.

    A crop has `samples`, and a shorter utterance all of its own. `windows` are (width, stride) of
    the convolutions that make the frames. The arrays of a row are sound (S,) float32, length () in
    samples, masked (L,), places (P,) of the masked frames with their weights (P,), and distractors
    (P, K), numbers of other places.
    """

    def __init__(
        self,
        records: Records,
        *,
        seed: int,
        samples: int,
        windows: Sequence[tuple[int, int]],
        masking: Masking,
        num_distractors: int,
    ):
        self._utterances = Utterances(records)
        self._key = philox_key((seed, 0, 0))
        self._samples, self._windows = samples, windows
        self._masking, self._num_distractors = masking, num_distractors

    def __len__(self) -> int:
        return len(self._utterances)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        utterances = self._utterances.read([number for number, _ in numbers])
        return [self._row(x.samples, *each) for x, each in zip(utterances, numbers)]

    def _row(self, samples: np.ndarray, number: int, epoch: int) -> Row:
        rng = generator(self._key, number, epoch)
        sound = normalised(samples)
        first = int(rng.integers(0, max(len(sound) - self._samples, 0) + 1))
        sound = sound[first : first + self._samples]
        frames = num_windows(self._samples, self._windows)
        masked = self._masking.drawn(rng, num_windows(len(sound), self._windows))
        places = np.flatnonzero(masked)
        # Without another place, nothing is told apart.
        weights = np.ones(len(places)) * (len(places) > 1)
        others = distractors(rng, len(places), self._num_distractors)
        most = self._masking.most(frames)
        return {
            **_sound(sound, self._samples),
            "masked": padded(masked, frames),
            "places": padded(places, most),
            "weights": padded(weights, most),
            "distractors": padded(others, most),
        }


class TranscribedRows:
    """Whole utterances with their transcripts, and in training with masked frames and channels.

    Utterances without a transcript, and those longer than `samples` or `characters`, are left out.
    The arrays of a row are sound (S,) float32, length () in samples, labels (N,), num_labels (),
    masked (L,) and silent (M,). A transcript that has no path through the frames has no label.
    """

    def __init__(
        self,
        records: Records,
        spelling: Spelling,
        *,
        seed: int,
        samples: int,
        characters: int,
        windows: Sequence[tuple[int, int]],
        masking: Masking,
        channels: int,
        silence: Masking,
    ):
        self._utterances = Utterances(records)
        self._spelling = spelling
        self._key = philox_key((seed, 0, 0))
        self._samples, self._characters, self._windows = samples, characters, windows
        self._masking, self._channels, self._silence = masking, channels, silence
        is_short = self._utterances.samples <= samples
        is_short &= self._utterances.characters <= characters
        has_text = self._utterances.characters > 0
        self._numbers = np.flatnonzero(is_short & has_text)
        if not len(self._numbers):
            raise UserError(
                "config.source: no utterance has a transcript, and is short enough for "
                "config.task.seconds and config.task.characters"
            )
        if left_out := int((has_text & ~is_short).sum()):
            say(
                f"{left_out:,} of {int(has_text.sum()):,} utterances left out: longer than "
                "config.task.seconds or config.task.characters"
            )

    def __len__(self) -> int:
        return len(self._numbers)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        utterances = self._utterances.read([self._numbers[number] for number, _ in numbers])
        return [self._row(x, *each) for x, each in zip(utterances, numbers)]

    def _row(self, utterance, number: int, epoch: int) -> Row:
        rng = generator(self._key, number, epoch)
        frames = num_windows(len(utterance.samples), self._windows)
        labels = np.array(self._spelling.encode(utterance.text), np.int32)
        # A blank must stand between equal characters.
        needed = len(labels) + (labels[1:] == labels[:-1]).sum()
        if needed > frames or len(labels) > self._characters:
            labels = labels[:0]
        return {
            **_sound(normalised(utterance.samples), self._samples),
            "labels": padded(labels, self._characters),
            "num_labels": np.int32(len(labels)),
            "masked": padded(
                self._masking.drawn(rng, frames), num_windows(self._samples, self._windows)
            ),
            "silent": padded(self._silence.drawn(rng, self._channels), self._channels),
        }


def _sound(sound: np.ndarray, samples: int) -> Row:
    """Returns sound padded with zeros, and its length."""
    whole = np.zeros(samples, np.float32)
    whole[: len(sound)] = sound
    return {"sound": whole, "length": np.int32(len(sound))}


def spans(
    generator: np.random.Generator, length: int, share: float, span: int, *, least: int = 0
) -> Bool[np.ndarray, " L"]:
    """Returns True at the masked positions of `length` (Baevski et al. 2020, section 4.2).

    Spans of `span` positions begin at different places, at `least` so many. They may overlap, so
    that the masked part is below `share`, their total length over `length`.
    """
    masked = np.zeros(length, bool)
    places = length - span + 1
    count = max(int(share * length / span + generator.random()), least)
    if places < 1 or not count:
        return masked
    starts = generator.choice(places, min(count, places), replace=False)
    masked[(starts[:, None] + np.arange(span)).reshape(-1)] = True
    return masked


def most_masked(length: int, share: float, span: int, least: int = 0) -> int:
    """Returns the largest number of positions that `spans` masks."""
    return min(length, max(int(share * length / span + 1), least) * span)


def distractors(
    generator: np.random.Generator, count: int, number: int
) -> Int64[np.ndarray, "P K"]:
    """Returns `number` others of `count` positions for each, drawn with replacement (P, K).

    All are 0 where there is no other position.
    """
    if count < 2:
        return np.zeros((count, number), np.int64)
    drawn = generator.integers(0, count - 1, (count, number))
    return drawn + (drawn >= np.arange(count)[:, None])
