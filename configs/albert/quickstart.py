"""Pre-trains a small ALBERT on the documentation strings of the Python standard library.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/albert/quickstart.py --workdir=runs/albert
    python -m transformer_jax.fill_mask --workdir=runs/albert --text="Return the [MASK] list."

Result on held-out documents, after 5 minutes on one CPU core: 15.8 % of masked tokens are found,
which stand in n-grams and so are harder than single ones. The order of sentences is not learned in
this time (52 % of pairs).

Masked n-grams and the order of sentences are the objectives. As in bert/quickstart.py, short rows
at first and larger initial weights help a narrow model.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=96, d_embed=8, d_model=16, num_layers=2, num_heads=2, max_length=64),
    task=dict(phases=((0.9, 16, 3), (0.1, 32, 4))),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="albert",
            vocab_size=4096,
            d_embed=64,
            d_model=128,
            num_layers=2,
            num_heads=4,
            max_length=64,
            init_std=0.05,
            dropout=0.0,
            attention_dropout=0.0,
            unroll=2,
        ),
        # phases: share of the updates, tokens of a row, predicted tokens of a row
        task=dict(
            name="masked_lm",
            phases=((0.9, 32, 5), (0.1, 64, 10)),
            next_sentence=0.2,
            second_text="sentence_order",
            whole_words=True,
            ngrams=(6, 3, 2),
        ),
        data=dict(corpus="pydoc", tokenizer="wordpiece"),
        train=dict(num_steps=2500, batch=48, log_every=50, eval_every=1 / 5),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-3,
            schedule="linear",
            warmup_steps=0.08,
            eps=1e-6,
            b2=0.98,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 5),
    )
