"""Fine-tunes BERT to choose the likeliest of four endings (SWAG, Zellers et al. 2018).

    python -m transformer_jax.finetune --config=configs/finetune/swag.py \\
        --config.init_from=DIR --workdir=DIR2 \\
        --config.data.train_files=train.csv --config.data.valid_files=val.csv

The values are those of Devlin et al. 2018, section 4.4: 3 epochs, batches of 16, a learning rate of
2e-5. On the held-out set, BERT base reaches 81.6 % and BERT large 86.6 %. Not yet run here from
published weights.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(task=dict(length=32), train=dict(batch=8, num_steps=2))


def get_config():
    steps = 3 * 73_546 // 16  # 3 epochs of 73,546 examples
    return experiment(
        model=dict(name="bert"),
        task=dict(
            name="choice",
            length=80,
            context=("sent1",),
            beginning="sent2",
            choices=("ending0", "ending1", "ending2", "ending3"),
            label="label",
        ),
        train=dict(num_steps=steps, batch=16, log_every=50, eval_every=steps),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-5,
            schedule="linear",
            # A tenth of the updates, rounded down.
            warmup_steps=steps // 10 / steps,
            weight_decay=0.01,
            clip_norm=1.0,
            eps=1e-6,
        ),
        checkpoint=dict(every=steps, keep=1, best_metric="valid/accuracy", best_mode="max"),
    )
