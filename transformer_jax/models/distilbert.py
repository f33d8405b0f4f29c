"""DistilBERT (Sanh et al. 2019, section 3): BERT with half its layers, without token types."""

from typing import ClassVar

import jax
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers import flops
from transformer_jax.layers.embeddings import row_positions
from transformer_jax.models.bert import BERT


class DistilBERT(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M), as in BERT.

    Pre-training has no pooler. Fine-tuning puts one with ReLU on the first token, as the published
    code does. A run of BERT gives every second layer; `config.init_from` may choose others.
    """

    can = frozenset({"pool", "fill", "attend"})
    heads = ("mlm_transform", "mlm_norm", "mlm_bias")
    begins_with = {"bert": {"": {"layers": "::2"}}}
    num_token_types: ClassVar[int] = 0
    norm_epsilon: ClassVar[float] = 1e-12

    num_layers: int = 6  # number of blocks

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
        """Returns the sum of the token and position embeddings (B, L, M)."""
        if positions is None:
            positions = row_positions(tokens, self.max_length)
        x = self.token_embed(tokens) + self.position_embed(positions)
        return self.embed_dropout(self.embed_norm(x), train=train)

    def pooled(self, hidden: Float[Array, "B L M"]) -> Float[Array, "B M"]:
        """Returns one vector for each example (B, M), from the state of its first token."""
        return jax.nn.relu(self.pooler(hidden[:, 0]))

    def flops(self, length: int, predictions: int) -> float:
        layer = flops.LayerSizes.of(self).layer(length, length**2)
        masked_lm = flops.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        return self.num_layers * layer + masked_lm
