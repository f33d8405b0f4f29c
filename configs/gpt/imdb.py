"""GPT on the 50,000 unlabelled film reviews of IMDB (Maas et al. 2011), a review a document; every
fiftieth is held out.

awk 'BEGIN { RS = ""; ORS = "\\n\\n" } { print > (NR % 50 ? "train.txt" : "valid.txt") }' unsup.txt
python -m transformer_jax.train_gpt --config=configs/gpt/imdb.py:cpu --workdir=DIR \\
    --config.data.train_files=train.txt --config.data.valid_files=valid.txt
python -m transformer_jax.evaluate --workdir=DIR

`cpu`, on the held-out reviews after 1,000 updates (4.1 million tokens, a quarter of the text, on
two busy CPU cores): perplexity 143 a token of 3.9 bytes, 1.84 bits a byte (windows that do not
overlap). Training loss by update: 50 7.3, 100 6.1, 200 5.7, 300 5.5, 400 5.4, 500 5.3, 600 5.2, 800
5.1, 1000 5.0. `gpu` has not been trained here.
"""

from transformer_jax.config import choice, experiment


def get_config(size="gpu"):
    """`gpu`: the shape of GPT-2's smallest; `cpu`: 4 layers of 256; `tiny`: 2 of 128, to fine-tune
    beside configs/bert/imdb.py:cpu.
    """
    width, layers, heads, vocab_size, steps, rows, length, rate = choice(
        size,
        {
            "gpu": (768, 12, 12, 16_000, 6000, 64, 512, 6e-4),
            "cpu": (256, 4, 4, 8000, 1000, 16, 256, 2e-3),
            "tiny": (128, 2, 4, 8000, 2000, 16, 256, 2e-3),
        },
    )
    shape = dict(
        d_model=width,
        num_layers=layers,
        num_heads=heads,
        dropout=0.1 if size == "gpu" else 0.0,
        unroll=1 if size == "gpu" else layers,
    )
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=vocab_size,
            max_length=length,
            attention_dropout=shape["dropout"],
            **shape,
        ),
        task=dict(name="causal_lm", length=length, sample_tokens=60),
        data=dict(tokenizer="byte_bpe"),
        train=dict(num_steps=steps, batch=rows, log_every=50, eval_every=500 / steps),
        optimizer=dict(
            name="adamw",
            learning_rate=rate,
            schedule="cosine",
            warmup_steps=1 / 20,
            final_fraction=0.1,
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=500 / steps),
    )
