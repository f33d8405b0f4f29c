"""Trains a Sparse Transformer on the bytes of enwik8 (Child et al. 2019, section 7.2).

    head -c 90000000 enwik8 > train.txt; tail -c 5000000 enwik8 > test.txt
    head -c 95000000 enwik8 | tail -c 5000000 > valid.txt
    python -m transformer_jax.train --config=configs/sparse_transformer/enwik8.py --workdir=DIR \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt

From the paper: 30 layers of 512 with 8 heads, rows of 12,288 tokens, the fixed pattern with a
stride of 128 and 32 summaries in merged heads, dropout 0.4, 80 epochs, 5,000 updates of warm-up, a
cosine, weight decay and clipping (section 6), full recomputation. It reports 0.99 bits a byte.

The paper does not give these values for text, which are assumed: 32 rows in a batch, and the
learning rate of CIFAR-10. Its heads attend to different columns of a block; here, all heads attend
to the last ones. A byte-level vocabulary of 257 tokens has no merges: its tokens are bytes, and the
end of a file. The model has 94,950,400 parameters. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=300,
        d_model=16,
        num_layers=2,
        num_heads=2,
        max_length=32,
        stride=4,
        num_summaries=2,
    ),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="sparse_transformer",
            vocab_size=257,
            vocab_multiple=64,
            d_model=512,
            num_layers=30,
            num_heads=8,
            max_length=12_288,
            pattern="fixed",
            stride=128,
            num_summaries=32,
            combination="merged",
            dropout=0.4,
            remat="full",
        ),
        task=dict(name="causal_lm", length=12_288),
        data=dict(tokenizer="byte_bpe", split_on="file"),
        # 80 epochs of 90 million tokens
        train=dict(num_steps=18_300, batch=32, log_every=20, eval_every=500),
        optimizer=dict(
            name="adamw",
            learning_rate=3.5e-4,
            schedule="cosine",
            warmup_steps=5000,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=500),
    )
