"""GPT on the 50,000 unlabelled film reviews of IMDB (Maas et al. 2011), a review a document; every fiftieth is held out.

awk 'BEGIN { RS = ""; ORS = "\\n\\n" } { print > (NR % 50 ? "train.txt" : "valid.txt") }' unsup.txt
python -m transformer_jax.train_gpt --config=configs/gpt/imdb.py:cpu --workdir=DIR \\
    --config.data.train_files=train.txt --config.data.valid_files=valid.txt
python -m transformer_jax.evaluate --workdir=DIR

`cpu`, on the held-out reviews after 1,000 updates (4.1 million tokens, a quarter of the text, on two busy CPU cores): perplexity 143 a token of 3.9 bytes, 1.84 bits a byte (windows that do not overlap).
Training loss by update: 50 7.3, 100 6.1, 200 5.7, 300 5.5, 400 5.4, 500 5.3, 600 5.2, 800 5.1, 1000 5.0. `gpu` has not been trained here.
"""
from transformer_jax.config import choice, experiment


def get_config(size="gpu"):
    """`gpu`: the shape of GPT-2's smallest; `cpu`: 4 layers of 256."""
    small = choice(size, {"gpu": False, "cpu": True})
    shape = dict(d_model=256, num_layers=4, num_heads=4, dropout=0.0, unroll=4) if small else dict(d_model=768, num_layers=12, num_heads=12, dropout=0.1)
    steps, rows, length, rate = (1000, 16, 256, 2e-3) if small else (6000, 64, 512, 6e-4)
    return experiment(
        model=dict(name="gpt", vocab_size=8000 if small else 16_000, max_length=length, attention_dropout=shape["dropout"], **shape),
        task=dict(name="causal_lm", length=length, sample_tokens=60),
        data=dict(tokenizer="byte_bpe"),
        train=dict(num_steps=steps, batch=rows, log_every=50, eval_every=500),
        optimizer=dict(name="adamw", learning_rate=rate, schedule="cosine", warmup_steps=steps // 20, final_fraction=0.1, b2=0.98, weight_decay=0.1, clip_norm=1.0),
        checkpoint=dict(every=500),
    )
