"""ELECTRA's discriminator and generator, and fine-tuned heads, from and to `models/electra.py`."""

import dataclasses

from transformer_jax import config as configs
from transformer_jax.huggingface import bert, heads
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.keys import check_head_dim
from transformer_jax.huggingface.tensors import Table, linear, norm

_KEYS = bert.KEYS.changed(
    required={"embedding_size": "d_embed"},
    optional={"type_vocab_size": ("num_token_types", 2)},
    allowed={
        # The vector of a choice.
        "summary_type": ("first",),
        "summary_use_proj": (True,),
        "summary_activation": ("gelu",),
    },
)

_ENCODER = bert.encoder("electra")
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
        return {"phases": bert.phases(config.model)}


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
        return {"next_sentence": 0.0, "phases": bert.phases(config.model)}


@dataclasses.dataclass(frozen=True)
class FineTuned(heads.FineTuned, _ELECTRA):
    @property
    def dropout_key(self):
        return "summary_last_dropout" if self.task == "choice" else super().dropout_key


def _is_pair(config) -> bool:
    """Whether a run has both a generator and a discriminator."""
    is_pair = config.model.name == "electra" and config.task.name == "replaced_tokens"
    return is_pair and config.model.generator_size > 0


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
