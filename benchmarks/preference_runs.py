"""The runs of benchmarks/preferences.py: their configs, the files they make, and their rows."""

import datetime
import json
import pathlib
import time
from collections.abc import Sequence
from functools import cached_property

import comparison
import harness
import numpy as np
import policies
import short_reviews

CLASSIFIER = (
    "configs/finetune/sentiment.py:imdb-cpu",
    1000,
    {"task.text": "2", "task.label": "1", "task.length": 64, "task.group_by_length": 8},
)
DPO = {"task.length": 96, "task.group_by_length": 8}
# run: (config, updates, other keys); 0 updates: those of the config
RUNS = {
    "lm": ("configs/gpt/imdb.py:tiny", 1000, {}),
    "labeller": CLASSIFIER,
    "judge": CLASSIFIER,
    "sft": (
        "configs/chat/gpt2.py",
        400,
        {
            "task.length": 128,
            "train.batch": 16,
            "optimizer.learning_rate": "1e-3",
            "model.dropout": 0,
            "model.attention_dropout": 0,
        },
    ),
    "reward": ("configs/preferences/reward.py:imdb", 500, {"task.length": 96}),
    "dpo": ("configs/preferences/dpo.py:imdb", 250, DPO),
    "ipo": (
        "configs/preferences/dpo.py:imdb",
        250,
        DPO | {"task.objective": "ipo"},
    ),
    "ppo": ("configs/preferences/ppo.py:imdb", 0, {"task.max_tokens": policies.MAX_TOKENS}),
    "grpo": ("configs/preferences/grpo.py:imdb", 0, {"task.max_tokens": policies.MAX_TOKENS}),
}
# The files of a run's data, and the run that it begins with.
FILES = {
    "lm": ("train.txt", "valid.txt"),
    "labeller": ("labeller.tsv", "labeller_valid.tsv"),
    "judge": ("judge.tsv", "judge_valid.tsv"),
    "sft": ("chats.jsonl", "valid.jsonl"),
    **dict.fromkeys(("reward", "dpo", "ipo"), ("pairs.jsonl", "pairs_valid.jsonl")),
    **dict.fromkeys(("ppo", "grpo"), ("prompts.jsonl", "valid.jsonl")),
}
BEGINS_WITH = dict.fromkeys(("labeller", "judge", "sft"), "lm") | {"lm": ""}
SEEDS = {"dpo": 3, "ipo": 3, "ppo": 1, "grpo": 1, "best": 3}
BEST_OF = {"best-4": 4, "best-16": 16, "best-64": 64}
BEST_OF_PROMPTS = 200
COMPLETIONS = 4  # to a prompt, for pairs
HELD_OUT_PAIRS = 500
LABELS = {
    "people": "people",
    "sft": "SFT",
    **{name: f"best of {n}" for name, n in BEST_OF.items()},
    **{name: name.upper() for name in ("dpo", "ipo", "ppo", "grpo")},
}
PARTS = ["lm", "labeller", "judge", "pairs", "reward", *LABELS]


class Story:
    """The runs and the rows of the parts. A part makes those before it that it needs."""

    def __init__(self, arguments):
        self.workdir, self.tiny = arguments.workdir, arguments.tiny
        self.data = self.workdir / "data"
        if not (self.data / "valid.jsonl").exists():
            comparison.write_reviews(arguments.text, self.data, self.tiny)
            short_reviews.write_halves(arguments.data, self.data, self.tiny)
            short_reviews.write_conversations(self.data)

    # runs

    def run(self, name: str, seed: int = 0) -> pathlib.Path:
        """Returns the workdir of a run, trained here unless it is complete."""
        config, steps, keys = RUNS[name]
        folder = self.workdir / (f"{name}-{seed}" if name in SEEDS else name)
        record = read_record(folder)
        if record["complete"]:
            return folder
        keys = self._keys(name, seed) | keys
        if self.tiny:
            steps = 2
            keys |= {"model.d_model": 16, "model.vocab_size": 400} if name == "lm" else {}
        if steps:
            keys |= {"train.num_steps": steps, "train.eval_every": steps, "checkpoint.every": steps}
        started = time.monotonic()
        try:
            comparison.train(config, folder, keys)
            record["complete"] = True
        finally:
            record["minutes"] += (time.monotonic() - started) / 60
            short_reviews.write(folder.with_suffix(".json"), [json.dumps(record)])
        return folder

    def _keys(self, name: str, seed: int) -> dict:
        train, valid = FILES[name]
        keys = {"data.train_files": self.data / train, "data.valid_files": self.data / valid}
        keys |= {"data.cache": self.workdir / "cache", "train.seed": seed}
        if name in ("reward", "dpo", "ipo"):
            self.pairs()
        if begin := BEGINS_WITH.get(name, "sft"):
            keys["init_from"] = self.run(begin)
        if name in SEEDS:
            keys["task.reference"] = self.run("sft")
        if name in ("ppo", "grpo"):
            keys["task.reward"] = self.run("reward")
        return keys

    def pairs(self) -> pathlib.Path:
        """Returns the record of the labelled pairs, drawn here unless they exist."""
        path = self.data / "pairs_valid.jsonl"
        if path.exists():
            return path
        started = time.monotonic()
        sft = policies.Run.of(self.run("sft"))
        prompts = [each["prompt"] for each in short_reviews.read(self.data / "asked.jsonl")]
        completions = sft.completions([prompt for prompt in prompts for _ in range(COMPLETIONS)])
        labeller = policies.Run.of(self.run("labeller"))
        pairs = labelled(completions, policies.log_odds(labeller, completions))
        held_out = min(HELD_OUT_PAIRS, len(pairs) // 4)
        short_reviews.write(self.data / "pairs.jsonl", map(line, pairs[held_out:]))
        record = {"complete": True, "minutes": (time.monotonic() - started) / 60}
        short_reviews.write(self.workdir / "pairs.json", [json.dumps(record)])
        short_reviews.write(path, map(line, pairs[:held_out]))
        return path

    # rows

    @cached_property
    def measures(self) -> policies.Measures:
        names = ("sft", "reward", "labeller", "judge")
        runs = {name: policies.Run.of(self.run(name)) for name in names}
        people = policies.of_people(short_reviews.read(self.data / "valid.jsonl"))
        return policies.Measures(**runs, people=people)

    def row(self, part: str) -> dict:
        """Returns the row of a part."""
        row = {"part": part, "date": datetime.date.today().isoformat()}
        row |= {"machine": harness.machine(), "revision": comparison.revision()}
        if part == "pairs":
            lines = short_reviews.read(self.pairs().with_name("pairs.jsonl"))
            sure = np.mean([abs(each["label"] - 0.5) for each in lines]) + 0.5
            row |= {"pairs": len(lines), "label": float(sure)}
            return row | {"minutes": read_record(self.workdir / part)["minutes"]}
        if part not in LABELS:
            folder = self.run(part)
            row |= {"minutes": read_record(folder)["minutes"], "scores": last_scores(folder)}
            return row
        return row | self._of_completions(part)

    def _of_completions(self, part: str) -> dict:
        """Returns the measures of a part's completions over its seeds, and some of the first."""
        measures = self.measures
        seeds = range(1 if self.tiny else SEEDS.get(part.partition("-")[0], 1))
        if part == "people":
            measured = [(measures.of_completions(measures.people), measures.people)]
        elif part in BEST_OF:
            num_prompts = 4 if self.tiny else BEST_OF_PROMPTS
            measured = [measures.best_of(BEST_OF[part], seed, num_prompts) for seed in seeds]
        else:
            runs = [policies.Run.of(self.run(part, seed), "latest") for seed in seeds]
            measured = [measures.of_policy(run, seed) for run, seed in zip(runs, seeds)]
        row = policies.summary([scores for scores, _ in measured])
        row["samples"] = [[each.prompt, each.text] for each in measured[0][1][:4]]
        if part in RUNS:
            folders = [self.run(part, seed) for seed in seeds]
            row["minutes"] = float(np.mean([read_record(each)["minutes"] for each in folders]))
            row["updates"] = updates(folders[0])
        return row


def labelled(completions: Sequence[policies.Completion], log_odds: Sequence[float]) -> list[dict]:
    """Returns the pairs of neighbouring completions that differ, with the preferred one first.

    The label is the probability of the preference if the log-odds are the rewards of Bradley and
    Terry.
    """
    pairs = []
    for first in range(0, len(completions), 2):
        order = sorted((first, first + 1), key=lambda index: -log_odds[index])
        chosen, rejected = (completions[index] for index in order)
        if chosen.text != rejected.text:
            difference = log_odds[order[0]] - log_odds[order[1]]
            texts = {"chosen": chosen.text, "rejected": rejected.text}
            label = 1 / (1 + np.exp(-difference))
            pairs.append({"prompt": chosen.prompt, **texts, "label": round(float(label), 4)})
    return pairs


def line(value: dict) -> str:
    return json.dumps(value) + "\n"


def read_record(folder: pathlib.Path) -> dict:
    """Returns whether a run is complete, and the minutes that its training has taken."""
    path = folder.with_suffix(".json")
    return json.loads(path.read_text()) if path.exists() else {"complete": False, "minutes": 0.0}


def updates(folder: pathlib.Path) -> int:
    """Returns the number of updates of a run."""
    from transformer_jax.runs import spec

    return spec.read(folder).config.train.num_steps


def last_scores(folder: pathlib.Path) -> dict:
    """Returns the scores of the last evaluation of a run."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    evaluated = [each for each in lines if any(name.startswith("valid/") for name in each)]
    return {name: value for name, value in evaluated[-1].items() if name.startswith("valid/")}
