"""ELECTRA's discriminator and generator, and fine-tuned heads, from and to `models/electra.py`."""

import dataclasses

from transformer_jax import config as configs
from transformer_jax.huggingface import bert, heads
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.keys import Keys, check_head_dim
from transformer_jax.huggingface.tensors import Table, layers, linear, norm

_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "embedding_size": "d_embed",
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "max_length",
    },
    optional={
        "type_vocab_size": ("num_token_types", 2),
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
        # The vector of a choice.
        "summary_type": ("first",),
        "summary_use_proj": (True,),
        "summary_activation": ("gelu",),
    },
)

_ENCODER = {
    "electra.embeddings.word_embeddings.weight": ("same", "token_embed/embedding"),
    "electra.embeddings.position_embeddings.weight": ("same", "position_embed/embedding"),
    "electra.embeddings.token_type_embeddings.weight": ("same", "type_embed/embedding"),
    **norm("electra.embeddings.LayerNorm", "embed_norm"),
    **layers("electra.encoder.layer.{}.", "encoder/layers/", bert.LAYER),
}
_PROJECTION = linear("electra.embeddings_project", "embed_projection")
_DETECTOR = {
    **linear("discriminator_predictions.dense", "detector_transform"),
    **linear("discriminator_predictions.dense_prediction", "detector"),
}
_MASKED_LM = {
    **linear("generator_predictions.dense", "mlm_transform"),
    **norm("generator_predictions.LayerNorm", "mlm_norm"),
    "generator_lm_head.bias": ("same", "mlm_bias/bias"),
}
_CLASSIFIER = linear("classifier.dense", "pooler") | linear("classifier.out_proj", "head/out")
_CHOICE = linear("sequence_summary.summary", "pooler") | linear("classifier", "head/out")
_TAGS = linear("classifier", "head/out")
_SPAN = linear("qa_outputs", "head/out")


@dataclasses.dataclass(frozen=True)
class _ELECTRA(Family):
    model = "electra"
    ignored = (
        # Tied to the embeddings.
        "generator_lm_head.weight",
        # The numbers 0, 1, 2, ...
        "embeddings.position_ids",
    )

    def table(self, model) -> Table:
        return self.tensors | (_PROJECTION if model.d_embed != model.d_model else {})

    def model_keys(self, hf_config):
        # A checkpoint is the generator or the discriminator.
        return super().model_keys(hf_config) | {"generator_size": 0.0}

    def sections(self, folder):
        return {"data": {"tokenizer": "wordpiece", "tokenizer_files": str(folder)}}

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        d_ff = config.model.d_ff or 4 * config.model.d_model
        return {"pad_token_id": 0, "intermediate_size": d_ff}


@dataclasses.dataclass(frozen=True)
class Discriminator(_ELECTRA):
    def task_keys(self, config, hf_config):
        return {"phases": ((1.0, *_row(config.model)),)}


@dataclasses.dataclass(frozen=True)
class MaskedLM(_ELECTRA):
    """A generator, also that of a pair, and any ELECTRA that is a masked language model."""

    def matches(self, config):
        if config.task.name == "masked_lm":
            return super().matches(config) and not config.task.next_sentence
        return _is_pair(config)

    def written(self, config):
        if not _is_pair(config):
            return config
        config = config.copy_and_resolve_references()
        narrow = configs.build_model(config).narrow()
        for key in ("d_model", "d_ff", "num_heads"):
            configs.set_key(config, f"model.{key}", getattr(narrow, key))
        return config

    def theirs(self, params, task):
        return task.model.narrow_params(params) if _is_pair(task.config) else params

    def task_keys(self, config, hf_config):
        return {"next_sentence": 0.0, "phases": ((1.0, *_row(config.model)),)}


@dataclasses.dataclass(frozen=True)
class FineTuned(_ELECTRA):
    def task_keys(self, config, hf_config):
        dropout = hf_config.get(self._dropout)
        if dropout is None:
            dropout = config.model.dropout
        return heads.read_keys(config, hf_config, dropout)

    def other_keys(self, config, tokenizer):
        keys = super().other_keys(config, tokenizer) | heads.write_keys(config.task)
        # Hugging Face's head for spans has no dropout.
        if self.task != "span":
            keys[self._dropout] = config.task.head_dropout
        return keys

    @property
    def _dropout(self) -> str:
        """The key of the dropout in front of the head."""
        return "summary_last_dropout" if self.task == "choice" else "classifier_dropout"


def _is_pair(config) -> bool:
    """Whether a run has both a generator and a discriminator."""
    is_pair = config.model.name == "electra" and config.task.name == "replaced_tokens"
    return is_pair and config.model.generator_size > 0


def _row(model) -> tuple[int, int]:
    """Returns the tokens of a row, and its masked ones."""
    length = min(model.max_length, 512)
    return length, max(int(0.15 * length), 1)


def _fine_tuned(architecture: str, head: Table, task: str) -> FineTuned:
    return FineTuned(architecture, "electra", _KEYS, _ENCODER | head, task)


FAMILIES = [
    Discriminator(
        "ElectraForPreTraining", "electra", _KEYS, _ENCODER | _DETECTOR, "replaced_tokens"
    ),
    MaskedLM("ElectraForMaskedLM", "electra", _KEYS, _ENCODER | _MASKED_LM, "masked_lm"),
    _fine_tuned("ElectraForSequenceClassification", _CLASSIFIER, "classification"),
    _fine_tuned("ElectraForMultipleChoice", _CHOICE, "choice"),
    _fine_tuned("ElectraForTokenClassification", _TAGS, "tagging"),
    _fine_tuned("ElectraForQuestionAnswering", _SPAN, "span"),
]
