"""Trains a reward model on preferences between completions of prompts.

    python -m transformer_jax.train --config=configs/preferences/reward.py:instructgpt \\
        --config.init_from=DIR --workdir=DIR2 \\
        --config.data.train_files=train.jsonl --config.data.valid_files=valid.jsonl
    python -m transformer_jax.predict --workdir=DIR2 < lines.txt

    argument      completions of a prompt   tokens of a row   for a run of
    instructgpt                    4 to 9              2048   configs/gpt/gpt3.py:6.7b
    imdb                                2               128   configs/gpt/imdb.py:tiny, on a CPU

The values of `instructgpt` are those of Ouyang et al. 2022, appendix C.2: one epoch of 33,207
prompts, batches of 64, a learning rate of 9e-6 that falls by a cosine to a tenth, Adam with b2 of
0.95. The paper's model reaches an accuracy of 72.4 % on held-out comparisons. Those of `imdb` are
assumed. Neither has been trained here.
"""

from transformer_jax.config import choice, experiment

# examples: number of training prompts
TASKS = {
    "instructgpt": dict(
        examples=33_207,
        task=dict(completions=9, length=2048, head_dropout=0.0),
        train=dict(batch=64),
        optimizer=dict(learning_rate=9e-6, b2=0.95),
    ),
    "imdb": dict(
        examples=8000,
        task=dict(completions=2, length=128, head_dropout=0.0, group_by_length=8),
        train=dict(batch=32),
        optimizer=dict(learning_rate=3e-4, b2=0.98),
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(task=dict(length=32), train=dict(batch=8, num_steps=2))


def get_config(argument="instructgpt"):
    values = choice(argument, TASKS)
    steps = -(-values["examples"] // values["train"]["batch"])  # one epoch
    return experiment(
        model=dict(name="gpt"),
        task=dict(name="reward", **values["task"]),
        train=dict(num_steps=steps, log_every=20, eval_every=1 / 4, **values["train"]),
        optimizer=dict(
            name="adamw",
            schedule="cosine",
            warmup_steps=0,
            final_fraction=0.1,
            clip_norm=1.0,
            **values["optimizer"],
        ),
        checkpoint=dict(every=1 / 4, best_metric="valid/accuracy", best_mode="max"),
    )
