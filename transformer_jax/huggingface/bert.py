"""BERT with the heads of pre-training and of fine-tuning, from and to `models/bert.py`."""

import dataclasses
import pathlib

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.huggingface import heads
from transformer_jax.huggingface.keys import Keys, check_head_dim

_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
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
    },
)


def _linear(name: str, path: str, layout: str = "linear") -> dict:
    return {
        f"{name}.weight": (layout, f"{path}/kernel"),
        f"{name}.bias": ("vector", f"{path}/bias"),
    }


def _norm(name: str, path: str) -> dict:
    return {
        f"{name}.weight": ("same", f"{path}/scale"),
        f"{name}.bias": ("same", f"{path}/bias"),
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
_MASKED_LM = {
    **_linear("cls.predictions.transform.dense", "mlm_transform"),
    **_norm("cls.predictions.transform.LayerNorm", "mlm_norm"),
    "cls.predictions.bias": ("same", "mlm_bias/bias"),
}
_POOLER = _linear("bert.pooler.dense", "pooler")
_NEXT_SENTENCE = _linear("cls.seq_relationship", "nsp")
_CLASSIFIER = _linear("classifier", "head/out")
_SPAN = _linear("qa_outputs", "head/out")


@dataclasses.dataclass(frozen=True)
class Family:
    architecture: str
    task: str
    table: dict[str, tuple[str, ...]]
    next_sentence: bool = False
    prefix: str = ""
    ignored: tuple[str, ...] = (
        # Tied to the embeddings and to cls.predictions.bias.
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
        # The numbers 0, 1, 2, ...
        "embeddings.position_ids",
        # Older releases save the pooler with every head, even where the table lacks it.
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    )

    def matches(self, config: ConfigDict) -> bool:
        """Returns whether a run with this config is of the family."""
        return (
            config.model.name == "bert"
            and config.task.name == self.task
            and bool(config.task.get("next_sentence")) == self.next_sentence
        )

    def read_config(self, hf_config: dict, folder: pathlib.Path) -> ConfigDict:
        """Returns the config of a run that starts from the weights in `folder`.

        Raises UserError for a model that `models/bert.py` does not compute.
        """
        path = folder / "config.json"
        model = _KEYS.read(path, hf_config)
        try:
            config = configs.experiment(
                model=dict(name="bert", **model),
                task=dict(name=self.task),
                data=dict(tokenizer="wordpiece", tokenizer_files=str(folder)),
                decode=dict(batch=8),
            )
            for key, value in self._task_keys(config, hf_config).items():
                configs.set_key(config, f"task.{key}", value)
            configs.validate(config)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        return config

    def _task_keys(self, config: ConfigDict, hf_config: dict) -> dict:
        if self.task == "masked_lm":
            length = min(config.model.max_length, 512)
            num_masked = max(int(0.15 * length), 1)
            return dict(
                next_sentence=float(self.next_sentence), phases=((1.0, length, num_masked),)
            )
        dropout = hf_config.get("classifier_dropout")
        if dropout is None:
            dropout = config.model.dropout
        return heads.read_keys(config, hf_config, dropout)

    def write_config(self, config: ConfigDict, eos_id: int) -> dict:
        """Returns the content of config.json. `eos_id` is not used: BERT has no such token.

        Raises UserError for a model that Hugging Face's does not compute.
        """
        head = {}
        if self.task != "masked_lm":
            head = heads.write_keys(config.task)
            # Hugging Face's head for spans has no dropout.
            if self.task != "span":
                head["classifier_dropout"] = config.task.head_dropout
        check_head_dim(config.model, self.architecture)
        return {
            "architectures": [self.architecture],
            "model_type": "bert",
            "dtype": "float32",
            "pad_token_id": 0,
            **_KEYS.write(config.model),
            "intermediate_size": config.model.d_ff or 4 * config.model.d_model,
            **_KEYS.fixed(),
            **head,
        }


FAMILIES = [
    Family(
        "BertForPreTraining",
        "masked_lm",
        _ENCODER | _POOLER | _NEXT_SENTENCE | _MASKED_LM,
        next_sentence=True,
    ),
    Family("BertForMaskedLM", "masked_lm", _ENCODER | _MASKED_LM),
    Family("BertForSequenceClassification", "classification", _ENCODER | _POOLER | _CLASSIFIER),
    Family("BertForMultipleChoice", "choice", _ENCODER | _POOLER | _CLASSIFIER),
    Family("BertForTokenClassification", "tagging", _ENCODER | _CLASSIFIER),
    Family("BertForQuestionAnswering", "span", _ENCODER | _SPAN),
]
