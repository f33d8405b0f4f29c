"""A tiny language model, preferences that it can learn, and configs of the tasks on them."""

import json

from transformer_jax import config as configs

ANIMALS = ("cat", "dog")
ENDS = (" sat.", " ran to the mat.", " sat on the dog.", " ran.")  # the best first


def lines(count, form="pairs", first=0):
    """Returns JSON lines: pairs, or rankings of two to four completions."""
    values = []
    for i in range(first, first + count):
        prompt = f"the {ANIMALS[i % 2]}"
        if form == "pairs":
            better, worse = sorted({i % 4, (i + 1 + i // 4 % 2) % 4})
            values.append({"prompt": prompt, "chosen": ENDS[better], "rejected": ENDS[worse]})
        else:
            values.append({"prompt": prompt, "completions": ENDS[: 2 + i % 3]})
    return "".join(json.dumps(value) + "\n" for value in values)


def build(folder, workdir, task, form="pairs", **overrides):
    """Returns the config of a task that begins with the language model of `workdir`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 24), ("valid", 8)):
        (folder / f"{name}.jsonl").write_text(lines(count, form))
    config = configs.experiment(
        model=dict(name="gpt"),
        task=dict(length=32, completions=2 if form == "pairs" else 4) | task,
        init_from=str(workdir),
        data=dict(train_files=f"{folder}/train.jsonl", valid_files=f"{folder}/valid.jsonl"),
        train=dict(num_steps=30, batch=8, log_every=15, eval_every=30),
        checkpoint=dict(every=30, keep=1, best_metric=""),
        optimizer=dict(learning_rate=5e-3, schedule="linear", warmup_steps=3),
        decode=dict(batch=8),
    )
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


def reward(folder, workdir, form="pairs", **overrides):
    return build(folder, workdir, dict(name="reward", head_dropout=0.0), form, **overrides)


def dpo(folder, workdir, form="pairs", **overrides):
    return build(folder, workdir, dict(name="dpo", reference=str(workdir)), form, **overrides)
