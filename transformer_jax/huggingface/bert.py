"""BERT with its heads of pre-training and of fine-tuning, to and from `models/bert.py`."""

import dataclasses
import pathlib

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.huggingface import heads

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "max_length",
}
_OTHERS = {
    "type_vocab_size": ("num_token_types", 2),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "hidden_dropout_prob": ("dropout", 0.1),
    # with their defaults
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "initializer_range": ("init_std", 0.02),
}
_ONLY = {
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    # the values of its config's keys that our model computes, the default first
    "tie_word_embeddings": (True,),
}


def _linear(theirs: str, ours: str, layout: str = "linear") -> dict:
    return {
        f"{theirs}.weight": (layout, f"{ours}/kernel"),
        f"{theirs}.bias": ("vector", f"{ours}/bias"),
    }


def _norm(theirs: str, ours: str) -> dict:
    return {
        f"{theirs}.weight": ("same", f"{ours}/scale"),
        f"{theirs}.bias": ("same", f"{ours}/bias"),
    }


_LAYER = {
    **_linear("attention.self.query", "attention/query"),
    **_linear("attention.self.key", "attention/key"),
    **_linear("attention.self.value", "attention/value"),
    **_linear("attention.output.dense", "attention/out", "linear_merge"),
    **_norm("attention.output.LayerNorm", "attention_norm"),
    **_linear("intermediate.dense", "mlp/wi"),
    **_linear("output.dense", "mlp/wo"),
    **_norm("output.LayerNorm", "mlp_norm"),
}
_ENCODER = {
    "bert.embeddings.word_embeddings.weight": ("same", "token_embed/embedding"),
    "bert.embeddings.position_embeddings.weight": ("same", "position_embed/embedding"),
    "bert.embeddings.token_type_embeddings.weight": ("same", "type_embed/embedding"),
    **_norm("bert.embeddings.LayerNorm", "embed_norm"),
    **{
        f"bert.encoder.layer.{{}}.{name}": (layout, f"encoder/layers/{path}")
        for name, (layout, path) in _LAYER.items()
    },
}
_MLM = {
    **_linear("cls.predictions.transform.dense", "mlm_transform"),
    **_norm("cls.predictions.transform.LayerNorm", "mlm_norm"),
    "cls.predictions.bias": ("same", "mlm_bias/bias"),
}
_POOLER = _linear("bert.pooler.dense", "pooler")
_PAIRS = _linear("cls.seq_relationship", "nsp")
_CLASSIFIER = _linear("classifier", "head/out")


@dataclasses.dataclass(frozen=True)
class Family:
    architecture: str
    task: str
    table: dict[str, tuple[str, ...]]
    next_sentence: bool = False
    prefix: str = ""
    # tied; 0, 1, 2, ...
    ignored: tuple[str, ...] = (
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
        "embeddings.position_ids",
        # where the table lacks them: older releases saved them beside any
        # head
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    )

    def holds(self, config: ConfigDict) -> bool:
        """Whether a run with this config is of the family."""
        return (
            config.model.name == "bert"
            and config.task.name == self.task
            and bool(config.task.get("next_sentence")) == self.next_sentence
        )

    def to_ours(self, theirs: dict, folder: pathlib.Path) -> ConfigDict:
        """The config of a run that begins with the folder's weights. Raises UserError for what our
        model can't compute.
        """
        path = folder / "config.json"
        if missing := [key for key in _SIZES if key not in theirs]:
            raise UserError(f"{path}: no {' and no '.join(missing)}")
        for key, values in _ONLY.items():
            if theirs.get(key, values[0]) not in values:
                raise UserError(
                    f"{path}: {key}={theirs[key]!r}: only {values[0]!r} can be computed here"
                )
        model = {ours: theirs[key] for key, ours in _SIZES.items()} | {
            ours: theirs.get(key, default) for key, (ours, default) in _OTHERS.items()
        }
        try:
            config = configs.experiment(
                model=dict(name="bert", **model),
                task=dict(name=self.task),
                data=dict(tokenizer="wordpiece", tokenizer_files=str(folder)),
                decode=dict(batch=8),
            )
            for key, value in self._task(config, theirs).items():
                configs.set_key(config, f"task.{key}", value)
            configs.validate(config)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        return config

    def _task(self, config: ConfigDict, theirs: dict) -> dict:
        if self.task == "masked_lm":
            length = min(config.model.max_length, 512)
            return dict(
                next_sentence=float(self.next_sentence),
                phases=((1.0, length, max(int(0.15 * length), 1)),),
            )
        dropout = theirs.get("classifier_dropout")
        return heads.to_ours(config, theirs, config.model.dropout if dropout is None else dropout)

    def to_theirs(self, config: ConfigDict, _) -> dict:
        """The content of config.json. Raises UserError for what Hugging Face's model can't compute."""
        model, head = config.model, {}
        if self.task != "masked_lm":
            head = heads.to_theirs(config.task) | (
                {} if self.task == "span" else {"classifier_dropout": config.task.head_dropout}
            )
        if model.head_dim not in (None, model.d_model / model.num_heads):
            raise UserError(
                f"config.model.head_dim={model.head_dim}: {self.architecture} has only d_model / num_heads"
            )
        ours = _SIZES | {key: name for key, (name, _) in _OTHERS.items()}
        return {
            "architectures": [self.architecture],
            "model_type": "bert",
            "dtype": "float32",
            "pad_token_id": 0,
            **{key: model[name] for key, name in ours.items()},
            "intermediate_size": model.d_ff or 4 * model.d_model,
            **{key: values[0] for key, values in _ONLY.items()},
            **head,
        }


FAMILIES = [
    Family(
        "BertForPreTraining", "masked_lm", _ENCODER | _POOLER | _PAIRS | _MLM, next_sentence=True
    ),
    Family("BertForMaskedLM", "masked_lm", _ENCODER | _MLM),
    Family("BertForSequenceClassification", "classification", _ENCODER | _POOLER | _CLASSIFIER),
    Family("BertForMultipleChoice", "choice", _ENCODER | _POOLER | _CLASSIFIER),
    Family("BertForTokenClassification", "tagging", _ENCODER | _CLASSIFIER),
    Family("BertForQuestionAnswering", "span", _ENCODER | _linear("qa_outputs", "head/out")),
]
