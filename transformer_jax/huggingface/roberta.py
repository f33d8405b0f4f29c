"""RoBERTa with the head of pre-training and those of fine-tuning, from and to
`models/roberta.py`.
"""

import dataclasses

from transformer_jax.config import UserError
from transformer_jax.huggingface import bert, heads
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.keys import Keys, check_head_dim
from transformer_jax.huggingface.tensors import layers, linear, norm
from transformer_jax.models.roberta import RoBERTa

_POSITIONS = "max_position_embeddings"
_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        _POSITIONS: "max_length",
    },
    optional={
        "layer_norm_eps": ("norm_epsilon", 1e-12),
        "hidden_dropout_prob": ("dropout", 0.1),
        "attention_probs_dropout_prob": ("attention_dropout", 0.1),
        "initializer_range": ("init_std", 0.02),
    },
    allowed={
        "type_vocab_size": (1,),
        # The first position is the one behind it.
        "pad_token_id": (RoBERTa.position_offset - 1,),
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
)

_ENCODER = {
    "roberta.embeddings.word_embeddings.weight": ("same", "token_embed/embedding"),
    "roberta.embeddings.position_embeddings.weight": ("same", "position_embed/embedding"),
    "roberta.embeddings.token_type_embeddings.weight": ("same", "type_embed/embedding"),
    **norm("roberta.embeddings.LayerNorm", "embed_norm"),
    **layers("roberta.encoder.layer.{}.", "encoder/layers/", bert.LAYER),
}
_MASKED_LM = {
    **linear("lm_head.dense", "mlm_transform"),
    **norm("lm_head.layer_norm", "mlm_norm"),
    "lm_head.bias": ("same", "mlm_bias/bias"),
}
_CLASSIFIER = linear("classifier.dense", "pooler") | linear("classifier.out_proj", "head/out")
_CHOICE = linear("roberta.pooler.dense", "pooler") | linear("classifier", "head/out")
_TAGS = linear("classifier", "head/out")
_SPAN = linear("qa_outputs", "head/out")


@dataclasses.dataclass(frozen=True)
class PreTraining(Family):
    model = "roberta"
    ignored = (
        # Tied to the embeddings and to lm_head.bias.
        "lm_head.decoder.weight",
        "lm_head.decoder.bias",
        # The numbers 0, 1, 2, ...
        "embeddings.position_ids",
        # Published checkpoints have a pooler, even where the table lacks it.
        "roberta.pooler.dense.weight",
        "roberta.pooler.dense.bias",
    )

    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        length = keys["max_length"]
        if not isinstance(length, int) or length <= RoBERTa.position_offset:
            raise UserError(f"{_POSITIONS}={length!r}: must be a whole number from 3")
        return keys | {"max_length": length - RoBERTa.position_offset}

    def task_keys(self, config, hf_config):
        length = min(config.model.max_length, 512)
        return {"next_sentence": 0.0, "phases": ((1.0, length, max(int(0.15 * length), 1)),)}

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        padding = RoBERTa.position_offset - 1
        if tokenizer.pad_id != padding:
            raise UserError(
                f"{self.architecture} needs a tokenizer whose padding has the id {padding}, as "
                "config.data.tokenizer=roberta_bpe has"
            )
        return {
            _POSITIONS: config.model.max_length + RoBERTa.position_offset,
            "intermediate_size": config.model.d_ff or 4 * config.model.d_model,
            "bos_token_id": tokenizer.bos_id,
            "eos_token_id": tokenizer.eos_id,
        }


@dataclasses.dataclass(frozen=True)
class FineTuned(PreTraining):
    def task_keys(self, config, hf_config):
        dropout = hf_config.get("classifier_dropout")
        if dropout is None:
            dropout = config.model.dropout
        return heads.read_keys(config, hf_config, dropout)

    def other_keys(self, config, tokenizer):
        keys = super().other_keys(config, tokenizer) | heads.write_keys(config.task)
        # Hugging Face's head for spans has no dropout.
        if self.task != "span":
            keys["classifier_dropout"] = config.task.head_dropout
        return keys


def _fine_tuned(architecture: str, head: dict, task: str) -> FineTuned:
    return FineTuned(architecture, "roberta", _KEYS, _ENCODER | head, task)


FAMILIES = [
    PreTraining("RobertaForMaskedLM", "roberta", _KEYS, _ENCODER | _MASKED_LM, "masked_lm"),
    _fine_tuned("RobertaForSequenceClassification", _CLASSIFIER, "classification"),
    _fine_tuned("RobertaForMultipleChoice", _CHOICE, "choice"),
    _fine_tuned("RobertaForTokenClassification", _TAGS, "tagging"),
    _fine_tuned("RobertaForQuestionAnswering", _SPAN, "span"),
]
