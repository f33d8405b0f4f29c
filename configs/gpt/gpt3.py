"""Trains GPT-3 (Brown et al. 2020) in its eight sizes.

    python -m transformer_jax.dry_run --config=configs/gpt/gpt3.py:175b --topology=v5p:4x4x4 \\
        --config.mesh.data=1 --config.mesh.fsdp=64 --config.train.batch=64 \\
        --config.train.first_batch=0 --config.train.ramp_steps=0
    python -m transformer_jax.train_gpt --config=configs/gpt/gpt3.py:125m --workdir=DIR

The paths of the training files (`MIXTURE`) are relative to the current folder.

From the paper:
- the shapes of table 2.1, where head_dim differs from d_model / num_heads for some sizes;
- the mixture of table 2.2;
- 2048 positions and 300 billion tokens;
- Adam with clipping and weight decay (appendix B);
- a warm-up over 375 million tokens, then a cosine to a tenth over 260 billion;
- a batch that grows from 32 thousand tokens, over 4 to 12 billion tokens.

The paper does not give these values, which are assumed:
- the tokens over which each model's batch grows;
- 3.15 million tokens for the batch of "3.2M", a multiple of 512 rows;
- no dropout;
- the width of the locally banded layers.

Not trained here.
"""

import bisect

from transformer_jax.config import choice, experiment
from transformer_jax.data.rows import Phase

# batch: rows of the full batch; growth_tokens: tokens over which the batch grows to it
SIZES = {
    "125m": dict(
        model=dict(num_layers=12, d_model=768, num_heads=12, head_dim=64),
        batch=256,
        growth_tokens=4e9,
        learning_rate=6.0e-4,
    ),
    "350m": dict(
        model=dict(num_layers=24, d_model=1024, num_heads=16, head_dim=64),
        batch=256,
        growth_tokens=4e9,
        learning_rate=3.0e-4,
    ),
    "760m": dict(
        model=dict(num_layers=24, d_model=1536, num_heads=16, head_dim=96),
        batch=256,
        growth_tokens=4e9,
        learning_rate=2.5e-4,
    ),
    "1.3b": dict(
        model=dict(num_layers=24, d_model=2048, num_heads=24, head_dim=128),
        batch=512,
        growth_tokens=6e9,
        learning_rate=2.0e-4,
    ),
    "2.7b": dict(
        model=dict(num_layers=32, d_model=2560, num_heads=32, head_dim=80),
        batch=512,
        growth_tokens=6e9,
        learning_rate=1.6e-4,
    ),
    "6.7b": dict(
        model=dict(num_layers=32, d_model=4096, num_heads=32, head_dim=128),
        batch=1024,
        growth_tokens=9e9,
        learning_rate=1.2e-4,
    ),
    "13b": dict(
        model=dict(num_layers=40, d_model=5140, num_heads=40, head_dim=128),
        batch=1024,
        growth_tokens=9e9,
        learning_rate=1.0e-4,
    ),
    "175b": dict(
        model=dict(num_layers=96, d_model=12288, num_heads=96, head_dim=128),
        batch=1536,
        growth_tokens=12e9,
        learning_rate=6.0e-5,
    ),
}
LENGTH = 2048  # tokens of a row
FIRST_BATCH = 16  # rows: 32 thousand tokens
MIXTURE = (
    ("common_crawl/*.jsonl", 60),
    ("webtext2/*.jsonl", 22),
    ("books1/*.jsonl", 8),
    ("books2/*.jsonl", 8),
    ("wikipedia/*.jsonl", 3),
)
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=300,
        d_model=16,
        num_layers=2,
        num_heads=2,
        head_dim=8,
        max_length=32,
        local_window=4,
    ),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2, first_batch=0, ramp_steps=0),
)


def growing_phase(batch, tokens):
    """Returns the phase whose batch grows to `batch` rows over at least `tokens` tokens."""

    def phase(ramp_steps):
        return Phase([], batch, first_batch=FIRST_BATCH, ramp_steps=ramp_steps)

    def rows_of_ramp(ramp_steps):
        return phase(max(ramp_steps, 1)).rows_before(ramp_steps)

    return phase(bisect.bisect_left(range(10**6), tokens / LENGTH, key=rows_of_ramp))


def updates(phase, tokens):
    """Returns the number of updates in which `phase` reads at least `tokens` tokens."""
    return bisect.bisect_left(range(10**7), tokens / LENGTH, key=phase.rows_before)


def get_config(size="125m"):
    values = choice(size, SIZES)
    phase = growing_phase(values["batch"], values["growth_tokens"])
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=50_257,
            max_length=LENGTH,
            local_window=256,
            dropout=0.0,
            attention_dropout=0.0,
            vocab_multiple=128,
            remat="full",
            **values["model"],
        ),
        task=dict(name="causal_lm", length=LENGTH),
        data=dict(tokenizer="byte_bpe", mixture=MIXTURE),
        train=dict(
            num_steps=updates(phase, 300e9),
            batch=phase.batch,
            first_batch=phase.first_batch,
            ramp_steps=phase.ramp_steps,
            log_every=100,
            eval_every=2000,
        ),
        optimizer=dict(
            name="adamw",
            learning_rate=values["learning_rate"],
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
