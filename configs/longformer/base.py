"""Continues the pre-training of RoBERTa base as Longformer base (Beltagy et al. 2020, section 5).

    python -m transformer_jax.train --config=configs/longformer/base.py --workdir=DIR \\
        --config.init_from=runs/roberta --config.data.tokenizer_files=runs/roberta/tokenizer \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=64

`runs/roberta` is a run of configs/roberta/base.py, or one that `convert` makes from a published
checkpoint. Its 512 positions are repeated up to 4,096. Of the paper's values, those of the base
model: 65,000 updates of 64 rows of 4,096 tokens.

The model has 148,711,257 parameters; 21 million of them project global tokens, which masked
language modelling does not have. Not trained here.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=300,
        d_model=16,
        num_layers=2,
        num_heads=2,
        max_length=64,
        attention_window=(8,),
    ),
    task=dict(phases=((1.0, 64, 6),)),
    train=dict(batch=8, num_steps=2),
)


def get_config():
    return experiment(
        model=dict(
            name="longformer",
            vocab_size=50_265,
            d_model=768,
            num_layers=12,
            num_heads=12,
            max_length=4096,
            attention_window=(512,),
        ),
        # share of the updates, tokens of a row, predicted tokens of a row
        task=dict(
            name="masked_lm", phases=((1.0, 4096, 614),), next_sentence=0.0, full_sentences=True
        ),
        data=dict(tokenizer="roberta_bpe"),
        train=dict(num_steps=65_000, batch=64, log_every=100, eval_every=1000),
        optimizer=dict(
            name="adamw",
            learning_rate=3e-5,
            schedule="polynomial",
            power=3.0,
            warmup_steps=500,
            eps=1e-6,
            b2=0.98,
            weight_decay=0.01,
        ),
        checkpoint=dict(every=1000),
    )
