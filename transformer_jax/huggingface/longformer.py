"""Longformer with the head of pre-training and those of fine-tuning, from and to
`models/longformer.py`.
"""

import dataclasses
import itertools

from transformer_jax.config import UserError
from transformer_jax.huggingface import bert, heads, roberta
from transformer_jax.huggingface.tensors import layers, linear

_KEYS = roberta.KEYS.changed(required={"attention_window": "attention_window"})
_GLOBAL = {
    **linear("attention.self.query_global", "attention/global_query"),
    **linear("attention.self.key_global", "attention/global_key"),
    **linear("attention.self.value_global", "attention/global_value"),
}
_ENCODER = {
    **bert.encoder("longformer"),
    **layers("longformer.encoder.layer.{}.", "encoder/layers/", _GLOBAL),
}


@dataclasses.dataclass(frozen=True)
class PreTraining(roberta.PreTraining):
    model = "longformer"

    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        windows = keys["attention_window"]
        if isinstance(windows, int):
            windows = [windows]
        return keys | {"attention_window": windows[:1] if len(set(windows)) == 1 else windows}

    def other_keys(self, config, tokenizer):
        if set(config.model.attention_dilation) != {1}:
            raise UserError(
                f"config.model.attention_dilation={config.model.attention_dilation}: the "
                "architecture of Hugging Face has no dilated windows"
            )
        windows = itertools.cycle(config.model.attention_window)
        return super().other_keys(config, tokenizer) | {
            "attention_window": list(itertools.islice(windows, config.model.num_layers)),
            # The separator that ends a question.
            "sep_token_id": tokenizer.eos_id,
        }


@dataclasses.dataclass(frozen=True)
class FineTuned(heads.FineTuned, PreTraining):
    """Longformer with a fine-tuned head. That head has the dropout of the model."""

    dropout_key = ""


def _fine_tuned(architecture: str, head: dict, task: str) -> FineTuned:
    return FineTuned(architecture, "longformer", _KEYS, _ENCODER | head, task)


FAMILIES = [
    PreTraining(
        "LongformerForMaskedLM", "longformer", _KEYS, _ENCODER | roberta.MASKED_LM, "masked_lm"
    ),
    _fine_tuned("LongformerForSequenceClassification", roberta.CLASSIFIER, "classification"),
    _fine_tuned("LongformerForTokenClassification", roberta.TAGS, "tagging"),
    _fine_tuned("LongformerForQuestionAnswering", roberta.SPAN, "span"),
]
