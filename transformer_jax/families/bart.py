"""The encoder-decoder BART (Lewis et al. 2019)."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import Fraction, NonNegativeFloat, PositiveInt, UserError
from transformer_jax.contracts.model import CachedSequenceToSequence
from transformer_jax.huggingface import family
from transformer_jax.huggingface.encoder_decoder import EncoderDecoder, special_keys
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.tensors import Keys, Table, layers, linear, norm
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import MLP, Block, LayerNorm, Remat, Stack
from transformer_jax.layers.embeddings import Embed, Projection, row_positions
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, compute_dtype

# fairseq counts positions from the id of padding + 1 = 2, so the position tables of published
# checkpoints start with two rows that belong to no position.
_POSITION_OFFSET = 2


class BART(CachedSequenceToSequence):
    """Source (B, S) and target (B, T) int32 -> logits of the next target tokens (B, T, V) float32.

    The Transformer of Vaswani et al. 2017 with GELU, initial weights from N(0, 0.02), and
    embeddings as in BERT, with learned positions and a norm after the sum (section 2.1). Source,
    target and output share token embeddings. See `CachedSequenceToSequence` for segment ids and
    positions.
    """

    vocab_size: PositiveInt = 50_265  # number of tokens in the vocabulary
    d_model: PositiveInt = 768  # width of the residual stream
    d_ff: PositiveInt = 3072  # width of the MLP's hidden layer
    num_heads: PositiveInt = 12  # attention heads of a layer
    num_encoder_layers: PositiveInt = 6  # number of encoder blocks
    num_decoder_layers: PositiveInt = 6  # number of decoder blocks
    max_length: PositiveInt = 1024  # number of learned positions of a source and of a target
    # standard deviation of the initial weights; narrow models learn faster with a larger value
    init_std: NonNegativeFloat = 0.02
    dropout: Fraction = 0.1  # on each residual branch and on the embeddings
    attention_dropout: Fraction = 0.0  # on the attention weights
    activation_dropout: Fraction = 0.0  # on the MLP's hidden layer
    # pads the embedding table with zeros to a multiple of this number of rows, for speed; results
    # do not change
    vocab_multiple: PositiveInt = 1
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        check_heads(self.d_model, self.num_heads, None)

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.normal(self.init_std)
        embed = partial(Embed, features=self.d_model, init=init, dtype=dtype)
        self.token_embed = embed(self.vocab_size, multiple=self.vocab_multiple)
        positions = dict(axes=(None, "embed"), offset=_POSITION_OFFSET, key="max_length")
        self.position_embed = embed(self.max_length, **positions)
        self.decoder_position_embed = embed(self.max_length, **positions)
        # The default epsilon of PyTorch, which BART uses. Its config.json has no key for it.
        norm = partial(LayerNorm, 1e-5)
        self.embed_norm = norm()
        self.decoder_embed_norm = norm()
        self.embed_dropout = Dropout(self.dropout)

        linear = dict(kernel_init=init, dtype=dtype)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            **linear,
        )
        mlp = partial(
            MLP,
            d_ff=self.d_ff,
            # The exact GELU, which config.json names gelu; gelu_new would be the tanh
            # approximation.
            activation=partial(jax.nn.gelu, approximate=False),
            dropout=self.activation_dropout,
            **linear,
        )
        encoder_block = partial(
            Block, attention=attention, mlp=mlp, norm=norm, dropout=self.dropout
        )
        decoder_block = partial(encoder_block, cross_attention=partial(attention, cross=True))
        stack = partial(Stack, unroll=self.unroll, remat=self.remat)
        self._set_up_encoder(partial(stack, (encoder_block,)))
        self.decoder = stack((decoder_block,), self.num_decoder_layers)

    def _set_up_encoder(self, stack: Callable[[int], Stack]):
        """Sets up the layers of the encoder. `stack(n)` returns a stack of n layers."""
        self.encoder = stack(self.num_encoder_layers)

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
        x = self.token_embed(source) + self._at(self.position_embed, source, positions)
        x = self.embed_dropout(self.embed_norm(x), train=train)
        return self.encoder(x, mask=mask, train=train)

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
        x = self.token_embed(target) + self._at(self.decoder_position_embed, target, positions)
        x = self.embed_dropout(self.decoder_embed_norm(x), train=train)
        return self.decoder(
            x, encoder_output, mask=mask, cross_mask=cross_mask, train=train, decode=decode
        )

    def _at(
        self,
        embed: Embed,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"] | Int[ArrayLike, "B 1"] | None,
    ) -> Float[Array, "B L M"] | Float[Array, "B 1 M"]:
        """Returns the position embeddings of `tokens`, by default for positions 0..L-1."""
        if positions is None:
            positions = row_positions(tokens, self.max_length)
        return embed(positions)

    def output(self) -> Projection:
        """Returns the output projection: the token embeddings (V, M), and a bias (V,) or None.

        The bias excludes the rows that pad the vocabulary.
        """
        return self.token_embed.output()

    def num_padding(self) -> int:
        return (-self.vocab_size % self.vocab_multiple) * self.d_model

    def layer_sizes(self) -> parameters.LayerSizes:
        return parameters.LayerSizes(self.d_model, self.d_model, self.d_ff)


# ----------------------------------------------------------------------------------- Hugging Face
_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "d_model": "d_model",
        "encoder_layers": "num_encoder_layers",
        "decoder_layers": "num_decoder_layers",
        "encoder_attention_heads": "num_heads",
        "encoder_ffn_dim": "d_ff",
        "max_position_embeddings": "max_length",
    },
    optional={
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.0),
        "activation_dropout": ("activation_dropout", 0.0),
        "init_std": ("init_std", 0.02),
    },
    allowed={
        "activation_function": ("gelu",),
        "scale_embedding": (False,),
        "tie_word_embeddings": (True,),
    },
)
# config.model has one value for both stacks, so each of these keys of the decoder must have the
# value of the encoder's key.
_SHARED_KEYS = {
    "decoder_attention_heads": "encoder_attention_heads",
    "decoder_ffn_dim": "encoder_ffn_dim",
}


def _attention(name: str, path: str) -> Table:
    return {
        **linear(f"{name}.q_proj", f"{path}/query"),
        **linear(f"{name}.k_proj", f"{path}/key"),
        **linear(f"{name}.v_proj", f"{path}/value"),
        **linear(f"{name}.out_proj", f"{path}/out", "linear_merge"),
        **norm(f"{name}_layer_norm", f"{path}_norm"),
    }


_LAYER = {
    **_attention("self_attn", "attention"),
    **linear("fc1", "mlp/wi"),
    **linear("fc2", "mlp/wo"),
    **norm("final_layer_norm", "mlp_norm"),
}
# Public, because Marian's models give their layers the same names.
STACKS = {
    **layers("model.encoder.layers.{}.", "encoder/layers/", _LAYER),
    **layers(
        "model.decoder.layers.{}.",
        "decoder/layers/",
        _LAYER | _attention("encoder_attn", "cross_attention"),
    ),
}
_TENSORS = {
    "model.shared.weight": ("same", "token_embed/embedding"),
    "model.encoder.embed_positions.weight": ("same", "position_embed/embedding"),
    "model.decoder.embed_positions.weight": ("same", "decoder_position_embed/embedding"),
    **norm("model.encoder.layernorm_embedding", "embed_norm"),
    **norm("model.decoder.layernorm_embedding", "decoder_embed_norm"),
    **STACKS,
}

_CLASSIFIER = {
    **linear("classification_head.dense", "head/pooler"),
    **linear("classification_head.out_proj", "head/out"),
}
_SPAN = linear("qa_outputs", "head/out")


@dataclasses.dataclass(frozen=True)
class _BART(Family):
    model = "bart"
    prefix = "model."
    # Copies of the shared embeddings, with which `tied` compares them.
    ignored = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    tied = dict.fromkeys(ignored, ("shared.weight", "decoder.embed_tokens.weight"))

    def model_keys(self, hf_config):
        for key, shared in _SHARED_KEYS.items():
            value = hf_config.get(shared)
            if hf_config.get(key, value) != value:
                raise UserError(
                    f"{key}={hf_config[key]}: only the value of {shared}, {value}, is supported"
                )
        return super().model_keys(hf_config)

    def remarks(self, hf_config):
        for key in ("encoder_layerdrop", "decoder_layerdrop"):
            if hf_config.get(key):
                yield f"{key}={hf_config[key]} becomes 0: config.model has no layer dropout"

    def other_keys(self, config, tokenizer):
        keys = super().other_keys(config, tokenizer)
        return keys | {
            "decoder_attention_heads": config.model.num_heads,
            "decoder_ffn_dim": config.model.d_ff,
        }


@dataclasses.dataclass(frozen=True)
class Writer(_BART, EncoderDecoder):
    def constants(self, model):
        # transformers adds this buffer to the logits. Our BART has no output bias, so that a
        # checkpoint with other values than zeros must be refused.
        return {"final_logits_bias": np.zeros((1, model.vocab_size), np.float32)}


@dataclasses.dataclass(frozen=True)
class FineTuned(_BART):
    # A fine-tuned model has no output projection, so what a file still holds of it is not compared.
    tied = {name: source for name, source in _BART.tied.items() if name != "lm_head.weight"}

    def task_keys(self, config, hf_config):
        return family.read_keys(config, hf_config, hf_config.get("classifier_dropout", 0.0))

    def other_keys(self, config, tokenizer):
        keys = super().other_keys(config, tokenizer)
        keys |= special_keys(tokenizer) | family.write_keys(config.task)
        # No key for spans, because transformers' head for spans has no dropout.
        if self.task != "span":
            keys["classifier_dropout"] = config.task.head_dropout
        return keys


ARCHITECTURES = [
    Writer("BartForConditionalGeneration", "bart", _KEYS, _TENSORS, "text_to_text"),
    # The published pre-training checkpoints name no head. Runs are exported as the first one.
    Writer("BartModel", "bart", _KEYS, _TENSORS, "text_to_text"),
    FineTuned(
        "BartForSequenceClassification", "bart", _KEYS, _TENSORS | _CLASSIFIER, "classification"
    ),
    FineTuned("BartForQuestionAnswering", "bart", _KEYS, _TENSORS | _SPAN, "span"),
]
