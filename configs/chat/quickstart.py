"""Trains a small GPT to hold conversations about translations.

It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/chat/quickstart.py --workdir=runs/chat
    echo "How do you say in German: The dog sleeps." | python -m transformer_jax.generate \\
        --workdir=runs/chat --chat --temperature=0

The conversations are one to three translations of sentences of the built-in grammar.

Result on held-out conversations (float32, one seed): a perplexity of 3.89 for each token of the
assistant, whose likeliest token is right at 68 % of the positions. Of 100 sentences of the test
split, 4 are put into German exactly as by the grammar.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=64),
    task=dict(length=48),
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
            max_length=256,
            dropout=0.0,
            attention_dropout=0.0,
            unroll=4,
        ),
        task=dict(name="chat", length=256),
        data=dict(corpus="grammar", corpus_size=30_000, tokenizer="byte_bpe"),
        train=dict(num_steps=1500, batch=8, log_every=50, eval_every=1 / 2),
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
