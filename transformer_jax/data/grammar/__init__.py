"""The built-in English-German parallel corpus: a seeded synchronous grammar."""

from transformer_jax.data.grammar.corpus import SPLITS, VERSION, pairs, sentence_pair, split_of

__all__ = ["SPLITS", "VERSION", "pairs", "sentence_pair", "split_of"]
