"""Fits the regression of contacts to 20 proteins, on the attention of the quickstart's model.

    python -m transformer_jax.train --config=configs/esm/contacts.py \\
        --config.init_from=runs/esm --workdir=runs/contacts
    python -m transformer_jax.evaluate --workdir=runs/contacts
    python -m transformer_jax.draw result --workdir=runs/contacts

The proteins are of one of the quickstart's four families. The contacts are measured on the others.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=32),
    source=dict(families=2, members=8, held_out=2, train_families=(0,), valid_families=(1,)),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(name="esm"),
        task=dict(name="contacts", length=64, min_separation=6),
        source=dict(
            name="protein_families",
            members=20,
            train_families=(0,),
            valid_families=(1, 2, 3),
        ),
        train=dict(num_steps=300, batch=20, log_every=50, eval_every=1 / 3),
        optimizer=dict(name="adam", learning_rate=1.0, schedule="linear"),
        checkpoint=dict(every=1 / 3),
    )
