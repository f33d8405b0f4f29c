"""Shared by the tasks on audio: the lengths of rows, and their shapes."""

import dataclasses

import jax
import jax.numpy as jnp

from transformer_jax.config import PositiveFloat, UserError, build_model
from transformer_jax.data.speech import RATE
from transformer_jax.objectives.texts import SourceTask


@dataclasses.dataclass
class SpeechTask(SourceTask):
    """A task on the utterances of `config.source`, with a model that reads audio samples."""

    modality = "sound"

    seconds: PositiveFloat = 15.6  # seconds of audio in a row

    def __post_init__(self):
        self.model = build_model(self.config)
        wanted, rate = self.model.sampling_rate, self.config.source.get("sampling_rate", RATE)
        if rate != wanted:
            raise UserError(
                f"config.model.sampling_rate={wanted}: the audio of config.source.name="
                f"{self.config.source.name!r} has {rate} samples a second; a source that has the "
                f"key reads it with config.source.sampling_rate={wanted}"
            )
        if self.frames < 2:
            raise UserError(
                f"config.task.seconds={self.seconds}: must give at least two frames of the model"
            )

    @property
    def samples(self) -> int:
        """The number of audio samples in a row."""
        return round(self.seconds * self.model.sampling_rate)

    @property
    def frames(self) -> int:
        """The number of frames that the model's convolutions make of a row."""
        return self.model.num_frames(self.samples)

    def spec_of_rows(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a batch including its audio, given the other arrays' row shapes."""
        spec = self.int32_spec({"length": (), **shapes})
        sound = jax.ShapeDtypeStruct((self.config.train.batch, self.samples), jnp.float32)
        return spec | {"sound": sound}

    def num_filled(self, batch) -> tuple[jax.Array, jax.Array]:
        """Returns the number of frames that are not padding, and the number of all frames."""
        # Frames that reach into the padding count as padding, as in the model.
        filled = self.model.num_frames(batch["length"]).sum(dtype=jnp.int32)
        return filled, jnp.int32(len(batch["length"]) * self.frames)

    def derived(self, name, means):
        return {}

    def positions(self, row_shape: int = 0) -> int:
        return self.frames
