"""Trains context2vec, which fills a blank from the words on both sides (Melamud et al. 2016).

The settings are those of the paper and the published code: 300 numbers a word, two LSTMs of width
600, 10 noise words, Adam at 1e-3, 100 sentences an update, words in lower case that occur 3 times.
`:quickstart` is a smaller model on the documentation of the Python standard library. It takes
minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/word_vectors/context2vec.py:quickstart \\
        --workdir=runs/context2vec
    python -m transformer_jax.fill_mask --workdir=runs/context2vec --text="the [MASK] of the file"

With a text of your own, its sentences one a line, train.num_steps is 10 times their number divided
by train.batch:

    python -m transformer_jax.train --config=configs/word_vectors/context2vec.py \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt \\
        --config.train.num_steps=100000 --workdir=runs/context2vec
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=200, d_model=8, d_embed=4),
    task=dict(length=16, shared_noise=4),
    data=dict(min_count=1),
    train=dict(batch=8, num_steps=2),
)
QUICKSTART = dict(vocab_size=20_000, d_model=128, d_embed=64)


def get_config(data=""):
    if data not in ("", "quickstart"):
        raise ValueError(f"{data!r}: must be quickstart, or nothing for text files of your own")
    quickstart = data == "quickstart"
    size = QUICKSTART if quickstart else dict(vocab_size=180_000, d_model=600, d_embed=300)
    return experiment(
        model=dict(name="context2vec", **size),
        task=dict(name="words_in_context", length=48 if quickstart else 64, negatives=10),
        data=dict(
            corpus="pydoc" if quickstart else "",
            sentences="punctuation" if quickstart else "line",
            tokenizer="words",
            min_count=3,
        ),
        train=dict(num_steps=2000 if quickstart else 100_000, batch=100, eval_every=1 / 5),
        optimizer=dict(name="adam", learning_rate=1e-3),
        checkpoint=dict(every=1 / 5),
    )
