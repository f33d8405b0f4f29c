"""A scaling law of GPTs of 8 to 151 million parameters on your text, at equal compute: six sizes at
each of four budgets, a larger one held out. Not yet run here.

python -m transformer_jax.scaling run --config=configs/scaling/gpu.py --workdir=DIR \\
    --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt --config.train.accumulation=4
sbatch --array=0-23 --gpus-per-node=1 launch/slurm.sbatch .venv/bin/python -m
transformer_jax.scaling run ...     (the same, a job for each run)
python -m transformer_jax.scaling fit --workdir=DIR     (then predict, run ... --held_out, and check, as for scaling/cpu.py)

All of it is 1.2e19 FLOPs, 8 hours of one H100 at an MFU of 0.4 (python -m transformer_jax.costs
gives a run's). The smallest model sees 20 billion tokens at most, the others 9; of a shorter text
rows are seen again.
"""

from transformer_jax.config import experiment
from transformer_jax.scaling.family import Family


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
    """Heads of 64; the rate falls with the width from GPT-3's for 768."""
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
