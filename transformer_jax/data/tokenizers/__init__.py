"""Tokenizers with a common interface, trained once and cached, or read from published checkpoints.

`run_tokenizer` and `train_cached` return the tokenizer for training, `load` opens the tokenizer of
a run, and `read_published` opens the tokenizer of a published model.
"""

from transformer_jax.config import renamed_in
from transformer_jax.data.tokenizers.chat import ChatTokenizer, with_special_tokens
from transformer_jax.data.tokenizers.chat_template import conversational
from transformer_jax.data.tokenizers.tokenizer import Tokenizer
from transformer_jax.data.tokenizers.training import (
    ContinuedPair,
    Pair,
    chat_of_run,
    check_pair,
    load,
    pair_of_run,
    published_frame,
    read_published,
    residues_of_run,
    run_tokenizer,
    source_of_run,
    train,
    train_cached,
    train_pair,
)
from transformer_jax.data.tokenizers.unigram import SentencePiece
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
    "conversational",
    "load",
    "run_tokenizer",
    "pair_of_run",
    "published_frame",
    "read_published",
    "residues_of_run",
    "source_of_run",
    "train",
    "train_cached",
    "train_pair",
    "with_special_tokens",
]

__getattr__ = renamed_in(__name__, {"with_marks": "with_special_tokens"})
