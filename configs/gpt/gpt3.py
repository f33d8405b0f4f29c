"""GPT-3 (Brown et al. 2020) in its eight sizes, table 2.1 read literally: head_dim stands apart
from d_model / num_heads.

python -m transformer_jax.dry_run --config=configs/gpt/gpt3.py:175b --topology=v5p:4x4x4 --config.mesh.data=1 --config.mesh.fsdp=64 \\
    --config.train.batch=64 --config.train.first_batch=0 --config.train.ramp_steps=0
python -m transformer_jax.train_gpt --config=configs/gpt/gpt3.py:125m --workdir=DIR   (in a folder that holds the mixture's files)

Not trained here. From the paper: table 2.1 and 2.2, 2048 positions, 300 billion tokens, warm-up
over 375 million, cosine to a tenth over 260 billion, Adam, clipping, weight decay, a batch growing
from 32 thousand tokens over 4 to 12 billion. Assumed, as the paper does not say: how long the batch
of which model grows, 3.15 million tokens for "3.2M" (a multiple of 512 rows), no dropout, and the
width of the banded layers.
"""

import bisect

from transformer_jax.config import choice, experiment
from transformer_jax.data.rows import Phase

# layers, d_model, heads, head_dim, rows of a batch, billions of tokens over which it grows,
# learning rate
SIZES = {
    "125m": (12, 768, 12, 64, 256, 4, 6.0e-4),
    "350m": (24, 1024, 16, 64, 256, 4, 3.0e-4),
    "760m": (24, 1536, 16, 96, 256, 4, 2.5e-4),
    "1.3b": (24, 2048, 24, 128, 512, 6, 2.0e-4),
    "2.7b": (32, 2560, 32, 80, 512, 6, 1.6e-4),
    "6.7b": (32, 4096, 32, 128, 1024, 9, 1.2e-4),
    "13b": (40, 5140, 40, 128, 1024, 9, 1.0e-4),
    "175b": (96, 12288, 96, 128, 1536, 12, 0.6e-4),
}
LENGTH, FIRST_BATCH = 2048, 16  # 32 thousand tokens
MIXTURE = (
    ("common_crawl/*.jsonl", 60),
    ("webtext2/*.jsonl", 22),
    ("books1/*.jsonl", 8),
    ("books2/*.jsonl", 8),
    ("wikipedia/*.jsonl", 3),
)


def get_config(size="125m"):
    num_layers, d_model, num_heads, head_dim, batch, growth, learning_rate = choice(size, SIZES)
    updates = lambda phase, tokens: bisect.bisect_left(
        range(10**7), tokens / LENGTH, key=phase.before
    )
    growing = lambda steps: Phase([], batch, first_batch=FIRST_BATCH, ramp_steps=steps)
    ramp_steps = bisect.bisect_left(
        range(10**6), growth * 1e9 / LENGTH, key=lambda steps: growing(max(steps, 1)).before(steps)
    )
    phase = growing(ramp_steps)
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=50_257,
            d_model=d_model,
            num_layers=num_layers,
            num_heads=num_heads,
            head_dim=head_dim,
            max_length=LENGTH,
            local_window=256,
            dropout=0.0,
            attention_dropout=0.0,
            vocab_multiple=128,
            remat="full",
        ),
        task=dict(name="causal_lm", length=LENGTH),
        data=dict(tokenizer="byte_bpe", mixture=MIXTURE),
        train=dict(
            num_steps=updates(phase, 300e9),
            batch=batch,
            first_batch=FIRST_BATCH,
            ramp_steps=ramp_steps,
            log_every=100,
            eval_every=2000,
        ),
        optimizer=dict(
            name="adamw",
            learning_rate=learning_rate,
            schedule="cosine",
            warmup_steps=updates(phase, 375e6),
            decay_steps=updates(phase, 260e9),
            final_fraction=0.1,
            b1=0.9,
            b2=0.95,
            eps=1e-8,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=2000),
    )
