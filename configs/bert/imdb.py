"""BERT on the 50,000 unlabelled film reviews of IMDB (Maas et al. 2011), a sentence a line, a blank
line between reviews; every fiftieth is held out.

awk 'BEGIN { RS = ""; ORS = "\\n\\n" } { print > (NR % 50 ? "train.txt" : "valid.txt") }' unsup.txt
python -m transformer_jax.train_bert --config=configs/bert/imdb.py:cpu --workdir=DIR \\
    --config.data.train_files=train.txt --config.data.valid_files=valid.txt
python -m transformer_jax.evaluate --workdir=DIR

`cpu`, on the held-out reviews after 8,000 updates (27 million tokens, 1.7 times the text), rows of
256: 25.3 % of masked tokens are found (always the most frequent one: 4.5 %), perplexity 122; 60.1 %
of pairs are rightly said to follow one another or not. 25,000 tokens a second at first and 10,000
at last on two CPU cores. Training loss of both objectives by update: 100 8.3, 500 6.4, 1000 6.0,
2000 5.1, 3000 4.9, 4000 4.7, 4800 4.6 (rows of 32); 4900 5.7, 5500 4.4, 6000 4.3, 7000 4.1 (128);
7300 4.9, 8000 4.8 (256). Held-out at rows of 256: 13.9 % and 52.4 % after 4,000 updates, with rows
of 32 alone. `gpu` has not been trained here. `mini` as it was run here: 3,351 updates, 14.8 million
tokens, 70 minutes on two busy CPU cores, as a run of 4,000 and from update 2,495 on of 3,400.
Training loss by update: 500 6.3, 1000 6.0, 1400 5.2, 2000 4.9, 2400 4.7 (rows of 32); 2450 5.9,
2900 4.9, 3250 4.5 with 27.4 % of masked tokens found (128); 3350 5.8 (512, whose later positions
such a rate hardly teaches any more). Narrow models take long to find out what neighbours are for:
short rows first, larger weights at first and a lighter second task help.
"""

from transformer_jax.config import choice, experiment

SIZES = {  # model, phases, weight of the second task, updates, rows, learning rate
    "gpu": (
        dict(vocab_size=16_000, d_model=512, num_layers=8, num_heads=8, dropout=0.1),
        ((0.8, 128, 20), (0.2, 512, 76)),
        1.0,
        30_000,
        256,
        5e-4,
    ),
    "mini": (
        dict(
            vocab_size=8000,
            d_model=256,
            num_layers=4,
            num_heads=4,
            init_std=0.04,
            dropout=0.0,
            unroll=4,
        ),
        ((0.6, 32, 5), (0.36, 128, 20), (0.04, 512, 76)),
        0.0,
        4000,
        64,
        1e-3,
    ),
    "cpu": (
        dict(
            vocab_size=8000,
            d_model=128,
            num_layers=2,
            num_heads=4,
            init_std=0.05,
            dropout=0.0,
            unroll=2,
        ),
        ((0.6, 32, 5), (0.3, 128, 20), (0.1, 256, 39)),
        0.2,
        8000,
        48,
        2e-3,
    ),
}


def get_config(size="gpu"):
    """The shapes of the small BERTs: `gpu` the medium one's; `mini`; `cpu` the smallest, 2 layers
    of 128.
    """
    model, phases, next_sentence, steps, rows, rate = choice(size, SIZES)
    return experiment(
        model=dict(
            name="bert", max_length=phases[-1][1], attention_dropout=model["dropout"], **model
        ),
        task=dict(name="masked_lm", phases=phases, next_sentence=next_sentence),
        data=dict(tokenizer="wordpiece"),
        train=dict(num_steps=steps, batch=rows, log_every=100, eval_every=1 / 2),
        optimizer=dict(
            name="adamw",
            learning_rate=rate,
            schedule="linear",
            warmup_steps=1 / 16,
            eps=1e-6,
            b2=0.98,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 2),
    )
