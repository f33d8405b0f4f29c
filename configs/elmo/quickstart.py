"""Trains a small ELMo on the documentation of the Python standard library.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/elmo/quickstart.py --workdir=runs/elmo
    echo "Return a list." | python -m transformer_jax.features --workdir=runs/elmo \\
        --output=states.npz --layers=0,1,2
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=40,
        d_model=16,
        lstm_width=16,
        max_characters=12,
        character_width=4,
        filters=((1, 4), (2, 8)),
    ),
    task=dict(length=4),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="elmo",
            vocab_size=8000,
            d_model=256,
            lstm_width=512,
            max_characters=20,
            filters=((1, 16), (2, 32), (3, 64), (4, 64), (5, 64)),
            num_highways=1,
            dropout=0.1,
        ),
        task=dict(name="bidirectional_lm", length=20),
        data=dict(corpus="pydoc", tokenizer="words", cased=True, mask_documents=True),
        train=dict(num_steps=1000, batch=32, log_every=50, eval_every=1 / 2),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-3,
            schedule="cosine",
            warmup_steps=1 / 10,
            final_fraction=0.1,
            b2=0.98,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 2),
    )
