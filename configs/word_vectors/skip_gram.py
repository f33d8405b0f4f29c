"""Trains word vectors by skip-gram with negative sampling (Mikolov et al. 2013), as word2vec.c.

The settings are those of the published code: 100 numbers a word, windows of up to 5 words on each
side, 5 noise words, words that occur 5 times, 5 epochs. `:quickstart` trains on the documentation
of the Python standard library, in a minute on a laptop, and downloads nothing.

    python -m transformer_jax.train --config=configs/word_vectors/skip_gram.py:quickstart \\
        --workdir=runs/skip_gram
    python -m transformer_jax.draw neighbours --workdir=runs/skip_gram --word=file

With a text of your own, train.num_steps is 5 times its words divided by train.batch * task.length:

    python -m transformer_jax.train --config=configs/word_vectors/skip_gram.py \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt \\
        --config.train.num_steps=5000 --workdir=runs/skip_gram
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=200, d_model=8),
    task=dict(length=32, block=8, shared_noise=8),
    data=dict(min_count=1),
    train=dict(batch=8, num_steps=2),
)


def get_config(data="", objective="skip_gram", learning_rate=0.025):
    if data not in ("", "quickstart"):
        raise ValueError(f"{data!r}: must be quickstart, or nothing for text files of your own")
    quickstart = data == "quickstart"
    return experiment(
        # The largest vocabulary. Rarer words than those are unknown.
        model=dict(name="word_vectors", vocab_size=20_000 if quickstart else 100_000),
        task=dict(
            name="word_vectors",
            objective=objective,
            window=5,
            negatives=5,
            sample=1e-3,
            length=8192 if quickstart else 16_384,
        ),
        data=dict(corpus="pydoc" if quickstart else "", tokenizer="words", min_count=5),
        train=dict(
            num_steps=1000 if quickstart else 5000, batch=1 if quickstart else 4, eval_every=1 / 5
        ),
        optimizer=dict(
            name="sgd",
            momentum=0.0,
            learning_rate=learning_rate,
            schedule="linear",
            final_fraction=1e-4,
        ),
        checkpoint=dict(every=1 / 5),
    )
