"""Adapts a GPT-2 to other text by low-rank adapters (Hu et al. 2021), as in its appendix D.3.

    python -m transformer_jax.convert --from_hf=gpt2 --workdir=runs/gpt2
    python -m transformer_jax.train --config=configs/lora/gpt2.py:355m \\
        --config.init_from=runs/gpt2 --workdir=runs/adapted \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt

    size   trained parameters
    124m              147,456
    355m              393,216
    774m              737,280
    1558m           1,228,800

Rank, alpha, matrices and optimizer are those of table 11 for GPT-2 medium on the E2E NLG challenge.
Not the paper's: rows are text in windows of 512 tokens, without label smoothing, in 5,000 updates.

Not trained here.
"""

from transformer_jax.config import choice, experiment

SIZES = {
    "124m": dict(num_layers=12, d_model=768, num_heads=12),
    "355m": dict(num_layers=24, d_model=1024, num_heads=16),
    "774m": dict(num_layers=36, d_model=1280, num_heads=20),
    "1558m": dict(num_layers=48, d_model=1600, num_heads=25),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config(size="355m"):
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=50_257,
            max_length=1024,
            vocab_multiple=64,
            dropout=0.1,
            attention_dropout=0.1,
            **choice(size, SIZES),
        ),
        task=dict(name="causal_lm", length=512),
        data=dict(tokenizer="byte_bpe"),
        lora=dict(rank=4, alpha=32.0, matrices=("query/kernel", "value/kernel")),
        train=dict(num_steps=5000, batch=8, log_every=50, eval_every=0.1),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-4,
            schedule="linear",
            warmup_steps=0.1,
            weight_decay=0.01,
        ),
        checkpoint=dict(every=0.1),
    )
