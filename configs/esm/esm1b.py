"""Pre-trains ESM-1b (Rives et al. 2021): 33 layers of width 1280 on residues of proteins.

    python -m transformer_jax.train --config=configs/esm/esm1b.py --workdir=DIR \\
        --config.data.train_files='uniref50/*.fasta' --config.data.valid_files=held_out.fasta \\
        --config.train.accumulation=8

Each protein is a row of at most 1,024 tokens; of a longer one, each epoch draws another part. The
batch of the paper has 131,072 tokens. The model has 652,359,094 parameters, with the 661 of the
regression of contacts. The optimizer's values were not checked against the paper's supplement. Not
trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=32),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(name="esm", d_model=1280, num_layers=33, num_heads=20, max_length=1024),
        task=dict(name="masked_residues", length=1024),
        source=dict(name="fasta"),
        train=dict(num_steps=500_000, batch=128, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="adamw",
            learning_rate=1e-4,
            schedule="inverse_sqrt",
            warmup_steps=16_000,
            b2=0.98,
        ),
        checkpoint=dict(every=10_000),
    )
