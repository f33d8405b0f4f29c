"""wav2vec 2.0: a speech encoder pre-trained with a contrastive loss over masked frames.

Baevski et al. 2020.
"""

import dataclasses
import json
import pathlib
from functools import partial
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import Fraction, NonNegativeFloat, PositiveInt, UserError
from transformer_jax.contracts.model import Inputs, SignalEncoder, takes_inputs
from transformer_jax.data.speech import BOUNDARY, RATE
from transformer_jax.huggingface import family
from transformer_jax.huggingface.tensors import (
    Keys,
    Table,
    check_head_dim,
    layers,
    linear,
    norm,
    read_json,
)
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import MLP, DroppedBlock, LayerNorm, Remat, Stack
from transformer_jax.layers.convolutions import (
    Convolution,
    InstanceNorm,
    PositionalConvolution,
    num_windows,
)
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, Linear, compute_dtype, declared
from transformer_jax.layers.quantizer import Quantized, Quantizer

_CONVOLUTION_EPSILON = 1e-5  # of the norms between convolutions; no key of transformers changes it


class Predictions(NamedTuple):
    """The result of `Wav2Vec2.predictions` for P frames of each example.

    Attributes:
      contexts: projections of the hidden states (B, P, E) float32.
      targets: projections of the quantized features (B, P, E) float32.
      quantized: the quantized features, see `Quantized`.
      power: the mean square of all features, () float32, which the loss may penalize.
    """

    contexts: Float[Array, "B P E"]
    targets: Float[Array, "B P E"]
    quantized: Quantized
    power: Float[Array, ""]


class Wav2Vec2(SignalEncoder):
    """Audio (B, S) float32 -> hidden states (B, L, M) of frames, of 20 ms at 16 kHz.

    Each row is padded with zeros and, if `normalize` says so, normalized to mean 0 and variance 1
    before. `lengths` (B,) are the numbers of samples without padding. No hidden state depends on a
    frame that reaches into the padding. An exception is convolution_norm="group", whose norm
    includes all samples, as in the published code, so that the length of the padding changes all
    hidden states, unless `ignore_padding` is true.
    """

    has_mup = False  # it normalizes the weights of its position convolution
    modality = "sound"
    heads = ("quantizer", "project_target", "project_context")
    example_shape = (RATE,)
    example_dtype = "float32"

    d_model: PositiveInt = 768  # width of the residual stream
    d_ff: PositiveInt | None = None  # width of the MLP's hidden layer; None: 4 * d_model
    num_layers: PositiveInt = 12  # number of blocks
    num_heads: PositiveInt = 12  # attention heads of a layer
    head_dim: PositiveInt | None = None  # width of a head; None: d_model / num_heads
    convolution_widths: tuple = (512,) * 7  # channels of each convolution over the samples
    convolution_kernels: tuple = (10, 3, 3, 3, 3, 2, 2)  # kernel width of each convolution
    convolution_strides: tuple = (5, 2, 2, 2, 2, 2, 2)  # stride of each convolution
    convolution_bias: bool = False  # whether the convolutions over the samples have biases
    sampling_rate: PositiveInt = RATE  # samples per second of the audio that the model reads
    # whether the model reads utterances of mean 0 and variance 1, or samples as they are
    normalize: bool = True
    # group: normalizes each channel over time after the first convolution; layer: layer norms after
    # all of them
    convolution_norm: Literal["group", "layer"] = "group"
    feature_gradient: float = 0.1  # factor of the gradient of the convolutions
    position_kernel: int = 128  # kernel width of the positional convolution, in frames
    position_groups: int = 16  # groups of channels of the positional convolution
    # pre: a norm before each part of a layer and one after the last layer, as in the large model;
    # post: norms after the parts
    norm_position: Literal["pre", "post"] = "post"
    codebooks: int = 2  # codebooks of the quantizer
    codes: int = 320  # entries of a codebook
    d_code: PositiveInt = 256  # width of the concatenated entries of all codebooks
    d_projection: PositiveInt = 256  # width in which contexts and quantized features are compared
    norm_epsilon: NonNegativeFloat = 1e-5  # added to the variance in layer norms
    init_std: NonNegativeFloat = 0.02  # standard deviation of the initial weights of the layers
    dropout: Fraction = 0.1  # on each residual branch and on the input of the layers
    attention_dropout: Fraction = 0.1  # on the attention weights
    hidden_dropout: Fraction = 0.1  # on the MLP's hidden layer
    feature_dropout: Fraction = 0.0  # on the projected features
    quantizer_dropout: Fraction = 0.0  # on the features that are quantized
    layer_drop: float = 0.0  # probability that training skips a layer
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)
        names = ("convolution_widths", "convolution_kernels", "convolution_strides")
        for name in names:
            values = getattr(self, name)
            if len(values) != len(self.convolution_widths) or not all(
                type(value) is int and value > 0 for value in values
            ):
                raise UserError(
                    f"config.model.{name}={values}: must be a whole number above 0 for each of the "
                    f"{len(self.convolution_widths)} convolutions of config.model."
                    "convolution_widths"
                )
        for key, parts in (("d_model", "position_groups"), ("d_code", "codebooks")):
            if getattr(self, key) % getattr(self, parts):
                raise UserError(
                    f"config.model.{parts}={getattr(self, parts)} does not divide "
                    f"config.model.{key}={getattr(self, key)}"
                )

    def setup(self):
        dtype = compute_dtype(self.dtype)
        self._set_up_features(dtype)
        init = nn.initializers.normal(self.init_std)
        linear = dict(kernel_init=init, dtype=dtype)
        channels, model = (self.convolution_widths[-1],), (self.d_model,)
        self.projection = Linear(channels, model, axes=(None, "embed"), **linear)
        self.drop_features = Dropout(self.feature_dropout)
        # Uniform between 0 and 1, as in the published code.
        uniform = declared(nn.initializers.uniform(1.0), (None,))
        self.mask_vector = self.param("mask_vector", uniform, model)
        self.positions = PositionalConvolution(self.position_kernel, self.position_groups, dtype)
        self.norm = LayerNorm(self.norm_epsilon)
        self.drop_inputs = Dropout(self.dropout)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            **linear,
        )
        mlp = partial(
            MLP,
            d_ff=self.d_ff or 4 * self.d_model,
            activation=partial(jax.nn.gelu, approximate=False),
            dropout=self.hidden_dropout,
            **linear,
        )
        block = partial(
            DroppedBlock,
            attention=attention,
            mlp=mlp,
            norm=partial(LayerNorm, self.norm_epsilon),
            norm_position=self.norm_position,
            dropout=self.dropout,
            rate=self.layer_drop,
        )
        self.encoder = Stack((block,), self.num_layers, unroll=self.unroll, remat=self.remat)
        self.quantizer = Quantizer(self.codebooks, self.codes, self.d_code)
        self.drop_quantized = Dropout(self.quantizer_dropout)
        # Heads compute in float32. The loss divides similarities by a small temperature, which
        # would multiply the rounding of bfloat16.
        compared = dict(axes=("embed", None), head=True, kernel_init=init)
        self.project_target = Linear((self.d_code,), (self.d_projection,), **compared)
        self.project_context = Linear(model, (self.d_projection,), **compared)

    def _set_up_features(self, dtype):
        """Sets up the convolutions and their norms."""
        self.convolution = [
            Convolution(width, *window, self.convolution_bias, dtype)
            for width, window in zip(self.convolution_widths, self.windows)
        ]
        if self.convolution_norm == "group":
            self.convolution_norms = [InstanceNorm(_CONVOLUTION_EPSILON)]
        else:
            self.convolution_norms = [LayerNorm(_CONVOLUTION_EPSILON) for _ in self.convolution]
        self.feature_norm = LayerNorm(self.norm_epsilon)

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """The (kernel width, stride) of each convolution."""
        return tuple(zip(self.convolution_kernels, self.convolution_strides))

    @nn.nowrap
    def num_frames(self, samples):
        """Returns the number of frames for a number of samples, which may be an array."""
        return num_windows(samples, self.windows)

    def features(
        self, sound: Float[ArrayLike, "B S"], lengths: Int[ArrayLike, " B"] | None = None
    ) -> Float[Array, "B L C"]:
        """Returns the outputs of the convolutions (Baevski et al. 2020, section 2).

        With `lengths`, the samples of each row, the norm over time does not see the padding.
        """
        x = jnp.asarray(sound)[..., None]
        for number, convolution in enumerate(self.convolution):
            x = convolution(x)
            if lengths is not None and self.convolution_norm == "group" and number == 0:
                filled = num_windows(jnp.asarray(lengths), self.windows[:1])
                x = self.convolution_norms[0](x, filled)
            elif number < len(self.convolution_norms):
                x = self.convolution_norms[number](x)
            x = jax.nn.gelu(x, approximate=False)
        # The value is x, but the gradient is scaled, as in the published training, in which the
        # convolutions learn more slowly than the Transformer.
        constant = jax.lax.stop_gradient(x)
        return constant + self.feature_gradient * (x - constant)

    @takes_inputs
    def __call__(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        return self.hidden(inputs, train=train)

    @takes_inputs
    def hidden(
        self, inputs: Inputs, *, train: bool = False, ignore_padding: bool = False
    ) -> Float[Array, "B L M"]:
        """Returns the hidden states of the last layer.

        A learned vector replaces each masked frame. Masked channels of the frames are set to 0
        (SpecAugment, Park et al. 2019). With `ignore_padding`, the states of an utterance are those
        that it has alone, also with convolution_norm="group".
        """
        lengths = inputs.lengths if ignore_padding else None
        normed = self.feature_norm(self.features(inputs.sound, lengths))
        return self._states(normed, inputs, train=train)

    @takes_inputs
    def layers(self, inputs: Inputs) -> Float[Array, "N B L M"]:
        """Returns the input of the first layer and the hidden states of all layers."""
        normed = self.feature_norm(self.features(inputs.sound))
        return self._states(normed, inputs, train=False, every_layer=True)

    @takes_inputs
    def predictions(
        self,
        inputs: Inputs,
        masked_positions: Int[ArrayLike, "B P"],
        *,
        temperature: Float[Array, ""] | float = 1.0,
        train: bool = False,
    ) -> Predictions:
        """Returns the contexts and the quantized features at `masked_positions` (B, P).

        The targets are quantized from features before masking, which applies only to the input of
        the Transformer (section 3).
        """
        features = self.features(inputs.sound)
        normed = self.feature_norm(features)
        hidden = self._states(normed, inputs, train=train)
        indices = jnp.asarray(masked_positions)[..., None]
        selected = jnp.take_along_axis(normed, indices, axis=1)  # (B, P, C)
        quantized = self.quantizer(
            self.drop_quantized(selected, train=train), temperature, train=train
        )
        contexts = jnp.take_along_axis(hidden, indices, axis=1).astype(jnp.float32)
        return Predictions(
            self.project_context(contexts),
            self.project_target(quantized.vectors),
            quantized,
            jnp.square(features.astype(jnp.float32)).mean(),
        )

    def _states(
        self, normed: Float[Array, "B L C"], inputs: Inputs, *, train: bool, **options
    ) -> Float[Array, "*layers B L M"]:
        """Returns the hidden states for normalized features, see `hidden` and `layers`."""
        x = self.drop_features(self.projection(normed), train=train)
        if inputs.masked is not None:
            x = jnp.where(inputs.masked[..., None] > 0, self.mask_vector.astype(x.dtype), x)
        if inputs.feature_mask is not None:
            x = jnp.where(inputs.feature_mask[:, None] > 0, 0, x)
        mask = Mask()
        if inputs.lengths is not None:
            frames = self.num_frames(jnp.asarray(inputs.lengths))
            filled = jnp.arange(x.shape[1]) < frames[:, None]
            # The positional convolution has no mask, so padding must be zero for it.
            x = jnp.where(filled[..., None], x, 0)
            segments = filled.astype(jnp.int32)
            mask = Mask(query_segments=segments, key_segments=segments)
        x = x + jax.nn.gelu(self.positions(x), approximate=False)
        is_pre = self.norm_position == "pre"
        x = self.drop_inputs(x if is_pre else self.norm(x), train=train)
        states = self.encoder(x, mask=mask, train=train, **options)
        if not options:
            return self.norm(states) if is_pre else states
        last = self.norm(states[-1]) if is_pre else states[-1]
        return jnp.concatenate([x[None], states[:-1], last[None]])

    @nn.nowrap
    def is_feature(self, path: tuple[str, ...]) -> bool:
        """Returns whether a parameter belongs to a convolution over samples or to its norm."""
        return path[0].startswith("convolution")

    @nn.nowrap
    def depth(self, path: tuple[str, ...]) -> int | None:
        below = ("feature_norm", "projection", "mask_vector", "positions")
        return 0 if self.is_feature(path) or path[0] in below else None

    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass over a row of `length` samples."""
        total, channels = 0.0, 1
        for width, (kernel, stride) in zip(self.convolution_widths, self.windows):
            length = num_windows(length, [(kernel, stride)])
            total += parameters.dense(length, kernel * channels, width)
            channels = width
        total += parameters.dense(length, channels, self.d_model)
        positions = self.position_kernel * self.d_model // self.position_groups
        total += parameters.dense(length, positions, self.d_model)
        total += self.num_layers * parameters.LayerSizes.of(self).layer(length, length**2)
        quantizer = parameters.dense(
            predictions, channels + self.d_code, self.codebooks * self.codes
        )
        projections = parameters.dense(predictions, self.d_code + self.d_model, self.d_projection)
        return total + quantizer + projections


# ----------------------------------------------------------------------------------- Hugging Face
_KEYS = Keys(
    required={
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
    },
    optional={
        "conv_dim": ("convolution_widths", (512,) * 7),
        "conv_kernel": ("convolution_kernels", (10, 3, 3, 3, 3, 2, 2)),
        "conv_stride": ("convolution_strides", (5, 2, 2, 2, 2, 2, 2)),
        "conv_bias": ("convolution_bias", False),
        "feat_extract_norm": ("convolution_norm", "group"),
        "num_conv_pos_embeddings": ("position_kernel", 128),
        "num_conv_pos_embedding_groups": ("position_groups", 16),
        "num_codevector_groups": ("codebooks", 2),
        "num_codevectors_per_group": ("codes", 320),
        "codevector_dim": ("d_code", 256),
        "proj_codevector_dim": ("d_projection", 256),
        "layer_norm_eps": ("norm_epsilon", 1e-5),
        "initializer_range": ("init_std", 0.02),
        "hidden_dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "activation_dropout": ("hidden_dropout", 0.1),
        "feat_proj_dropout": ("feature_dropout", 0.0),
        "feat_quantizer_dropout": ("quantizer_dropout", 0.0),
        "layerdrop": ("layer_drop", 0.1),
    },
    allowed={
        "hidden_act": ("gelu",),
        "feat_extract_activation": ("gelu",),
        "add_adapter": (False,),
        "adapter_attn_dim": (None,),
    },
)
_LAYER = {
    **linear("attention.q_proj", "attention/query"),
    **linear("attention.k_proj", "attention/key"),
    **linear("attention.v_proj", "attention/value"),
    **linear("attention.out_proj", "attention/out", "linear_merge"),
    **norm("layer_norm", "attention_norm"),
    **linear("feed_forward.intermediate_dense", "mlp/wi"),
    **linear("feed_forward.output_dense", "mlp/wo"),
    **norm("final_layer_norm", "mlp_norm"),
}
_POSITIONS = "wav2vec2.encoder.pos_conv_embed.conv"
_ENCODER = {
    "wav2vec2.masked_spec_embed": ("same", "mask_vector"),
    **norm("wav2vec2.feature_projection.layer_norm", "feature_norm"),
    **linear("wav2vec2.feature_projection.projection", "projection"),
    f"{_POSITIONS}.bias": ("same", "positions/bias"),
    f"{_POSITIONS}.parametrizations.weight.original0": ("third_side", "positions/scale"),
    f"{_POSITIONS}.parametrizations.weight.original1": ("time_convolution", "positions/direction"),
    **norm("wav2vec2.encoder.layer_norm", "norm"),
    **layers("wav2vec2.encoder.layers.{}.", "encoder/layers/", _LAYER),
}
_QUANTIZER = {
    "quantizer.codevectors": ("second_side", "quantizer/table"),
    **linear("quantizer.weight_proj", "quantizer/logits"),
    **linear("project_q", "project_target"),
    **linear("project_hid", "project_context"),
}


# Keys of the feature extractor that have one value only. Neither `return_attention_mask` nor the
# padding is read, because utterances are transcribed as if they had none (`ignore_padding`).
_EXTRACTOR = {
    "feature_extractor_type": "Wav2Vec2FeatureExtractor",
    "feature_size": 1,
}


@dataclasses.dataclass(frozen=True)
class _Speech(family.Family):
    """The encoder. Its convolutions are not a stack, because the first one has another shape."""

    model = "wav2vec2"
    body = ("wav2vec2.",)

    def sections(self, folder):
        extractor = family.read_processor(folder, "feature_extractor")
        rate = extractor.get("sampling_rate", RATE)
        return {"source": {"name": "sound", "sampling_rate": rate}}

    def read_config(self, hf_config, folder):
        extractor = family.read_processor(folder, "feature_extractor")
        return super().read_config(hf_config | {"extractor": extractor}, folder)

    def model_keys(self, hf_config):
        extractor = hf_config["extractor"]
        for key, value in _EXTRACTOR.items():
            if extractor.get(key, value) != value:
                raise UserError(
                    f"{family.PREPROCESSOR}: {key}={extractor[key]!r}: only {value!r} is read"
                )
        position = "pre" if hf_config.get("do_stable_layer_norm", False) else "post"
        return super().model_keys(hf_config) | {
            "norm_position": position,
            "sampling_rate": extractor.get("sampling_rate", RATE),
            "normalize": bool(extractor.get("do_normalize", True)),
        }

    def table(self, model) -> Table:
        table = dict(self.tensors)
        for number in range(len(model.convolution_widths)):
            layer = f"wav2vec2.feature_extractor.conv_layers.{number}"
            table[f"{layer}.conv.weight"] = ("time_convolution", f"convolution_{number}/kernel")
            if model.convolution_bias:
                table[f"{layer}.conv.bias"] = ("same", f"convolution_{number}/bias")
            if model.convolution_norm == "layer" or number == 0:
                table |= norm(f"{layer}.layer_norm", f"convolution_norms_{number}")
        return table

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        return {
            "intermediate_size": config.model.d_ff or 4 * config.model.d_model,
            "do_stable_layer_norm": config.model.norm_position == "pre",
            "num_feat_extract_layers": len(config.model.convolution_widths),
            "mask_time_length": config.task.span,
        }

    def tokenizer_files(self, task):
        content = {
            **_EXTRACTOR,
            "sampling_rate": task.model.sampling_rate,
            "do_normalize": task.model.normalize,
            "padding_side": "right",
            "padding_value": 0.0,
            # As for the published models: those with a group norm were trained without a mask.
            "return_attention_mask": task.model.convolution_norm == "layer",
        }
        return {family.PREPROCESSOR: _json(content)}


@dataclasses.dataclass(frozen=True)
class _PreTraining(_Speech):
    def task_keys(self, config, hf_config):
        return {
            "span": hf_config.get("mask_time_length", 10),
            "distractors": hf_config.get("num_negatives", 100),
            "similarity_temperature": hf_config.get("contrastive_logits_temperature", 0.1),
            "diversity_weight": hf_config.get("diversity_loss_weight", 0.1),
        }

    def other_keys(self, config, tokenizer):
        return super().other_keys(config, tokenizer) | {
            "num_negatives": config.task.distractors,
            "contrastive_logits_temperature": config.task.similarity_temperature,
            "diversity_loss_weight": config.task.diversity_weight,
        }


_TOKENIZER = "tokenizer_config.json"


@dataclasses.dataclass(frozen=True)
class _CTC(_Speech):
    def read_config(self, hf_config, folder):
        path = folder / _TOKENIZER
        options = read_json(path) if path.is_file() else {}
        tokens = _tokens(folder, options, hf_config.get("vocab_size", 32))
        delimiter = options.get("word_delimiter_token", BOUNDARY)
        if isinstance(delimiter, dict):  # transformers may write a token with its properties
            delimiter = delimiter.get("content")
        if delimiter not in tokens:
            raise UserError(f"{path}: word_delimiter_token={delimiter!r} is not in vocab.json")
        read = {"tokens": tokens, "word_delimiter": delimiter, "tokenizer": options}
        return super().read_config(hf_config | read, folder)

    def remarks(self, hf_config):
        for key, usual in (("do_lower_case", False), ("replace_word_delimiter_char", " ")):
            value = hf_config["tokenizer"].get(key, usual)
            if value != usual:
                yield (
                    f"{_TOKENIZER}: {key}={value!r} is not obeyed: transcripts have the case of "
                    "vocab.json, and spaces between words"
                )

    def task_keys(self, config, hf_config):
        return {
            "vocabulary": hf_config["tokens"],
            "word_delimiter": hf_config["word_delimiter"],
            # transformers uses its padding token as the blank of CTC.
            "blank": hf_config.get("pad_token_id") or 0,
            "head_dropout": hf_config.get("final_dropout", 0.1),
            "masked": hf_config.get("mask_time_prob", 0.05),
            "span": hf_config.get("mask_time_length", 10),
            "feature_mask": hf_config.get("mask_feature_prob", 0.0),
            "feature_mask_span": hf_config.get("mask_feature_length", 10),
        }

    def other_keys(self, config, tokenizer):
        return super().other_keys(config, tokenizer) | {
            "vocab_size": len(config.task.vocabulary),
            "pad_token_id": config.task.blank,
            "final_dropout": config.task.head_dropout,
            "mask_time_prob": config.task.masked,
            "mask_feature_prob": config.task.feature_mask,
            "mask_feature_length": config.task.feature_mask_span,
        }

    def tokenizer_files(self, task):
        blank = task.vocabulary[task.blank]
        options = {
            "tokenizer_class": "Wav2Vec2CTCTokenizer",
            "pad_token": blank,
            "unk_token": task.spelling.unknown or blank,
            "bos_token": None,
            "eos_token": None,
            "word_delimiter_token": task.word_delimiter,
        }
        numbers = {token: number for number, token in enumerate(task.vocabulary)}
        files = {"vocab.json": _json(numbers), _TOKENIZER: _json(options)}
        return super().tokenizer_files(task) | files


def _tokens(folder: pathlib.Path, options: dict, vocab_size: int) -> tuple[str, ...]:
    """Returns the tokens of the model's outputs, in the order of their ids.

    vocab.json has most of them. Tokens that were added later are in added_tokens.json or, as
    transformers 5 writes them, among the `options` in tokenizer_config.json. A model may lack
    outputs for the latter. Raises UserError unless each of the `vocab_size` outputs has a token.
    """
    path = folder / "vocab.json"
    vocabulary = read_json(path)
    if not all(isinstance(number, int) for number in vocabulary.values()):
        raise UserError(f"{path}: must number its tokens; vocabularies by language are not read")
    added = folder / "added_tokens.json"
    later = read_json(added) if added.is_file() else {}
    for number, token in options.get("added_tokens_decoder", {}).items():
        later[token["content"]] = int(number)
    tokens = {number: token for token, number in later.items() if number < vocab_size}
    tokens |= {number: token for token, number in vocabulary.items()}
    if sorted(tokens) != [*range(len(tokens))]:
        raise UserError(f"{path}: must number its tokens 0, 1, 2, ...")
    if len(tokens) != vocab_size:
        raise UserError(f"vocab_size={vocab_size}: {path.name} has {len(tokens)} tokens")
    return tuple(tokens[number] for number in range(len(tokens)))


def _json(content: dict) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


ARCHITECTURES = [
    _PreTraining(
        "Wav2Vec2ForPreTraining", "wav2vec2", _KEYS, _ENCODER | _QUANTIZER, "masked_speech"
    ),
    _CTC("Wav2Vec2ForCTC", "wav2vec2", _KEYS, _ENCODER | linear("lm_head", "head/out"), "ctc"),
]
