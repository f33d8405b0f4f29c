"""Sentiment of film reviews (Maas et al. 2011): label<TAB>text, 1 positive and 0 negative.

python -m transformer_jax.finetune --config=configs/finetune/imdb.py:cpu --config.init_from=DIR --workdir=DIR2 \\
    --config.data.train_files=train.tsv --config.data.valid_files=test.tsv
"""
from transformer_jax.config import choice, experiment


def get_config(size="gpu"):
    """`gpu`: 3 epochs of whole reviews; `cpu`: of their first 256 tokens, for the models of configs/*/imdb.py:cpu."""
    small = choice(size, {"gpu": False, "cpu": True})
    batch, steps, rate, length = (32, 2 * 782, 3e-4, 256) if small else (32, 3 * 782, 2e-5, 512)
    return experiment(
        model=dict(name="bert"),
        task=dict(name="classification", text="2", label="1", labels=("0", "1"), length=length),
        train=dict(num_steps=steps, batch=batch, log_every=50, eval_every=steps),
        optimizer=dict(name="adamw", learning_rate=rate, schedule="linear", warmup_steps=steps // 10, weight_decay=0.01, clip_norm=1.0),
        checkpoint=dict(every=steps, keep=1, best_metric="valid/accuracy", best_mode="max"),
    )
