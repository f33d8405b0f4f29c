"""Summarises Python functions in a sentence with one encoder: a small UniLM (Dong et al. 2019).

It is pre-trained on Python's standard library, and fine-tuned on its functions and the first
sentences of their docstrings. It takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/unilm/functions.py:pretrain --workdir=DIR
    python -m transformer_jax.finetune --config=configs/unilm/functions.py:summarise \\
        --config.init_from=DIR --workdir=DIR2

configs/bart/functions.py does the same with an encoder-decoder.

Result on 121 held-out functions, after 40 minutes on one CPU core that other programs used too:
ROUGE-L 15.9 (13.3 to 18.5). Name and parameters of the function (the lead) have 18.8.
"""

from transformer_jax.config import choice, experiment, load_module

bart = load_module("bart/functions")
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
# The data, the optimizer and the decoding are those of BART.
PRETRAINING = bart.PRETRAINING | dict(
    model=MODEL,
    task=dict(name="mixed_masks", phases=((1.0, 128, 20),), next_sentence=0.2),
    train=bart.PRETRAINING["train"] | dict(batch=16),
)
SUMMARIES = bart.SUMMARIES | dict(
    model=dict(name="bert", dropout=0.1),
    task=dict(name="masked_targets", source_length=128, target_length=40, scored_examples=100),
    data=bart.PRETRAINING["data"] | bart.SUMMARIES["data"],
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
