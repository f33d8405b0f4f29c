"""BERT with the heads of pre-training and of fine-tuning, from and to `models/bert.py`."""

import dataclasses

from ml_collections import ConfigDict

from transformer_jax.huggingface import family, heads
from transformer_jax.huggingface.keys import Keys, check_head_dim
from transformer_jax.huggingface.tensors import Table, layers, linear, norm

# The keys that the relatives of BERT share.
KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "max_length",
    },
    optional={
        "layer_norm_eps": ("norm_epsilon", 1e-12),
        "hidden_dropout_prob": ("dropout", 0.1),
        "attention_probs_dropout_prob": ("attention_dropout", 0.1),
        "initializer_range": ("init_std", 0.02),
    },
    allowed={
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
)
_KEYS = KEYS.changed(optional={"type_vocab_size": ("num_token_types", 2)})

_LAYER = {
    **linear("attention.self.query", "attention/query"),
    **linear("attention.self.key", "attention/key"),
    **linear("attention.self.value", "attention/value"),
    **linear("attention.output.dense", "attention/out", "linear_merge"),
    **norm("attention.output.LayerNorm", "attention_norm"),
    **linear("intermediate.dense", "mlp/wi"),
    **linear("output.dense", "mlp/wo"),
    **norm("output.LayerNorm", "mlp_norm"),
}


def embeddings(prefix: str) -> Table:
    """Returns the tensors of the embeddings, also in the relatives of BERT."""
    return {
        f"{prefix}.embeddings.word_embeddings.weight": ("same", "token_embed/embedding"),
        f"{prefix}.embeddings.position_embeddings.weight": ("same", "position_embed/embedding"),
        f"{prefix}.embeddings.token_type_embeddings.weight": ("same", "type_embed/embedding"),
        **norm(f"{prefix}.embeddings.LayerNorm", "embed_norm"),
    }


def encoder(prefix: str) -> Table:
    """Returns the tensors of the embeddings and of all layers, also in RoBERTa and ELECTRA."""
    name = f"{prefix}.encoder.layer.{{}}."
    return embeddings(prefix) | layers(name, "encoder/layers/", _LAYER)


def phases(model) -> tuple[tuple[float, int, int]]:
    """Returns config.task.phases of a masked language model: 15 % of a row are masked."""
    length = min(model.max_length, 512)
    return ((1.0, length, max(int(0.15 * length), 1)),)


_ENCODER = encoder("bert")
_MASKED_LM = {
    **linear("cls.predictions.transform.dense", "mlm_transform"),
    **norm("cls.predictions.transform.LayerNorm", "mlm_norm"),
    "cls.predictions.bias": ("same", "mlm_bias/bias"),
}
# Tasks whose runs have the heads of pre-training. A checkpoint becomes a run of the first.
_OBJECTIVES = ("masked_lm", "mixed_masks", "masked_targets")
_POOLER = linear("bert.pooler.dense", "pooler")
_NEXT_SENTENCE = linear("cls.seq_relationship", "nsp")
_CLASSIFIER = linear("classifier", "head/out")
_SPAN = linear("qa_outputs", "head/out")


@dataclasses.dataclass(frozen=True)
class PreTraining(family.Family):
    model = "bert"
    ignored = (
        # Tied to the embeddings and to cls.predictions.bias.
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
        # The numbers 0, 1, 2, ...
        "embeddings.position_ids",
        # Older releases save the pooler with every head, even where the table lacks it.
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    )

    next_sentence: bool = False

    def matches(self, config):
        next_sentence = bool(config.task.get("next_sentence"))
        return is_of(self, config) and next_sentence == self.next_sentence

    def sections(self, folder):
        return {"data": {"tokenizer": "wordpiece", "tokenizer_files": str(folder)}}

    def task_keys(self, config, hf_config):
        return {"next_sentence": float(self.next_sentence), "phases": phases(config.model)}

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        d_ff = config.model.d_ff or 4 * config.model.d_model
        return {"pad_token_id": 0, "intermediate_size": d_ff}


@dataclasses.dataclass(frozen=True)
class FineTuned(heads.FineTuned, PreTraining):
    """BERT with a fine-tuned head."""


def is_of(kind: family.Family, config: ConfigDict) -> bool:
    """Returns whether a run has the model of a family, and its task or one with equal heads."""
    names = _OBJECTIVES if kind.task in _OBJECTIVES else (kind.task,)
    return config.model.name == kind.model and config.task.name in names


def _pre_training(architecture: str, table: dict, next_sentence: bool) -> PreTraining:
    return PreTraining(architecture, "bert", _KEYS, table, "masked_lm", next_sentence)


def _fine_tuned(architecture: str, head: dict, task: str) -> FineTuned:
    return FineTuned(architecture, "bert", _KEYS, _ENCODER | head, task)


FAMILIES = [
    _pre_training("BertForPreTraining", _ENCODER | _POOLER | _NEXT_SENTENCE | _MASKED_LM, True),
    _pre_training("BertForMaskedLM", _ENCODER | _MASKED_LM, False),
    _fine_tuned("BertForSequenceClassification", _POOLER | _CLASSIFIER, "classification"),
    _fine_tuned("BertForMultipleChoice", _POOLER | _CLASSIFIER, "choice"),
    _fine_tuned("BertForTokenClassification", _CLASSIFIER, "tagging"),
    _fine_tuned("BertForQuestionAnswering", _SPAN, "span"),
]
