"""BERT on the 50,000 unlabelled film reviews of IMDB (Maas et al. 2011), a sentence a line, a blank line between reviews; every fiftieth is held out.

awk 'BEGIN { RS = ""; ORS = "\\n\\n" } { print > (NR % 50 ? "train.txt" : "valid.txt") }' unsup.txt
python -m transformer_jax.train_bert --config=configs/bert/imdb.py:cpu --workdir=DIR \\
    --config.data.train_files=train.txt --config.data.valid_files=valid.txt
python -m transformer_jax.evaluate --workdir=DIR

`cpu`, on the held-out reviews after 4,500 updates (11 million tokens, in 40 minutes on two busy CPU cores), rows of 256: 17.6 % of masked tokens are found
(always the most frequent one: 4.5 %), perplexity 281; 59.3 % of pairs are rightly said to follow one another or not.
Training loss of both objectives by update: 100 7.9, 300 6.5, 600 6.3, 1000 6.1, 1500 5.5, 2000 5.2, 2500 5.0, 3000 4.9, 3500 4.8 (rows of 32); 4000 5.6 (128); 4500 5.7 (256).
Held-out at rows of 256, by update: 1500 12.5 % and 48.8 %, 3000 13.7 % and 51.7 %, 4500 17.6 % and 59.3 %. `gpu` has not been trained here.
Narrow models take long to find out what neighbours are for: short rows first, larger weights at first and a lighter second task help.
"""
from transformer_jax.config import choice, experiment


def get_config(size="gpu"):
    """`gpu`: the shape of the small BERTs' medium; `cpu`: 3 layers of 192."""
    small = choice(size, {"gpu": False, "cpu": True})
    shape = dict(d_model=192, num_layers=3, num_heads=6, init_std=0.05, dropout=0.0, unroll=3) if small else dict(d_model=512, num_layers=8, num_heads=8, dropout=0.1)
    phases = ((0.8, 32, 5), (0.15, 128, 20), (0.05, 256, 39)) if small else ((0.8, 128, 20), (0.2, 512, 76))
    steps, rows, rate = (4500, 48, 1.5e-3) if small else (30_000, 256, 5e-4)
    return experiment(
        model=dict(name="bert", vocab_size=8000 if small else 16_000, max_length=phases[-1][1], attention_dropout=shape["dropout"], **shape),
        task=dict(name="masked_lm", phases=phases, next_sentence=0.2 if small else 1.0),
        data=dict(tokenizer="wordpiece"),
        train=dict(num_steps=steps, batch=rows, log_every=100, eval_every=steps // 3),
        optimizer=dict(name="adamw", learning_rate=rate, schedule="linear", warmup_steps=steps // 15, eps=1e-6, b2=0.98, weight_decay=0.01, clip_norm=1.0),
        checkpoint=dict(every=steps // 3),
    )
