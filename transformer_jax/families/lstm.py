"""The recurrent language model with LSTM cells, under the name of its cell."""

from transformer_jax.families.recurrent import RecurrentLM


class LSTM(RecurrentLM):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32. See `RecurrentLM`."""
