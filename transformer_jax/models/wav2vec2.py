"""wav2vec 2.0: an encoder of sound that tells masked frames apart (Baevski et al. 2020)."""

from functools import partial
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers import flops
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import Remat, Stack
from transformer_jax.layers.convolutions import (
    Convolution,
    InstanceNorm,
    PositionalConvolution,
    num_windows,
)
from transformer_jax.layers.dropped_layers import DroppedBlock
from transformer_jax.layers.linear import Dropout, Linear, compute_dtype
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.layers.parameters import declared
from transformer_jax.layers.quantizer import Quantized, Quantizer
from transformer_jax.models.sensory import Sensory

_CONVOLUTION_EPSILON = 1e-5  # of the norms between convolutions; no key of transformers changes it


class Predictions(NamedTuple):
    """The result of `Wav2Vec2.predictions` for P frames of each row.

    Attributes:
      contexts: projections of the states (B, P, E) float32.
      targets: projections of the quantized features (B, P, E) float32.
      quantized: the quantized features, see `Quantized`.
      power: the mean square of all features, () float32.
    """

    contexts: Float[Array, "B P E"]
    targets: Float[Array, "B P E"]
    quantized: Quantized
    power: Float[Array, ""]


class Wav2Vec2(Sensory):
    """Samples (B, S) float32 of 16 kHz -> states (B, L, M) of frames of 20 ms.

    A row is normalised to mean 0 and variance 1, and padded with zeros. `lengths` (B,) are the
    samples without padding. No state sees a frame that reaches into padding. With
    convolution_norm="group", the first norm sees all samples, as it does in the published code: the
    length of the padding then changes all states.
    """

    modality = "sound"
    heads = ("quantizer", "project_target", "project_context")

    d_model: int = 768  # width of the residual stream
    d_ff: int | None = None  # width of the MLP's hidden layer; None: 4 * d_model
    num_layers: int = 12  # number of blocks
    num_heads: int = 12  # attention heads of a layer
    head_dim: int | None = None  # width of a head; None: d_model / num_heads
    convolution_widths: tuple = (512,) * 7  # channels of each convolution over the samples
    convolution_kernels: tuple = (10, 3, 3, 3, 3, 2, 2)  # positions that each convolution reads
    convolution_strides: tuple = (5, 2, 2, 2, 2, 2, 2)  # positions between those windows
    convolution_bias: bool = False  # of the convolutions over the samples
    # group: a norm of each channel over time after the first convolution; layer: layer norms after
    # all of them
    convolution_norm: Literal["group", "layer"] = "group"
    feature_gradient: float = 0.1  # factor of the gradient of the convolutions
    position_kernel: int = 128  # frames that the convolution of the positions reads
    position_groups: int = 16  # groups of channels of that convolution
    # pre-LN with a norm above the layers, as in the large model; false: post-LN
    stable: bool = False
    codebooks: int = 2  # codebooks of the quantizer
    codes: int = 320  # entries of a codebook
    d_code: int = 256  # width of the entries, those of all codebooks side by side
    d_projection: int = 256  # width in which states and quantized features are compared
    norm_epsilon: float = 1e-5  # added to the variance in layer norms
    init_std: float = 0.02  # standard deviation of the initial weights of the layers
    dropout: float = 0.1  # on each residual branch and on the input of the layers
    attention_dropout: float = 0.1  # on the attention weights
    hidden_dropout: float = 0.1  # on the MLP's hidden layer
    feature_dropout: float = 0.0  # on the projected features
    quantizer_dropout: float = 0.0  # on the features that are quantized
    layer_drop: float = 0.0  # share of the layers that an update leaves out
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: int = 1  # layers unrolled in each iteration of the scan over layers
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
            norm_position="pre" if self.stable else "post",
            dropout=self.dropout,
            rate=self.layer_drop,
        )
        self.encoder = Stack((block,), self.num_layers, unroll=self.unroll, remat=self.remat)
        self.quantizer = Quantizer(self.codebooks, self.codes, self.d_code)
        self.drop_quantized = Dropout(self.quantizer_dropout)
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
        """The samples, or frames, that each convolution reads, and those between its windows."""
        return tuple(zip(self.convolution_kernels, self.convolution_strides))

    @nn.nowrap
    def num_frames(self, samples):
        """Returns the number of frames of so many samples, a number or an array."""
        return num_windows(samples, self.windows)

    def features(self, sound: Float[ArrayLike, "B S"]) -> Float[Array, "B L C"]:
        """Returns the outputs of the convolutions (Baevski et al. 2020, section 2)."""
        x = jnp.asarray(sound)[..., None]
        for number, convolution in enumerate(self.convolution):
            x = convolution(x)
            if number < len(self.convolution_norms):
                x = self.convolution_norms[number](x)
            x = jax.nn.gelu(x, approximate=False)
        constant = jax.lax.stop_gradient(x)
        return constant + self.feature_gradient * (x - constant)

    def __call__(
        self, sound: Float[ArrayLike, "B S"], *, train: bool = False
    ) -> Float[Array, "B L M"]:
        return self.hidden(sound, train=train)

    def hidden(
        self,
        sound: Float[ArrayLike, "B S"],
        *,
        lengths: Int[ArrayLike, " B"] | None = None,
        masked: Bool[ArrayLike, "B L"] | Int[ArrayLike, "B L"] | None = None,
        silent: Bool[ArrayLike, "B M"] | Int[ArrayLike, "B M"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B L M"]:
        """Returns the states of the last layer.

        A learned vector takes the place of each masked frame. Silent channels of the frames are 0
        (Park et al. 2019). Without `lengths`, all samples are those of the row.
        """
        normed = self.feature_norm(self.features(sound))
        return self._states(normed, lengths, (masked, silent), train=train)

    def layers(
        self, sound: Float[ArrayLike, "B S"], *, lengths: Int[ArrayLike, " B"] | None = None
    ) -> Float[Array, "N B L M"]:
        """Returns the inputs of the layers and the states of all layers."""
        normed = self.feature_norm(self.features(sound))
        return self._states(normed, lengths, (None, None), train=False, every_layer=True)

    def predictions(
        self,
        sound: Float[ArrayLike, "B S"],
        places: Int[ArrayLike, "B P"],
        *,
        lengths: Int[ArrayLike, " B"] | None = None,
        masked: Bool[ArrayLike, "B L"] | Int[ArrayLike, "B L"] | None = None,
        temperature: Float[Array, ""] | float = 1.0,
        train: bool = False,
    ) -> Predictions:
        """Returns the states and the quantized features of the frames `places`, to be compared."""
        features = self.features(sound)
        normed = self.feature_norm(features)
        hidden = self._states(normed, lengths, (masked, None), train=train)
        places = jnp.asarray(places)[..., None]
        chosen = jnp.take_along_axis(normed, places, axis=1)  # (B, P, C)
        quantized = self.quantizer(
            self.drop_quantized(chosen, train=train), temperature, train=train
        )
        contexts = jnp.take_along_axis(hidden, places, axis=1).astype(jnp.float32)
        return Predictions(
            self.project_context(contexts),
            self.project_target(quantized.vectors),
            quantized,
            jnp.square(features.astype(jnp.float32)).mean(),
        )

    def _states(
        self, normed: Float[Array, "B L C"], lengths, hidden_parts: tuple, *, train: bool, **options
    ) -> Float[Array, "*layers B L M"]:
        """Returns the states of normed features, see `hidden` and `layers`."""
        masked, silent = hidden_parts
        x = self.drop_features(self.projection(normed), train=train)
        if masked is not None:
            x = jnp.where(masked[..., None] > 0, self.mask_vector.astype(x.dtype), x)
        if silent is not None:
            x = jnp.where(silent[:, None] > 0, 0, x)
        mask = Mask()
        if lengths is not None:
            frames = self.num_frames(jnp.asarray(lengths))
            filled = jnp.arange(x.shape[1]) < frames[:, None]
            x = jnp.where(filled[..., None], x, 0)
            segments = filled.astype(jnp.int32)
            mask = Mask(query_segments=segments, key_segments=segments)
        x = x + jax.nn.gelu(self.positions(x), approximate=False)
        x = self.drop_inputs(x if self.stable else self.norm(x), train=train)
        states = self.encoder(x, mask=mask, train=train, **options)
        if not options:
            return self.norm(states) if self.stable else states
        last = self.norm(states[-1]) if self.stable else states[-1]
        return jnp.concatenate([x[None], states[:-1], last[None]])

    @nn.nowrap
    def is_feature(self, path: tuple[str, ...]) -> bool:
        """Returns whether a parameter is that of a convolution over samples, or of its norm."""
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
            total += flops.dense(length, kernel * channels, width)
            channels = width
        total += flops.dense(length, channels, self.d_model)
        positions = self.position_kernel * self.d_model // self.position_groups
        total += flops.dense(length, positions, self.d_model)
        total += self.num_layers * flops.LayerSizes.of(self).layer(length, length**2)
        quantizer = flops.dense(predictions, channels + self.d_code, self.codebooks * self.codes)
        projections = flops.dense(predictions, self.d_code + self.d_model, self.d_projection)
        return total + quantizer + projections
