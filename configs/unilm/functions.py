"""Summarises Python functions in a sentence with one encoder: a small UniLM (Dong et al. 2019).

It is pre-trained on Python's standard library, and fine-tuned on its functions and the first
sentences of their docstrings. It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/unilm/functions.py:pretrain --workdir=DIR
    python -m transformer_jax.finetune --config=configs/unilm/functions.py:summarise \\
        --config.init_from=DIR --workdir=DIR2

configs/bart/functions.py does the same with an encoder-decoder. Not yet measured.
"""

from transformer_jax.config import choice, experiment

MODEL = dict(
    name="bert",
    vocab_size=3000,
    d_model=128,
    num_layers=4,
    num_heads=4,
    num_token_types=6,
    max_length=192,
    init_std=0.05,
    dropout=0.0,
    attention_dropout=0.0,
    unroll=4,
)
PRETRAINING = dict(
    model=MODEL,
    task=dict(name="mixed_masks", phases=((1.0, 128, 20),), next_sentence=0.2),
    data=dict(corpus="python", tokenizer="wordpiece", cased=True),
    # Small batches: the beginning of a run is limited by its number of updates.
    train=dict(num_steps=2800, batch=16, log_every=100, eval_every=1 / 2),
    optimizer=dict(
        name="adamw",
        learning_rate=2e-3,
        schedule="cosine",
        warmup_steps=1 / 20,
        b2=0.98,
        weight_decay=0.01,
        clip_norm=1.0,
    ),
    checkpoint=dict(every=1 / 2, keep=1),
)
SUMMARIES = dict(
    model=dict(name="bert", dropout=0.1),
    task=dict(name="masked_targets", source_length=128, target_length=40, scored_examples=100),
    data=dict(corpus="functions", tokenizer="wordpiece", cased=True),
    train=dict(num_steps=1200, batch=8, log_every=100, eval_every=1 / 3),
    optimizer=dict(
        name="adamw",
        learning_rate=1e-3,
        schedule="linear",
        warmup_steps=1 / 10,
        b2=0.98,
        weight_decay=0.01,
        clip_norm=1.0,
    ),
    checkpoint=dict(every=1 / 3, keep=1, best_metric="valid/rougeL", best_mode="max"),
    decode=dict(
        beam=4,
        penalty="length",
        alpha=1.0,
        max_length=40,
        min_length=10,
        no_repeat_ngram=3,
    ),
)
PARTS = {"pretrain": PRETRAINING, "summarise": SUMMARIES}


def TINY(argument="summarise"):
    """Returns the variant for tests: it trains in seconds on a CPU."""
    pretrains = argument == "pretrain"
    lengths = dict(source_length=24, target_length=24, scored_examples=4)
    return dict(
        model=dict(vocab_size=300, d_model=16, num_layers=2, num_heads=2, max_length=64),
        task=dict(phases=((1.0, 32, 5),)) if pretrains else lengths,
        train=dict(batch=8, num_steps=2),
    )


def get_config(argument="summarise"):
    return experiment(**choice(argument, PARTS))
