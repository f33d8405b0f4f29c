"""Sweeps: one config with several values of its keys, several seeds each, and the best of them.

The best of many points is flattered by its own noise. It is therefore trained again with seeds that
the sweep has not used, and its interval is that of these runs alone.
"""

import dataclasses
import itertools
import json
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import RunError, UserError
from transformer_jax.distributed import hosts
from transformer_jax.laboratory import arms as arms_
from transformer_jax.laboratory import verdicts
from transformer_jax.laboratory.arms import SAME_UPDATES, Arm
from transformer_jax.laboratory.comparison import Comparison, Question, interval, plain
from transformer_jax.pictures import paired_runs
from transformer_jax.pictures.figure import save
from transformer_jax.pictures.progress import say
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task
from transformer_jax.storage import buckets
from transformer_jax.training.optimizer import schedule

_RECORD = "sweep.json"
_RUNGS = 3  # of successive halving: the runs stop at a quarter, at half, and at their end

Axis = tuple[str, tuple[str, ...]]  # a key, and its values as they are written on a command line


def axes_of(varied: Sequence[str]) -> list[Axis]:
    """Returns the axes of a grid, given as KEY=VALUE,VALUE. Raises UserError for another form."""
    axes = []
    for text in varied:
        key, equals, values = text.partition("=")
        parts = _parts(values)
        if not equals or not all(parts):
            raise UserError(f"--vary={text}: must be KEY=VALUE,VALUE,...")
        if values.startswith("log:") or values.startswith("uniform:"):
            raise UserError(f"--vary={text}: a range needs --random=POINTS")
        if len({*parts}) < len(parts):
            raise UserError(f"--vary={text}: a value occurs twice")
        axes.append((key.removeprefix("config."), tuple(parts)))
    keys = [key for key, _ in axes]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise UserError(f"--vary={twice[0]}: named twice")
    return axes


def _parts(values: str) -> list[str]:
    """Splits at the commas that are outside of brackets, because a value may be a tuple."""
    parts, depth = [""], 0
    for letter in values:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def grid(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """Returns all combinations of the values, {key: value}, the last key varying fastest."""
    keys = [key for key, _ in axes]
    return [dict(zip(keys, values)) for values in itertools.product(*(x for _, x in axes))]


def drawn(varied: Sequence[str], count: int, seed: int = 0) -> list[dict[str, str]]:
    """Returns `count` points at random: KEY=log:LOW:HIGH, KEY=uniform:LOW:HIGH, or KEY=VALUE,VALUE.

    Point n depends on the seed and n alone, so a larger sweep has the points of a smaller one.
    """
    ranges = []
    for text in varied:
        key, _, values = text.partition("=")
        found = re.fullmatch(r"(log|uniform):([^:]+):([^:]+)", values)
        if not found:
            ((key, choices),) = axes_of([text])
            ranges.append((key, choices, None))
            continue
        try:
            low, high = float(found[2]), float(found[3])
        except ValueError:
            low = high = math.nan
        if not (low < high and (found[1] == "uniform" or low > 0)):
            raise UserError(f"--vary={text}: must be KEY={found[1]}:LOW:HIGH, with LOW below HIGH")
        ranges.append((key.removeprefix("config."), (low, high), found[1]))
    points = []
    for number in range(count):
        random = np.random.default_rng((seed, number))
        point = {}
        for key, values, kind in ranges:
            if kind is None:
                point[key] = values[int(random.integers(len(values)))]
            elif kind == "log":
                drawn_value = math.exp(random.uniform(math.log(values[0]), math.log(values[1])))
                point[key] = f"{drawn_value:.4g}"
            else:
                point[key] = f"{random.uniform(*values):.4g}"
        points.append(point)
    return points


def name_of(point: Mapping[str, str]) -> str:
    """Returns the name of a point: the last parts of its keys, with their values."""
    text = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.items())
    return re.sub(r"[^\w.,=+-]", "-", text)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A config that is trained at several points, in `folder`/POINT/seed-i.

    Attributes:
      points: {key: value} of each.
      seeds: runs of each point, and as many fresh ones of the best.
      halving: whether the worse half of the points is dropped after a quarter of the updates, and
        again after half of them.
    """

    config: Any
    points: tuple[dict[str, str], ...]
    folder: pathlib.Path | buckets.Path
    score: str = "valid/loss"
    seeds: int = 3
    budget: str = SAME_UPDATES
    halving: bool = False
    changes: tuple[tuple[str, Any], ...] = ()
    better: str | None = None  # as in `Question`
    together: bool = False  # as in `Comparison`

    def arms(self) -> list[Arm]:
        """Returns the points as arms, with their numbers of updates."""
        named = {name_of(point): point for point in self.points}
        if len(named) < len(self.points):
            raise UserError(
                "two points of the sweep have one name; draw fewer points, or vary values that "
                "differ in their letters and digits"
            )
        arms = [
            Arm(name, self.config, (*self.changes, *point.items())) for name, point in named.items()
        ]
        # One at a time, because points may differ in their numbers of updates.
        return [arms_.with_budget([arm], self.budget)[0] for arm in arms]

    def check(self, any_schedule: bool = False) -> None:
        """Raises UserError if halving would train another schedule than a whole run has."""
        if self.seeds < 1:
            raise UserError(f"--seeds={self.seeds}: must be at least 1")
        if not self.halving or any_schedule:
            return
        for arm in self.arms():
            if what := _depends_on_length(arm):
                raise UserError(
                    f"--halving: {arm.name}: {what} depends on the length of the run, which "
                    "halving changes; take a schedule such as constant or inverse_sqrt, and "
                    "numbers of updates instead of fractions, or --any_schedule, with which a run "
                    "that goes on has another schedule from there"
                )

    def run(self) -> dict[str, Any]:
        """Trains all points and the fresh seeds of the best one, and returns the result.

        The same call goes on after any stop.
        """
        arms = self.arms()
        left, rungs = arms, []
        fractions = [2.0 ** (i - _RUNGS + 1) for i in range(_RUNGS)] if self.halving else [1.0]
        for fraction in fractions:
            shortened = [
                dataclasses.replace(arm, updates=max(1, round(arm.updates * fraction)))
                for arm in left
            ]
            values = self._trained(shortened, range(self.seeds))
            rungs.append({"share": fraction, "points": values})
            ranked = sorted(left, key=lambda arm: self._rank(values[arm.name]))
            if fraction < 1:
                left = ranked[: max(1, math.ceil(len(ranked) / 2))]
                say(f"after {fraction:.0%} of the updates, {len(left)} points are left")
        best = ranked[0]
        fresh = self._trained([best], range(self.seeds, 2 * self.seeds))[best.name]
        points = {name_of(point): point for point in self.points}
        result = {
            "workdir": str(self.folder),
            "score": self.score,
            "lower_is_better": self._question.lower_is_better(self.score),
            "points": [
                {"name": name, "keys": points[name], **_summary(x)}
                for name, x in rungs[-1]["points"].items()
            ],
            "best": best.name,
            "at_edge": _at_edge(self.points, points[best.name]),
            "best_on_fresh_seeds": _summary(fresh),
            "rungs": rungs if self.halving else [],
        }
        paths = [self.folder / f"sweep.{ending}" for ending in ("png", "svg")]
        if not hosts.index():
            figure = paired_runs.sweep(result, [*self.points[0]])
            for path in paths:
                save(figure, path)
        result["pictures"] = [str(path) for path in paths]
        if not hosts.index():
            buckets.write_whole(self.folder / _RECORD, json.dumps(result, indent=2) + "\n")
        return result

    def _trained(self, arms: Sequence[Arm], seeds: Sequence[int]) -> dict[str, list[float | None]]:
        """Returns the scores of the runs of arms with these seeds, which are trained if need be.

        The score of a run that diverged is None.
        """
        runs = Comparison(tuple(arms), self.folder, self._question)
        if self.together:
            try:
                runs.train_together(seeds)
            except RunError as error:
                say(f"{error}; these runs count as the worst")
        return {arm.name: [self._score(runs, seed, arm) for seed in seeds] for arm in arms}

    def _score(self, runs: Comparison, seed: int, arm: Arm) -> float | None:
        workdir = arms_.folder_of(self.folder, arm, seed)
        scores = arms_.final_scores(workdir, arm.updates)
        logged = spec.metrics(workdir) if (workdir / "metrics.jsonl").is_file() else []
        newest = max((line["step"] for line in logged), default=0)
        if not scores and newest > arm.updates:
            raise UserError(
                f"{workdir}: was trained to update {newest:,}, without an evaluation at "
                f"{arm.updates:,}; take another folder"
            )
        if self.together and newest < arm.updates:
            return None  # it diverged, as `train_together` has said
        try:
            if not self.together:
                runs.train(seed, arm)
        except RunError as error:
            # The rate at the upper end of a sweep is often too high. The other points go on.
            say(f"{error}; this point counts as the worst")
            return None
        scores = arms_.final_scores(workdir, arm.updates)
        if self.score not in scores:
            raise UserError(
                f"{arm.name}, seed {seed}: no {self.score} after update {arm.updates:,}; set "
                "config.train.eval_every so that an evaluation falls there"
            )
        return scores[self.score]

    @property
    def _question(self) -> Question:
        return Question((self.score,), better=self.better)

    def _rank(self, values: Sequence[float | None]) -> float:
        if None in values:
            return math.inf
        center = sum(values) / len(values)
        return center if self._question.lower_is_better(self.score) else -center


def _at_edge(points: Sequence[Mapping[str, str]], best: Mapping[str, str]) -> list[str]:
    """Returns the keys of which the best point has the lowest or the highest of several numbers."""
    keys = []
    for key, value in best.items():
        try:
            numbers = {float(point[key]) for point in points}
        except ValueError:
            continue
        if len(numbers) > 1 and float(value) in (min(numbers), max(numbers)):
            keys.append(key)
    return keys


def _summary(values: Sequence[float | None]) -> dict[str, Any]:
    """Returns the fields of `verdicts.Mean`; None for what is not finite, or if a run diverged."""
    if None in values:
        names = (field.name for field in dataclasses.fields(verdicts.Mean))
        return dict.fromkeys(names) | {"values": list(values)}
    return plain(verdicts.mean(values)) | {"values": list(values)}


def _depends_on_length(arm: Arm) -> str:
    """Returns what of a run would differ in its first updates if it were shorter; "" if nothing."""
    whole = arm.resolved().config
    shorter = dataclasses.replace(arm, updates=max(1, arm.updates // 4)).resolved().config
    updates = np.unique(np.linspace(0, shorter.train.num_steps - 1, 50).astype(int))
    rates = [
        [float(schedule(config.optimizer, config.train.num_steps)(step)) for step in updates]
        for config in (whole, shorter)
    ]
    if rates[0] != rates[1]:
        return f"the learning rate of config.optimizer.schedule={whole.optimizer.schedule}"
    phases = make_task(ConfigDict(whole)).phase_steps
    return "config.task.phases" if phases is not None and len(phases) > 1 else ""


def varied_by(path: str) -> list[str]:
    """Returns what the function `sweep` of a config file varies, as --vary has it.

    It returns {key: list of values, or "log:LOW:HIGH"}. A file without it varies nothing.
    """
    module = configs.load_module(configs.config_file(path.partition(":")[0]))
    varied = module.sweep() if hasattr(module, "sweep") else {}
    return [
        f"{key}={values if isinstance(values, str) else ','.join(map(str, values))}"
        for key, values in varied.items()
    ]


def lines(result: Mapping[str, Any]) -> list[str]:
    """Returns a result as lines of text, the best point first."""
    sign = 1 if result["lower_is_better"] else -1
    ranked = sorted(
        result["points"],
        key=lambda each: math.inf if each["mean"] is None else sign * each["mean"],
    )
    width = max(len(each["name"]) for each in ranked)
    text = [f"{result['score']}, the best of {len(ranked)} points first"]
    for each in ranked:
        if each["mean"] is None:
            text.append(f"  {each['name']:{width}}  diverged")
            continue
        text.append(f"  {each['name']:{width}}  {each['mean']:10.5g}  {interval(each)}")
    fresh = result["best_on_fresh_seeds"]
    if fresh["mean"] is None:
        return [*text, f"{result['best']} diverged with a fresh seed"]
    text.append(f"{result['best']} with fresh seeds: {fresh['mean']:.5g}  {interval(fresh)}")
    if result["at_edge"]:
        keys = " and ".join(result["at_edge"])
        text.append(f"the best value of {keys} is the last one tried: wider values may be better")
    return text
