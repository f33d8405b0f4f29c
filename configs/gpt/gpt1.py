"""Trains GPT (Radford et al. 2018): 12 post-LN layers of width 768, 512 positions.

    python -m transformer_jax.train_gpt --config=configs/gpt/gpt1.py --workdir=DIR \\
        --config.data.train_files='books/*.txt' --config.data.valid_files=held_out.txt

The model has 116.5 million parameters with the published vocabulary of 40,478 pieces.
`--config.data.tokenizer_files=DIR` reads that vocabulary, whose encoder lower-cases the text.
Without it, a vocabulary of that size is trained.

The values are the paper's. One is assumed: an epoch has a billion tokens. The paper trains 100
epochs of BooksCorpus and reaches a perplexity of 18.4. Not trained here.
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
            vocab_size=40_478,
            d_model=768,
            num_layers=12,
            num_heads=12,
            max_length=512,
            norm_position="post",
            scaled_init=False,
            dropout=0.1,
            attention_dropout=0.1,
        ),
        task=dict(name="causal_lm", length=512),
        data=dict(tokenizer="byte_bpe"),
        train=dict(num_steps=3_000_000, batch=64, log_every=100, eval_every=10_000),
        optimizer=dict(
            name="adamw",
            learning_rate=2.5e-4,
            schedule="cosine",
            warmup_steps=2000,
            weight_decay=0.01,
        ),
        checkpoint=dict(every=10_000),
    )
