"""Pre-trains a BERT on the 50,000 unlabelled film reviews of IMDB (Maas et al. 2011).

    awk 'BEGIN { RS = ""; ORS = "\\n\\n" } { print > (NR % 50 ? "train.txt" : "valid.txt") }' \\
        unsup.txt
    python -m transformer_jax.train_bert --config=configs/bert/imdb.py:cpu --workdir=DIR \\
        --config.data.train_files=train.txt --config.data.valid_files=valid.txt
    python -m transformer_jax.evaluate --workdir=DIR

The text has one sentence per line and a blank line between reviews. The first command holds out
every fiftieth review. The sizes are like those of the small BERTs (Turc et al. 2019):
- `gpu`: medium, 8 layers of width 512. Not trained here.
- `mini`: 4 layers of width 256.
- `cpu`: tiny, 2 layers of width 128.

Result of `cpu` on the held-out reviews, with rows of 256 tokens:

    updates   masked tokens found   pairs classified correctly   perplexity
      4,000                13.9 %                       52.4 %            -
      8,000                25.3 %                       60.1 %          122

The first 4,000 updates have rows of 32 tokens only. The 8,000 updates read 27 million tokens, 1.7
times the text. On two CPU cores the speed is 25,000 tokens per second at first and 10,000 at the
end. Always predicting the most frequent token finds 4.5 %.

Training loss of both objectives (`cpu`):

    row length   update: loss
            32   100: 8.3, 500: 6.4, 1000: 6.0, 2000: 5.1, 3000: 4.9, 4000: 4.7, 4800: 4.6
           128   4900: 5.7, 5500: 4.4, 6000: 4.3, 7000: 4.1
           256   7300: 4.9, 8000: 4.8

`mini` was trained for 3,351 updates: 14.8 million tokens, 70 minutes on two busy CPU cores. The
length of the run was 4,000 updates up to update 2,495 and 3,400 from there. Training loss (`mini`):

    row length   update: loss
            32   500: 6.3, 1000: 6.0, 1400: 5.2, 2000: 4.9, 2400: 4.7
           128   2450: 5.9, 2900: 4.9, 3250: 4.5 (27.4 % of masked tokens found)
           512   3350: 5.8

The last learning rates are too low to train the positions that only rows of 512 tokens have.

A narrow model learns late to use the context of a token. Short rows at first, larger initial
weights and a lighter next-sentence loss help it.
"""

from transformer_jax.config import choice, experiment

# phases: share of the updates, tokens of a row, predicted tokens of a row
SIZES = {
    "gpu": dict(
        model=dict(vocab_size=16_000, d_model=512, num_layers=8, num_heads=8, dropout=0.1),
        phases=((0.8, 128, 20), (0.2, 512, 76)),
        next_sentence=1.0,
        num_steps=30_000,
        batch=256,
        learning_rate=5e-4,
    ),
    "mini": dict(
        model=dict(
            vocab_size=8000,
            d_model=256,
            num_layers=4,
            num_heads=4,
            init_std=0.04,
            dropout=0.0,
            unroll=4,
        ),
        phases=((0.6, 32, 5), (0.36, 128, 20), (0.04, 512, 76)),
        next_sentence=0.0,
        num_steps=4000,
        batch=64,
        learning_rate=1e-3,
    ),
    "cpu": dict(
        model=dict(
            vocab_size=8000,
            d_model=128,
            num_layers=2,
            num_heads=4,
            init_std=0.05,
            dropout=0.0,
            unroll=2,
        ),
        phases=((0.6, 32, 5), (0.3, 128, 20), (0.1, 256, 39)),
        next_sentence=0.2,
        num_steps=8000,
        batch=48,
        learning_rate=2e-3,
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=96, d_model=16, num_layers=2, num_heads=2, max_length=64),
    task=dict(phases=((0.6, 16, 3), (0.3, 32, 3), (0.1, 48, 3))),
    train=dict(batch=8, num_steps=2),
)


def get_config(size="gpu"):
    values = choice(size, SIZES)
    model = values["model"]
    phases = values["phases"]
    return experiment(
        model=dict(
            name="bert", max_length=phases[-1][1], attention_dropout=model["dropout"], **model
        ),
        task=dict(name="masked_lm", phases=phases, next_sentence=values["next_sentence"]),
        data=dict(tokenizer="wordpiece"),
        train=dict(
            num_steps=values["num_steps"], batch=values["batch"], log_every=100, eval_every=1 / 2
        ),
        optimizer=dict(
            name="adamw",
            learning_rate=values["learning_rate"],
            schedule="linear",
            warmup_steps=1 / 16,
            eps=1e-6,
            b2=0.98,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=1 / 2),
    )
