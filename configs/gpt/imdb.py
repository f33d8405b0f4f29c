"""Trains a GPT on the 50,000 unlabelled film reviews of IMDB (Maas et al. 2011).

    python -m transformer_jax.download imdb
    python -m transformer_jax.train_gpt --config=configs/gpt/imdb.py:cpu --workdir=DIR \\
        --config.data.train_files=data/imdb/train.txt --config.data.valid_files=data/imdb/valid.txt
    python -m transformer_jax.evaluate --workdir=DIR

The first command writes a review as a document and holds out every fiftieth. Sizes:
- `gpu`: the shape of the smallest GPT-2;
- `cpu`: 4 layers of width 256;
- `tiny`: 2 layers of width 128, for fine-tuning in comparison with configs/bert/imdb.py:cpu.

Result of `cpu` on the held-out reviews, after 1,000 updates on two busy CPU cores (4.1 million
tokens, a quarter of the text), with windows that do not overlap: a perplexity of 143 for tokens of
3.9 bytes, or 1.84 bits per byte. Its training loss:

    update  50  100  200  300  400  500  600  800  1000
    loss   7.3  6.1  5.7  5.5  5.4  5.3  5.2  5.1   5.0

`gpu` has not been trained here.
"""

from transformer_jax.config import choice, experiment

SIZES = {
    "gpu": dict(
        model=dict(vocab_size=16_000, d_model=768, num_layers=12, num_heads=12, dropout=0.1),
        length=512,
        num_steps=6000,
        batch=64,
        learning_rate=6e-4,
    ),
    "cpu": dict(
        model=dict(vocab_size=8000, d_model=256, num_layers=4, num_heads=4, dropout=0.0, unroll=4),
        length=256,
        num_steps=1000,
        batch=16,
        learning_rate=2e-3,
    ),
    "tiny": dict(
        model=dict(vocab_size=8000, d_model=128, num_layers=2, num_heads=4, dropout=0.0, unroll=2),
        length=256,
        num_steps=2000,
        batch=16,
        learning_rate=2e-3,
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=32),
    task=dict(length=16, sample_tokens=8),
    train=dict(batch=8, num_steps=2),
)


def get_config(size="gpu"):
    values = choice(size, SIZES)
    model = values["model"]
    length = values["length"]
    steps = values["num_steps"]
    return experiment(
        model=dict(name="gpt", max_length=length, attention_dropout=model["dropout"], **model),
        task=dict(name="causal_lm", length=length, sample_tokens=60),
        data=dict(tokenizer="byte_bpe"),
        train=dict(num_steps=steps, batch=values["batch"], log_every=50, eval_every=500 / steps),
        optimizer=dict(
            name="adamw",
            learning_rate=values["learning_rate"],
            schedule="cosine",
            warmup_steps=1 / 20,
            final_fraction=0.1,
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=500 / steps),
    )
