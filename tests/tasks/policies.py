"""Prompts, a reward model, and configs of the tasks that learn from rewards of completions."""

import json

from tests.tasks import preferences
from transformer_jax import config as configs

PROMPTS = ("the cat", "a dog", "the dog ran", "to the mat the")


def reward_run(folder, workdir):
    """Trains a reward model of a few updates, and returns its workdir."""
    config = preferences.reward(
        folder / "reward_data",
        workdir,
        train__num_steps=6,
        train__log_every=6,
        train__eval_every=6,
        checkpoint__every=6,
    )
    (folder / "reward").mkdir(parents=True)
    preferences.train(config, folder / "reward")
    return folder / "reward"


def build(folder, workdir, reward, task, **overrides):
    """Returns the config of a policy that begins with the language model of `workdir`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 20), ("valid", 6)):
        lines = [json.dumps({"prompt": PROMPTS[i % 4]}) + "\n" for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    config = configs.experiment(
        model=dict(name="gpt"),
        task=dict(
            prompt_length=8, max_tokens=6, reference=str(workdir), reward=str(reward), **task
        ),
        init_from=str(workdir),
        data=dict(train_files=f"{folder}/train.jsonl", valid_files=f"{folder}/valid.jsonl"),
        train=dict(num_steps=2, batch=8, log_every=1, eval_every=2),
        checkpoint=dict(every=1, keep=3, best_metric=""),
        optimizer=dict(learning_rate=1e-3, schedule="constant", warmup_steps=0),
        decode=dict(batch=4),
    )
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config
