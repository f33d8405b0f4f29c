"""RoBERTa (Liu et al. 2019): BERT without token types and without a second objective."""

from typing import ClassVar

from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers import flops
from transformer_jax.layers.outputs import Projection
from transformer_jax.models.bert import BERT


class RoBERTa(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M), as in BERT.

    All tokens are of one type: separators alone divide the texts of a pair. Pre-training has no
    pooler.
    """

    can = BERT.can - {"token_types", "next_sentence"}
    heads = ("mlm_transform", "mlm_norm", "mlm_bias")
    num_token_types: ClassVar[int] = 1
    position_offset: ClassVar[int] = 2  # as in the published checkpoints

    vocab_size: int = 50_265  # number of tokens in the vocabulary
    # pads the embedding table with zeros to a multiple of this number of rows, for speed; results
    # and the number of parameters stay the same
    vocab_multiple: int = 1
    norm_epsilon: float = 1e-5  # added to the variance in layer norms

    def __call__(
        self,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        *,
        train: bool = False,
    ) -> tuple[Float[Array, "B L M"], Float[Array, "B L V"]]:
        """Returns the states (B, L, M) and the logits of masked tokens (B, L, V)."""
        hidden = self.hidden(tokens, positions=positions, segment_ids=segment_ids, train=train)
        return hidden, self.logits(hidden)

    def _embed(self, tokens, token_types, positions, *, train):
        """Returns the sum of the embeddings (B, L, M). All tokens are of type 0."""
        return super()._embed(tokens, None, positions, train=train)

    def output(self) -> Projection:
        """Returns the output projection: the token embeddings (V, M) and a bias (V,), float32.

        V is a multiple of vocab_multiple here.
        """
        return self.token_embed.output().biased(self.mlm_bias())

    def num_padding(self) -> int:
        return (-self.vocab_size % self.vocab_multiple) * (self.d_model + 1)

    def flops(self, length: int, predictions: int) -> float:
        layer = flops.LayerSizes.of(self).layer(length, length**2)
        masked_lm = flops.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        return self.num_layers * layer + masked_lm
