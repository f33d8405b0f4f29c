"""The Vision Transformer (Dosovitskiy et al. 2020)."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, Num

from transformer_jax.config import Fraction, NonNegativeFloat, PositiveInt, UserError
from transformer_jax.contracts.model import Inputs, SignalEncoder, takes_inputs
from transformer_jax.data.images import Resample
from transformer_jax.distributed import sharding
from transformer_jax.huggingface import family
from transformer_jax.huggingface.tensors import Keys, check_head_dim, layers, linear, norm
from transformer_jax.layers import parameters, patches
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import MLP, Block, LayerNorm, Remat, Stack
from transformer_jax.layers.embeddings import Embed
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, Linear, compute_dtype, declared


class ViT(SignalEncoder):
    """Images (B, H, W, C) of pixels from 0 to 255 -> hidden states (B, 1 + N, M) of N patches.

    The first hidden state belongs to the class token (equations 1 to 4).
    """

    modality = "images"
    can = frozenset({"attend", "pool"})
    example_dtype = "uint8"

    image_size: int = 224  # pixels of a side of an image
    patch_size: int = 16  # pixels of a side of a patch
    channels: int = 3  # of an image: 1 for grayscale, 3 for red, green and blue
    # subtracted from pixel values between 0 and 1: one number, or one for each channel
    mean: tuple = (0.5,)
    std: tuple = (0.5,)  # divides pixel values after the subtraction of mean
    d_model: PositiveInt = 768  # width of the residual stream
    d_ff: PositiveInt | None = None  # width of the MLP's hidden layer; None: 4 * d_model
    num_layers: PositiveInt = 12  # number of blocks
    num_heads: PositiveInt = 12  # attention heads of a layer
    head_dim: PositiveInt | None = None  # width of a head; None: d_model / num_heads
    # learned positions, or sinusoids of the row and the column of a patch
    positions: Literal["learned", "sinusoidal"] = "learned"
    # the input of a head: the class token, or the mean over the patches
    pool: Literal["class", "mean"] = "class"
    norm_epsilon: NonNegativeFloat = 1e-6  # added to the variance in layer norms
    # standard deviation of the initial weights; narrow models learn faster with a larger value
    init_std: NonNegativeFloat = 0.02
    dropout: Fraction = 0.0  # on each residual branch and on the embeddings
    attention_dropout: Fraction = 0.0  # on the attention weights
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    @property
    def example_shape(self) -> tuple[int, int, int]:
        return self.image_size, self.image_size, self.channels

    @classmethod
    def resize(
        cls, name: str, stored: tuple[int, ...], wanted: tuple[int, ...]
    ) -> Callable[[Any], Any] | None:
        """Position embeddings of another resolution are interpolated (section 3.2)."""
        if name != "position_embed/embedding" or stored[1:] != wanted[1:]:
            return None
        return partial(patches.interpolated, rows=wanted[0])

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)
        patches.check(self)
        if self.positions == "sinusoidal" and self.d_model % 4:
            raise UserError(
                f"config.model.d_model={self.d_model}: sinusoidal positions need a multiple of 4"
            )

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.truncated_normal(self.init_std)
        linear = dict(kernel_init=init, dtype=dtype)
        patch = (self.patch_size, self.patch_size, self.channels)
        axes = (None, None, None, "embed")
        self.patch_embed = Linear(patch, (self.d_model,), axes=axes, **linear)
        class_init = declared(init, (None, "embed"), decays=True)
        self.class_embed = self.param("class_embed", class_init, (1, self.d_model))
        if self.positions == "learned":
            self.position_embed = Embed(
                1 + self.num_patches, self.d_model, init, (None, "embed"), key="image_size"
            )
        self.embed_dropout = Dropout(self.dropout)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            **linear,
        )
        gelu = partial(jax.nn.gelu, approximate=False)
        mlp = partial(
            MLP,
            d_ff=self.d_ff or 4 * self.d_model,
            activation=gelu,
            dropout=self.dropout,
            **linear,
        )
        norm = partial(LayerNorm, self.norm_epsilon)
        block = partial(
            Block,
            attention=attention,
            mlp=mlp,
            norm=norm,
            norm_position="pre",
            dropout=self.dropout,
        )
        self.encoder = Stack((block,), self.num_layers, unroll=self.unroll, remat=self.remat)
        self.norm = norm()

    @takes_inputs
    def __call__(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        return self.hidden(inputs, train=train)

    @takes_inputs
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        """Returns the hidden states of the class token and the patches (B, 1 + N, M).

        With `inputs.visible` (B, K), the model reads only these patches, in this order, and returns
        (B, 1 + K, M) (He et al. 2021, section 3).
        """
        x = self._embed(inputs.images, inputs.visible, train=train)
        return self.norm(self.encoder(x, mask=Mask(), train=train))

    @takes_inputs
    def layers(self, inputs: Inputs) -> Float[Array, "N B L M"]:
        """Returns the embeddings and the hidden states of all layers (layers + 1, B, 1 + N, M).

        The hidden states of the last layer are normalized, as in `hidden`.
        """
        x = self._embed(inputs.images, None, train=False)
        states = self.encoder(x, mask=Mask(), every_layer=True)
        return jnp.concatenate([x[None], states[:-1], self.norm(states[-1])[None]])

    def pooled(self, hidden: Float[Array, "B L M"]) -> Float[Array, "B M"]:
        """Returns the input of a head (B, M)."""
        return hidden[:, 0] if self.pool == "class" else hidden[:, 1:].mean(axis=1)

    def _embed(
        self,
        images: Num[ArrayLike, "B H W C"],
        visible: Int[ArrayLike, "B K"] | None,
        *,
        train: bool,
    ) -> Float[Array, "B L M"]:
        """Returns the embeddings of the class token and the patches, with position embeddings."""
        expected = (self.image_size, self.image_size, self.channels)
        if images.shape[1:] != expected:
            raise UserError(
                f"images of shape {images.shape[1:]}: must be {expected}, as "
                "config.model.image_size and config.model.channels say"
            )
        pixels = patches.normalized(images, self.mean, self.std)
        x = self.patch_embed(patches.patches(pixels, self.patch_size))  # (B, N, M)
        class_position, patch_positions = self._positions(x.dtype)
        x = x + patch_positions
        # Patches are selected after the addition, so that each keeps its own position embedding.
        if visible is not None:
            x = patches.taken(x, visible)
        token = jnp.broadcast_to(
            self.class_embed.astype(x.dtype) + class_position, (len(x), 1, x.shape[2])
        )
        x = jnp.concatenate([token, x], axis=1)
        # M is not split: activations split their rows over fsdp instead, see `sharding.RULES`.
        x = sharding.constrain(x, "batch", "length", None)
        return self.embed_dropout(x, train=train)

    def _positions(self, dtype: jnp.dtype) -> tuple[Float[Array, "1 M"], Float[Array, "N M"]]:
        """Returns the position embeddings of the class token and the patches."""
        if self.positions == "learned":
            # The table is gathered over fsdp, because activations do not split M.
            table = sharding.constrain(self.position_embed.table(), None, None).astype(dtype)
            return table[:1], table[1:]
        rows = self.image_size // self.patch_size
        table = jnp.asarray(patches.grid_sinusoids(rows, self.d_model), dtype)
        return jnp.zeros_like(table[:1]), table

    def flops(self, length: int, predictions: int = 0) -> float:
        """Returns the FLOPs of a forward pass over `length` patches and the class token.

        All patches of an image are embedded, even those that are not visible. Norms and softmax are
        not counted.
        """
        tokens = 1 + length
        layer = parameters.LayerSizes.of(self).layer(tokens, tokens**2)
        patch = self.patch_size**2 * self.channels
        return self.num_layers * layer + parameters.dense(self.num_patches, patch, self.d_model)


# ----------------------------------------------------------------------------------- Hugging Face
_KEYS = Keys(
    required={
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "image_size": "image_size",
        "patch_size": "patch_size",
    },
    optional={
        "num_channels": ("channels", 3),
        "layer_norm_eps": ("norm_epsilon", 1e-12),
        "hidden_dropout_prob": ("dropout", 0.0),
        "attention_probs_dropout_prob": ("attention_dropout", 0.0),
        "initializer_range": ("init_std", 0.02),
    },
    allowed={"hidden_act": ("gelu",), "qkv_bias": (True,)},
)
_LAYER = {
    **linear("attention.attention.query", "attention/query"),
    **linear("attention.attention.key", "attention/key"),
    **linear("attention.attention.value", "attention/value"),
    **linear("attention.output.dense", "attention/out", "linear_merge"),
    **norm("layernorm_before", "attention_norm"),
    **linear("intermediate.dense", "mlp/wi"),
    **linear("output.dense", "mlp/wo"),
    **norm("layernorm_after", "mlp_norm"),
}
_TABLE = {
    "vit.embeddings.cls_token": ("second_side", "class_embed"),
    "vit.embeddings.position_embeddings": ("second_side", "position_embed/embedding"),
    **linear("vit.embeddings.patch_embeddings.projection", "patch_embed", "convolution"),
    **layers("vit.encoder.layer.{}.", "encoder/layers/", _LAYER),
    **norm("vit.layernorm", "norm"),
    **linear("classifier", "head/out"),
}


# The defaults of the keys that a processor's file lacks. They depend on its class, whose name ends
# in one of _ENDINGS, because transformers renamed its feature extractors to image processors.
_ENDINGS = ("FeatureExtractor", "ImageProcessor", "ImageProcessorFast", "ImageProcessorPil")
_STANDARD = {
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 2,
    "do_center_crop": False,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": 0.5,
    "image_std": 0.5,
    "do_pad": False,
}
_CLIP = _STANDARD | {
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_center_crop": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_DEFAULTS = {
    "ViT": _STANDARD,
    "DeiT": _STANDARD
    | {"size": {"height": 256, "width": 256}, "resample": 3, "do_center_crop": True},
    "CLIP": _CLIP,
    "Bit": _CLIP,
}
_RESAMPLES = get_args(Resample)  # in the order of Pillow's numbers, which the files have


@dataclasses.dataclass(frozen=True)
class _Processor:
    """An image processor of transformers, as keys of our model and task.

    mean and std hold one number for each channel, or one for all of them. They include the
    processor's factor and are those of pixels between 0 and 1. `side` is the side of the images
    that the processor makes, None if it depends on the file.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: str
    resize: int | None
    resample: str
    side: int | None

    @classmethod
    def read(cls, content: dict, image_size: int) -> "_Processor":
        """Reads the file of a processor. Raises UserError for one that has no equivalent here."""
        name = content.get("image_processor_type") or content.get("feature_extractor_type")
        kind = "ViT" if name is None else str(name)
        kind = next((kind.removesuffix(end) for end in _ENDINGS if kind.endswith(end)), kind)
        if kind not in _DEFAULTS:
            raise _unreadable(
                "image_processor_type", name, f"a processor of {', '.join(_DEFAULTS)}"
            )
        keys = _DEFAULTS[kind] | {key: x for key, x in content.items() if x is not None}
        if keys["do_pad"]:
            raise _unreadable("do_pad", True, "false")
        resample = keys["resample"]
        if resample not in range(len(_RESAMPLES)):
            raise _unreadable("resample", resample, f"a number below {len(_RESAMPLES)}")
        mean, std = cls._normalization(keys)
        fit, size = cls._size(keys, kind)
        side = _side("crop_size", keys["crop_size"]) if keys["do_center_crop"] else size
        if side not in (image_size, None):
            size = image_size  # `Classifier.remarks` tells the user that images are resized
        resize = None if size == image_size else size
        return cls(mean, std, fit, resize, _RESAMPLES[resample], side)

    @staticmethod
    def _normalization(keys: dict) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns mean and std for (x / 255 - mean) / std, where x is a pixel from 0 to 255."""
        factor = keys["rescale_factor"] if keys["do_rescale"] else 1
        if not _is_number(factor) or factor <= 0:
            raise _unreadable("rescale_factor", factor, "a number above 0")
        values = []
        for key, neutral in (("image_mean", 0.0), ("image_std", 1.0)):
            value = keys[key] if keys["do_normalize"] else neutral
            value = value if isinstance(value, list) else [value]
            if not value or not all(map(_is_number, value)):
                raise _unreadable(key, keys[key], "a number for each channel")
            values.append(tuple(x / (255 * factor) for x in value))
        return tuple(values)

    @staticmethod
    def _size(keys: dict, kind: str) -> tuple[str, int | None]:
        """Returns (fit, resize) for `View`."""
        size = keys["size"]
        if not keys["do_resize"]:
            return "none", None
        if isinstance(size, dict) and {k for k, x in size.items() if x} == {"shortest_edge"}:
            return "shorter", _side("size", size["shortest_edge"])
        # A single number, as earlier versions write it, is the shorter side for these classes.
        fit = "shorter" if isinstance(size, int) and _DEFAULTS[kind] is _CLIP else "stretch"
        return fit, _side("size", size)


def _side(key: str, size) -> int:
    """Returns the side of a square. Raises UserError for another size."""
    values = size
    if isinstance(size, dict):
        values = [size.get("height"), size.get("width")]
        if any(x for name, x in size.items() if name not in ("height", "width")):
            values = None
    values = values if isinstance(values, list) else [values] * 2
    if len(values) != 2 or values[0] != values[1] or type(values[0]) is not int or values[0] < 1:
        raise _unreadable(key, size, "a square, or in size also a shortest_edge")
    return values[0]


def _is_number(value) -> bool:
    # In Python, true and false of JSON are numbers as well.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unreadable(key: str, value, wanted: str) -> UserError:
    return UserError(f"{family.PREPROCESSOR}: {key}={value!r}: must be {wanted}")


@dataclasses.dataclass(frozen=True)
class Classifier(family.Family):
    model = "vit"
    body = ("vit.",)
    ignored = ("vit.pooler.dense.weight", "vit.pooler.dense.bias")  # the head does not read it

    def read_config(self, hf_config, folder):
        processor = family.read_processor(folder, "image_processor")
        return super().read_config(hf_config | {"preprocessor": processor}, folder)

    def model_keys(self, hf_config):
        keys = self.keys.read(hf_config)
        processor = _Processor.read(hf_config["preprocessor"], keys["image_size"])
        for key in ("mean", "std"):
            values = getattr(processor, key)
            keys[key] = values * keys["channels"] if len(values) == 1 else values
        return keys

    def sections(self, folder):
        return {"source": {"name": "images"}}

    def task_keys(self, config, hf_config):
        labels = family.read_labels(hf_config)
        if not hf_config["preprocessor"]:
            return {"labels": labels}
        processor = _Processor.read(hf_config["preprocessor"], config.model.image_size)
        names = ("fit", "resize", "resample")
        return {"labels": labels} | {name: getattr(processor, name) for name in names}

    def remarks(self, hf_config):
        if not hf_config["preprocessor"]:
            yield f"no {family.PREPROCESSOR} beside it: pixels are normalized to (x - 0.5) / 0.5"
            return
        wanted = hf_config["image_size"]
        side = _Processor.read(hf_config["preprocessor"], wanted).side
        if side not in (wanted, None):  # transformers' model refuses such pixels
            yield (
                f"{family.PREPROCESSOR} makes images of {side} pixels, which the model can't read: "
                f"they are resized to image_size={wanted}"
            )

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)
        for section, key, value in (
            ("model", "positions", "learned"),
            ("model", "pool", "class"),
            ("task", "hidden_head", False),
        ):
            if config[section][key] != value:
                raise UserError(
                    f"config.{section}.{key}={config[section][key]!r}: {self.architecture} has "
                    f"only {value!r}"
                )

    def other_keys(self, config, tokenizer):
        d_ff = config.model.d_ff or 4 * config.model.d_model
        return {"intermediate_size": d_ff} | family.label_maps(config.task.labels)

    def tokenizer_files(self, task):
        """Returns preprocessor_config.json, which tells transformers how to prepare images."""
        model, config = task.model, task.config.task
        side, resize = model.image_size, config.resize or model.image_size
        square = {"height": side, "width": side}
        stretches = config.fit == "stretch"
        content = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": config.fit != "none",
            "size": {"height": resize, "width": resize},
            "resample": _RESAMPLES.index(config.resample),
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(model.mean * (1 if len(model.mean) > 1 else model.channels)),
            "image_std": list(model.std * (1 if len(model.std) > 1 else model.channels)),
        }
        if not stretches or resize != side:
            content |= {"do_center_crop": True, "crop_size": square}
        if not stretches:
            # Earlier versions of ViT's own processor neither crop nor know a shorter side.
            content |= {
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": resize},
                "do_convert_rgb": model.channels == 3,
            }
        return {family.PREPROCESSOR: (json.dumps(content, indent=2) + "\n").encode()}


ARCHITECTURES = [
    Classifier("ViTForImageClassification", "vit", _KEYS, _TABLE, "image_classification")
]
