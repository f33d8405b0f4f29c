"""Trains word vectors by CBOW with negative sampling (Mikolov et al. 2013), as word2vec.c.

    python -m transformer_jax.train --config=configs/word_vectors/cbow.py:quickstart \\
        --workdir=runs/cbow

configs/word_vectors/skip_gram.py has the other settings, and says how to train on your own text.
"""

from transformer_jax.config import load_module

_SKIP_GRAM = load_module("word_vectors/skip_gram")

# The variant for tests: it trains in seconds on a CPU.
TINY = _SKIP_GRAM.TINY


def get_config(data=""):
    return _SKIP_GRAM.get_config(data, objective="cbow", learning_rate=0.05)
