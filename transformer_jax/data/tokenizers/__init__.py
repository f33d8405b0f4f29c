"""Tokenizers: their kinds behind one interface, trained once and kept, or read from checkpoints."""

from transformer_jax.data.tokenizers.kinds import SentencePiece
from transformer_jax.data.tokenizers.training import (
    Pair,
    check_pair,
    load,
    of_run,
    read,
    train,
    train_pair,
    trained,
)
from transformer_jax.data.tokenizers.wordpiece import WordPiece

__all__ = [
    "Pair",
    "SentencePiece",
    "WordPiece",
    "check_pair",
    "load",
    "of_run",
    "read",
    "train",
    "train_pair",
    "trained",
]
