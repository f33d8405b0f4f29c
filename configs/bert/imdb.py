"""BERT on the 50,000 unlabelled film reviews of IMDB (Maas et al. 2011), a sentence a line, a blank line between reviews; every fiftieth is held out.

awk 'BEGIN { RS = ""; ORS = "\\n\\n" } { print > (NR % 50 ? "train.txt" : "valid.txt") }' unsup.txt
python -m transformer_jax.train_bert --config=configs/bert/imdb.py:cpu --workdir=DIR \\
    --config.data.train_files=train.txt --config.data.valid_files=valid.txt
python -m transformer_jax.evaluate --workdir=DIR

`cpu`, on the held-out reviews after 8,000 updates (27 million tokens, 1.7 times the text), rows of 256: 25.3 % of masked tokens are found (always the most
frequent one: 4.5 %), perplexity 122; 60.1 % of pairs are rightly said to follow one another or not. 25,000 tokens a second at first and 10,000 at last on two CPU cores.
Training loss of both objectives by update: 100 8.3, 500 6.4, 1000 6.0, 2000 5.1, 3000 4.9, 4000 4.7, 4800 4.6 (rows of 32); 4900 5.7, 5500 4.4, 6000 4.3, 7000 4.1 (128); 7300 4.9, 8000 4.8 (256).
Held-out at rows of 256: 13.9 % and 52.4 % after 4,000 updates, with rows of 32 alone. `gpu` has not been trained here.
Narrow models take long to find out what neighbours are for: short rows first, larger weights at first and a lighter second task help.
"""
from transformer_jax.config import choice, experiment


def get_config(size="gpu"):
    """`gpu`: the shape of the small BERTs' medium; `cpu`: that of the smallest, 2 layers of 128."""
    small = choice(size, {"gpu": False, "cpu": True})
    shape = dict(d_model=128, num_layers=2, num_heads=4, init_std=0.05, dropout=0.0, unroll=2) if small else dict(d_model=512, num_layers=8, num_heads=8, dropout=0.1)
    phases = ((0.6, 32, 5), (0.3, 128, 20), (0.1, 256, 39)) if small else ((0.8, 128, 20), (0.2, 512, 76))
    steps, rows, rate = (8000, 48, 2e-3) if small else (30_000, 256, 5e-4)
    return experiment(
        model=dict(name="bert", vocab_size=8000 if small else 16_000, max_length=phases[-1][1], attention_dropout=shape["dropout"], **shape),
        task=dict(name="masked_lm", phases=phases, next_sentence=0.2 if small else 1.0),
        data=dict(tokenizer="wordpiece"),
        train=dict(num_steps=steps, batch=rows, log_every=100, eval_every=steps // 2),
        optimizer=dict(name="adamw", learning_rate=rate, schedule="linear", warmup_steps=steps // 16, eps=1e-6, b2=0.98, weight_decay=0.01, clip_norm=1.0),
        checkpoint=dict(every=steps // 2),
    )
