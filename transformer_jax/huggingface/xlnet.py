"""XLNet with the heads of pre-training and of fine-tuning, from and to `models/xlnet.py`."""

import dataclasses

from transformer_jax.huggingface import family, heads
from transformer_jax.huggingface.keys import Keys, check_head_dim
from transformer_jax.huggingface.tensors import layers, linear, norm

_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "d_model": "d_model",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "d_inner": "d_ff",
    },
    optional={
        "mem_len": ("memory_length", 512),
        "layer_norm_eps": ("norm_epsilon", 1e-12),
        "dropout": ("dropout", 0.1),
        "initializer_range": ("init_std", 0.02),
    },
    allowed={
        "ff_activation": ("gelu",),
        "attn_type": ("bi",),
        "bi_data": (False,),
        "clamp_len": (-1,),
        "same_length": (False,),
        "untie_r": (True,),
        "summary_type": ("last",),
        "summary_use_proj": (True,),
        "summary_activation": ("tanh",),
        "tie_word_embeddings": (True,),
    },
)

_LAYER = {
    "rel_attn.q": ("same", "attention/query/kernel"),
    "rel_attn.k": ("same", "attention/key/kernel"),
    "rel_attn.v": ("same", "attention/value/kernel"),
    "rel_attn.r": ("same", "attention/distance/kernel"),
    "rel_attn.o": ("outputs_first", "attention/out/kernel"),
    "rel_attn.r_w_bias": ("same", "attention/content_bias"),
    "rel_attn.r_r_bias": ("same", "attention/distance_bias"),
    "rel_attn.r_s_bias": ("same", "attention/segment_bias"),
    "rel_attn.seg_embed": ("same", "attention/segment_embed"),
    **norm("rel_attn.layer_norm", "attention_norm"),
    **linear("ff.layer_1", "mlp/wi"),
    **linear("ff.layer_2", "mlp/wo"),
    **norm("ff.layer_norm", "mlp_norm"),
}
_ENCODER = {
    "transformer.word_embedding.weight": ("same", "token_embed/embedding"),
    **layers("transformer.layer.{}.", "encoder/layers/", _LAYER),
}
_TARGET = "transformer.mask_emb"
_LANGUAGE_MODEL = {
    _TARGET: ("same", "target_embed/embedding"),
    "lm_loss.bias": ("same", "output_bias/bias"),
}
_SUMMARY = linear("sequence_summary.summary", "pooler") | linear("logits_proj", "head/out")


@dataclasses.dataclass(frozen=True)
class PreTraining(family.Family):
    model = "xlnet"
    # Tied to the embeddings; and the vector that begins each target, which only pre-training uses.
    ignored = ("lm_loss.weight", _TARGET)

    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        return keys | {"memory_length": keys["memory_length"] or 0}

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        d_model = config.model.d_model
        return {
            "d_inner": config.model.d_ff or 4 * d_model,
            "d_head": d_model // config.model.num_heads,
            "mem_len": config.model.memory_length or None,
            "pad_token_id": tokenizer.pad_id,
        }


@dataclasses.dataclass(frozen=True)
class FineTuned(heads.FineTuned, PreTraining):
    @property
    def dropout_key(self):
        # Only a head that reads the state of <cls> has dropout of its own.
        return "summary_last_dropout" if self.task in ("classification", "choice") else ""

    def default_dropout(self, config):
        return 0.1 if self.dropout_key else 0.0


def _fine_tuned(head: str, table: dict, task: str) -> FineTuned:
    return FineTuned(f"XLNetFor{head}", "xlnet", _KEYS, _ENCODER | table, task)


FAMILIES = [
    PreTraining("XLNetLMHeadModel", "xlnet", _KEYS, _ENCODER | _LANGUAGE_MODEL, "permuted_lm"),
    _fine_tuned("SequenceClassification", _SUMMARY, "classification"),
    _fine_tuned("MultipleChoice", _SUMMARY, "choice"),
    _fine_tuned("TokenClassification", linear("classifier", "head/out"), "tagging"),
    _fine_tuned("QuestionAnsweringSimple", linear("qa_outputs", "head/out"), "span"),
]
