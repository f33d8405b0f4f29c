"""T5 of versions 1.0 and 1.1, from and to `models/t5.py`."""

import dataclasses

from transformer_jax.huggingface.encoder_decoder import EncoderDecoder
from transformer_jax.huggingface.keys import Keys
from transformer_jax.huggingface.tensors import Table, layers

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
    ignored = (
        # Tied to the shared embeddings. The output projection is read where it is not.
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        _OUTPUT,
        # Published files have a bias here that no model uses.
        "EncDecAttention.relative_attention_bias.weight",
    )

    def table(self, model):
        output = {} if model.tie_output else {_OUTPUT: ("same", "output_embed/embedding")}
        return _table(_GATED_MLP if model.gated else _MLP) | output

    def model_keys(self, hf_config):
        decoder_layers = hf_config.get("num_decoder_layers")
        keys = super().model_keys(hf_config)
        return keys | {
            "num_decoder_layers": decoder_layers or keys["num_encoder_layers"],
            "gated": hf_config.get("feed_forward_proj") == "gated-gelu",
            "tie_output": _has_tied_output(hf_config),
        }

    def other_keys(self, config, tokenizer):
        return super().other_keys(config, tokenizer) | {
            "num_decoder_layers": config.model.num_decoder_layers,
            "feed_forward_proj": "gated-gelu" if config.model.gated else "relu",
            "tie_word_embeddings": config.model.tie_output,
        }


def _has_tied_output(hf_config: dict) -> bool:
    """Whether the output projection is the scaled embeddings.

    transformers 5 writes tie_word_embeddings=true for all models, and the scale apart.
    """
    tied = hf_config.get("tie_word_embeddings", True)
    return hf_config.get("scale_decoder_outputs", tied)


FAMILIES = [Writer("T5ForConditionalGeneration", "t5", _KEYS, _table(_MLP), "text_to_text")]
