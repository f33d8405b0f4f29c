"""Trains GloVe, word vectors from counts of words that occur together (Pennington et al. 2014).

The settings are those of section 4.2: windows of 10 words on each side, AdaGrad at 0.05, and 50
epochs of vectors of fewer than 300 numbers. `:quickstart` trains on the documentation of the Python
standard library, in minutes on a laptop, and downloads nothing.

    python -m transformer_jax.train --config=configs/word_vectors/glove.py:quickstart \\
        --workdir=runs/glove
    python -m transformer_jax.draw neighbours --workdir=runs/glove --word=file

With a text of your own, train.num_steps is 50 times the number of different pairs of words divided
by train.batch * task.length:

    python -m transformer_jax.train --config=configs/word_vectors/glove.py \\
        --config.data.train_files=train.txt --config.train.num_steps=25000 --workdir=runs/glove
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=200, d_model=8),
    task=dict(length=32),
    data=dict(min_count=1),
    train=dict(batch=8, num_steps=2),
    checkpoint=dict(best_metric="valid/loss"),
)


def get_config(data=""):
    if data not in ("", "quickstart"):
        raise ValueError(f"{data!r}: must be quickstart, or nothing for text files of your own")
    quickstart = data == "quickstart"
    return experiment(
        model=dict(
            name="glove",
            vocab_size=20_000 if quickstart else 100_000,
            d_model=50 if quickstart else 200,
        ),
        task=dict(name="glove", window=10, most=100.0, power=0.75),
        data=dict(corpus="pydoc" if quickstart else "", tokenizer="words", min_count=5),
        train=dict(num_steps=1000 if quickstart else 25_000, batch=8, eval_every=1 / 5),
        optimizer=dict(name="adagrad", learning_rate=0.05, initial_sum=1.0),
        # The counts of a shorter text say little about the vectors: the last ones are the best.
        checkpoint=dict(every=1 / 5, best_metric=""),
    )
