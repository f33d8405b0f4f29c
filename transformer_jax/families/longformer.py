"""Longformer (Beltagy et al. 2020): RoBERTa with attention that grows linearly with the length."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.config import PositiveInt, UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.families import bert, roberta
from transformer_jax.families.roberta import RoBERTa
from transformer_jax.huggingface import family
from transformer_jax.huggingface.tensors import layers, linear
from transformer_jax.layers import parameters
from transformer_jax.layers.longformer_attention import LongformerAttention


class Longformer(RoBERTa):
    """Tokens (B, L) int32 -> hidden states (B, L, M).

    Each token attends to the tokens within a window around it and to the global tokens at
    `Inputs.global_positions`, which attend to the whole row.

    A run may be initialized from a run of RoBERTa. Its position embeddings are then repeated, and
    the projections of global tokens are initialized from the other projections (section 5).
    """

    can = RoBERTa.can - {"attend", "write"} | {"global"}
    begins_with = {"roberta": {"": {}}}

    max_length: PositiveInt = 4096  # number of learned positions
    # tokens that a token sees around it, half of them on each side; repeats over the layers
    attention_window: tuple[int, ...] = (512,)
    # distance between neighboring keys of a window; repeats over the layers; 1: no gaps
    attention_dilation: tuple[int, ...] = (1,)
    # number of heads of each layer, from the first, that have the dilation; None: all
    dilated_heads: int | None = None

    @classmethod
    def origin(cls, name: str) -> str:
        return name.replace("attention/global_", "attention/")

    @classmethod
    def origins_of_rows(cls, name: str, stored: int, wanted: int) -> Sequence[int] | None:
        if name != "position_embed/embedding":
            return super().origins_of_rows(name, stored, wanted)
        offset = cls.position_offset
        # Repeated copies keep the local structure that RoBERTa has learned, except at their borders
        # (section 5).
        rows = [offset + position % (stored - offset) for position in range(wanted - offset)]
        return [*range(offset), *rows]

    def check(self):
        super().check()
        if not self.attention_window:
            raise UserError("config.model.attention_window=(): must be one number or several")
        for window in self.attention_window:
            if window < 2 or window % 2:
                raise UserError(
                    f"config.model.attention_window={self.attention_window}: must be even, and at "
                    "least 2"
                )
        if not self.attention_dilation or min(self.attention_dilation) < 1:
            raise UserError(
                f"config.model.attention_dilation={self.attention_dilation}: must be one number or "
                "several, each at least 1"
            )
        if self.dilated_heads is not None and not 0 <= self.dilated_heads <= self.num_heads:
            raise UserError(
                f"config.model.dilated_heads={self.dilated_heads}: must be from 0 to "
                f"config.model.num_heads={self.num_heads}"
            )

    def setup(self):
        # The most distant visible token on each side is at half of the window, and `windows` bounds
        # distances exclusively.
        reaches = tuple(window // 2 + 1 for window in self.attention_window)
        attention = partial(LongformerAttention, dilated_heads=self.dilated_heads)
        dilations = self.attention_dilation if self.dilated_heads != 0 else (1,)
        options = dict(windows=reaches, dilations=dilations)
        self._set_up_encoder(self.d_model, attention=attention, **options)
        self._set_up_heads()

    def _encoded(
        self, x: Float[Array, "B L M"], inputs: Inputs, **options
    ) -> Float[Array, "*layers B L M"]:
        positions = inputs.global_positions
        if positions is not None:
            positions = jnp.asarray(positions)
        return self.encoder(x, mask=inputs.mask, global_positions=positions, **options)

    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass over one row, without global tokens."""
        masked_lm = parameters.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        sizes = parameters.LayerSizes.of(self)
        layers = 0.0
        dilated = 1.0 if self.dilated_heads is None else self.dilated_heads / self.num_heads
        for number in range(self.num_layers):
            window = self.attention_window[number % len(self.attention_window)]
            dilation = self.attention_dilation[number % len(self.attention_dilation)]
            # A window has window / 2 keys on each side and the token itself. Dilated heads see only
            # every dilation-th token of the row.
            num_keys = (1 - dilated) * min(window + 1, length)
            num_keys += dilated * min(window + 1, -(-length // dilation))
            layers += sizes.layer(length, length * num_keys)
        return layers + masked_lm


# ----------------------------------------------------------------------------------- Hugging Face
_KEYS = roberta.KEYS.changed(required={"attention_window": "attention_window"})
_GLOBAL = {
    **linear("attention.self.query_global", "attention/global_query"),
    **linear("attention.self.key_global", "attention/global_key"),
    **linear("attention.self.value_global", "attention/global_value"),
}
_ENCODER = {
    **bert.encoder("longformer"),
    **layers("longformer.encoder.layer.{}.", "encoder/layers/", _GLOBAL),
}


@dataclasses.dataclass(frozen=True)
class PreTraining(roberta.PreTraining):
    model = "longformer"
    body = ("longformer.",)

    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        windows = keys["attention_window"]
        if isinstance(windows, int):
            windows = [windows]
        # Windows repeat over the layers here, so that equal ones need only one entry.
        return keys | {"attention_window": windows[:1] if len(set(windows)) == 1 else windows}

    def other_keys(self, config, tokenizer):
        if set(config.model.attention_dilation) != {1}:
            raise UserError(
                f"config.model.attention_dilation={config.model.attention_dilation}: the "
                "architecture of Hugging Face has no dilated windows"
            )
        windows = itertools.cycle(config.model.attention_window)
        return super().other_keys(config, tokenizer) | {
            "attention_window": list(itertools.islice(windows, config.model.num_layers)),
            # transformers finds the end of a question by this token.
            "sep_token_id": tokenizer.eos_id,
        }


@dataclasses.dataclass(frozen=True)
class FineTuned(family.FineTuned, PreTraining):
    """Longformer with a fine-tuned head, whose dropout is the one of the model."""

    dropout_key = ""


def _fine_tuned(architecture: str, head: dict, task: str) -> FineTuned:
    return FineTuned(architecture, "longformer", _KEYS, _ENCODER | head, task)


ARCHITECTURES = [
    PreTraining(
        "LongformerForMaskedLM", "longformer", _KEYS, _ENCODER | roberta.MASKED_LM, "masked_lm"
    ),
    _fine_tuned("LongformerForSequenceClassification", roberta.CLASSIFIER, "classification"),
    _fine_tuned("LongformerForTokenClassification", roberta.TAGS, "tagging"),
    _fine_tuned("LongformerForQuestionAnswering", roberta.SPAN, "span"),
]
