"""Llama and Qwen2 with a language-model head, from and to `models/decoder.py`."""

import dataclasses

from transformer_jax.config import UserError
from transformer_jax.huggingface import family
from transformer_jax.huggingface.keys import Keys
from transformer_jax.huggingface.tensors import layers

_REQUIRED = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_length",
}
_OPTIONAL = {
    "num_key_value_heads": ("num_kv_heads", None),
    "rms_norm_eps": ("norm_epsilon", 1e-6),
    "attention_dropout": ("attention_dropout", 0.0),
    "initializer_range": ("init_std", 0.02),
    "tie_word_embeddings": ("tie_output", False),
}
_ABSENT = {"local_window": "window in all layers"}
_LLAMA_KEYS = Keys(
    _REQUIRED,
    _OPTIONAL,
    allowed={
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "pretraining_tp": (1,),
    },
    absent=_ABSENT,
)
_QWEN2_KEYS = Keys(
    _REQUIRED,
    _OPTIONAL,
    allowed={"hidden_act": ("silu",), "use_sliding_window": (False,)},
    absent=_ABSENT,
)

_LAYER = {
    "input_layernorm.weight": ("same", "attention_norm/scale"),
    "self_attn.q_proj.weight": ("linear", "attention/query/kernel"),
    "self_attn.k_proj.weight": ("linear", "attention/key/kernel"),
    "self_attn.v_proj.weight": ("linear", "attention/value/kernel"),
    "self_attn.o_proj.weight": ("linear_merge", "attention/out/kernel"),
    "post_attention_layernorm.weight": ("same", "mlp_norm/scale"),
    "mlp.gate_proj.weight": ("linear", "mlp/wi/kernel"),
    "mlp.up_proj.weight": ("linear", "mlp/wv/kernel"),
    "mlp.down_proj.weight": ("linear", "mlp/wo/kernel"),
}
_BIASES = {
    "self_attn.q_proj.bias": ("vector", "attention/query/bias"),
    "self_attn.k_proj.bias": ("vector", "attention/key/bias"),
    "self_attn.v_proj.bias": ("vector", "attention/value/bias"),
}
_OUTPUT = "lm_head.weight"
_LLAMA = {
    "model.embed_tokens.weight": ("same", "token_embed/embedding"),
    **layers("model.layers.{}.", "decoder/layers/", _LAYER),
    "model.norm.weight": ("same", "norm/scale"),
    _OUTPUT: ("same", "output_embed/embedding"),
}
_QWEN2 = _LLAMA | layers("model.layers.{}.", "decoder/layers/", _BIASES)

# The ends of the rotations that change gradually, in turns of the trained length: the values of
# Llama 3.1.
_TURNS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_MAX_LENGTH = 4096  # tokens of a row


@dataclasses.dataclass(frozen=True)
class LanguageModel(family.Family):
    model = "decoder"
    prefix = "model."
    # Where the output projection is tied to the embeddings, older files hold it all the same.
    ignored = (_OUTPUT, "rotary_emb.inv_freq")

    qkv_bias: bool = False

    def matches(self, config):
        return super().matches(config) and config.model.qkv_bias == self.qkv_bias

    def table(self, model):
        names = self.tensors.keys() - ({_OUTPUT} if model.tie_output else set())
        return {name: entry for name, entry in self.tensors.items() if name in names}

    def model_keys(self, hf_config):
        others = {"head_dim": hf_config.get("head_dim"), "qkv_bias": self.qkv_bias}
        return super().model_keys(hf_config) | _rotary(hf_config) | others

    def task_keys(self, config, hf_config):
        return {"length": min(config.model.max_length, _MAX_LENGTH)}

    def other_keys(self, config, tokenizer):
        model = config.model
        rotary = {"rope_type": "default", "rope_theta": model.rotary_theta}
        if model.rotary_factor != 1:
            rotary |= {
                "rope_type": "llama3",
                "factor": model.rotary_factor,
                "original_max_position_embeddings": model.rotary_length,
                **_TURNS,
            }
        return {
            "num_key_value_heads": model.num_kv_heads or model.num_heads,
            # Qwen2's models do not take null.
            **({"head_dim": model.head_dim} if model.head_dim else {}),
            "rope_parameters": rotary,
            "rope_theta": model.rotary_theta,
            "bos_token_id": tokenizer.bos_id,
            "eos_token_id": tokenizer.hf_end,
        }


def _rotary(hf_config: dict) -> dict:
    """Returns the keys of config.model for the rotary positions.

    transformers 5 has them in rope_parameters, earlier releases in rope_theta and rope_scaling.
    Raises UserError for positions that `layers/positions.py` does not compute.
    """
    key = "rope_parameters" if hf_config.get("rope_parameters") else "rope_scaling"
    values = hf_config.get(key) or {}
    if not isinstance(values, dict):
        raise UserError(f"{key}={values!r}: must be an object")
    theta = values.get("rope_theta", hf_config.get("rope_theta", 10_000.0))
    kind = values.get("rope_type", values.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise UserError(f"{key}.rope_type={kind!r}: only 'default' or 'llama3' is supported")
    allowed = {"partial_rotary_factor": 1.0} | (_TURNS if kind == "llama3" else {})
    for name, value in allowed.items():
        if values.get(name, value) != value:
            raise UserError(f"{key}.{name}={values[name]!r}: only {value} is supported")
    if kind == "default":
        return {"rotary_theta": theta}
    length = "original_max_position_embeddings"
    missing = [name for name in ("factor", length) if name not in values]
    if missing:
        raise UserError(f"{key}: no {' and no '.join(missing)}")
    return {
        "rotary_theta": theta,
        "rotary_factor": values["factor"],
        "rotary_length": values[length],
    }


FAMILIES = [
    LanguageModel("LlamaForCausalLM", "llama", _LLAMA_KEYS, _LLAMA, "causal_lm"),
    LanguageModel("Qwen2ForCausalLM", "qwen2", _QWEN2_KEYS, _QWEN2, "causal_lm", qkv_bias=True),
]
