"""Continues the pre-training of a small RoBERTa as Longformer, on a CPU in minutes.

    python -m transformer_jax.train --config=configs/encoders/pretrain.py:roberta \\
        --workdir=runs/roberta --config.data.train_files=train.txt \\
        --config.data.valid_files=valid.txt
    python -m transformer_jax.train --config=configs/longformer/cpu.py --workdir=runs/longformer \\
        --config.init_from=runs/roberta --config.data.tokenizer_files=runs/roberta/tokenizer \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt

The run runs/longformer reads rows of up to 2,048 tokens, with a window of 128. It is fine-tuned as
any encoder: `benchmarks/long_tasks.py` does so, on whole film reviews and on whole articles.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_heads=2, max_length=64, attention_window=(8,)),
    task=dict(phases=((1.0, 64, 6),)),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="longformer",
            vocab_size=4000,
            d_model=128,
            num_layers=4,
            num_heads=4,
            max_length=2048,
            attention_window=(128,),
            init_std=0.05,
            dropout=0.0,
            attention_dropout=0.0,
            unroll=4,
        ),
        task=dict(
            name="masked_lm", phases=((1.0, 2048, 307),), next_sentence=0.0, full_sentences=True
        ),
        data=dict(tokenizer="roberta_bpe", tokenizer_bytes=100_000_000),
        train=dict(num_steps=100, batch=4, log_every=10, eval_every=100),
        optimizer=dict(
            name="adamw",
            learning_rate=5e-4,
            schedule="linear",
            warmup_steps=1 / 10,
            b2=0.98,
            eps=1e-6,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=100, keep=1),
    )
