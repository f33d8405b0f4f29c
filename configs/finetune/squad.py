"""Fine-tunes BERT to answer questions with a span of a text (Rajpurkar et al. 2016, 2018).

    python -m transformer_jax.finetune --config=configs/finetune/squad.py:1.1 \\
        --config.init_from=DIR --workdir=DIR2 \\
        --config.data.train_files=train-v1.1.json --config.data.valid_files=dev-v1.1.json

`python -m transformer_jax.download squad` writes these files to data/squad. `1.1,tfds` and
`2.0,tfds` read the set as TFDS has prepared it in `--config.data.tfds_dir=DIR`.

Some questions of 2.0 have no answer. `evaluate` prints the best threshold for them on the held-out
set, best_f1_threshold; `predict` takes it as `--config.task.null_threshold`.

The values are those of Devlin et al. 2018, sections 4.2 and 4.3, with a learning rate of 5e-5.
BERT large reaches these scores. Not yet run here from published weights.

    version   epochs   batch     EM     F1
    1.1            3      32   84.1   90.9
    2.0            2      48   78.7   81.9
"""

from transformer_jax.config import choice, experiment

# rows: about the number of training rows, which are windows of 384 tokens, 128 apart
VERSIONS = {
    "1.1": dict(rows=88_000, batch=32, epochs=3, unanswerable=False),
    "2.0": dict(rows=132_000, batch=48, epochs=2, unanswerable=True),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(task=dict(length=32, stride=8, max_question=8), train=dict(batch=8, num_steps=2))


def get_config(argument="1.1"):
    version, _, source = argument.partition(",")
    values = choice(version, VERSIONS)
    tfds = choice(source, {"": False, "tfds": True})
    batch = values["batch"]
    steps = values["epochs"] * values["rows"] // batch
    return experiment(
        model=dict(name="bert"),
        task=dict(name="span", length=384, stride=128, unanswerable=values["unanswerable"]),
        data=dict(tfds_name=f"squad/v{version}") if tfds else {},
        train=dict(num_steps=steps, batch=batch, log_every=50, eval_every=steps),
        optimizer=dict(
            name="adamw",
            learning_rate=5e-5,
            schedule="linear",
            # A tenth of the updates, rounded down.
            warmup_steps=steps // 10 / steps,
            weight_decay=0.01,
            clip_norm=1.0,
            eps=1e-6,
        ),
        checkpoint=dict(every=steps, keep=1, best_metric="valid/f1", best_mode="max"),
    )
