"""The built-in English-German parallel corpus, which a seeded synchronous grammar generates."""

from transformer_jax.corpora.grammar.corpus import SPLITS, VERSION, pairs, sentence_pair, split_of

__all__ = ["SPLITS", "VERSION", "pairs", "sentence_pair", "split_of"]
