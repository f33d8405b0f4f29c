"""Pre-trains ELECTRA (Clark et al. 2020): a discriminator of tokens that a generator replaced.

    python -m transformer_jax.train --config=configs/electra/electra.py:base --workdir=DIR \\
        --config.data.train_files='text/*.txt' --config.data.valid_files=held_out.txt \\
        --config.train.accumulation=8

    size    layers   width   discriminator   with the generator
    small       12     256      13,549,057          14,196,219
    base        12     768     109,483,009         119,386,427
    large       24    1024     335,142,913         354,655,291

The text has one sentence per line and a blank line between documents.
`--config.data.sentences=punctuation` splits running text into sentences.

All values are those of the paper's table 6 and of the published code, except the order of the two
texts of a row: half of them are swapped.

Not trained here.
"""

from transformer_jax.config import choice, experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(
        vocab_size=96,
        d_embed=8,
        d_model=16,
        num_layers=2,
        num_heads=4,
        max_length=64,
        generator_size=0.5,
    ),
    task=dict(phases=((1.0, 32, 4),)),
    train=dict(batch=8, num_steps=2),
)
SIZES = {
    "small": dict(
        model=dict(d_embed=128, d_model=256, num_layers=12, num_heads=4, generator_size=1 / 4),
        phases=((1.0, 128, 19),),
        selected=0.15,
        num_steps=1_000_000,
        batch=128,
        learning_rate=5e-4,
    ),
    "base": dict(
        model=dict(d_embed=768, d_model=768, num_layers=12, num_heads=12, generator_size=1 / 3),
        phases=((1.0, 512, 79),),
        selected=0.15,
        num_steps=766_000,
        batch=256,
        learning_rate=2e-4,
    ),
    "large": dict(
        model=dict(d_embed=1024, d_model=1024, num_layers=24, num_heads=16, generator_size=1 / 4),
        phases=((1.0, 512, 130),),
        selected=0.25,
        num_steps=1_750_000,
        batch=2048,
        learning_rate=2e-4,
    ),
}


def get_config(size="small"):
    values = choice(size, SIZES)
    return experiment(
        model=dict(name="electra", vocab_size=30_522, **values["model"]),
        # phases: share of the updates, tokens of a row, replaced tokens of a row
        task=dict(
            name="replaced_tokens",
            phases=values["phases"],
            selected=values["selected"],
            pairs=True,
        ),
        data=dict(tokenizer="wordpiece"),
        train=dict(
            num_steps=values["num_steps"], batch=values["batch"], log_every=100, eval_every=10_000
        ),
        optimizer=dict(
            name="adamw",
            learning_rate=values["learning_rate"],
            schedule="linear",
            warmup_steps=10_000,
            eps=1e-6,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=10_000),
    )
