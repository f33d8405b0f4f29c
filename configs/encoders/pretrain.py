"""Pre-trains one of the small encoders that `benchmarks/encoders.py` compares.

    python -m transformer_jax.train --config=configs/encoders/pretrain.py:roberta \\
        --workdir=DIR --config.data.train_files=train.txt --config.data.valid_files=valid.txt

    argument     objective
    bert         masked tokens and next sentences
    roberta      masked tokens of full sentences
    albert       masked n-grams and the order of sentences, with shared layers
    electra      replaced tokens, with a generator of half the width
    xlnet        permuted tokens, with a memory of the row before
    unilm        masked tokens under four masks
    distilbert   a teacher's predictions, from the teacher's second and last layer
    small        masked tokens of full sentences, in the size of distilbert

All have a width of 128, four layers (the last two of the list: two), and the same optimizer; the
learning rate of ELECTRA alone is lower. Rows have 32 tokens in the first three quarters of the
updates, and 128 in the last. XLNet has relative positions, and rows of 64. `benchmarks/encoders.py`
sets the number of updates, so that all take the same FLOPs, and the teacher.
"""

from transformer_jax.config import choice, experiment

# Short rows first: a narrow model learns late to use the context of a token (configs/bert/imdb.py).
ROWS = ((0.75, 32, 5), (0.25, 128, 20))
NO_DROPOUT = dict(dropout=0.0, attention_dropout=0.0)
SMALL = dict(num_layers=2, unroll=2, **NO_DROPOUT)
OBJECTIVES = {
    "bert": dict(
        model=dict(name="bert", **NO_DROPOUT),
        task=dict(name="masked_lm", phases=ROWS, next_sentence=0.2),
    ),
    "roberta": dict(
        model=dict(name="roberta", **NO_DROPOUT),
        task=dict(name="masked_lm", phases=ROWS, next_sentence=0.0, full_sentences=True),
    ),
    "albert": dict(
        model=dict(name="albert", d_embed=64, **NO_DROPOUT),
        task=dict(
            name="masked_lm",
            phases=ROWS,
            next_sentence=0.2,
            second_text="sentence_order",
            whole_words=True,
            ngrams=(6, 3, 2),
        ),
    ),
    "electra": dict(
        model=dict(name="electra", d_embed=128, generator_size=0.5, **NO_DROPOUT),
        task=dict(name="replaced_tokens", phases=ROWS),
        # At 2e-3, with a generator of a quarter of the width, fine-tuning learned nothing.
        optimizer=dict(learning_rate=1e-3),
    ),
    "xlnet": dict(
        model=dict(name="xlnet", memory_length=64, dropout=0.0),
        task=dict(name="permuted_lm", length=64),
    ),
    "unilm": dict(
        model=dict(name="bert", num_token_types=6, **NO_DROPOUT),
        task=dict(name="mixed_masks", phases=ROWS, next_sentence=0.2),
    ),
    "distilbert": dict(
        model=dict(name="distilbert", **SMALL), task=dict(name="distillation", phases=ROWS)
    ),
    "small": dict(
        model=dict(name="roberta", **SMALL),
        task=dict(name="masked_lm", phases=ROWS, next_sentence=0.0, full_sentences=True),
    ),
}


def TINY(objective="roberta"):
    """Returns the variant for tests: it trains in seconds on a CPU."""
    is_windows = objective == "xlnet"
    return dict(
        model=dict(vocab_size=300, d_model=16, num_heads=2),
        task=dict(length=32) if is_windows else dict(phases=((1.0, 32, 5),)),
        train=dict(batch=8, num_steps=2),
    )


def get_config(objective="roberta"):
    values = choice(objective, OBJECTIVES)
    steps = 4000
    shape = dict(
        vocab_size=4000,
        d_model=128,
        num_layers=4,
        num_heads=4,
        init_std=0.05,
        unroll=4,
    )
    optimizer = dict(
        name="adamw",
        learning_rate=2e-3,
        schedule="linear",
        warmup_steps=1 / 20,
        b2=0.98,
        eps=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
    )
    return experiment(
        model=shape | values["model"],
        task=values["task"],
        # The tokenizer reads the whole text.
        data=dict(tokenizer="roberta_bpe", tokenizer_bytes=100_000_000),
        train=dict(num_steps=steps, batch=48, log_every=100, eval_every=steps),
        optimizer=optimizer | values.get("optimizer", {}),
        checkpoint=dict(every=steps, keep=1),
    )
