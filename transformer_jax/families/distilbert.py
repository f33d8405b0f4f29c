"""DistilBERT (Sanh et al. 2019, section 3): BERT with half of the layers, without token types."""

import dataclasses
from typing import ClassVar

import jax
from jaxtyping import Array, Float

from transformer_jax.config import PositiveInt
from transformer_jax.contracts.model import Inputs, takes_inputs
from transformer_jax.families import bert
from transformer_jax.families.bert import BERT
from transformer_jax.huggingface import family
from transformer_jax.huggingface.tensors import Keys, check_head_dim, layers, linear, norm
from transformer_jax.layers import parameters
from transformer_jax.layers.embeddings import row_positions


class DistilBERT(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M), as in BERT.

    There is no pooler in pre-training. Fine-tuning adds one with ReLU on the first token, as in the
    published code. A run of BERT initializes the layers with every second layer, unless
    `config.init_from` selects others.
    """

    can = frozenset({"pool", "fill", "attend"})
    heads = ("mlm_transform", "mlm_norm", "mlm_bias")
    begins_with = {"bert": {"": {"layers": "::2"}}}
    num_token_types: ClassVar[int] = 0
    norm_epsilon: ClassVar[float] = 1e-12

    num_layers: PositiveInt = 6  # number of blocks

    @takes_inputs
    def __call__(
        self, inputs: Inputs, *, train: bool = False
    ) -> tuple[Float[Array, "B L M"], Float[Array, "B L V"]]:
        """Returns the hidden states (B, L, M) and the logits of masked tokens (B, L, V)."""
        hidden = self.hidden(inputs, train=train)
        # The pooler is not called here, so that Linen creates no parameters for it in pre-training.
        return hidden, self.logits(hidden)

    def _embed(self, inputs, *, train):
        """Returns the sum of the token and position embeddings (B, L, M)."""
        positions = inputs.positions
        if positions is None:
            positions = row_positions(inputs.tokens, self.max_length)
        # BERT's `type_embed` is never called and so has no parameters, either.
        x = self.token_embed(inputs.tokens) + self.position_embed(positions)
        return self.embed_dropout(self.embed_norm(x), train=train)

    def pooled(self, hidden: Float[Array, "B L M"]) -> Float[Array, "B M"]:
        """Returns one vector for each example (B, M), computed from its first token."""
        return jax.nn.relu(self.pooler(hidden[:, 0]))

    def flops(self, length: int, predictions: int) -> float:
        layer = parameters.LayerSizes.of(self).layer(length, length**2)
        masked_lm = parameters.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        return self.num_layers * layer + masked_lm


# ----------------------------------------------------------------------------------- Hugging Face
_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "dim": "d_model",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "hidden_dim": "d_ff",
        "max_position_embeddings": "max_length",
    },
    optional={
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "initializer_range": ("init_std", 0.02),
    },
    allowed={
        "activation": ("gelu",),
        # Both are supported, because sinusoids are stored as a table as well.
        "sinusoidal_pos_embds": (False, True),
        "tie_word_embeddings": (True,),
    },
)

_LAYER = {
    **linear("attention.q_lin", "attention/query"),
    **linear("attention.k_lin", "attention/key"),
    **linear("attention.v_lin", "attention/value"),
    **linear("attention.out_lin", "attention/out", "linear_merge"),
    **norm("sa_layer_norm", "attention_norm"),
    **linear("ffn.lin1", "mlp/wi"),
    **linear("ffn.lin2", "mlp/wo"),
    **norm("output_layer_norm", "mlp_norm"),
}
_ENCODER = {
    "distilbert.embeddings.word_embeddings.weight": ("same", "token_embed/embedding"),
    "distilbert.embeddings.position_embeddings.weight": ("same", "position_embed/embedding"),
    **norm("distilbert.embeddings.LayerNorm", "embed_norm"),
    **layers("distilbert.transformer.layer.{}.", "encoder/layers/", _LAYER),
}
_MASKED_LM = {
    **linear("vocab_transform", "mlm_transform"),
    **norm("vocab_layer_norm", "mlm_norm"),
    "vocab_projector.bias": ("same", "mlm_bias/bias"),
}
_POOLER = linear("pre_classifier", "pooler")
_CLASSIFIER = linear("classifier", "head/out")
_SPAN = linear("qa_outputs", "head/out")
# Tagging has no key, because the dropout of its head is the one of the layers.
_DROPOUT = {
    "classification": "seq_classif_dropout",
    "choice": "seq_classif_dropout",
    "span": "qa_dropout",
}
_DEFAULT_DROPOUT = {"seq_classif_dropout": 0.2, "qa_dropout": 0.1}


@dataclasses.dataclass(frozen=True)
class PreTraining(family.Family):
    model = "distilbert"
    body = ("distilbert.",)
    ignored = ("vocab_projector.weight",)  # a copy of the embeddings, see `tied`
    tied = {"vocab_projector.weight": ("embeddings.word_embeddings.weight",)}

    def matches(self, config):
        is_distilled = config.model.name == self.model and config.task.name == "distillation"
        return super().matches(config) or (is_distilled and self.task == "masked_lm")

    def sections(self, folder):
        return {"data": {"tokenizer": "wordpiece", "tokenizer_files": str(folder)}}

    def task_keys(self, config, hf_config):
        return {"next_sentence": 0.0, "phases": bert.phases(config.model)}

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        d_ff = config.model.d_ff or 4 * config.model.d_model
        return {"pad_token_id": 0, "hidden_dim": d_ff}


@dataclasses.dataclass(frozen=True)
class FineTuned(family.FineTuned, PreTraining):
    @property
    def dropout_key(self):
        return _DROPOUT.get(self.task, "")

    def default_dropout(self, config):
        return _DEFAULT_DROPOUT.get(self.dropout_key, config.model.dropout)

    def task_keys(self, config, hf_config):
        keys = super().task_keys(config, hf_config)
        # Unlike BERT's, the head for spans has dropout, which `read_keys` does not expect.
        is_span = self.task == "span"
        dropout = hf_config.get(self.dropout_key, self.default_dropout(config))
        return keys | ({"head_dropout": dropout} if is_span else {})


def _fine_tuned(architecture: str, head: dict, task: str) -> FineTuned:
    return FineTuned(architecture, "distilbert", _KEYS, _ENCODER | head, task)


ARCHITECTURES = [
    PreTraining("DistilBertForMaskedLM", "distilbert", _KEYS, _ENCODER | _MASKED_LM, "masked_lm"),
    _fine_tuned("DistilBertForSequenceClassification", _POOLER | _CLASSIFIER, "classification"),
    _fine_tuned("DistilBertForMultipleChoice", _POOLER | _CLASSIFIER, "choice"),
    _fine_tuned("DistilBertForTokenClassification", _CLASSIFIER, "tagging"),
    _fine_tuned("DistilBertForQuestionAnswering", _SPAN, "span"),
]
