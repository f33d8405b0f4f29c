"""Trains an LSTM on the words of a text (Mikolov et al. 2010; Zaremba et al. 2014).

    python -m transformer_jax.train --config=configs/lstm/words.py --workdir=DIR \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt
    python -m transformer_jax.generate --workdir=DIR --prompt="the" --max_tokens=40

The 10,000 most frequent words are the vocabulary, less those that occur once; all others are
`<unk>`. Each line ends with the token of the end, as in the Penn Treebank. The state passes from
each row to the next. Sizes, rows and dropout are those of the medium model of Zaremba et al. 2014,
section 4.1; the optimizer is Adam instead of gradient descent. Not trained here.
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
        model=dict(name="recurrent", vocab_size=10_000, d_model=650, num_layers=2, dropout=0.5),
        task=dict(name="causal_lm", length=35, carry=True),
        data=dict(tokenizer="words", min_count=2, split_on="line"),
        train=dict(num_steps=30_000, batch=20, log_every=100, eval_every=1 / 20),
        optimizer=dict(
            name="adam",
            learning_rate=1e-3,
            schedule="linear",
            final_fraction=0.01,
            clip_norm=5.0,
        ),
        checkpoint=dict(every=1 / 20),
    )
