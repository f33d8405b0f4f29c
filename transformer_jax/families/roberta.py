"""RoBERTa (Liu et al. 2019): BERT without token types and without next-sentence prediction."""

import dataclasses
from typing import ClassVar

from jaxtyping import Array, Float

from transformer_jax.config import NonNegativeFloat, PositiveInt, UserError
from transformer_jax.contracts.model import Inputs, takes_inputs
from transformer_jax.families import bert
from transformer_jax.families.bert import BERT
from transformer_jax.huggingface import family
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.tensors import check_head_dim, linear, norm
from transformer_jax.layers import parameters
from transformer_jax.layers.embeddings import Projection


class RoBERTa(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M), as in BERT.

    All tokens have the same type, so that only separators divide the texts of a pair. There is no
    pooler in pre-training.
    """

    can = BERT.can - {"token_types", "next_sentence"}
    heads = ("mlm_transform", "mlm_norm", "mlm_bias")
    num_token_types: ClassVar[int] = 1
    position_offset: ClassVar[int] = 2  # as in the published checkpoints

    vocab_size: PositiveInt = 50_265  # number of tokens in the vocabulary
    # pads the embedding table with zeros to a multiple of this number of rows, for speed; results
    # and the number of parameters stay the same
    vocab_multiple: PositiveInt = 1
    norm_epsilon: NonNegativeFloat = 1e-5  # added to the variance in layer norms

    @takes_inputs
    def __call__(
        self, inputs: Inputs, *, train: bool = False
    ) -> tuple[Float[Array, "B L M"], Float[Array, "B L V"]]:
        """Returns the hidden states (B, L, M) and the logits of masked tokens (B, L, V)."""
        hidden = self.hidden(inputs, train=train)
        # The pooler is not called here, so that Linen creates no parameters for it in pre-training.
        return hidden, self.logits(hidden)

    def _embed(self, inputs, *, train):
        """Returns the sum of the embeddings (B, L, M). All tokens have type 0."""
        # The table has a single row, so that the type 1 of a second text would give NaN.
        return super()._embed(inputs.replace(token_types=None), train=train)

    def output(self) -> Projection:
        """Returns the output projection: the token embeddings (V, M) and a bias (V,) float32.

        V is rounded up to a multiple of vocab_multiple.
        """
        return self.token_embed.output().biased(self.mlm_bias())

    def num_padding(self) -> int:
        # Each padding row of the table comes with an entry of `mlm_bias`.
        return (-self.vocab_size % self.vocab_multiple) * (self.d_model + 1)

    def flops(self, length: int, predictions: int) -> float:
        layer = parameters.LayerSizes.of(self).layer(length, length**2)
        masked_lm = parameters.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        return self.num_layers * layer + masked_lm


# ----------------------------------------------------------------------------------- Hugging Face
_POSITIONS = "max_position_embeddings"
KEYS = bert.KEYS.changed(
    allowed={
        "type_vocab_size": (1,),
        # Positions are counted from pad_token_id + 1, so that another id would shift them all.
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
    body = ("roberta.",)
    ignored = (
        # Copies of the embeddings and of lm_head.bias, with which `tied` compares them.
        "lm_head.decoder.weight",
        "lm_head.decoder.bias",
        # A buffer of older releases of transformers, which holds 0, 1, 2, ... and is never trained.
        "embeddings.position_ids",
        # Published checkpoints have a pooler, even if the table does not list it.
        "pooler.dense.weight",
        "pooler.dense.bias",
    )
    tied = {
        "lm_head.decoder.weight": ("embeddings.word_embeddings.weight",),
        "lm_head.decoder.bias": ("lm_head.bias",),
    }

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
        # transformers counts positions from the id of padding, so no other id fits the weights.
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
class FineTuned(family.FineTuned, PreTraining):
    """RoBERTa with a fine-tuned head."""


def _fine_tuned(architecture: str, head: dict, task: str) -> FineTuned:
    return FineTuned(architecture, "roberta", KEYS, _ENCODER | head, task)


ARCHITECTURES = [
    PreTraining("RobertaForMaskedLM", "roberta", KEYS, _ENCODER | MASKED_LM, "masked_lm"),
    _fine_tuned("RobertaForSequenceClassification", CLASSIFIER, "classification"),
    _fine_tuned("RobertaForMultipleChoice", CHOICE, "choice"),
    _fine_tuned("RobertaForTokenClassification", TAGS, "tagging"),
    _fine_tuned("RobertaForQuestionAnswering", SPAN, "span"),
]
