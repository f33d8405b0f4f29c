"""Feature-based fine-tuning: a recurrent head that reads the hidden states of a frozen encoder."""

import abc
import dataclasses
from functools import cached_property
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.config import UserError
from transformer_jax.finetuning.base import FineTuning
from transformer_jax.layers import parameters
from transformer_jax.layers.embeddings import Head, RecurrentHead
from transformer_jax.layers.recurrent import LSTM

Name = Literal[
    "",
    "embeddings",
    "second-to-last",
    "last",
    "concat-embeddings-last",
    "sum-last-four",
    "concat-last-four",
    "sum-all",
    "weighted",
]
# The layers of each kind of features, of which layer 0 is the embeddings. A single layer is a
# slice, too, because the head takes a list.
_LAYERS = {
    "embeddings": slice(0, 1),
    "second-to-last": slice(-2, -1),
    "last": slice(-1, None),
    "sum-last-four": slice(-4, None),
    "concat-last-four": slice(-4, None),
    "sum-all": slice(1, None),
    "weighted": slice(0, None),
}
# The features of an encoder-decoder are fewer, because its encoder returns only the embeddings and
# the last states.
_SOURCE_FEATURES = ("embeddings", "last", "concat-embeddings-last")


@dataclasses.dataclass
class FeatureBased(FineTuning):
    """A task that trains the whole model, or an LSTM head on the hidden states of a frozen one.

    The frozen model is an Encoder (Devlin et al. 2018, section 5.3; Peters et al. 2018, section
    3.2), or the encoder of an encoder-decoder (McCann et al. 2017, section 4).
    """

    # hidden states of a frozen encoder that an LSTM reads; "": none, the whole model is trained.
    # weighted: all layers, with weights and a scale that the task learns, as in ELMo;
    # concat-embeddings-last: as in CoVe
    features: Name = ""
    lstm_width: int = 768  # width of both directions together, in each of the two layers

    def __post_init__(self):
        # Before the checks of the base class, so that they refuse a loss for a frozen model.
        self.frozen = self.frozen or bool(self.features)
        super().__post_init__()
        if self.lstm_width < 2 or self.lstm_width % 2:
            raise UserError(
                f"config.task.lstm_width={self.lstm_width}: must be even and at least 2, for two "
                "directions"
            )
        if self.features:
            self._check_features()

    def _check_features(self) -> None:
        key, name = f"config.task.features={self.features}", self.config.model.name
        if self.model.kind == "causal":
            raise UserError(f"{key}: needs the states of an encoder; {name} is a causal model")
        if self.source_only and self.features not in _SOURCE_FEATURES:
            allowed = ", ".join(_SOURCE_FEATURES)
            raise UserError(f"{key}: must be one of {allowed} for the encoder-decoder {name}")
        if self.features.endswith("four") and self.model.num_layers < 4:
            raise UserError(
                f"{key}: needs 4 layers, but this model has {self.model.num_layers} layers"
            )

    @property
    def source_only(self) -> bool:
        return bool(self.features) and self.model.kind == "sequence_to_sequence"

    @property
    @abc.abstractmethod
    def num_outputs(self) -> int:
        """The number of outputs of the head, per row or per token."""

    def head(self):
        if self.features:
            return RecurrentHead(
                self.num_outputs,
                self.features.startswith("concat"),
                self.lstm_width,
                self.head_dropout,
                scaled=self.features == "weighted",
                pools=self.summarises,
            )
        if self.summarises:
            return self.encoder.head(self.num_outputs, self.head_dropout)
        return Head(self.num_outputs, self.head_dropout, True)

    def _chosen(self, states: list[Float[Array, "B L _"]]) -> list[Float[Array, "B L _"]]:
        """Returns the hidden states that the head reads, given the states of all layers."""
        if self.features == "concat-embeddings-last":
            return [states[0], states[-1]]
        return states[_LAYERS[self.features]]

    def init(self, rng):
        if not self.features:
            return super().init(rng)
        head_key, encoder_key = jax.random.split(rng)
        states, params = self.encoder.init_layers(encoder_key)
        filled = jnp.ones(states[0].shape[:2], bool)
        head = self.head().init(head_key, self._chosen(states), filled)["params"]
        return {**params, "head": head}

    def outputs(self, params, batch, context):
        if not self.features:
            return super().outputs(params, batch, context)
        batch = self._flat(batch)
        # No gradient flows into the frozen encoder, so that its backward pass is not compiled.
        states = jax.lax.stop_gradient(self.encoder.layers(params, batch))
        outputs = self.head().apply(
            {"params": params["head"]},
            self._chosen(states),
            batch["segment_ids"] > 0,
            train=context.train,
            rngs={"dropout": context.rng} if context.train else None,
        )
        return outputs, states[-1]

    @cached_property
    def _input_width(self) -> int:
        """The width of the vectors that the first LSTM reads."""
        # Shapes alone, because computing states only for their width would take time and memory.
        states, _ = jax.eval_shape(self.encoder.init_layers, jax.random.key(0))
        widths = [x.shape[-1] for x in self._chosen(states)]
        return sum(widths) if self.features.startswith("concat") else widths[0]

    def flops(self, row_shape=0):
        if not self.features:
            return super().flops(row_shape)
        length = self.lengths[row_shape]
        cell = LSTM(self.lstm_width // 2)  # of one direction
        first = parameters.recurrent(length, self._input_width, cell)
        second = parameters.recurrent(length, self.lstm_width, cell)
        # 3 for a forward and a backward pass, and 2 for the two directions.
        return super().flops(row_shape) + 3 * 2 * (first + second) * self.rows_of_example
