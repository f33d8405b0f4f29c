"""The bidirectional encoder BERT with the heads of its pre-training tasks (Devlin et al. 2018)."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax.config import Fraction, NonNegativeFloat, PositiveInt
from transformer_jax.contracts.model import Inputs, UnifiedLM, takes_inputs
from transformer_jax.distributed import sharding
from transformer_jax.huggingface import family
from transformer_jax.huggingface.tensors import Keys, Table, check_head_dim, layers, linear, norm
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import MLP, Block, LayerNorm, Remat, Stack
from transformer_jax.layers.embeddings import Bias, Embed, Projection, row_positions
from transformer_jax.layers.parameters import Dropout, Linear, compute_dtype


class BERT(UnifiedLM):
    """Tokens (B, L) int32 -> hidden states (B, L, M).

    Token types (B, L) distinguish the first text of a pair (0) from the second (1).
    """

    can = UnifiedLM.can | {"token_types", "pool", "next_sentence"}
    vocabulary = ("token_embed/embedding", "mlm_bias/bias")
    heads = ("mlm_transform", "mlm_norm", "mlm_bias", "nsp")
    # The number of rows at the start of the position table that belong to no position.
    position_offset: ClassVar[int] = 0
    # The number of rows of the embedding table is a multiple of this number.
    vocab_multiple: ClassVar[int] = 1

    vocab_size: PositiveInt = 30_522  # number of tokens in the vocabulary
    d_model: PositiveInt = 768  # width of the residual stream
    d_ff: PositiveInt | None = None  # width of the MLP's hidden layer; None: 4 * d_model
    num_layers: PositiveInt = 12  # number of blocks
    num_heads: PositiveInt = 12  # attention heads of a layer
    head_dim: PositiveInt | None = None  # width of a head; None: d_model / num_heads
    max_length: PositiveInt = 512  # number of learned positions
    num_token_types: PositiveInt = 2  # number of token types; a pair of texts has two
    norm_epsilon: NonNegativeFloat = 1e-12  # added to the variance in layer norms
    # standard deviation of the initial weights; narrow models learn faster with a larger value
    init_std: NonNegativeFloat = 0.02
    dropout: Fraction = 0.1  # on each residual branch and on the embeddings
    attention_dropout: Fraction = 0.1  # on the attention weights
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    @classmethod
    def origins_of_rows(cls, name: str, stored: int, wanted: int) -> Sequence[int] | None:
        """UniLM's six token types are initialized from BERT's two, as in the published code."""
        is_unilm = name == "type_embed/embedding" and (stored, wanted) == (2, 6)
        return (0, 1, 0, 0, 0, 1) if is_unilm else None

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)

    def setup(self):
        self._set_up_encoder(width=self.d_model)
        self._set_up_heads()

    def _set_up_heads(self):
        """Sets up the pooler and the heads of the pre-training tasks."""
        init = nn.initializers.truncated_normal(self.init_std)
        linear = dict(kernel_init=init, dtype=compute_dtype(self.dtype))
        model = (self.d_model,)
        self.pooler = Linear(model, model, axes=("embed", "mlp"), **linear)
        self.mlm_transform = Linear(model, model, axes=("embed", "mlp"), **linear)
        # A head has no `dtype` and so computes in float32, because bfloat16 rounds different scores
        # to equal ones.
        self.nsp = Linear(model, (2,), axes=("embed", None), head=True, kernel_init=init)

    def _set_up_encoder(
        self,
        width: int,
        *,
        attention: Callable[..., nn.Module] = Attention,
        block: Callable[..., nn.Module] = Block,
        windows: tuple[int | None, ...] = (None,),
        dilations: tuple[int, ...] = (1,),
        shared: bool = False,
        approximate: bool = False,
    ):
        """Sets up embeddings of this width, the layers, and norm and bias of the masked LM head.

        `windows` and their `dilations` limit the distance of self-attention and repeat over the
        layers. With `shared`, all layers have the same parameters. `approximate` selects the tanh
        approximation of GELU.
        """
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.truncated_normal(self.init_std)
        embed = partial(Embed, features=width, init=init, dtype=dtype)
        self.token_embed = embed(self.vocab_size, multiple=self.vocab_multiple)
        positions = dict(axes=(None, "embed"), offset=self.position_offset, key="max_length")
        self.position_embed = embed(self.max_length, **positions)
        self.type_embed = embed(self.num_token_types, axes=(None, "embed"), key="num_token_types")
        norm = partial(LayerNorm, self.norm_epsilon)
        self.embed_norm = norm()
        self.embed_dropout = Dropout(self.dropout)

        linear = dict(kernel_init=init, dtype=dtype)
        self.gelu = partial(jax.nn.gelu, approximate=approximate)
        attention = partial(
            attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            **linear,
        )
        mlp = partial(MLP, d_ff=self.d_ff or 4 * self.d_model, activation=self.gelu, **linear)
        block = partial(block, attention=attention, mlp=mlp, norm=norm, dropout=self.dropout)
        self.encoder = Stack(
            (block,),
            self.num_layers,
            shared=shared,
            unroll=self.unroll,
            remat=self.remat,
            windows=windows,
            dilations=dilations,
        )
        self.mlm_norm = norm()
        # Has the length of the token table, padding included, because it is added to its logits.
        self.mlm_bias = Bias(self.vocab_size + -self.vocab_size % self.vocab_multiple, "vocab")

    @takes_inputs
    def __call__(
        self, inputs: Inputs, *, train: bool = False
    ) -> tuple[Float[Array, "B L M"], Float[Array, "B L V"], Float[Array, "B 2"]]:
        """Returns the hidden states and the logits of both pre-training tasks (section 3.1).

        The hidden states are (B, L, M), the logits of masked tokens (B, L, V), and the logits of
        next-sentence prediction (B, 2).
        """
        hidden = self.hidden(inputs, train=train)
        return hidden, self.logits(hidden), self.next_logits(hidden)

    @takes_inputs
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        """Returns the hidden states of the last layer (B, L, M)."""
        return self._encoded(self._embed(inputs, train=train), inputs, train=train)

    @takes_inputs
    def layers(self, inputs: Inputs) -> Float[Array, "N B L M"]:
        """Returns the embeddings and the hidden states of all layers (layers + 1, B, L, M)."""
        x = self._embed(inputs, train=False)
        outputs = self._encoded(x, inputs, every_layer=True)  # (layers, B, L, M)
        return jnp.concatenate([x[None], outputs])

    def _encoded(
        self, x: Float[Array, "B L M"], inputs: Inputs, **options
    ) -> Float[Array, "*layers B L M"]:
        """Returns the hidden states of the last layer or, with `every_layer`, of all layers."""
        return self.encoder(x, mask=inputs.mask, **options)

    def _embed(self, inputs: Inputs, *, train: bool) -> Float[Array, "B L M"]:
        """Returns the sum of the token, position and type embeddings (B, L, M) (section 3)."""
        tokens, positions, token_types = inputs.tokens, inputs.positions, inputs.token_types
        if positions is None:
            positions = row_positions(tokens, self.max_length)
        if token_types is None:
            token_types = jnp.zeros_like(tokens)
        x = self.token_embed(tokens) + self.position_embed(positions) + self.type_embed(token_types)
        return self.embed_dropout(self.embed_norm(x), train=train)

    def pooled(self, hidden: Float[Array, "B L M"]) -> Float[Array, "B M"]:
        """Returns one vector for each example (B, M), computed from its first token."""
        return jnp.tanh(self.pooler(hidden[:, 0]))

    def next_logits(self, hidden: Float[Array, "B L M"]) -> Float[Array, "B 2"]:
        """Returns the logits of next-sentence prediction (B, 2) float32 (section 3.1, task 2).

        Class 0 means that the second text follows the first, class 1 that it does not, as in the
        published code.
        """
        return self.nsp(self.pooled(hidden).astype(jnp.float32))

    def transformed(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B E"]:
        """Applies the layer before the output projection, (..., M) -> (..., E)."""
        x = self.gelu(self.mlm_transform(hidden))
        # M must not be split: with M split over fsdp and tensor, the gradients of the loss were
        # wrong (jax 0.10.2 on a CPU).
        x = sharding.constrain(x, "batch", *[None] * (hidden.ndim - 1))
        return self.mlm_norm(x)

    def output(self) -> Projection:
        """Returns the output projection: the token embeddings (V, M) and a bias (V,) float32."""
        return Projection(self.token_embed.table(), self.mlm_bias())

    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass over one row, two for each multiply-add.

        `predictions` is the number of predicted positions. Padding is counted.
        """
        layer = parameters.LayerSizes.of(self).layer(length, length**2)
        masked_lm = parameters.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        next_sentence = parameters.dense(1, self.d_model, self.d_model + 2)
        return self.num_layers * layer + masked_lm + next_sentence


# ----------------------------------------------------------------------------------- Hugging Face
#
# KEYS and the functions for tables are public, because the families that derive from BERT convert
# with them as well.
KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "max_length",
    },
    optional={
        "layer_norm_eps": ("norm_epsilon", 1e-12),
        "hidden_dropout_prob": ("dropout", 0.1),
        "attention_probs_dropout_prob": ("attention_dropout", 0.1),
        "initializer_range": ("init_std", 0.02),
    },
    allowed={
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
)
_KEYS = KEYS.changed(optional={"type_vocab_size": ("num_token_types", 2)})

_LAYER = {
    **linear("attention.self.query", "attention/query"),
    **linear("attention.self.key", "attention/key"),
    **linear("attention.self.value", "attention/value"),
    **linear("attention.output.dense", "attention/out", "linear_merge"),
    **norm("attention.output.LayerNorm", "attention_norm"),
    **linear("intermediate.dense", "mlp/wi"),
    **linear("output.dense", "mlp/wo"),
    **norm("output.LayerNorm", "mlp_norm"),
}


def embeddings(prefix: str) -> Table:
    """Returns the tensors of the embeddings, for BERT and the families derived from it."""
    return {
        f"{prefix}.embeddings.word_embeddings.weight": ("same", "token_embed/embedding"),
        f"{prefix}.embeddings.position_embeddings.weight": ("same", "position_embed/embedding"),
        f"{prefix}.embeddings.token_type_embeddings.weight": ("same", "type_embed/embedding"),
        **norm(f"{prefix}.embeddings.LayerNorm", "embed_norm"),
    }


def encoder(prefix: str) -> Table:
    """Returns the tensors of the embeddings and all layers, for BERT, RoBERTa and ELECTRA."""
    name = f"{prefix}.encoder.layer.{{}}."
    return embeddings(prefix) | layers(name, "encoder/layers/", _LAYER)


def phases(model) -> tuple[tuple[float, int, int]]:
    """Returns config.task.phases of a masked language model that masks 15 % of a row."""
    length = min(model.max_length, 512)
    return ((1.0, length, max(int(0.15 * length), 1)),)


_ENCODER = encoder("bert")
_MASKED_LM = {
    **linear("cls.predictions.transform.dense", "mlm_transform"),
    **norm("cls.predictions.transform.LayerNorm", "mlm_norm"),
    "cls.predictions.bias": ("same", "mlm_bias/bias"),
}
# Runs of these tasks have the same heads, so each can be written as a pre-trained BERT. A
# checkpoint does not tell its task and becomes a run of the first.
_OBJECTIVES = ("masked_lm", "mixed_masks", "masked_targets")
_POOLER = linear("bert.pooler.dense", "pooler")
_NEXT_SENTENCE = linear("cls.seq_relationship", "nsp")
_CLASSIFIER = linear("classifier", "head/out")
_SPAN = linear("qa_outputs", "head/out")


@dataclasses.dataclass(frozen=True)
class PreTraining(family.Family):
    model = "bert"
    body = ("bert.",)
    ignored = (
        # Copies of the embeddings and of cls.predictions.bias, with which `tied` compares them.
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
        # A buffer of older releases of transformers, which holds 0, 1, 2, ... and is never trained.
        "embeddings.position_ids",
        # Older releases save the pooler with every head, even where the table lacks it.
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    )
    tied = {
        "cls.predictions.decoder.weight": ("embeddings.word_embeddings.weight",),
        "cls.predictions.decoder.bias": ("cls.predictions.bias",),
    }

    next_sentence: bool = False

    def matches(self, config):
        next_sentence = bool(config.task.get("next_sentence"))
        return is_of(self, config) and next_sentence == self.next_sentence

    def sections(self, folder):
        return {"data": {"tokenizer": "wordpiece", "tokenizer_files": str(folder)}}

    def task_keys(self, config, hf_config):
        return {"next_sentence": float(self.next_sentence), "phases": phases(config.model)}

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        d_ff = config.model.d_ff or 4 * config.model.d_model
        return {"pad_token_id": 0, "intermediate_size": d_ff}


@dataclasses.dataclass(frozen=True)
class FineTuned(family.FineTuned, PreTraining):
    """BERT with a fine-tuned head."""


def is_of(kind: family.Family, config: ConfigDict) -> bool:
    """Returns whether a run has the model of `kind`, and its task or one with the same heads."""
    names = _OBJECTIVES if kind.task in _OBJECTIVES else (kind.task,)
    return config.model.name == kind.model and config.task.name in names


def _pre_training(architecture: str, table: dict, next_sentence: bool) -> PreTraining:
    return PreTraining(architecture, "bert", _KEYS, table, "masked_lm", next_sentence)


def _fine_tuned(architecture: str, head: dict, task: str) -> FineTuned:
    return FineTuned(architecture, "bert", _KEYS, _ENCODER | head, task)


ARCHITECTURES = [
    _pre_training("BertForPreTraining", _ENCODER | _POOLER | _NEXT_SENTENCE | _MASKED_LM, True),
    _pre_training("BertForMaskedLM", _ENCODER | _MASKED_LM, False),
    _fine_tuned("BertForSequenceClassification", _POOLER | _CLASSIFIER, "classification"),
    _fine_tuned("BertForMultipleChoice", _POOLER | _CLASSIFIER, "choice"),
    _fine_tuned("BertForTokenClassification", _CLASSIFIER, "tagging"),
    _fine_tuned("BertForQuestionAnswering", _SPAN, "span"),
]
