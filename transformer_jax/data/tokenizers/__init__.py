"""Tokenizers: their kinds behind one interface, trained once and cached, or read from checkpoints.

`train_cached` and `of_run` serve training, `load` opens the tokenizer of a run, and
`read_published` opens those of published models.
"""

from transformer_jax.data.tokenizers.chat import ChatTokenizer, with_marks
from transformer_jax.data.tokenizers.loading import load, read_published
from transformer_jax.data.tokenizers.pair import ContinuedPair, Pair, check_pair
from transformer_jax.data.tokenizers.sentence_piece import SentencePiece
from transformer_jax.data.tokenizers.tokenizer import Tokenizer
from transformer_jax.data.tokenizers.training import (
    chat_of_run,
    of_run,
    pair_of_run,
    residues_of_run,
    source_of_run,
    train,
    train_cached,
    train_pair,
)
from transformer_jax.data.tokenizers.wordpiece import WordPiece

__all__ = [
    "ChatTokenizer",
    "ContinuedPair",
    "Pair",
    "SentencePiece",
    "Tokenizer",
    "WordPiece",
    "chat_of_run",
    "check_pair",
    "load",
    "of_run",
    "pair_of_run",
    "read_published",
    "residues_of_run",
    "source_of_run",
    "train",
    "train_cached",
    "train_pair",
    "with_marks",
]
