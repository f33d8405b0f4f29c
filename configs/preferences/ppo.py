"""Trains a language model by PPO, on rewards of its own completions of prompts.

    python -m transformer_jax.train --config=configs/preferences/ppo.py:ziegler \\
        --config.init_from=DIR --config.task.reference=DIR --config.task.reward=DIR2 \\
        --workdir=DIR3 --config.data.train_files=train.jsonl --config.data.valid_files=valid.jsonl
    python -m transformer_jax.generate --workdir=DIR3 --prompt="The film"

    argument      tokens of prompt, completion   completions of a step   for a run of
    ziegler                             64, 24                     512   configs/gpt/gpt2.py
    instructgpt                     1,024, 512                     512   configs/chat/gpt2.py
    imdb                                24, 24                      64   configs/chat, on a CPU

DIR holds the model to train, and DIR2 a reward model of configs/preferences/reward.py that began
with a run of the same tokenizer. Lines of the files are {"prompt": "..."}.

The values of `ziegler` are those of Ziegler et al. 2019, section 2.2 and appendix A, for the tasks
of style. Those of `instructgpt` are from Ouyang et al. 2022, appendix C.4: a constant penalty of
0.02, 256,000 episodes, minibatches of 64, and texts of pre-training with a coefficient of 27.8,
which --config.task.text_files names. Those of `imdb` are assumed. `ziegler` and `instructgpt` have
not been trained here.
"""

from transformer_jax.config import choice, experiment

TASKS = {
    "ziegler": dict(
        steps=3906,
        batch=512,
        task=dict(prompt_length=64, max_tokens=24, temperature=0.7),
        optimizer=dict(learning_rate=1e-5, schedule="linear", warmup_steps=0, eps=1e-5),
    ),
    "instructgpt": dict(
        steps=500,
        batch=512,
        task=dict(
            prompt_length=1024,
            max_tokens=512,
            epochs=1,
            minibatches=8,
            kl_coefficient=0.02,
            target_kl=None,
            whitens_rewards=False,
            text_length=1024,
        ),
        optimizer=dict(learning_rate=9.65e-6, schedule="constant", warmup_steps=80, b2=0.95),
    ),
    "imdb": dict(
        steps=200,
        batch=64,
        task=dict(
            prompt_length=24,
            max_tokens=24,
            epochs=2,
            minibatches=2,
            kl_coefficient=0.1,
            target_kl=7.0,
            horizon=1000,
            whitens_rewards=False,
        ),
        optimizer=dict(learning_rate=2e-4, schedule="linear", warmup_steps=0, b2=0.98),
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    task=dict(prompt_length=8, max_tokens=4, text_length=8, minibatches=1),
    train=dict(batch=8, num_steps=2),
    optimizer=dict(warmup_steps=0),
)


def get_config(argument="ziegler"):
    values = choice(argument, TASKS)
    gpt = tuple(dict(name="gpt").items())
    return experiment(
        model=dict(name="gpt"),
        task=dict(name="ppo", reference_model=gpt, reward_model=gpt, **values["task"]),
        train=dict(
            num_steps=values["steps"], batch=values["batch"], log_every=10, eval_every=1 / 10
        ),
        optimizer=dict(name="adam", clip_norm=1.0, **values["optimizer"]),
        checkpoint=dict(every=1 / 10, best_metric="valid/reward", best_mode="max"),
    )
