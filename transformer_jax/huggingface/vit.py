"""ViT with a classification head, from and to `models/vit.py`."""

import dataclasses
import json

from transformer_jax.config import UserError
from transformer_jax.huggingface import family, heads, tensors
from transformer_jax.huggingface.keys import Keys, check_head_dim
from transformer_jax.huggingface.tensors import layers, linear, norm

_PREPROCESSOR = "preprocessor_config.json"
# transformers' numbers for ways of interpolation: 2 is bilinear.
_BILINEAR = 2
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


@dataclasses.dataclass(frozen=True)
class ViT(family.Family):
    model = "vit"
    ignored = ("vit.pooler.dense.weight", "vit.pooler.dense.bias")  # the head does not read it

    def read_config(self, hf_config, folder):
        path = folder / _PREPROCESSOR
        preprocessor = tensors.read_json(path) if path.is_file() else {}
        return super().read_config(hf_config | {"preprocessor": preprocessor}, folder)

    def model_keys(self, hf_config):
        keys = self.keys.read(hf_config)
        preprocessor = hf_config["preprocessor"]
        for key in ("mean", "std"):
            values = preprocessor.get(f"image_{key}", (0.5,) * keys["channels"])
            keys[key] = tuple(float(value) for value in values)
        return keys

    def sections(self, folder):
        return {"source": {"name": "images"}}

    def task_keys(self, config, hf_config):
        return {"labels": heads.read_labels(hf_config)}

    def remarks(self, hf_config):
        if not hf_config["preprocessor"]:
            yield f"no {_PREPROCESSOR} beside it: pixels are taken as (x - 0.5) / 0.5"

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
        return {"intermediate_size": d_ff} | heads.label_maps(config.task.labels)

    def tokenizer_files(self, task):
        """Returns preprocessor_config.json, by which transformers prepares images."""
        model = task.model
        side = model.image_size
        content = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": side, "width": side},
            "resample": _BILINEAR,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(model.mean * (1 if len(model.mean) > 1 else model.channels)),
            "image_std": list(model.std * (1 if len(model.std) > 1 else model.channels)),
        }
        return {_PREPROCESSOR: (json.dumps(content, indent=2) + "\n").encode()}


FAMILIES = [ViT("ViTForImageClassification", "vit", _KEYS, _TABLE, "image_classification")]
