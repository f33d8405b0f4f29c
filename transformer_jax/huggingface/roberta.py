"""RoBERTa with the head of pre-training and those of fine-tuning, from and to
`models/roberta.py`.
"""

import dataclasses

from transformer_jax.config import UserError
from transformer_jax.huggingface import bert, heads
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.keys import check_head_dim
from transformer_jax.huggingface.tensors import linear, norm
from transformer_jax.models.roberta import RoBERTa

_POSITIONS = "max_position_embeddings"
KEYS = bert.KEYS.changed(
    allowed={
        "type_vocab_size": (1,),
        # The first position is the one behind it.
        "pad_token_id": (RoBERTa.position_offset - 1,),
    },
)

_ENCODER = bert.encoder("roberta")
MASKED_LM = {
    **linear("lm_head.dense", "mlm_transform"),
    **norm("lm_head.layer_norm", "mlm_norm"),
    "lm_head.bias": ("same", "mlm_bias/bias"),
}
CLASSIFIER = linear("classifier.dense", "pooler") | linear("classifier.out_proj", "head/out")
CHOICE = linear("roberta.pooler.dense", "pooler") | linear("classifier", "head/out")
TAGS = linear("classifier", "head/out")
SPAN = linear("qa_outputs", "head/out")


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
        "pooler.dense.weight",
        "pooler.dense.bias",
    )

    def matches(self, config):
        return bert.is_of(self, config)

    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        length = keys["max_length"]
        if not isinstance(length, int) or length <= RoBERTa.position_offset:
            raise UserError(f"{_POSITIONS}={length!r}: must be a whole number from 3")
        return keys | {"max_length": length - RoBERTa.position_offset}

    def task_keys(self, config, hf_config):
        return {"next_sentence": 0.0, "phases": bert.phases(config.model)}

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
class FineTuned(heads.FineTuned, PreTraining):
    """RoBERTa with a fine-tuned head."""


def _fine_tuned(architecture: str, head: dict, task: str) -> FineTuned:
    return FineTuned(architecture, "roberta", KEYS, _ENCODER | head, task)


FAMILIES = [
    PreTraining("RobertaForMaskedLM", "roberta", KEYS, _ENCODER | MASKED_LM, "masked_lm"),
    _fine_tuned("RobertaForSequenceClassification", CLASSIFIER, "classification"),
    _fine_tuned("RobertaForMultipleChoice", CHOICE, "choice"),
    _fine_tuned("RobertaForTokenClassification", TAGS, "tagging"),
    _fine_tuned("RobertaForQuestionAnswering", SPAN, "span"),
]
