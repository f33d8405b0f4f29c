"""BART that writes texts, and BART with heads, from and to `models/bart.py`."""

import dataclasses

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.huggingface import heads
from transformer_jax.huggingface.encoder_decoder import EncoderDecoder, special_keys
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.keys import Keys
from transformer_jax.huggingface.tensors import Table, layers, linear, norm

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
# The decoder's keys, and those of the encoder with which ours shares them.
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
# The layers of an encoder-decoder, which Marian's models name as BART's.
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
    # Tied to the shared embeddings.
    ignored = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")

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
                yield f"{key}={hf_config[key]} becomes 0: our models drop no layers in training"

    def other_keys(self, config, tokenizer):
        keys = super().other_keys(config, tokenizer)
        return keys | {
            "decoder_attention_heads": config.model.num_heads,
            "decoder_ffn_dim": config.model.d_ff,
        }


@dataclasses.dataclass(frozen=True)
class Writer(_BART, EncoderDecoder):
    def constants(self, model):
        return {"final_logits_bias": np.zeros((1, model.vocab_size), np.float32)}


@dataclasses.dataclass(frozen=True)
class FineTuned(_BART):
    def task_keys(self, config, hf_config):
        return heads.read_keys(config, hf_config, hf_config.get("classifier_dropout", 0.0))

    def other_keys(self, config, tokenizer):
        keys = super().other_keys(config, tokenizer)
        keys |= special_keys(tokenizer) | heads.write_keys(config.task)
        # Hugging Face's head for spans has no dropout.
        if self.task != "span":
            keys["classifier_dropout"] = config.task.head_dropout
        return keys


FAMILIES = [
    Writer("BartForConditionalGeneration", "bart", _KEYS, _TENSORS, "text_to_text"),
    # The published checkpoints of pre-training name no head. Runs are written as the first.
    Writer("BartModel", "bart", _KEYS, _TENSORS, "text_to_text"),
    FineTuned(
        "BartForSequenceClassification", "bart", _KEYS, _TENSORS | _CLASSIFIER, "classification"
    ),
    FineTuned("BartForQuestionAnswering", "bart", _KEYS, _TENSORS | _SPAN, "span"),
]
