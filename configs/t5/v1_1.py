"""Pre-trains T5 version 1.1 (Shazeer 2020, section 3; the published configurations).

    python -m transformer_jax.train --config=configs/t5/v1_1.py:small --workdir=DIR \\
        --config.data.train_files='c4/*.jsonl' --config.data.valid_files=held_out.jsonl

It differs from t5.py: gated GELU, no dropout in pre-training, an output projection of its own, and
other shapes. The published models saw C4 alone. For fine-tuning, set `--config.model.dropout=0.1`.
Not trained here.
"""

from transformer_jax.config import load_module

t5 = load_module("t5/t5")
TINY = t5.TINY
SIZES = {
    "small": dict(d_model=512, d_ff=1024, num_heads=6, head_dim=64, layers=8),
    "base": dict(d_model=768, d_ff=2048, num_heads=12, head_dim=64, layers=12),
    "large": dict(d_model=1024, d_ff=2816, num_heads=16, head_dim=64, layers=24),
    "xl": dict(d_model=2048, d_ff=5120, num_heads=32, head_dim=64, layers=24),
    "xxl": dict(d_model=4096, d_ff=10_240, num_heads=64, head_dim=64, layers=24),
}


def get_config(size="small"):
    return t5.get_config(size, sizes=SIZES, gated=True, tie_output=False, dropout=0.0)
