"""Trains a language model by GRPO, on rewards of groups of its own completions of prompts.

    python -m transformer_jax.train --config=configs/preferences/grpo.py:math \\
        --config.init_from=DIR --config.task.reference=DIR --config.task.reward=DIR2 \\
        --workdir=DIR3 --config.data.train_files=train.jsonl --config.data.valid_files=valid.jsonl
    python -m transformer_jax.generate --workdir=DIR3 --prompt="The film"

    argument   prompts, completions of each   tokens of prompt, completion   for a run of
    math                             16, 64                     512, 1,024   configs/decoder, 7 B
    imdb                               8, 8                         24, 24   configs/chat, on a CPU

DIR holds the model to train, and DIR2 a reward model of configs/preferences/reward.py that began
with a run of the same tokenizer. Lines of the files are {"prompt": "..."}.

The values of `math` are those of Shao et al. 2024, section 4.2: 64 completions of each of 16
prompts, one update for each step, a divergence of 0.04, a learning rate of 1e-6. Those of `imdb`
are assumed. `math` has not been trained here.
"""

from transformer_jax.config import choice, experiment

TASKS = {
    "math": dict(
        steps=9000,
        batch=16,
        task=dict(prompt_length=512, max_tokens=1024, group_size=64),
        learning_rate=1e-6,
    ),
    "imdb": dict(
        steps=200,
        batch=8,
        task=dict(prompt_length=24, max_tokens=24, group_size=8, minibatches=2, kl_coefficient=1.0),
        learning_rate=2e-4,
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    task=dict(prompt_length=8, max_tokens=4, group_size=2), train=dict(batch=8, num_steps=2)
)


def get_config(argument="math"):
    values = choice(argument, TASKS)
    gpt = tuple(dict(name="gpt").items())
    return experiment(
        model=dict(name="gpt"),
        task=dict(name="grpo", reference_model=gpt, reward_model=gpt, **values["task"]),
        train=dict(
            num_steps=values["steps"], batch=values["batch"], log_every=10, eval_every=1 / 10
        ),
        optimizer=dict(
            name="adam",
            schedule="constant",
            warmup_steps=0,
            clip_norm=1.0,
            learning_rate=values["learning_rate"],
        ),
        checkpoint=dict(every=1 / 10, best_metric="valid/reward", best_mode="max"),
    )
