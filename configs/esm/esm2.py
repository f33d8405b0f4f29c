"""Pre-trains ESM-2 (Lin et al. 2023) of the published sizes 8m, 35m, 150m, 650m, 3b and 15b.

    python -m transformer_jax.train --config=configs/esm/esm2.py:650m --workdir=DIR \\
        --config.data.train_files='uniref50/*.fasta' --config.data.valid_files=held_out.fasta \\
        --config.train.accumulation=64

ESM-2 has rotary positions, and no norm in front of its layers. The batch has 2 million tokens, and
that of 15b 3.2 million. 650m has 651,043,254 parameters. The optimizer's values were not checked
against the paper's supplement. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=32),
    train=dict(batch=8, num_steps=2),
)

# number of layers, their width, attention heads
SIZES = {
    "8m": (6, 320, 20),
    "35m": (12, 480, 20),
    "150m": (30, 640, 20),
    "650m": (33, 1280, 20),
    "3b": (36, 2560, 40),
    "15b": (48, 5120, 40),
}


def get_config(size="650m"):
    num_layers, d_model, num_heads = SIZES[size]
    sizes = dict(d_model=d_model, num_layers=num_layers, num_heads=num_heads, max_length=1024)
    largest = size == "15b"
    return experiment(
        model=dict(name="esm", positions="rotary", norm_first=False, **sizes),
        task=dict(name="masked_residues", length=1024),
        source=dict(name="fasta"),
        train=dict(
            num_steps=270_000 if largest else 500_000,
            batch=3072 if largest else 2048,
            log_every=100,
            eval_every=10_000,
        ),
        optimizer=dict(
            name="adamw",
            learning_rate=1.6e-4 if largest else 4e-4,
            schedule="linear",
            final_fraction=0.1,
            warmup_steps=2_000,
            b2=0.98,
            weight_decay=0.1 if largest else 0.01,
        ),
        checkpoint=dict(every=10_000),
    )
