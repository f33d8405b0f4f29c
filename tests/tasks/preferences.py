"""A tiny language model, preferences that it can learn, and configs of the tasks on them."""

import json

import jax

from tests.conftest import build_gpt
from transformer_jax import config as configs
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.step import Program
from transformer_jax.training.trainer import run

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
        model=dict(name="gpt", dropout=0.0, attention_dropout=0.0),
        task=dict(length=32, completions=2 if form == "pairs" else 4) | task,
        init_from=str(workdir),
        data=dict(train_files=f"{folder}/train.jsonl", valid_files=f"{folder}/valid.jsonl"),
        train=dict(num_steps=60, batch=8, log_every=30, eval_every=60),
        checkpoint=dict(every=60, keep=1, best_metric=""),
        optimizer=dict(learning_rate=1e-2, schedule="linear", warmup_steps=3),
        decode=dict(batch=8),
    )
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


def build_reward(folder):
    """Returns a config that begins with no run, but with the tokenizer of a tiny GPT."""
    tokenizer = make_task(build_gpt(folder / "gpt")).tokenizer
    (folder / "tokenizer").mkdir(exist_ok=True)
    for name, content in tokenizer.hf_files().items():
        (folder / "tokenizer" / name).write_bytes(content)
    config = reward(folder, "", "rankings")
    config.data.tokenizer_files = str(folder / "tokenizer")
    return config


def reward(folder, workdir, form="pairs", **overrides):
    return build(folder, workdir, dict(name="reward", head_dropout=0.0), form, **overrides)


def dpo(folder, workdir, form="pairs", **overrides):
    return build(folder, workdir, dict(name="dpo", reference=str(workdir)), form, **overrides)


def train(config, workdir, num_devices=1, program=None, overrides=()):
    """Trains a run on few devices, or continues it. Returns (its last scores, its program)."""
    resolved = resolve(config, workdir, overrides)
    task = resolved.task()
    program = program or Program.of(resolved.config, task, jax.devices()[:num_devices])
    if resolved.origin:
        resolved.origin.match(resolved.config, program)
    spec.begin(resolved.config, task, workdir)
    scores = run(resolved.config, task, workdir, program, origin=resolved.origin)
    return scores, program
