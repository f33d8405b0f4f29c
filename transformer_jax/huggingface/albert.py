"""ALBERT with the heads of pre-training and of fine-tuning, from and to `models/albert.py`."""

import dataclasses

from transformer_jax.huggingface import bert, heads
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.keys import check_head_dim
from transformer_jax.huggingface.tensors import Table, linear, norm

_KEYS = bert.KEYS.changed(
    required={"embedding_size": "d_embed"},
    optional={
        "type_vocab_size": ("num_token_types", 2),
        "hidden_dropout_prob": ("dropout", 0.0),
        "attention_probs_dropout_prob": ("attention_dropout", 0.0),
    },
    allowed={
        # Two names of the same approximation of GELU.
        "hidden_act": ("gelu_new", "gelu_pytorch_tanh"),
        # All layers have the same parameters.
        "num_hidden_groups": (1,),
        "inner_group_num": (1,),
    },
)

_NAME = "albert.encoder.albert_layer_groups.0.albert_layers.0"
_PATH = "encoder/layer"
_ENCODER = {
    **bert.embeddings("albert"),
    **linear("albert.encoder.embedding_hidden_mapping_in", "embed_projection"),
    **linear(f"{_NAME}.attention.query", f"{_PATH}/attention/query"),
    **linear(f"{_NAME}.attention.key", f"{_PATH}/attention/key"),
    **linear(f"{_NAME}.attention.value", f"{_PATH}/attention/value"),
    **linear(f"{_NAME}.attention.dense", f"{_PATH}/attention/out", "linear_merge"),
    **norm(f"{_NAME}.attention.LayerNorm", f"{_PATH}/attention_norm"),
    **linear(f"{_NAME}.ffn", f"{_PATH}/mlp/wi"),
    **linear(f"{_NAME}.ffn_output", f"{_PATH}/mlp/wo"),
    **norm(f"{_NAME}.full_layer_layer_norm", f"{_PATH}/mlp_norm"),
}
_MASKED_LM = {
    **linear("predictions.dense", "mlm_transform"),
    **norm("predictions.LayerNorm", "mlm_norm"),
    "predictions.bias": ("same", "mlm_bias/bias"),
}
_POOLER = linear("albert.pooler", "pooler")
_SENTENCE_ORDER = linear("sop_classifier.classifier", "nsp")
_CLASSIFIER = linear("classifier", "head/out")
_SPAN = linear("qa_outputs", "head/out")


@dataclasses.dataclass(frozen=True)
class PreTraining(Family):
    model = "albert"
    ignored = (
        # Tied to the embeddings and to predictions.bias.
        "predictions.decoder.weight",
        "predictions.decoder.bias",
        # The numbers 0, 1, 2, ...
        "embeddings.position_ids",
        # Older releases save the pooler with every head, even where the table lacks it.
        "albert.pooler.weight",
        "albert.pooler.bias",
    )

    sentence_order: bool = False

    def matches(self, config):
        task = config.task
        if not bert.is_of(self, config):
            return False
        if not self.sentence_order:
            return not task.get("next_sentence")
        return bool(task.get("next_sentence")) and task.second_text == "sentence_order"

    def task_keys(self, config, hf_config):
        keys = {
            "next_sentence": float(self.sentence_order),
            "phases": bert.phases(config.model),
        }
        return keys | ({"second_text": "sentence_order"} if self.sentence_order else {})

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        return {
            "intermediate_size": config.model.d_ff or 4 * config.model.d_model,
            "pad_token_id": tokenizer.pad_id,
            "bos_token_id": tokenizer.cls_id,
            "eos_token_id": tokenizer.sep_id,
        }


@dataclasses.dataclass(frozen=True)
class FineTuned(heads.FineTuned, PreTraining):
    @property
    def dropout_key(self):
        return "" if self.task == "span" else "classifier_dropout_prob"

    def default_dropout(self, config):
        return 0.1


def _pre_training(architecture: str, table: Table, sentence_order: bool) -> PreTraining:
    return PreTraining(architecture, "albert", _KEYS, table, "masked_lm", sentence_order)


def _fine_tuned(architecture: str, head: Table, task: str) -> FineTuned:
    return FineTuned(architecture, "albert", _KEYS, _ENCODER | head, task)


FAMILIES = [
    _pre_training("AlbertForPreTraining", _ENCODER | _POOLER | _SENTENCE_ORDER | _MASKED_LM, True),
    _pre_training("AlbertForMaskedLM", _ENCODER | _MASKED_LM, False),
    _fine_tuned("AlbertForSequenceClassification", _POOLER | _CLASSIFIER, "classification"),
    _fine_tuned("AlbertForMultipleChoice", _POOLER | _CLASSIFIER, "choice"),
    _fine_tuned("AlbertForTokenClassification", _CLASSIFIER, "tagging"),
    _fine_tuned("AlbertForQuestionAnswering", _SPAN, "span"),
]
