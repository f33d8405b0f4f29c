"""Pre-trains XLNet large (Yang et al. 2019): 24 layers of width 1024.

    python -m transformer_jax.train --config=configs/xlnet/large.py --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.data.tokenizer_files=DIR

The tokenizer is a published spiece.model; without it a cased WordPiece vocabulary is trained. A row
has 512 tokens, of which the first 256 continue the row of the update before. The memory holds the
last 384 of these. One token in six is predicted.

All values are those of the paper's appendix, but the limit of the gradient's norm, which is the
default of the published code. The model has 360,268,800 parameters without the output layers. Not
trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=96, d_model=16, num_layers=2, num_heads=2, memory_length=12),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="xlnet",
            vocab_size=32_000,
            d_model=1024,
            num_layers=24,
            num_heads=16,
            memory_length=384,
        ),
        task=dict(name="permuted_lm", length=512),
        data=dict(tokenizer="wordpiece", cased=True),
        train=dict(num_steps=500_000, batch=8192, log_every=100, eval_every=5_000),
        optimizer=dict(
            name="adamw",
            learning_rate=4e-4,
            schedule="linear",
            warmup_steps=40_000,
            eps=1e-6,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=5_000),
    )
