"""The encoder-decoder T5 (Raffel et al. 2020) and its version 1.1 (Shazeer 2020, section 3)."""

import dataclasses
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import Fraction, PositiveInt, UserError
from transformer_jax.contracts.model import CachedSequenceToSequence
from transformer_jax.huggingface.encoder_decoder import EncoderDecoder
from transformer_jax.huggingface.tensors import Keys, Table, layers, stored
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import MLP, Block, Remat, RMSNorm, Stack
from transformer_jax.layers.embeddings import Embed, Projection, RelativeBias
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, compute_dtype


class T5(CachedSequenceToSequence):
    """Source (B, S) and target (B, T) int32 -> logits of the next target tokens (B, T, V) float32.

    Pre-LN blocks with RMSNorm and no biases (section 2.1). Positions enter self-attention as a
    relative bias of the scores, with one table for each stack. The scores are not divided by
    sqrt(head_dim); instead, the initial weights of the queries are smaller by this factor. Source
    and target share token embeddings. See `CachedSequenceToSequence` for segment ids.
    """

    vocabulary = ("token_embed/embedding", "output_embed/embedding")
    max_length = None

    vocab_size: PositiveInt = 32_128  # number of tokens in the vocabulary
    d_model: PositiveInt = 512  # width of the residual stream
    d_ff: PositiveInt = 2048  # width of the MLP's hidden layer
    num_heads: PositiveInt = 8  # attention heads of a layer
    head_dim: PositiveInt = 64  # width of a head
    num_encoder_layers: PositiveInt = 6  # number of encoder blocks
    num_decoder_layers: PositiveInt = 6  # number of decoder blocks
    num_buckets: PositiveInt = 32  # buckets of distances between positions, each with a bias
    max_distance: int = 128  # distances from here on share a bucket
    gated: bool = False  # gated GELU instead of ReLU in the MLP (version 1.1)
    # uses the token embeddings as output projection, scaled by 1 / sqrt(d_model); false: a separate
    # projection, without scale (version 1.1)
    tie_output: bool = True
    # scales the hidden states by 1 / sqrt(d_model) in front of the output projection; none: if it
    # is tied to the token embeddings
    scale_output: bool | None = None
    # on each residual branch, the attention weights, the MLP's hidden layer, the embeddings and the
    # hidden states of the last layers
    dropout: Fraction = 0.1
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        if self.num_buckets < 4 or self.num_buckets % 2:
            raise UserError(
                f"config.model.num_buckets={self.num_buckets}: must be even and at least 4"
            )
        if self.max_distance <= self.num_buckets // 2:
            raise UserError(
                f"config.model.max_distance={self.max_distance}: must be above half of "
                f"config.model.num_buckets={self.num_buckets}"
            )

    def setup(self):
        dtype = compute_dtype(self.dtype)
        width = self.num_heads * self.head_dim
        # As in the published code, embeddings start from N(0, 1) and projections with a standard
        # deviation of 1 / sqrt(inputs).
        embed = partial(Embed, self.vocab_size, self.d_model, dtype=dtype)
        self.token_embed = embed(init=nn.initializers.normal(1.0))
        if not self.tie_output:
            self.output_embed = embed(init=nn.initializers.normal(self.d_model**-0.5))
        self.state_dropout = Dropout(self.dropout)

        inner = nn.initializers.normal(self.d_model**-0.5)
        linear = dict(kernel_init=inner, use_bias=False, dtype=dtype, dropout=self.dropout)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            scale=1.0,
            # The initial weights include the factor 1 / sqrt(head_dim), by which the scores are not
            # scaled.
            query_init=nn.initializers.normal((self.d_model * self.head_dim) ** -0.5),
            output_init=nn.initializers.normal(width**-0.5),
            **linear,
        )
        mlp = partial(
            MLP,
            d_ff=self.d_ff,
            # The default of jax.nn.gelu is the tanh approximation, as in version 1.1.
            activation=jax.nn.gelu if self.gated else jax.nn.relu,
            gated=self.gated,
            output_init=nn.initializers.normal(self.d_ff**-0.5),
            **linear,
        )
        encoder_block = partial(
            Block,
            attention=attention,
            mlp=mlp,
            norm=RMSNorm,
            norm_position="pre",
            dropout=self.dropout,
        )
        decoder_block = partial(encoder_block, cross_attention=partial(attention, cross=True))
        bias = partial(
            RelativeBias,
            self.num_heads,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            table_init=inner,
        )
        self.encoder_bias = bias(causal=False)
        self.decoder_bias = bias(causal=True)
        stack = partial(Stack, unroll=self.unroll, remat=self.remat)
        self.encoder = stack((encoder_block,), self.num_encoder_layers)
        self.decoder = stack((decoder_block,), self.num_decoder_layers)
        self.encoder_norm = RMSNorm()
        self.decoder_norm = RMSNorm()

    def embedded(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S M"]:
        return self.token_embed(source)

    def encoded(
        self,
        source: Int[ArrayLike, "B S"],
        positions: Int[ArrayLike, "B S"] | None,
        *,
        mask: Mask,
        train: bool = False,
    ) -> Float[Array, "B S M"]:
        """Returns the encoder output (B, S, M).

        `positions` are not used, because the bias depends only on distances within a row.
        """
        length = source.shape[1]
        # Computed once, outside of the scan over layers, because all layers share the table.
        bias = self.encoder_bias(mask.distance(length, length))
        x = self.state_dropout(self.token_embed(source), train=train)
        x = self.encoder(x, mask=mask, bias=bias, train=train)
        return self.state_dropout(self.encoder_norm(x), train=train)

    def decoded(
        self,
        target: Int[ArrayLike, "B T"],
        positions: Int[ArrayLike, "B T"] | Int[ArrayLike, "B 1"] | None,
        encoder_output: Float[Array, "B S M"] | None,
        *,
        mask: Mask,
        cross_mask: Mask,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B T M"]:
        length = target.shape[1]
        num_keys = decode or length
        # In beam search, each slot of the cache holds the keys of all beams.
        if mask.ancestors is not None:
            num_keys = length * mask.ancestors.shape[2]
        bias = self.decoder_bias(mask.distance(length, num_keys))
        x = self.state_dropout(self.token_embed(target), train=train)
        options = dict(mask=mask, cross_mask=cross_mask, bias=bias, train=train, decode=decode)
        x = self.decoder(x, encoder_output, **options)
        return self.state_dropout(self.decoder_norm(x), train=train)

    def transformed(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B M"]:
        """Scales hidden states in front of the output projection, see `scale_output`."""
        # Tied embeddings start from N(0, 1). Without the scale, logits would start with a standard
        # deviation near sqrt(d_model).
        is_scaled = self.tie_output if self.scale_output is None else self.scale_output
        return hidden * self.reference_width**-0.5 if is_scaled else hidden

    def output(self) -> Projection:
        """Returns the output projection: the table (V, M) without a bias."""
        return Projection((self.token_embed if self.tie_output else self.output_embed).table())

    def layer_sizes(self) -> parameters.LayerSizes:
        width = self.num_heads * self.head_dim
        return parameters.LayerSizes(
            self.d_model, width, self.d_ff, mlp_inputs=2 if self.gated else 1
        )


# ----------------------------------------------------------------------------------- Hugging Face
_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "d_model": "d_model",
        "d_kv": "head_dim",
        "d_ff": "d_ff",
        "num_layers": "num_encoder_layers",
        "num_heads": "num_heads",
    },
    optional={
        "relative_attention_num_buckets": ("num_buckets", 32),
        "relative_attention_max_distance": ("max_distance", 128),
        "dropout_rate": ("dropout", 0.1),
    },
    # The epsilon is the constant of `RMSNorm`; config.model has no key for it.
    allowed={"layer_norm_epsilon": (1e-6,), "feed_forward_proj": ("relu", "gated-gelu")},
)


def _sublayer(number: int, name: str, path: str, parts: dict[str, tuple[str, str]]) -> Table:
    """Returns the entries of a sublayer with its norm; `parts` are {name: (layout, path)}."""
    return {
        f"layer.{number}.layer_norm.weight": ("same", f"{path}_norm/scale"),
        **{
            f"layer.{number}.{name}.{part}.weight": (layout, f"{path}/{end}/kernel")
            for part, (layout, end) in parts.items()
        },
    }


_ATTENTION = {
    "q": ("linear", "query"),
    "k": ("linear", "key"),
    "v": ("linear", "value"),
    "o": ("linear_merge", "out"),
}
_MLP = {"wi": ("linear", "wi"), "wo": ("linear", "wo")}
_GATED_MLP = {"wi_0": ("linear", "wi"), "wi_1": ("linear", "wv"), "wo": ("linear", "wo")}


def _stack(name: str, *sublayers: Table) -> Table:
    layer = {key: entry for sublayer in sublayers for key, entry in sublayer.items()}
    # All layers of a stack share one table, which transformers keeps in the first of them.
    bias = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return {
        **layers(f"{name}.block.{{}}.", f"{name}/layers/", layer),
        bias: ("same", f"{name}_bias/table"),
        f"{name}.final_layer_norm.weight": ("same", f"{name}_norm/scale"),
    }


def _table(mlp: dict) -> Table:
    attention = _sublayer(0, "SelfAttention", "attention", _ATTENTION)
    cross = _sublayer(1, "EncDecAttention", "cross_attention", _ATTENTION)
    return {
        "shared.weight": ("same", "token_embed/embedding"),
        **_stack("encoder", attention, _sublayer(1, "DenseReluDense", "mlp", mlp)),
        **_stack("decoder", attention, cross, _sublayer(2, "DenseReluDense", "mlp", mlp)),
    }


_OUTPUT = "lm_head.weight"


@dataclasses.dataclass(frozen=True)
class Writer(EncoderDecoder):
    model = "t5"
    body = ("shared.", "encoder.")
    headless = "T5EncoderModel"
    ignored = (
        # Copies of the shared embeddings, with which `tied` compares them. If the output projection
        # is not tied, `table` lists it.
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        _OUTPUT,
        # Published files contain a bias here that no model uses.
        "EncDecAttention.relative_attention_bias.weight",
    )
    tied = dict.fromkeys(ignored[:3], ("shared.weight",))

    def table(self, model):
        output = {} if model.tie_output else {_OUTPUT: ("same", "output_embed/embedding")}
        return _table(_GATED_MLP if model.gated else _MLP) | output

    def read_config(self, hf_config, folder):
        # The keys alone do not tell whether the output is tied, because transformers 5 writes
        # tie_word_embeddings=true for all models: it ties if there is no tensor for the output.
        scaled = hf_config.get("scale_decoder_outputs", hf_config.get("tie_word_embeddings", True))
        says_tied = scaled and hf_config.get("tie_word_embeddings", True)
        if self.architecture == "T5Model" and not says_tied:
            raise UserError(
                f"{folder / 'config.json'}: a T5Model with tie_word_embeddings=false has no output "
                "projection, so it can't generate; save it as T5EncoderModel, or with its head"
            )
        tied = says_tied or _OUTPUT not in stored(folder)
        keys = {"tie_word_embeddings": tied, "scale_decoder_outputs": scaled}
        return super().read_config(hf_config | keys, folder)

    def model_keys(self, hf_config):
        decoder_layers = hf_config.get("num_decoder_layers")
        keys = super().model_keys(hf_config)
        tied = hf_config.get("tie_word_embeddings", True)
        scaled = hf_config.get("scale_decoder_outputs", tied)
        return keys | {
            "num_decoder_layers": decoder_layers or keys["num_encoder_layers"],
            "gated": hf_config.get("feed_forward_proj") == "gated-gelu",
            "tie_output": tied,
            "scale_output": None if scaled == tied else scaled,
        }

    def other_keys(self, config, tokenizer):
        scaled = config.model.scale_output
        return super().other_keys(config, tokenizer) | {
            "num_decoder_layers": config.model.num_decoder_layers,
            "feed_forward_proj": "gated-gelu" if config.model.gated else "relu",
            "tie_word_embeddings": config.model.tie_output,
            # transformers 4 has no such key, and scales whatever is tied.
            **({} if scaled is None else {"scale_decoder_outputs": scaled}),
        }


ARCHITECTURES = [
    Writer("T5ForConditionalGeneration", "t5", _KEYS, _table(_MLP), "text_to_text"),
    # Its output projection is tied to the embeddings.
    Writer("T5Model", "t5", _KEYS, _table(_MLP), "text_to_text"),
]
