"""Answers by a span (Rajpurkar et al. 2016, 2018) with BERT's hyper-parameters (Devlin et al. 2018,
sections 4.2 and 4.3).

python -m transformer_jax.finetune --config=configs/finetune/squad.py:1.1 --config.init_from=DIR --workdir=DIR2 \\
    --config.data.train_files=train-v1.1.json --config.data.valid_files=dev-v1.1.json

`1.1,tfds` and `2.0,tfds` read the set as TFDS has prepared it in --config.data.tfds_dir=DIR. `1.1`:
3 epochs, batches of 32, a rate of 5e-5; `2.0`: 2 epochs, batches of 48, questions without an
answer; the threshold that evaluate finds best on the held-out set (best_f1_threshold) is given to
predict as
--config.task.null_threshold. BERT large reaches EM 84.1, F1 90.9 and EM 78.7, F1 81.9. Not yet run here from published weights.
"""

from transformer_jax.config import choice, experiment

# rows of 384 tokens, 128 apart; batch; epochs
VERSIONS = {"1.1": (88_000, 32, 3, False), "2.0": (132_000, 48, 2, True)}


def get_config(version="1.1"):
    version, _, tfds = version.partition(",")
    rows, batch, epochs, unanswerable = choice(version, VERSIONS)
    choice(tfds, {"": False, "tfds": True})
    steps = epochs * rows // batch
    return experiment(
        model=dict(name="bert"),
        task=dict(name="span", length=384, stride=128, unanswerable=unanswerable),
        data=dict(tfds_name=f"squad/v{version}") if tfds else {},
        train=dict(num_steps=steps, batch=batch, log_every=50, eval_every=steps),
        optimizer=dict(
            name="adamw",
            learning_rate=5e-5,
            schedule="linear",
            warmup_steps=steps // 10 / steps,
            weight_decay=0.01,
            clip_norm=1.0,
            eps=1e-6,
        ),
        checkpoint=dict(every=steps, keep=1, best_metric="valid/f1", best_mode="max"),
    )
