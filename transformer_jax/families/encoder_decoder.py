"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017)."""

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
from transformer_jax.contracts.model import CachedSequenceToSequence
from transformer_jax.data.tokenizers import Pair, SentencePiece, unigram
from transformer_jax.data.tokenizers.unigram import Marian
from transformer_jax.families.bart import STACKS, Writer
from transformer_jax.huggingface import encoder_decoder
from transformer_jax.huggingface.tensors import Keys, check_head_dim, norm
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import MLP, Block, LayerNorm, Remat, Stack
from transformer_jax.layers.embeddings import (
    BOUNDED,
    Bias,
    Embed,
    Projection,
    Rotary,
    position_codes,
    row_positions,
)
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, compute_dtype
from transformer_jax.pictures.progress import say

_ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "swish": jax.nn.swish,
}
_WITHOUT_VECTORS = ("none", "rotary")  # kinds of positions that add nothing to the embeddings


class EncoderDecoder(CachedSequenceToSequence):
    """Source (B, S) and target (B, T) int32 -> logits of the next target tokens (B, T, V) float32.

    See `CachedSequenceToSequence` for segment ids and positions.
    """

    vocabulary = ("target_embed/embedding", "output_embed/embedding", "logit_bias/bias")
    word_table = "target_embed/embedding"

    # number of tokens in the target vocabulary, and in the source vocabulary unless
    # source_vocab_size is set
    vocab_size: PositiveInt = 37_000
    # number of tokens in the source vocabulary; None: source and target share vocabulary and
    # embeddings
    source_vocab_size: PositiveInt | None = None
    d_model: PositiveInt = 512  # width of the residual stream
    d_ff: PositiveInt = 2048  # width of the MLP's hidden layer
    num_heads: PositiveInt = 8  # attention heads of a layer
    head_dim: PositiveInt | None = None  # width of a head; None: d_model / num_heads
    num_encoder_layers: PositiveInt = 6  # number of encoder blocks
    num_decoder_layers: PositiveInt = 6  # number of decoder blocks
    # post: as published; pre: needs less warm-up, and adds a final norm to each stack
    norm_position: Literal["post", "pre"] = "post"
    # kind of position encoding: sinusoids, a learned table, none; the position (index) or its
    # fraction of max_length (normalized) in all columns; the bits of the position (binary);
    # rotations of the queries and keys of self-attention (rotary; Su et al. 2021)
    positions: Literal[
        "sinusoidal", "learned", "none", "index", "normalized", "binary", "rotary"
    ] = "sinusoidal"
    # width of position encodings that are concatenated to token embeddings of width d_model -
    # position_width; 0: both have the width d_model and are added
    position_width: int = 0
    max_length: PositiveInt = 1024  # largest number of positions in a source or target
    dropout: Fraction = 0.1  # on each residual branch and on the embeddings
    attention_dropout: Fraction = 0.0  # on the attention weights
    tie_output: bool = True  # uses the target embeddings as output projection
    output_bias: bool = False  # adds a learned bias to the logit of each token
    activation: Literal["relu", "gelu", "swish"] = "relu"  # of the MLP
    norm_epsilon: NonNegativeFloat = 1e-6  # added to the variance in layer normalization
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)
        head_dim = self.head_dim or self.d_model // self.num_heads
        if self.positions == "rotary" and head_dim % 2:
            raise UserError(f"config.model.head_dim={head_dim}: must be even for rotary positions")
        if not self.position_width:
            return
        key = f"config.model.position_width={self.position_width}"
        if not 0 < self.position_width < self.d_model:
            raise UserError(f"{key}: must be from 0 to d_model - 1 = {self.d_model - 1}")
        if self.positions in _WITHOUT_VECTORS:
            raise UserError(
                f"{key}: config.model.positions={self.positions!r} has no vectors; set it to 0"
            )
        if self.tie_output:
            raise UserError(
                f"{key}: token embeddings are narrower than the hidden states that the output "
                "layer reads; set config.model.tie_output=false"
            )

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.normal(self.d_model**-0.5)
        words = self.d_model - self.position_width
        embed = partial(Embed, features=words, init=init, dtype=dtype)
        self.target_embed = embed(self.vocab_size)
        if self.source_vocab_size:
            self.source_embed = embed(self.source_vocab_size, key="source_vocab_size")
        else:
            # One module with two names. Linen names its parameters after the first, target_embed.
            self.source_embed = self.target_embed
        if self.positions == "learned":
            self.position_embed = embed(
                self.max_length,
                features=self.position_width or self.d_model,
                axes=(None, "embed"),
                key="max_length",
            )
        if not self.tie_output:
            self.output_embed = embed(self.vocab_size, features=self.d_model)
        if self.output_bias:
            self.logit_bias = Bias(self.vocab_size, "vocab")
        self.embed_dropout = Dropout(self.dropout)

        norm = partial(LayerNorm, self.norm_epsilon)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            dtype=dtype,
        )
        encoder_block = partial(
            Block,
            attention=partial(attention, rotary=Rotary() if self.positions == "rotary" else None),
            mlp=partial(MLP, d_ff=self.d_ff, activation=_ACTIVATIONS[self.activation], dtype=dtype),
            norm=norm,
            norm_position=self.norm_position,
            dropout=self.dropout,
        )
        # Attention to the source is not rotated: its positions are those of another sentence.
        decoder_block = partial(encoder_block, cross_attention=partial(attention, cross=True))
        stack = partial(Stack, unroll=self.unroll, remat=self.remat)
        self.encoder = stack((encoder_block,), self.num_encoder_layers)
        self.decoder = stack((decoder_block,), self.num_decoder_layers)
        if self.norm_position == "pre":
            self.encoder_norm = norm()
            self.decoder_norm = norm()

    def embedded(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S M"]:
        return self.source_embed(source)

    def encoded(
        self,
        source: Int[ArrayLike, "B S"],
        positions: Int[ArrayLike, "B S"] | None,
        *,
        mask: Mask,
        train: bool = False,
    ) -> Float[Array, "B S M"]:
        x = self._embed(self.source_embed, source, positions, train)
        x = self.encoder(x, mask=mask, train=train)
        return self.encoder_norm(x) if self.norm_position == "pre" else x

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
        x = self._embed(self.target_embed, target, positions, train)
        # In beam search, the slots of the cache are no positions: they hold several hypotheses.
        is_rotated = self.positions == "rotary" and positions is not None
        rotated = {"positions": jnp.broadcast_to(positions, target.shape)} if is_rotated else {}
        x = self.decoder(
            x,
            encoder_output,
            mask=mask,
            cross_mask=cross_mask,
            train=train,
            decode=decode,
            **rotated,
        )
        return self.decoder_norm(x) if self.norm_position == "pre" else x

    def output(self) -> Projection:
        embed = self.target_embed if self.tie_output else self.output_embed
        return Projection(embed.table(), self.logit_bias() if self.output_bias else None)

    def _embed(
        self,
        embed: Embed,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"] | Int[ArrayLike, "B 1"] | None,
        train: bool,
    ) -> Float[Array, "B L M"]:
        """Returns scaled token embeddings with position encodings (sections 3.4 and 3.5)."""
        # Sinusoids exist for any position. Only bounded kinds limit the length of a row.
        if positions is None:
            max_length = self.max_length if self.positions in BOUNDED else tokens.shape[1]
            positions = row_positions(tokens, max_length)
        x = embed(tokens) * math.sqrt(self.reference_width)
        if self.positions not in _WITHOUT_VECTORS:
            # In decoding, all hypotheses of an input have one position, (B, 1).
            positions = jnp.broadcast_to(positions, tokens.shape)
            # The codes are computed in float32, because bfloat16 has no integers such as 257.
            vectors = self._position_vectors(positions).astype(x.dtype)
            if self.position_width:
                x = jnp.concatenate([x, vectors], axis=-1)
            else:
                x = x + vectors
        return self.embed_dropout(x, train=train)

    def _position_vectors(self, positions: Int[Array, "B L"]) -> Float[Array, "B L W"]:
        if self.positions == "learned":
            # Scaled like the token embeddings, because it has the same initial standard deviation.
            return self.position_embed(positions) * math.sqrt(self.reference_width)
        width = self.position_width or self.d_model
        return position_codes(self.positions, positions, width, self.max_length)


# ----------------------------------------------------------------------------------- Hugging Face
#
# Marian's translation models, such as OPUS-MT, from and to Hugging Face.
#
# The columns of Marian's sinusoidal positions hold all sines, then all cosines, whereas `sinusoids`
# interleaves them. The conversion therefore permutes all columns of the residual stream.
#
# A run that trained its own SentencePiece tokenizer is exported with the token ids and the start
# token of a Marian model. Post-LN runs become MarianMTModel, and pre-LN runs become Pegasus, which
# is the same model in pre-LN. CTranslate2 reads both.
_EPSILON = 1e-5  # the default of PyTorch, because Marian's config.json has no key for it
_KEYS = Keys(
    required={
        "d_model": "d_model",
        "encoder_layers": "num_encoder_layers",
        "decoder_layers": "num_decoder_layers",
        "encoder_attention_heads": "num_heads",
        "encoder_ffn_dim": "d_ff",
        "max_position_embeddings": "max_length",
        "activation_function": "activation",
    },
    optional={
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.0),
    },
    allowed={"tie_word_embeddings": (True,)},
)
_FINAL_NORMS = {
    **norm("model.encoder.layer_norm", "encoder_norm"),
    **norm("model.decoder.layer_norm", "decoder_norm"),
}


@dataclasses.dataclass(frozen=True)
class Translator(Writer):
    model = "encoder_decoder"
    ignored = (*Writer.ignored, "embed_positions.weight")  # sinusoids, which are computed

    norm_position: str = "post"

    def matches(self, config):
        return super().matches(config) and config.model.norm_position == self.norm_position

    def table(self, model):
        table = dict(self.tensors)
        if model.source_vocab_size is None:
            table["model.shared.weight"] = ("same", "target_embed/embedding")
        else:
            table["model.encoder.embed_tokens.weight"] = ("same", "source_embed/embedding")
            table["model.decoder.embed_tokens.weight"] = ("same", "target_embed/embedding")
        if model.output_bias:
            table["final_logits_bias"] = ("row", "logit_bias/bias")
        return table

    def constants(self, model):
        return {} if model.output_bias else super().constants(model)

    def vocab_size(self, hf_config):
        return max(hf_config["vocab_size"], hf_config.get("decoder_vocab_size") or 0)

    def model_keys(self, hf_config):
        # A missing key is an error as well, because the default of transformers is False.
        if not hf_config.get("scale_embedding"):
            raise UserError("scale_embedding=False: only True is supported")
        if hf_config.get("decoder_start_token_id") != hf_config.get("pad_token_id"):
            raise UserError("decoder_start_token_id: only the value of pad_token_id is supported")
        # silu and swish are two names of one function, of which config.model has only swish.
        if hf_config.get("activation_function") == "silu":
            hf_config = hf_config | {"activation_function": "swish"}
        keys = super().model_keys(hf_config) | {
            "vocab_size": hf_config.get("decoder_vocab_size") or hf_config["vocab_size"],
            "norm_position": self.norm_position,
            "norm_epsilon": _EPSILON,
            "output_bias": True,
        }
        if not hf_config.get("share_encoder_decoder_embeddings", True):
            keys["source_vocab_size"] = hf_config["vocab_size"]
        return keys

    def read_config(self, hf_config, folder):
        config = super().read_config(hf_config, folder)
        target = Pair.read_published(folder).target
        for key, i in (("eos_token_id", target.eos_id), ("pad_token_id", target.pad_id)):
            if hf_config.get(key) != i:
                raise UserError(f"{folder}: {key}={hf_config.get(key)}: vocab.json has {i}")
        return config

    def remarks(self, hf_config):
        yield from super().remarks(hf_config)
        if hf_config.get("activation_dropout"):
            rate = hf_config["activation_dropout"]
            yield f"activation_dropout={rate} becomes 0: {self.model} has none"

    def ours(self, params, task):
        # The argsort of a permutation is its inverse.
        return _permuted(params, task, np.argsort(_column_order(task.config.model.d_model)))

    def check(self, config):
        model = config.model
        check_head_dim(model, self.architecture)
        for key, value in (("positions", "sinusoidal"), ("tie_output", True)):
            if model[key] != value:
                raise UserError(
                    f"config.model.{key}={model[key]}: {self.architecture} has only {value}"
                )

    def other_keys(self, config, tokenizer):
        model = config.model
        if model.norm_epsilon != _EPSILON:
            say(
                f"config.model.norm_epsilon={model.norm_epsilon}: {self.architecture} has "
                f"{_EPSILON}, which changes the logits a little"
            )
        return super().other_keys(config, _as_marian(config, tokenizer)) | {
            "vocab_size": model.source_vocab_size or model.vocab_size,
            "decoder_vocab_size": model.vocab_size,
            "share_encoder_decoder_embeddings": model.source_vocab_size is None,
            "scale_embedding": True,
            # These two keys are read by CTranslate2.
            "normalize_before": self.norm_position == "pre",
            "normalize_embedding": False,
            # By default, transformers forces the end token; generation_config.json has the value of
            # the run.
            "forced_eos_token_id": None,
        }

    def generation_config(self, task):
        target = _as_marian(task.config, task.tokenizer).target
        return encoder_decoder.options_of(task.config.decode, target, task.model.window)

    def tokenizer_files(self, task):
        pair = _as_marian(task.config, task.tokenizer)
        return unigram.hf_files(pair.source, pair.target)

    def theirs(self, params, task):
        target, model = task.tokenizer.target, task.config.model
        if isinstance(target, SentencePiece):
            if self.norm_position == "post":
                # Before `_with_rows`, which moves the row of `start_id`.
                params = _starting_from_zero(params, target.start_id)
            _, order = unigram.marian_of_sentence_piece(target, model.vocab_size)
            params = _with_rows(params, order)
        return _permuted(params, task, _column_order(model.d_model))


@dataclasses.dataclass(frozen=True)
class PreNorm(Translator):
    def sections(self, folder):
        if not (folder / "source.spm").exists():
            raise UserError(
                f"no source.spm: {self.architecture} is read with the tokenizer of a Marian model, "
                "not with the one of published Pegasus models"
            )
        return super().sections(folder)

    def constants(self, model):
        # transformers reports these as missing from a checkpoint of Pegasus, although it could
        # compute them.
        table = _positions(model.max_length, model.d_model)
        return super().constants(model) | {
            f"model.{side}.embed_positions.weight": table for side in ("encoder", "decoder")
        }


def _as_marian(config, pair: Pair) -> Pair:
    """Returns the tokenizers of a run as tokenizers of Marian."""
    if isinstance(pair.target, Marian):
        return pair
    if not isinstance(pair.target, SentencePiece) or pair.source is not pair.target:
        raise UserError(
            "MarianTokenizer supports the tokenizers of published Marian models, and a "
            "SentencePiece model that both languages share (config.data.tokenizer=unigram or bpe, "
            "without config.model.source_vocab_size), but not the tokenizers of this run"
        )
    tokenizer, _ = unigram.marian_of_sentence_piece(pair.target, config.model.vocab_size)
    return Pair(tokenizer, tokenizer)


def _column_order(d_model: int) -> np.ndarray:
    """Returns our columns in the order of Marian: the sines, then the cosines."""
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])


def _positions(length: int, d_model: int) -> np.ndarray:
    """Returns sinusoidal positions (length, d_model) as transformers computes them."""
    columns = np.arange(d_model)
    angles = np.arange(length)[:, None] / np.power(10_000, 2 * (columns // 2) / d_model)
    table = np.where(columns % 2 == 0, np.sin(angles), np.cos(angles))
    return table[:, _column_order(d_model)].astype(np.float32)


def _permuted(params, task, order: np.ndarray):
    """Returns the parameters with the columns of the residual stream in another order."""
    traits = parameters.traits(task.param_shapes)

    # The axes with these names are exactly those along the residual stream.
    def permute(x, declaration):
        for axis, name in enumerate(declaration.axes):
            x = np.take(x, order, axis) if name in ("embed", "norm") else x
        return x

    return jax.tree.map(permute, params, traits)


def _with_rows(params, order: list[int]):
    """Returns the parameters with the tokens of the vocabulary in this order."""
    embedding = params["target_embed"]["embedding"][order]
    new = params | {"target_embed": {"embedding": embedding}}
    if "logit_bias" in params:
        new["logit_bias"] = {"bias": params["logit_bias"]["bias"][order]}
    return new


def _starting_from_zero(params, start_id: int):
    """Returns parameters of an equivalent post-LN model in which `start_id` has the embedding 0.

    This is needed because CTranslate2 starts the decoder of a Marian model with zeros instead of an
    embedding. The embedding of `start_id` is subtracted from the embeddings of all tokens, which
    changes all logits of a position by the same constant. The biases of the first layers add to the
    residual stream and to queries, keys and values what was subtracted from their inputs.
    """
    # In float64, so that the exported weights are rounded only once.
    table = params["target_embed"]["embedding"].astype(np.float64)
    shift = math.sqrt(table.shape[1]) * table[start_id]  # (M,)
    params = params | {
        "target_embed": {"embedding": (table - table[start_id]).astype(np.float32)},
        **{stack: _with_shift(params[stack], shift) for stack in ("encoder", "decoder")},
    }
    return params


def _with_shift(stack, shift: np.ndarray):
    """Returns a stack whose first attention and its residual see the inputs plus `shift` (M,)."""
    # Copies, because the biases are changed in place, and the run must keep its parameters.
    stack = jax.tree.map(np.array, stack)
    attention = stack["layers"]["attention"]
    # Layer 0 alone, because the layers above it read its output, which does not change.
    for name in ("query", "key", "value"):
        kernel = attention[name]["kernel"][0].astype(np.float64)  # (M, H, D)
        attention[name]["bias"][0] += np.einsum("m,mhd->hd", shift, kernel)
    attention["out"]["bias"][0] += shift
    return stack


ARCHITECTURES = [
    Translator("MarianMTModel", "marian", _KEYS, STACKS, "translation"),
    PreNorm(
        "PegasusForConditionalGeneration",
        "pegasus",
        _KEYS,
        STACKS | _FINAL_NORMS,
        "translation",
        norm_position="pre",
    ),
]
