"""Trains an LSTM on the characters of a text, with the settings of char-rnn (Karpathy 2015).

    python -m transformer_jax.train --config=configs/lstm/characters.py --workdir=DIR \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt

The rows of an update continue those of the update before, and so does the state. Each row reads
its own part of the text. The published settings are 2 layers of 128, rows of 50 characters, 50
rows, and RMSProp at 2e-3 over 50 epochs. There the rate falls by 3 % an epoch from the tenth on;
here it falls linearly over the run.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=64, d_model=16, num_layers=2),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(name="recurrent", vocab_size=128, d_model=128, num_layers=2),
        task=dict(name="causal_lm", length=50, carry=True),
        data=dict(tokenizer="characters", split_on="file"),
        train=dict(num_steps=20_000, batch=50, log_every=100, eval_every=1 / 20),
        optimizer=dict(
            name="rmsprop",
            learning_rate=2e-3,
            schedule="linear",
            final_fraction=0.1,
            b2=0.95,
            clip_norm=5.0,
        ),
        checkpoint=dict(every=1 / 20),
    )
