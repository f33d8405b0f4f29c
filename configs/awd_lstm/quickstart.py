"""Trains AWD-LSTM on the sources of the Python standard library, then on its documentation.

Each takes minutes on a laptop and downloads nothing.

    python -m transformer_jax.train --config=configs/awd_lstm/quickstart.py --workdir=runs/general
    python -m transformer_jax.train --config=configs/awd_lstm/quickstart.py:adapt \\
        --config.init_from=runs/general --workdir=runs/adapted
    python -m transformer_jax.generate --workdir=runs/adapted --prompt="Returns " --max_tokens=100

`adapt` has the rates by layer and by update of ULMFiT (Howard & Ruder 2018, section 3.2).
"""

from transformer_jax.config import choice, experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, d_hidden=24),
    task=dict(length=16, sample_tokens=8),
    train=dict(batch=8, num_steps=2),
)
STAGES = {
    "pretrain": dict(corpus="python", num_steps=1200, optimizer={}),
    "adapt": dict(corpus="pydoc", num_steps=400, optimizer=dict(layer_decay=1 / 2.6)),
}


def get_config(stage="pretrain"):
    values = choice(stage, STAGES)
    return experiment(
        model=dict(
            name="awd_lstm",
            vocab_size=2048,
            d_model=128,
            d_hidden=256,
            input_dropout=0.1,
            word_dropout=0.0,
            layer_dropout=0.1,
            output_dropout=0.1,
            weight_dropout=0.1,
        ),
        task=dict(name="causal_lm", length=70, carry=True, sample_tokens=100),
        data=dict(corpus=values["corpus"], tokenizer="byte_bpe"),
        train=dict(num_steps=values["num_steps"], batch=32, log_every=50, eval_every=1 / 4),
        optimizer=dict(
            name="adam",
            learning_rate=4e-3,
            schedule="slanted_triangular",
            warmup_steps=0.1,
            b1=0.7,
            b2=0.99,
            clip_norm=1.0,
            **values["optimizer"],
        ),
        checkpoint=dict(every=1 / 4),
    )
