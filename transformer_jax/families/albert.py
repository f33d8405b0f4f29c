"""ALBERT (Lan et al. 2019, section 3): BERT with factorized embeddings and shared layers."""

import dataclasses

import flax.linen as nn

from transformer_jax.config import PositiveInt
from transformer_jax.distributed import sharding
from transformer_jax.families import bert
from transformer_jax.families.bert import BERT
from transformer_jax.huggingface import family
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.tensors import Table, check_head_dim, linear, norm
from transformer_jax.layers import parameters
from transformer_jax.layers.parameters import Linear, compute_dtype


class ALBERT(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M), as in BERT.

    Embeddings have the width E and are projected to the width M of the layers. All layers share the
    same parameters. The masked LM head projects hidden states back to the width E.
    """

    vocab_size: PositiveInt = 30_000  # number of tokens in the vocabulary
    d_embed: PositiveInt = 128  # width of the embeddings

    def setup(self):
        self._set_up_encoder(width=self.d_embed, shared=True, approximate=True)
        init = nn.initializers.truncated_normal(self.init_std)
        linear = dict(kernel_init=init, dtype=compute_dtype(self.dtype))
        embed, model = (self.d_embed,), (self.d_model,)
        self.embed_projection = Linear(embed, model, axes=("embed", None), **linear)
        self.pooler = Linear(model, model, axes=("embed", "mlp"), **linear)
        self.mlm_transform = Linear(model, embed, axes=("embed", None), **linear)
        # A head has no `dtype` and so computes in float32, because bfloat16 rounds different scores
        # to equal ones.
        self.nsp = Linear(model, (2,), axes=("embed", None), head=True, kernel_init=init)

    def _embed(self, inputs, *, train):
        """Returns the projected embeddings (B, L, M) (section 3.1)."""
        x = super()._embed(inputs, train=train)  # (B, L, E)
        # M is not split: activations split their rows over fsdp instead, see `sharding.RULES`.
        return sharding.constrain(self.embed_projection(x), "batch", "length", None)

    def flops(self, length: int, predictions: int) -> float:
        layer = parameters.LayerSizes.of(self).layer(length, length**2)
        projection = parameters.dense(length, self.d_embed, self.d_model)
        masked_lm = parameters.dense(predictions, self.d_embed, self.d_model + self.vocab_size)
        next_sentence = parameters.dense(1, self.d_model, self.d_model + 2)
        return projection + self.num_layers * layer + masked_lm + next_sentence


# ----------------------------------------------------------------------------------- Hugging Face
_KEYS = bert.KEYS.changed(
    required={"embedding_size": "d_embed"},
    optional={
        "type_vocab_size": ("num_token_types", 2),
        "hidden_dropout_prob": ("dropout", 0.0),
        "attention_probs_dropout_prob": ("attention_dropout", 0.0),
    },
    allowed={
        # Both names mean the tanh approximation of GELU, which `setup` selects.
        "hidden_act": ("gelu_new", "gelu_pytorch_tanh"),
        # Several groups would have parameters of their own, but here all layers share theirs.
        "num_hidden_groups": (1,),
        "inner_group_num": (1,),
    },
)

# The shared layer is stored once, so its tensors have no numbers, unlike BERT's.
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
    body = ("albert.",)
    ignored = (
        # Copies of the embeddings and of predictions.bias, with which `tied` compares them.
        "predictions.decoder.weight",
        "predictions.decoder.bias",
        # A buffer of older releases of transformers, which holds 0, 1, 2, ... and is never trained.
        "embeddings.position_ids",
        # Older releases save the pooler with every head, even if the table does not list it.
        "albert.pooler.weight",
        "albert.pooler.bias",
    )
    tied = {
        "predictions.decoder.weight": ("embeddings.word_embeddings.weight",),
        "predictions.decoder.bias": ("predictions.bias",),
    }

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
class FineTuned(family.FineTuned, PreTraining):
    @property
    def dropout_key(self):
        return "" if self.task == "span" else "classifier_dropout_prob"

    def default_dropout(self, config):
        return 0.1


def _pre_training(architecture: str, table: Table, sentence_order: bool) -> PreTraining:
    return PreTraining(architecture, "albert", _KEYS, table, "masked_lm", sentence_order)


def _fine_tuned(architecture: str, head: Table, task: str) -> FineTuned:
    return FineTuned(architecture, "albert", _KEYS, _ENCODER | head, task)


ARCHITECTURES = [
    _pre_training("AlbertForPreTraining", _ENCODER | _POOLER | _SENTENCE_ORDER | _MASKED_LM, True),
    _pre_training("AlbertForMaskedLM", _ENCODER | _MASKED_LM, False),
    _fine_tuned("AlbertForSequenceClassification", _POOLER | _CLASSIFIER, "classification"),
    _fine_tuned("AlbertForMultipleChoice", _POOLER | _CLASSIFIER, "choice"),
    _fine_tuned("AlbertForTokenClassification", _CLASSIFIER, "tagging"),
    _fine_tuned("AlbertForQuestionAnswering", _SPAN, "span"),
]
