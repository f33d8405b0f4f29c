"""Reformer: a memory-efficient language model for long sequences (Kitaev et al. 2020)."""

import dataclasses
import math
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import Fraction, NonNegativeFloat, PositiveInt, UserError
from transformer_jax.contracts.model import Cached
from transformer_jax.huggingface.generate_options import Causal
from transformer_jax.huggingface.tensors import Keys, Table, layers, linear, norm
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import check_heads
from transformer_jax.layers.blocks import MLP, LayerNorm
from transformer_jax.layers.chunked_attention import LocalAttention
from transformer_jax.layers.embeddings import Bias, Embed, Projection, check_ids
from transformer_jax.layers.lsh_attention import LSHAttention, Rotations
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, compute_dtype
from transformer_jax.layers.reversible import ReversibleBlock, ReversibleStack


class Reformer(Cached):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    The layers are reversible, and their attention works on chunks, either of the row or of the row
    sorted by the buckets of its tokens. Segment ids start at 1 and separate the documents of a
    packed row; 0 is padding. By default, a row is one document with positions 0..L-1.
    """

    can = frozenset({"cache"})
    vocabulary = ("token_embed/embedding", "output_embed/embedding", "output_bias/bias")

    vocab_size: PositiveInt = 320  # number of tokens in the vocabulary
    # pads the tables of tokens with zeros to a multiple of this number of rows, for speed; results
    # and the number of parameters stay the same
    vocab_multiple: PositiveInt = 1
    d_model: PositiveInt = 256  # width of each half of the residual stream
    d_ff: PositiveInt = 512  # width of the MLP's hidden layer
    num_layers: PositiveInt = 6  # number of blocks
    num_heads: PositiveInt = 12  # attention heads of a layer
    head_dim: PositiveInt | None = 64  # width of a head; None: d_model / num_heads
    # kinds of attention, which repeat over the layers: to a token's own chunk and the previous one
    # (local), or to the tokens of its bucket (lsh)
    attention: tuple[str, ...] = ("local", "lsh")
    local_chunk: PositiveInt = 64  # tokens of a chunk of local attention
    lsh_chunk: PositiveInt = 64  # tokens of a chunk of LSH attention
    rounds: PositiveInt = 1  # hashing rounds; each finds further keys
    # even factors of the number of buckets; twice the length / lsh_chunk is usual
    buckets: tuple[int, ...] = (128,)
    # whether a token sees its whole chunk and the previous one, even other buckets, as in the
    # published code; the tokens that it sees then depend on later ones
    across_buckets: bool = False
    max_length: PositiveInt = 4096  # number of positions
    axial_shape: tuple[int, ...] = (64, 64)  # sides of the grid of positions; product: max_length
    # columns of a position embedding that each side contributes; their sum is d_model
    axial_widths: tuple[int, ...] = (64, 192)
    mlp_chunk: int | None = None  # positions that the MLP processes at a time; None: all
    norm_epsilon: NonNegativeFloat = 1e-12  # added to the variance in layer norms
    # standard deviation of the initial weights; narrow models learn faster with a larger value
    init_std: NonNegativeFloat = 0.02
    dropout: Fraction = 0.05  # on embeddings, hidden layers, residual branches and the last layer
    attention_dropout: Fraction = 0.0  # on the attention weights
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: all, from the outputs of the last layer
    # (reversible), none, all except matrix products (dots), or all except layer inputs (full)
    remat: Literal["reversible", "none", "dots", "full"] = "reversible"

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)
        if not self.attention or not set(self.attention) <= {"local", "lsh"}:
            raise UserError(f"config.model.attention={self.attention}: must be of local and lsh")
        if self.num_layers % len(self.attention):
            raise UserError(
                f"config.model.num_layers={self.num_layers}: must be a multiple of the "
                f"{len(self.attention)} entries of config.model.attention"
            )
        even = self.buckets and all(n > 0 and n % 2 == 0 for n in self.buckets)
        # `LSHAttention` keeps buckets as uint16.
        if not even or math.prod(self.buckets) > 2**16:
            raise UserError(
                f"config.model.buckets={self.buckets}: must be even numbers whose product "
                "is at most 65,536"
            )
        for key, total in (("max_length", math.prod), ("d_model", sum)):
            name = "axial_shape" if key == "max_length" else "axial_widths"
            if total(getattr(self, name)) != getattr(self, key):
                raise UserError(
                    f"config.model.{name}={getattr(self, name)}: the "
                    f"{'product' if total is math.prod else 'sum'} must be config.model.{key}="
                    f"{getattr(self, key)}"
                )
        if len(self.axial_shape) != len(self.axial_widths):
            raise UserError("config.model.axial_shape and axial_widths must have equal lengths")

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.normal(self.init_std)
        embed = partial(Embed, self.vocab_size, multiple=self.vocab_multiple, dtype=dtype)
        self.token_embed = embed(self.d_model, init)
        self.position_embed = [
            Embed(side, width, init, axes=(None, "embed"), dtype=dtype, key="max_length")
            for side, width in zip(self.axial_shape, self.axial_widths)
        ]
        self.embed_dropout = Dropout(self.dropout)
        blocks = tuple(
            partial(
                ReversibleBlock,
                new_attention=self._attention(kind, kernel_init=init, dtype=dtype),
                new_mlp=partial(
                    MLP, self.d_ff, dropout=self.dropout, kernel_init=init, dtype=dtype
                ),
                new_norm=partial(LayerNorm, self.norm_epsilon),
                dropout=self.dropout,
                mlp_chunk=self.mlp_chunk,
            )
            for kind in self.attention
        )
        # A reversible stack recomputes all activations itself, so its layers need no checkpoints.
        is_reversed = self.remat == "reversible"
        self.decoder = ReversibleStack(
            blocks,
            self.num_layers,
            unroll=self.unroll,
            remat="none" if is_reversed else self.remat,
            reversed=is_reversed,
        )
        self.norm = LayerNorm(self.norm_epsilon)
        self.output_dropout = Dropout(self.dropout)
        # Twice as wide, because the hidden states are both halves of the residual stream.
        self.output_embed = embed(2 * self.d_model, init)
        self.output_bias = Bias(self.vocab_size + self._padding, "vocab")

    def _attention(self, kind: str, **options) -> partial:
        options = options | dict(
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            use_bias=False,
            dropout=self.attention_dropout,
        )
        if kind == "local":
            return partial(LocalAttention, chunk=self.local_chunk, **options)
        return partial(
            LSHAttention,
            chunk=self.lsh_chunk,
            rounds=self.rounds,
            num_buckets=self.buckets,
            across_buckets=self.across_buckets,
            **options,
        )

    def decoded(
        self,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"],
        *,
        mask: Mask,
        rotations: Rotations | None = None,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B L E"]:
        """As in `Cached`. With `rotations`, all LSH layers hash with them, see `LSHAttention`."""
        x = self.token_embed(tokens) + self._positions(positions)
        # The halves stay float32, because the backward pass recomputes them by subtraction, where
        # the rounding of bfloat16 would add up over the layers.
        x = self.embed_dropout(x, train=train).astype(jnp.float32)
        halves = self.decoder((x, x), mask=mask, rotations=rotations, train=train, decode=decode)
        x = self.norm(jnp.concatenate(halves, axis=-1)).astype(compute_dtype(self.dtype))
        return self.output_dropout(x, train=train)

    def _positions(self, positions: Int[ArrayLike, "B L"]) -> Float[Array, "B L M"]:
        """Returns axial position embeddings: those of each side of the grid, concatenated."""
        # Checked before the split, because the table of a side would report a coordinate instead.
        if not isinstance(positions, jax.core.Tracer):
            check_ids(np.asarray(positions), self.max_length, "max_length")
        coordinates = []
        # The last side varies fastest, as in the published position tables.
        for side in reversed(self.axial_shape[1:]):
            positions, coordinate = jnp.divmod(positions, side)
            coordinates.insert(0, coordinate)
        coordinates.insert(0, positions)
        parts = [embed(index) for embed, index in zip(self.position_embed, coordinates)]
        return jnp.concatenate(parts, axis=-1)

    def output(self) -> Projection:
        """Returns the output projection, which reads both halves."""
        return self.output_embed.output().biased(self.output_bias())

    @property
    def _padding(self) -> int:
        """The rows that pad the vocabulary."""
        return -self.vocab_size % self.vocab_multiple

    def num_padding(self) -> int:
        # A row of token embeddings, one of the output table, which is twice as wide, and a bias.
        return self._padding * (3 * self.d_model + 1)

    def flops(self, length: int, predictions: int | None = None) -> float:
        """Returns the FLOPs of a forward pass over one row.

        Each query is counted with all keys of its own chunk and the previous one.
        """
        sizes = parameters.LayerSizes.of(self)
        layers = 0.0
        for number in range(self.num_layers):
            kind = self.attention[number % len(self.attention)]
            layers += sizes.mlp(length)
            chunk = self.local_chunk if kind == "local" else self.lsh_chunk
            pairs = length * min(2 * chunk, length)
            attention = sizes.attention(length, length, pairs)
            if kind == "lsh":
                # The hash is the argmax over a rotation and its negative, so half of the columns
                # suffice.
                hashing = parameters.dense(length, sizes.width, sum(self.buckets) // 2)
                # Queries and keys share a projection, which `sizes.attention` counts twice.
                one_projection = parameters.dense(length, self.d_model, sizes.width)
                attention += (self.rounds - 1) * 4 * sizes.width * pairs
                attention += self.rounds * hashing - one_projection
            layers += attention
        positions = length if predictions is None else predictions
        return layers + parameters.dense(positions, 2 * self.d_model, self.vocab_size)


# ----------------------------------------------------------------------------------- Hugging Face
#
# The published model draws its rotations with PyTorch's random numbers, so the outputs are equal
# only if both hash with the same rotations.
_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "feed_forward_size": "d_ff",
        "num_attention_heads": "num_heads",
        "attention_head_size": "head_dim",
        "max_position_embeddings": "max_length",
    },
    optional={
        "local_attn_chunk_length": ("local_chunk", 64),
        "lsh_attn_chunk_length": ("lsh_chunk", 64),
        "num_hashes": ("rounds", 1),
        "layer_norm_eps": ("norm_epsilon", 1e-12),
        "initializer_range": ("init_std", 0.02),
        "hidden_dropout_prob": ("dropout", 0.05),
    },
    allowed={
        "is_decoder": (True,),
        "hidden_act": ("relu",),
        "local_num_chunks_before": (1,),
        "local_num_chunks_after": (0,),
        "lsh_num_chunks_before": (1,),
        "lsh_num_chunks_after": (0,),
        "tie_word_embeddings": (False,),
    },
)
_MLP = {
    **norm("feed_forward.layer_norm", "mlp_norm"),
    **linear("feed_forward.dense.dense", "mlp/wi"),
    **linear("feed_forward.output.dense", "mlp/wo"),
}
_ATTENTION = {
    **norm("attention.layer_norm", "attention_norm"),
    "attention.self_attention.value.weight": ("linear", "attention/value/kernel"),
    "attention.output.dense.weight": ("linear_merge", "attention/out/kernel"),
}
_LAYER = {
    "local": {
        **_ATTENTION,
        "attention.self_attention.query.weight": ("linear", "attention/query/kernel"),
        "attention.self_attention.key.weight": ("linear", "attention/key/kernel"),
        **_MLP,
    },
    "lsh": {
        **_ATTENTION,
        "attention.self_attention.query_key.weight": ("linear", "attention/query_key/kernel"),
        **_MLP,
    },
}
_HEAD = {
    "reformer.embeddings.word_embeddings.weight": ("same", "token_embed/embedding"),
    **norm("reformer.encoder.layer_norm", "norm"),
    "lm_head.decoder.weight": ("same", "output_embed/embedding"),
    # Checkpoints hold this bias twice, of which transformers uses the second.
    "lm_head.bias": ("same", "output_bias/bias"),
    "lm_head.decoder.bias": ("same", "output_bias/bias"),
}


@dataclasses.dataclass(frozen=True)
class LanguageModel(Causal):
    model = "reformer"
    ignored = ("mask_value_float16", "mask_value_float32")  # buffers with constant scores

    def table(self, model):
        pattern = model.attention
        table = dict(_HEAD)
        for index, kind in enumerate(pattern):
            block = f"block_{index}/" if len(pattern) > 1 else ""
            name = f"reformer.encoder.layers.{{{index}:{len(pattern)}}}."
            table |= layers(name, f"decoder/layers/{block}", _LAYER[kind])
        return table | self._positions(model)

    def _positions(self, model) -> Table:
        """Returns the entries of the position table, or of one table for each side of the grid."""
        if len(model.axial_shape) == 1:
            name = "reformer.embeddings.position_embeddings.embedding.weight"
            return {name: ("same", "position_embed_0/embedding")}
        name = "reformer.embeddings.position_embeddings.weights"
        layouts = ("first_side", "second_side")
        return {
            f"{name}.{side}": (layouts[side], f"position_embed_{side}/embedding")
            for side in range(len(model.axial_shape))
        }

    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        pattern = hf_config.get("attn_layers", ["local", "lsh"] * 3)
        buckets = hf_config.get("num_buckets")
        if buckets is None:
            raise UserError("num_buckets=None: must be a number, or its factors")
        shape, widths = [keys["max_length"]], [keys["d_model"]]
        if hf_config.get("axial_pos_embds", True):
            shape = hf_config.get("axial_pos_shape", [64, 64])
            widths = hf_config.get("axial_pos_embds_dim", [64, 192])
        return keys | {
            "num_layers": len(pattern),
            "attention": _shortest_pattern(pattern),
            "buckets": [buckets] if isinstance(buckets, int) else buckets,
            # Always, because transformers' attention does not compare the buckets within a chunk.
            "across_buckets": True,
            "max_length": math.prod(shape),
            "axial_shape": shape,
            "axial_widths": widths,
            "attention_dropout": hf_config.get("lsh_attention_probs_dropout_prob", 0.0),
            "mlp_chunk": hf_config.get("chunk_size_feed_forward", 0) or None,
        }

    def remarks(self, hf_config):
        local, lsh = (
            hf_config.get(f"{kind}_attention_probs_dropout_prob", default)
            for kind, default in (("local", 0.05), ("lsh", 0.0))
        )
        if local != lsh:
            yield (
                f"local_attention_probs_dropout_prob={local} becomes {lsh}: our models have one "
                "rate for both kinds of attention"
            )

    def task_keys(self, config, hf_config):
        return {"length": config.model.max_length}

    def check(self, config):
        super().check(config)
        if not config.model.across_buckets:
            raise UserError(
                f"config.model.across_buckets=False: {self.architecture} attends across buckets"
            )
        if len(config.model.axial_shape) > 2:
            raise UserError(
                f"config.model.axial_shape={config.model.axial_shape}: {self.architecture} has one "
                "side or two"
            )

    def other_keys(self, config, tokenizer):
        model = config.model
        is_axial = len(model.axial_shape) > 1
        axial = dict(axial_pos_shape=model.axial_shape, axial_pos_embds_dim=model.axial_widths)
        pattern = [*model.attention] * (model.num_layers // len(model.attention))
        buckets = [*model.buckets]
        return {
            "attention_head_size": model.head_dim or model.d_model // model.num_heads,
            "attn_layers": pattern,
            "axial_pos_embds": is_axial,
            **(axial if is_axial else {}),
            "chunk_size_feed_forward": model.mlp_chunk or 0,
            "eos_token_id": tokenizer.eos_id,
            "local_attention_probs_dropout_prob": model.attention_dropout,
            "lsh_attention_probs_dropout_prob": model.attention_dropout,
            "num_buckets": buckets[0] if len(buckets) == 1 else buckets,
        }


def _shortest_pattern(kinds: list[str]) -> list[str]:
    """Returns the shortest pattern of which these kinds of attention are repeats."""
    for length in range(1, len(kinds) + 1):
        times, rest = divmod(len(kinds), length)
        if not rest and kinds == kinds[:length] * times:
            return kinds[:length]
    return kinds


ARCHITECTURES = [
    LanguageModel("ReformerModelWithLMHead", "reformer", _KEYS, _HEAD, "causal_lm"),
]
