"""Trains Llama 2 (Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models").

    python -m transformer_jax.train --config=configs/decoder/llama2.py:7b --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt

    size     parameters
    7b    6,738,415,616
    13b  13,015,864,320
    70b  68,976,648,192

Optimizer, learning rates, rows of 4096 tokens, updates of 4 million tokens and the 2 trillion
tokens are those of section 2 of the paper, the shapes those of the published checkpoints. The
vocabulary is byte-level BPE of 32,000 pieces, trained on the text; the published one is
SentencePiece's.

Not trained here.
"""

from transformer_jax.config import choice, experiment

SIZES = {
    "7b": dict(
        model=dict(d_model=4096, d_ff=11_008, num_layers=32, num_heads=32), learning_rate=3e-4
    ),
    "13b": dict(
        model=dict(d_model=5120, d_ff=13_824, num_layers=40, num_heads=40), learning_rate=3e-4
    ),
    "70b": dict(
        model=dict(d_model=8192, d_ff=28_672, num_layers=80, num_heads=64, num_kv_heads=8),
        learning_rate=1.5e-4,
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, d_ff=24, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config(size="7b"):
    values = choice(size, SIZES)
    return experiment(
        model=dict(name="decoder", vocab_size=32_000, max_length=4096, **values["model"]),
        task=dict(name="causal_lm", length=4096),
        data=dict(tokenizer="byte_bpe"),
        train=dict(num_steps=477_000, batch=1024, log_every=100, eval_every=2000),
        optimizer=dict(
            name="adamw",
            learning_rate=values["learning_rate"],
            schedule="cosine",
            warmup_steps=2000,
            final_fraction=0.1,
            b2=0.95,
            eps=1e-5,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=2000),
    )
