"""ELECTRA (Clark et al. 2020): a BERT pre-trained to detect tokens replaced by a generator."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax import config as configs
from transformer_jax.config import PositiveInt, Share, UserError
from transformer_jax.contracts.model import Inputs, takes_inputs
from transformer_jax.distributed import sharding
from transformer_jax.families import bert
from transformer_jax.families.bert import BERT
from transformer_jax.huggingface import family
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.tensors import Table, check_head_dim, linear, norm
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import check_heads
from transformer_jax.layers.embeddings import Projection
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Linear, compute_dtype

# The generator shares these with the discriminator (section 3.2), whose part of the tree holds them
# once for both.
_EMBEDDINGS = ("token_embed", "position_embed", "type_embed", "embed_norm")


class ELECTRA(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M) of the discriminator, as in BERT.

    Embeddings have the width E and are projected to the width M of the layers if E is not M. The
    generator shares the embeddings and has the same depth but narrower layers (section 3.2). The
    masked LM head projects hidden states to the width E; the generator has its own.
    """

    can = frozenset({"token_types", "pool", "fill", "attend", "detect"})
    vocabulary = (*BERT.vocabulary, "generator/mlm_bias/bias")
    heads = ("mlm_transform", "mlm_norm", "mlm_bias", "detector_transform", "detector", "generator")

    d_model: PositiveInt = 256  # width of the residual stream
    num_heads: PositiveInt = 4  # attention heads of a layer
    d_embed: PositiveInt = 128  # width of the embeddings
    # width of the generator's layers as a fraction of d_model; its heads and MLP shrink likewise;
    # 0: no generator
    generator_size: Share = 0.25

    def check(self):
        super().check()
        if self.d_embed == self.d_model and self.base_width not in (None, self.d_model):
            raise UserError(
                f"config.model.d_embed={self.d_embed}: in muP, embeddings need a width of their "
                "own, which is not d_model"
            )
        if self.generator_size:
            narrow = self.narrow()
            if not narrow.d_model:
                raise UserError(
                    f"config.model.generator_size={self.generator_size}: times "
                    f"config.model.d_model={self.d_model}, must be a width of at least 1"
                )
            check_heads(narrow.d_model, narrow.num_heads, narrow.head_dim)

    def setup(self):
        self._set_up_encoder(width=self.d_embed)
        init = nn.initializers.truncated_normal(self.init_std)
        linear = dict(kernel_init=init, dtype=compute_dtype(self.dtype))
        embed, model = (self.d_embed,), (self.d_model,)
        # As in the published code, embeddings of the width of the layers are not projected.
        if self.d_embed != self.d_model:
            self.embed_projection = Linear(embed, model, axes=("embed", None), **linear)
        self.pooler = Linear(model, model, axes=("embed", "mlp"), **linear)
        self.mlm_transform = Linear(model, embed, axes=("embed", None), **linear)
        self.detector_transform = Linear(model, model, axes=("embed", "mlp"), **linear)
        # A head has no `dtype` and so computes in float32, because bfloat16 rounds different scores
        # to equal ones.
        self.detector = Linear(model, (1,), axes=("embed", None), head=True, kernel_init=init)
        if self.generator_size:
            self.generator = self.narrow()

    @nn.nowrap
    def narrow(self) -> "ELECTRA":
        """Returns the generator as a standalone model."""
        share = self.generator_size
        return self.clone(
            # Without a parent, the clone can be initialized and applied alone; `setup` binds it
            # again.
            parent=None,
            d_model=round(share * self.d_model),
            d_ff=None if self.d_ff is None else round(share * self.d_ff),
            num_heads=max(round(share * self.num_heads), 1),
            # Otherwise `setup` of the generator would make a generator of its own, and so on.
            generator_size=0.0,
        )

    @nn.nowrap
    def narrow_params(self, params: dict) -> dict:
        """Returns the parameters of `narrow`, given those of generator and discriminator."""
        return {name: params[name] for name in _EMBEDDINGS} | params["generator"]

    @takes_inputs
    def __call__(
        self, inputs: Inputs, *, train: bool = False
    ) -> tuple[Float[Array, "B L M"], Float[Array, "B L V"]]:
        """Returns the hidden states (B, L, M) and logits of masked tokens (B, L, V).

        The logits are meaningful if this model is itself trained as a masked language model.
        """
        hidden = self.hidden(inputs, train=train)
        return hidden, self.logits(hidden)

    def _embed(self, inputs, *, train):
        """Returns the projected embeddings (B, L, M)."""
        return self.projected(super()._embed(inputs, train=train))

    def projected(self, x: Float[Array, "B L E"]) -> Float[Array, "B L M"]:
        """Projects embeddings (B, L, E) to the width of the layers (B, L, M)."""
        if self.d_embed == self.d_model:
            return x
        # M is not split: activations split their rows over fsdp instead, see `sharding.RULES`.
        return sharding.constrain(self.embed_projection(x), "batch", "length", None)

    def pooled(self, hidden: Float[Array, "B L M"]) -> Float[Array, "B M"]:
        """Returns one vector for each example (B, M), computed from its first token.

        The published code has no layer here; this one follows transformers.
        """
        return self.gelu(self.pooler(hidden[:, 0]))

    def detected(self, hidden: Float[Array, "B L M"]) -> Float[Array, "B L"]:
        """Returns the logits (B, L) float32 that tokens were replaced, given hidden states."""
        x = self.gelu(self.detector_transform(hidden))
        return self.detector(x.astype(jnp.float32))[..., 0]

    @takes_inputs
    def generated(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L N"]:
        """Returns the hidden states of the generator's last layer (B, L, N)."""
        # The embeddings before their projection, because the generator has a projection of its own.
        x = super()._embed(inputs, train=train)  # (B, L, E)
        return self.generator.encoded(x, mask=inputs.mask, train=train)

    def encoded(
        self, x: Float[Array, "B L E"], *, mask: Mask, train: bool
    ) -> Float[Array, "B L M"]:
        """Returns the hidden states of the last layer (B, L, M) for embeddings (B, L, E)."""
        return self.encoder(self.projected(x), mask=mask, train=train)

    def generator_transformed(self, hidden: Float[Array, "*B N"]) -> Float[Array, "*B E"]:
        """Applies the layer before the generator's output projection, (..., N) -> (..., E)."""
        return self.generator.transformed(hidden)

    def generator_output(self) -> Projection:
        """Returns the generator's output projection: the shared table (V, E) and a bias (V,)."""
        return self.multiplied(Projection(self.token_embed.table(), self.generator.mlm_bias()))

    def flops(self, length: int, predictions: int) -> float:
        layer = parameters.LayerSizes.of(self).layer(length, length**2)
        projection = parameters.dense(length, self.d_embed, self.d_model)
        masked_lm = parameters.dense(predictions, self.d_embed, self.d_model + self.vocab_size)
        is_projected = self.d_embed != self.d_model
        return is_projected * projection + self.num_layers * layer + masked_lm

    def detection_flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass of generator and discriminator over one row."""
        detector = parameters.dense(length, self.d_model, self.d_model + 1)
        # The discriminator predicts no masked tokens, hence the 0.
        return self.narrow().flops(length, predictions) + self.flops(length, 0) + detector


# ----------------------------------------------------------------------------------- Hugging Face
_KEYS = bert.KEYS.changed(
    required={"embedding_size": "d_embed"},
    optional={"type_vocab_size": ("num_token_types", 2)},
    allowed={
        # Only this summary of multiple choice can be converted, because `pooled` computes no other.
        "summary_type": ("first",),
        "summary_use_proj": (True,),
        "summary_activation": ("gelu",),
    },
)

_ENCODER = bert.encoder("electra")
_PROJECTION = linear("electra.embeddings_project", "embed_projection")
_DETECTOR = {
    **linear("discriminator_predictions.dense", "detector_transform"),
    **linear("discriminator_predictions.dense_prediction", "detector"),
}
_MASKED_LM = {
    **linear("generator_predictions.dense", "mlm_transform"),
    **norm("generator_predictions.LayerNorm", "mlm_norm"),
    "generator_lm_head.bias": ("same", "mlm_bias/bias"),
}
_CLASSIFIER = linear("classifier.dense", "pooler") | linear("classifier.out_proj", "head/out")
_CHOICE = linear("sequence_summary.summary", "pooler") | linear("classifier", "head/out")
_TAGS = linear("classifier", "head/out")
_SPAN = linear("qa_outputs", "head/out")


@dataclasses.dataclass(frozen=True)
class _ELECTRA(Family):
    model = "electra"
    body = ("electra.",)
    ignored = (
        # A copy of the embeddings, with which `tied` compares it.
        "generator_lm_head.weight",
        # A buffer of older releases of transformers, which holds 0, 1, 2, ... and is never trained.
        "embeddings.position_ids",
    )
    tied = {"generator_lm_head.weight": ("embeddings.word_embeddings.weight",)}

    def table(self, model) -> Table:
        return self.tensors | (_PROJECTION if model.d_embed != model.d_model else {})

    def model_keys(self, hf_config):
        # A checkpoint holds either the generator or the discriminator.
        return super().model_keys(hf_config) | {"generator_size": 0.0}

    def sections(self, folder):
        return {"data": {"tokenizer": "wordpiece", "tokenizer_files": str(folder)}}

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        d_ff = config.model.d_ff or 4 * config.model.d_model
        return {"pad_token_id": 0, "intermediate_size": d_ff}


@dataclasses.dataclass(frozen=True)
class Discriminator(_ELECTRA):
    def task_keys(self, config, hf_config):
        return {"phases": bert.phases(config.model)}


@dataclasses.dataclass(frozen=True)
class MaskedLM(_ELECTRA):
    """An ELECTRA trained as a masked language model, or the generator of a pair."""

    def matches(self, config):
        if config.task.name == "masked_lm":
            return super().matches(config) and not config.task.next_sentence
        return _is_pair(config)

    def written(self, config):
        if not _is_pair(config):
            return config
        config = config.copy_and_resolve_references()
        narrow = configs.build_model(config).narrow()
        for key in ("d_model", "d_ff", "num_heads"):
            configs.set_key(config, f"model.{key}", getattr(narrow, key))
        return config

    def theirs(self, params, task):
        # Only the generator of a pair is a masked language model, so it alone is written.
        return task.model.narrow_params(params) if _is_pair(task.config) else params

    def task_keys(self, config, hf_config):
        return {"next_sentence": 0.0, "phases": bert.phases(config.model)}


@dataclasses.dataclass(frozen=True)
class FineTuned(family.FineTuned, _ELECTRA):
    @property
    def dropout_key(self):
        return "summary_last_dropout" if self.task == "choice" else super().dropout_key


def _is_pair(config) -> bool:
    """Whether a run has both a generator and a discriminator."""
    is_pair = config.model.name == "electra" and config.task.name == "replaced_tokens"
    return is_pair and config.model.generator_size > 0


def _fine_tuned(architecture: str, head: Table, task: str) -> FineTuned:
    return FineTuned(architecture, "electra", _KEYS, _ENCODER | head, task)


ARCHITECTURES = [
    Discriminator(
        "ElectraForPreTraining", "electra", _KEYS, _ENCODER | _DETECTOR, "replaced_tokens"
    ),
    MaskedLM("ElectraForMaskedLM", "electra", _KEYS, _ENCODER | _MASKED_LM, "masked_lm"),
    _fine_tuned("ElectraForSequenceClassification", _CLASSIFIER, "classification"),
    _fine_tuned("ElectraForMultipleChoice", _CHOICE, "choice"),
    _fine_tuned("ElectraForTokenClassification", _TAGS, "tagging"),
    _fine_tuned("ElectraForQuestionAnswering", _SPAN, "span"),
]
