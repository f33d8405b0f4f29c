"""Trains a table of bigrams by gradient, on characters.

    python -m transformer_jax.train --config=configs/ngrams/bigram.py --workdir=DIR \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt
    python -m transformer_jax.evaluate --workdir=DIR

The loss approaches that of the relative frequencies; the entry `ngrams` of `evaluate` has it.
A vocabulary of another size needs `--config.model.vocab_size=N --config.model.d_model=N`.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=64, d_model=64),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(name="bigram", vocab_size=128, d_model=128),
        task=dict(name="causal_lm", length=256),
        data=dict(tokenizer="characters", split_on="file"),
        train=dict(num_steps=2000, batch=64, log_every=100, eval_every=1 / 4),
        optimizer=dict(name="adam", learning_rate=0.05, schedule="linear", final_fraction=0.01),
        checkpoint=dict(every=1 / 4),
    )
