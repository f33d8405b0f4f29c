"""Trains GPTs of 8 to 151 million parameters for a scaling law: six sizes at four equal computes.

    python -m transformer_jax.scaling run --config=configs/scaling/gpu.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=4
    python -m transformer_jax.scaling fit --workdir=DIR

`predict`, `run --held_out` and `check` follow, as for scaling/cpu.py. On a cluster, each run is a
job of its own:

    sbatch --array=0-23 --gpus-per-node=1 launch/slurm.sbatch .venv/bin/python \\
        -m transformer_jax.scaling run ...

All runs together need 1.2e19 FLOPs: 8 hours of one H100 at an MFU of 0.4. The program
`transformer_jax.costs` prints the FLOPs of a run. The smallest model reads at most 20 billion
tokens, the others at most 9 billion. Rows of a shorter text are read again. Not yet run here.
"""

from transformer_jax.config import experiment
from transformer_jax.scaling.family import Family

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def base():
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=16_384,
            d_model=512,
            num_layers=8,
            num_heads=8,
            max_length=1024,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        task=dict(name="causal_lm", length=1024),
        data=dict(tokenizer="byte_bpe"),
        train=dict(batch=128),
        optimizer=dict(
            name="adamw",
            schedule="cosine",
            final_fraction=0.1,
            b2=0.95,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
    )


def size(num_layers, d_model):
    """Returns the keys of a shape.

    Heads have 64 dimensions. The learning rate is GPT-3's for width 768, and inversely proportional
    to the width.
    """
    return {
        "model.num_layers": num_layers,
        "model.d_model": d_model,
        "model.num_heads": d_model // 64,
        "optimizer.learning_rate": 6e-4 * 768 / d_model,
    }


SIZES = {
    f"l{layers}-d{width}": size(layers, width)
    for layers, width in ((4, 256), (6, 384), (8, 512), (10, 640), (12, 768), (14, 896))
}
FAMILY = Family(
    base, SIZES, flops=(3e16, 1e17, 3e17, 1e18), held_out=(size(16, 1024), 3e18), warmup=0.02
)


def get_config(name=FAMILY.names[0]):
    return FAMILY.config(name)
