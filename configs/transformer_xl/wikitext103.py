"""Trains Transformer-XL on the words of WikiText-103 (Dai et al. 2019, table 1).

    python -m transformer_jax.train --config=configs/transformer_xl/wikitext103.py:base \\
        --workdir=DIR --config.data.train_files=wiki.train.tokens \\
        --config.data.valid_files=wiki.valid.tokens

Sizes, rows, optimizer and schedule are those of the published scripts. The embeddings and the
softmax are adaptive, with the cut-offs 20,000, 40,000 and 200,000. The paper reports these
perplexities, with a memory of 640 and of 1,600 tokens at evaluation:

    size    layers  width  parameters here  in the paper  perplexity
    base        16    410      151,119,838         151 M        24.0
    large       18   1024      285,205,322         257 M        18.3

The vectors of `large` are narrower by 4 behind each cut-off. Its published script has 18 layers,
with which this model has 285 M parameters; with 16 layers it has 258 M. Each layer has its own
vectors u and v.

The words are those of `config.data.tokenizer`, which also divides tokens such as "<unk>". The paper
has the 267,735 tokens between spaces, so perplexities are not comparable. Not trained here.
"""

from transformer_jax.config import choice, experiment

SIZES = {
    "base": dict(
        model=dict(
            d_model=410,
            d_ff=2100,
            num_layers=16,
            num_heads=10,
            memory_length=150,
            dropout=0.1,
        ),
        length=150,
        batch=60,
        num_steps=200_000,
        warmup_steps=0,
    ),
    "large": dict(
        model=dict(
            adaptive_divisor=4,
            d_model=1024,
            d_ff=4096,
            num_layers=18,
            num_heads=16,
            memory_length=384,
            dropout=0.2,
            attention_dropout=0.2,
        ),
        length=384,
        batch=128,
        num_steps=4_000_000,
        warmup_steps=16_000,
    ),
}


def TINY(size="base"):
    """The variant for tests: it trains in seconds on a CPU."""
    divisor = {"base": 1, "large": 2}[size]
    sizes = dict(d_model=16, d_ff=24, num_layers=2, num_heads=2, memory_length=16)
    clusters = dict(vocab_size=200, adaptive_cutoffs=(20, 40, 120), adaptive_divisor=divisor)
    return dict(
        model=sizes | clusters,
        task=dict(length=16),
        train=dict(batch=8, num_steps=2),
    )


def get_config(size="base"):
    values = choice(size, SIZES)
    return experiment(
        model=dict(
            name="transformer_xl",
            vocab_size=267_735,
            vocab_multiple=64,
            adaptive_cutoffs=(20_000, 40_000, 200_000),
            **values["model"],
        ),
        task=dict(name="causal_lm", length=values["length"], carry=True),
        data=dict(tokenizer="words", cased=True),
        train=dict(
            num_steps=values["num_steps"], batch=values["batch"], log_every=200, eval_every=4000
        ),
        optimizer=dict(
            name="adam",
            learning_rate=2.5e-4,
            schedule="cosine",
            warmup_steps=values["warmup_steps"],
            clip_norm=0.25,
        ),
        checkpoint=dict(every=4000),
    )
