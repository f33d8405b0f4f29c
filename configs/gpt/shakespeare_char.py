"""Tiny Shakespeare by characters, nanoGPT's split: the first nine tenths to train on, the last to
validate.

head -c 1003854 input.txt > train.txt; tail -c +1003855 input.txt > valid.txt
python -m transformer_jax.train_gpt --config=configs/gpt/shakespeare_char.py:cpu --workdir=DIR \\
    --config.data.train_files=train.txt --config.data.valid_files=valid.txt

Validation loss in windows that do not overlap, as nanoGPT's random ones: `cpu` 1.77 (nanoGPT's
figure for this size is 1.88), 2,000 updates in 4 minutes on two busy CPU cores. `gpu` has not been
trained here; nanoGPT reaches 1.4697 with its shape.
"""

from transformer_jax.config import choice, experiment


def get_config(size="gpu"):
    """`gpu`: 6 layers of 384, blocks of 256; `cpu`: 4 layers of 128, blocks of 64."""
    small = choice(size, {"gpu": False, "cpu": True})
    length = 64 if small else 256
    shape = (
        dict(d_model=128, num_layers=4, num_heads=4, dropout=0.0)
        if small
        else dict(d_model=384, num_layers=6, num_heads=6, dropout=0.2)
    )
    steps, rows, rate = (2000, 12, 3e-3) if small else (5000, 64, 1e-3)
    return experiment(
        model=dict(
            name="gpt",
            vocab_size=128,
            max_length=length,
            attention_dropout=shape["dropout"],
            unroll=shape["num_layers"],
            **shape,
        ),
        task=dict(name="causal_lm", length=length),
        data=dict(tokenizer="characters", split_on="file"),
        train=dict(num_steps=steps, batch=rows, log_every=100, eval_every=500 / steps),
        optimizer=dict(
            name="adamw",
            learning_rate=rate,
            schedule="cosine",
            warmup_steps=100 / steps,
            final_fraction=0.1,
            b2=0.99,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=500 / steps),
    )
