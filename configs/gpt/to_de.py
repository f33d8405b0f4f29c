"""Trains a GPT that translates English into German.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train_gpt --config=configs/gpt/to_de.py --workdir=runs/to_de
    python -m transformer_jax.generate --workdir=runs/to_de --prompt="The dog sleeps. <to-de>" \\
        --temperature=0 --max_tokens=40

The documents are sentence pairs of the built-in grammar, as "ENGLISH <to-de> GERMAN".

Result on held-out documents: a perplexity of 3.51, or 0.555 bits per byte. Of 200 held-out
sentences, 33 % are translated exactly as by the grammar.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=16),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=2000,
            d_model=128,
            num_layers=4,
            num_heads=4,
            max_length=128,
            dropout=0.0,
            attention_dropout=0.0,
            unroll=4,
        ),
        task=dict(name="causal_lm", length=128),
        data=dict(
            corpus="grammar",
            corpus_size=60_000,
            marker="<to-de>",
            tokenizer="byte_bpe",
            mask_documents=True,
        ),
        train=dict(num_steps=1500, batch=16, log_every=50, eval_every=1 / 2),
        optimizer=dict(
            name="adamw",
            learning_rate=4e-3,
            schedule="cosine",
            warmup_steps=1 / 15,
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 2),
    )
