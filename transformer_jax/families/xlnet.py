"""XLNet: an encoder pre-trained to predict tokens in a permuted order (Yang et al. 2019)."""

import dataclasses
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
)
from transformer_jax.contracts.model import Encoder, Inputs, takes_inputs
from transformer_jax.huggingface import family
from transformer_jax.huggingface.generate_options import Causal
from transformer_jax.huggingface.tensors import Keys, check_head_dim, layers, linear, norm
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import check_heads
from transformer_jax.layers.blocks import MLP, Block, LayerNorm, Remat, Stack
from transformer_jax.layers.embeddings import Bias, Embed, Projection
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, Linear, compute_dtype, declared
from transformer_jax.layers.relative_attention import (
    Relations,
    RelativeAttention,
    encoded_distances,
)

# The inputs of all layers at the positions of the memory, and 1 where a position is filled. Rows
# come first, so that microbatches divide a carry as they divide the batch.
Carry = tuple[Float[Array, "B layers K M"], Int[Array, "B K"]]


class XLNet(Encoder):
    """Tokens (B, L) int32 -> hidden states (B, L, M).

    Attention depends on the distance between two tokens and on whether their token types are equal.
    Rows may have any length, and `positions` are ignored. Segment ids are as in BERT. A row ends
    with <cls>, whose token type differs from the types of both texts.
    """

    can = frozenset({"token_types", "pool", "attend", "permute"})
    vocabulary = ("token_embed/embedding", "output_bias/bias")
    heads = ("target_embed", "output_bias")
    max_length = None
    num_token_types = 3  # only their equality counts
    cls_last = True

    vocab_size: PositiveInt = 32_000  # number of tokens in the vocabulary
    d_model: PositiveInt = 768  # width of the residual stream
    d_ff: PositiveInt | None = None  # width of the MLP's hidden layer; None: 4 * d_model
    num_layers: PositiveInt = 12  # number of blocks
    num_heads: PositiveInt = 12  # attention heads of a layer
    head_dim: PositiveInt | None = None  # width of a head; None: d_model / num_heads
    # tokens of earlier rows that pre-training attends to; 0: rows are independent
    memory_length: NonNegativeInt = 0
    norm_epsilon: NonNegativeFloat = 1e-12  # added to the variance in layer norms
    # standard deviation of the initial weights; narrow models learn faster with a larger value
    init_std: NonNegativeFloat = 0.02
    # on embeddings, residual branches, attention weights, hidden layers and encoded distances
    dropout: Fraction = 0.1
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)

    def setup(self):
        init = nn.initializers.normal(self.init_std)
        dtype = compute_dtype(self.dtype)
        linear = dict(kernel_init=init, dtype=dtype)
        self.token_embed = Embed(self.vocab_size, self.d_model, init, dtype=dtype)
        self.target_embed = _TargetEmbed(self.d_model, init)
        self.embed_dropout = Dropout(self.dropout)
        # `shared`, because all rows have the same distances, and so one mask.
        self.distance_dropout = Dropout(self.dropout, shared=True)
        self.output_dropout = Dropout(self.dropout)
        attention = partial(
            RelativeAttention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            use_bias=False,
            segments=True,
            dropout=self.dropout,
            **linear,
        )
        mlp = partial(
            MLP,
            d_ff=self.d_ff or 4 * self.d_model,
            activation=partial(jax.nn.gelu, approximate=False),
            dropout=self.dropout,
            **linear,
        )
        norm = partial(LayerNorm, self.norm_epsilon)
        block = partial(Block, attention=attention, mlp=mlp, norm=norm, dropout=self.dropout)
        self.encoder = Stack((block,), self.num_layers, unroll=self.unroll, remat=self.remat)
        model = (self.d_model,)
        self.pooler = Linear(model, model, axes=("embed", "mlp"), **linear)
        self.output_bias = Bias(self.vocab_size, "vocab")

    @takes_inputs
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        """Returns the hidden states of the last layer (B, L, M), which see the whole row."""
        x = self.embed_dropout(self.token_embed(inputs.tokens), train=train)
        x = self._encoded(x, inputs, train=train)
        return self.output_dropout(x, train=train)

    @takes_inputs
    def layers(self, inputs: Inputs) -> Float[Array, "N B L M"]:
        """Returns the embeddings and the hidden states of all layers (layers + 1, B, L, M)."""
        x = self.token_embed(inputs.tokens)
        outputs = self._encoded(x, inputs, every_layer=True)
        return jnp.concatenate([x[None], outputs])

    def _encoded(
        self,
        x: Float[Array, "B L M"],
        inputs: Inputs,
        *,
        train: bool = False,
        every_layer: bool = False,
    ) -> Float[Array, "*layers B L M"]:
        types, length = inputs.token_types, x.shape[1]
        types = jnp.zeros(x.shape[:2], jnp.int32) if types is None else types
        relations = self._relations(length, 0, types, types, train=train)
        return self.encoder(
            x, mask=inputs.mask, relations=relations, train=train, every_layer=every_layer
        )

    def _relations(
        self,
        length: int,
        memory: int,
        query_types: Int[ArrayLike, "B Q"],
        key_types: Int[ArrayLike, "B K"],
        *,
        train: bool,
        **options,
    ) -> Relations:
        encodings = encoded_distances(length, memory, self.d_model)
        return Relations(
            self.distance_dropout(encodings, train=train),
            jnp.equal(query_types[:, :, None], key_types[:, None, :]),
            **options,
        )

    def initial_carry(self, rows: int) -> Carry:
        """Returns an empty memory, for rows at the start of their texts."""
        shape = (rows, self.num_layers, self.memory_length, self.d_model)
        filled = jnp.zeros((rows, self.memory_length), jnp.int32)
        return jnp.zeros(shape, compute_dtype(self.dtype)), filled

    @takes_inputs
    def permuted(
        self,
        inputs: Inputs,
        targets: Int[ArrayLike, "B P"],
        *,
        carry: Carry | None = None,
        remembered: int = 0,
        train: bool = False,
    ) -> tuple[Float[Array, "B P M"], Carry | None]:
        """Returns the hidden states that predict the tokens at the positions `targets`.

        This is two-stream attention (section 2.3). `inputs.ranks` are the indices of the tokens in
        the order of prediction. A token (content stream) sees tokens of its own rank or a lower
        one, whereas a target (query stream) sees only tokens of a lower rank.

        With a carry, all tokens also see the memory, to which the first `remembered` positions of
        each row are then appended. The collection "state" must be mutable.
        """
        tokens, ranks, token_types = inputs.tokens, inputs.ranks, inputs.token_types
        x = self.token_embed(tokens)  # (B, L, M)
        queries = jnp.broadcast_to(self.target_embed(), (*targets.shape, self.d_model))
        x = jnp.concatenate([x, queries.astype(x.dtype)], axis=1)
        x = self.embed_dropout(x, train=train)
        types = jnp.zeros_like(tokens) if token_types is None else token_types
        # One less than the rank of the token, so that `key <= query` excludes the token itself.
        target_ranks = jnp.take_along_axis(ranks, targets, axis=1) - 1
        target_types = jnp.take_along_axis(types, targets, axis=1)
        memory = 0 if carry is None else self.memory_length
        # The memory has rank 0, so that all tokens see it, and token type 0.
        key_ranks, key_types = (jnp.pad(each, ((0, 0), (memory, 0))) for each in (ranks, types))
        mask = Mask(
            query_ranks=jnp.concatenate([ranks, target_ranks], axis=1),
            key_ranks=key_ranks,
            key_segments=None if carry is None else _filled(carry[1], tokens),
        )
        relations = self._relations(
            tokens.shape[1],
            memory,
            jnp.concatenate([types, target_types], axis=1),
            key_types,
            train=train,
            targets=targets,
            remembered=remembered,
        )
        if carry is not None:
            by_layer = jnp.moveaxis(carry[0], 1, 0)
            self.encoder.put_variable("state", "layers", {"attention": {"memory": by_layer}})
        x = self.encoder(x, mask=mask, relations=relations, train=train)
        if carry is not None:
            by_layer = self.encoder.get_variable("state", "layers")["attention"]["memory"]
            # As many of the oldest positions leave the memory as new ones enter it.
            filled = _filled(carry[1], tokens[:, :remembered])[:, remembered:]
            carry = jnp.moveaxis(by_layer, 0, 1), filled
        return self.output_dropout(x[:, tokens.shape[1] :], train=train), carry

    def pooled(self, hidden: Float[Array, "B L M"]) -> Float[Array, "B M"]:
        """Returns one vector for each example (B, M), computed from its last token."""
        return jnp.tanh(self.pooler(hidden[:, -1]))

    def output(self) -> Projection:
        """Returns the output projection: the token embeddings (V, M) and a bias (V,) float32."""
        return Projection(self.token_embed.table(), self.output_bias())

    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass over one row, two for each multiply-add.

        `predictions` is the number of targets in a permuted order, which are further queries in all
        layers; without targets, a row has no memory. The projection of the distances, which all
        rows of a batch share, is not counted.
        """
        sizes = parameters.LayerSizes.of(self)
        keys = length + (self.memory_length if predictions else 0)
        queries = length + predictions
        attention = sizes.attention(queries, keys, queries * keys)
        distances = parameters.dense(queries, sizes.width, length + keys - 1)
        segments = parameters.dense(queries, sizes.width, 2)
        layer = attention + distances + segments + sizes.mlp(queries)
        output = parameters.dense(predictions, self.d_model, self.vocab_size)
        return self.num_layers * layer + output


def _filled(memory: Int[Array, "B K"], tokens: Int[ArrayLike, "B L"]) -> Int[Array, "B _"]:
    """Returns 1 for the filled positions of a memory and for all positions of the row after it."""
    return jnp.concatenate([memory, jnp.ones_like(tokens)], axis=1)


class _TargetEmbed(nn.Module):
    """The learned embedding (1, 1, M) that is the input of each target."""

    features: int
    init: nn.initializers.Initializer

    @nn.compact
    def __call__(self) -> Float[Array, "1 1 M"]:
        # The shape of `mask_emb` in published checkpoints.
        init = declared(self.init, (None, None, "embed"), decays=True)
        return self.param("embedding", init, (1, 1, self.features))


# ----------------------------------------------------------------------------------- Hugging Face
_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "d_model": "d_model",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "d_inner": "d_ff",
    },
    optional={
        "mem_len": ("memory_length", 512),
        "layer_norm_eps": ("norm_epsilon", 1e-12),
        "dropout": ("dropout", 0.1),
        "initializer_range": ("init_std", 0.02),
    },
    allowed={
        "ff_activation": ("gelu",),
        "attn_type": ("bi",),
        "bi_data": (False,),
        "clamp_len": (-1,),
        "same_length": (False,),
        "untie_r": (True,),
        "summary_type": ("last",),
        "summary_use_proj": (True,),
        "summary_activation": ("tanh",),
        "tie_word_embeddings": (True,),
    },
)

_LAYER = {
    "rel_attn.q": ("same", "attention/query/kernel"),
    "rel_attn.k": ("same", "attention/key/kernel"),
    "rel_attn.v": ("same", "attention/value/kernel"),
    "rel_attn.r": ("same", "attention/distance/kernel"),
    "rel_attn.o": ("outputs_first", "attention/out/kernel"),
    "rel_attn.r_w_bias": ("same", "attention/content_bias"),
    "rel_attn.r_r_bias": ("same", "attention/distance_bias"),
    "rel_attn.r_s_bias": ("same", "attention/segment_bias"),
    "rel_attn.seg_embed": ("same", "attention/segment_embed"),
    **norm("rel_attn.layer_norm", "attention_norm"),
    **linear("ff.layer_1", "mlp/wi"),
    **linear("ff.layer_2", "mlp/wo"),
    **norm("ff.layer_norm", "mlp_norm"),
}
_ENCODER = {
    "transformer.word_embedding.weight": ("same", "token_embed/embedding"),
    **layers("transformer.layer.{}.", "encoder/layers/", _LAYER),
}
_TARGET = "transformer.mask_emb"
_LANGUAGE_MODEL = {
    _TARGET: ("same", "target_embed/embedding"),
    "lm_loss.bias": ("same", "output_bias/bias"),
}
_SUMMARY = linear("sequence_summary.summary", "pooler") | linear("logits_proj", "head/out")


@dataclasses.dataclass(frozen=True)
class PreTraining(Causal):
    model = "xlnet"
    body = ("transformer.",)
    # A copy of the embeddings, which `tied` compares, and the embedding of targets. Published
    # encoders hold it, but only pre-training uses it.
    ignored = ("lm_loss.weight", _TARGET)
    tied = {"lm_loss.weight": ("word_embedding.weight",)}

    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        # null in config.json means that there is no memory.
        return keys | {"memory_length": keys["memory_length"] or 0}

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        d_model = config.model.d_model
        return {
            "d_inner": config.model.d_ff or 4 * d_model,
            "d_head": d_model // config.model.num_heads,
            "mem_len": config.model.memory_length or None,
            "pad_token_id": tokenizer.pad_id,
        }


@dataclasses.dataclass(frozen=True)
class FineTuned(family.FineTuned, PreTraining):
    @property
    def dropout_key(self):
        # Only a head that reads <cls> has a dropout rate of its own.
        return "summary_last_dropout" if self.task in ("classification", "choice") else ""

    def default_dropout(self, config):
        return 0.1 if self.dropout_key else 0.0


def _fine_tuned(head: str, table: dict, task: str) -> FineTuned:
    return FineTuned(f"XLNetFor{head}", "xlnet", _KEYS, _ENCODER | table, task)


ARCHITECTURES = [
    PreTraining("XLNetLMHeadModel", "xlnet", _KEYS, _ENCODER | _LANGUAGE_MODEL, "permuted_lm"),
    _fine_tuned("SequenceClassification", _SUMMARY, "classification"),
    _fine_tuned("MultipleChoice", _SUMMARY, "choice"),
    _fine_tuned("TokenClassification", linear("classifier", "head/out"), "tagging"),
    _fine_tuned("QuestionAnsweringSimple", linear("qa_outputs", "head/out"), "span"),
]
