"""Trains Reformer on the bytes of enwik8 (Kitaev et al. 2020, section 5): 12 layers, 65,536 tokens.

    head -c 90000000 enwik8 > train.txt; tail -c 5000000 enwik8 > test.txt
    head -c 95000000 enwik8 | tail -c 5000000 > valid.txt
    python -m transformer_jax.train --config=configs/reformer/enwik8.py --workdir=DIR \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt

The paper reports 1.05 bits a byte. Sizes, layers and optimizer are those of its authors' code. Here
a token sees its own bucket alone, so that no token depends on later ones; the published code is
`--config.model.across_buckets=true`. A byte-level vocabulary of 257 tokens has no merges: its
tokens are bytes, and the end of a file. The model has 149,179,649 parameters. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=300,
        d_model=16,
        d_ff=24,
        num_layers=4,
        num_heads=2,
        head_dim=8,
        local_chunk=8,
        lsh_chunk=8,
        rounds=2,
        buckets=(8,),
        max_length=32,
        axial_shape=(4, 8),
        axial_widths=(6, 10),
        mlp_chunk=16,
    ),
    task=dict(length=32),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="reformer",
            vocab_size=257,
            vocab_multiple=64,
            d_model=1024,
            d_ff=4096,
            num_layers=12,
            num_heads=8,
            head_dim=128,
            attention=("local", "local", "lsh", "local"),
            local_chunk=128,
            lsh_chunk=256,
            rounds=4,
            buckets=(512,),
            max_length=65_536,
            axial_shape=(128, 512),
            axial_widths=(256, 768),
            mlp_chunk=4096,
            dropout=0.2,
        ),
        task=dict(name="causal_lm", length=65_536),
        data=dict(tokenizer="byte_bpe", split_on="file"),
        train=dict(num_steps=200_000, batch=8, log_every=100, eval_every=2000),
        optimizer=dict(
            name="adam",
            schedule="inverse_sqrt",
            learning_rate=7e-4,
            warmup_steps=2000,
            b2=0.98,
            eps=1e-9,
        ),
        checkpoint=dict(every=2000),
    )
