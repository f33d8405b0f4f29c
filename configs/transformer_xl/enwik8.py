"""Trains Transformer-XL on the bytes of enwik8 (Dai et al. 2019, table 2): 12 layers of 512.

    head -c 90000000 enwik8 > train.txt; tail -c 5000000 enwik8 > test.txt
    head -c 95000000 enwik8 | tail -c 5000000 > valid.txt
    python -m transformer_jax.train --config=configs/transformer_xl/enwik8.py --workdir=DIR \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt

Sizes, rows, optimizer and schedule are those of the published script. It reports 1.06 bits a byte
with a memory of 3,800 tokens. A byte-level vocabulary of 257 tokens has no merges: its tokens are
bytes, and the end of a file. The model has 41,093,889 parameters; each layer has its own vectors u
and v. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, d_ff=24, num_layers=2, num_heads=2, memory_length=16),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="transformer_xl",
            vocab_size=257,
            vocab_multiple=64,
            d_model=512,
            d_ff=2048,
            num_layers=12,
            num_heads=8,
            memory_length=512,
            dropout=0.1,
        ),
        task=dict(name="causal_lm", length=512, carry=True),
        data=dict(tokenizer="byte_bpe", split_on="file"),
        train=dict(num_steps=400_000, batch=22, log_every=200, eval_every=4000),
        optimizer=dict(name="adam", learning_rate=2.5e-4, schedule="cosine", clip_norm=0.25),
        checkpoint=dict(every=4000),
    )
