"""The arms of a comparison: configs that are trained with the same seeds, and what they share."""

import dataclasses
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.planning import estimate
from transformer_jax.planning.budgets import flops_of, updates_for
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.runs.train import make_step
from transformer_jax.storage import buckets

SAME_UPDATES = "same-updates"
_SEEDS = ("train.seed", "data.seed", "train.dropout_seed")


def _whole(key: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise UserError(f"config.{key}={value!r} is not a whole number") from None


@dataclasses.dataclass(frozen=True)
class Arm:
    """A config that is compared with others.

    Attributes:
      name: names it in tables and pictures, and its folder.
      config: the path of a config file, FILE.py or FILE.py:ARGUMENT, or a config.
      changes: overrides, as in `config.load`.
      updates: the updates of each of its runs; None: as its config says.
    """

    name: str
    config: str | ConfigDict
    changes: tuple[tuple[str, Any], ...] = ()
    updates: int | None = None

    def __post_init__(self):
        # The name is a folder, which must not lead out of the comparison's own.
        if not re.fullmatch(r"[\w+-][\w.,=+-]*", self.name):
            raise UserError(f"arm {self.name!r}: a name has letters, digits and . , = + - alone")

    def overrides(self, seed: int) -> list[tuple[str, Any]]:
        """Returns the overrides of the run of a pair, whose number is the seed of all randomness.

        Seeds among the arm's own changes are added to it, so that an arm with data.seed=1000
        differs from one without in the data of every pair, and in nothing else.
        """
        own = {key: value for key, value in self.changes if key in _SEEDS}
        changes = [(key, value) for key, value in self.changes if key not in _SEEDS]
        length = [] if self.updates is None else [("train.num_steps", self.updates)]
        seeds = [(key, seed + _whole(key, own.get(key, 0))) for key in _SEEDS[:2]]
        # Without a seed of its own, dropout has that of the parameters.
        seeds += [(key, seed + _whole(key, own[key])) for key in _SEEDS[2:] if key in own]
        return [*changes, *length, *seeds]

    def resolved(self, seed: int = 0, workdir=None) -> spec.RunSpec:
        """Returns the run with a seed. Raises UserError for an error in the config."""
        return resolve(self.config, workdir, self.overrides(seed))


def parse(
    files: Sequence[str], changes: Sequence[str], overrides: Sequence[tuple[str, Any]] = ()
) -> list[Arm]:
    """Returns the arms that a command line names, the first of which the others are compared with.

    Args:
      files: config files, each of which is an arm with the name of the file.
      changes: NAME:KEY=VALUE,KEY=VALUE, further arms, each the only file with these changes.
      overrides: changes of all arms.

    Raises UserError if there are not at least two arms, or two with the same name.
    """
    stems = [_name(file) for file in files]
    # Where two files have one name, as gpt/quickstart and bert/quickstart, the folder tells them
    # apart.
    named = [
        f"{pathlib.PurePath(file).parent.name}-{stem}".strip("-") if stems.count(stem) > 1 else stem
        for file, stem in zip(files, stems)
    ]
    arms = [Arm(name, file, tuple(overrides)) for name, file in zip(named, files)]
    if changes and len(arms) != 1:
        raise UserError(
            f"--arm={changes[0]}: changes one config, but there are {len(arms)} config files"
        )
    for text in changes:
        name, colon, keys = text.partition(":")
        if not colon:
            raise UserError(f"--arm={text}: must be NAME:KEY=VALUE,KEY=VALUE")
        arms.append(Arm(name, files[0], (*overrides, *_pairs(text, keys))))
    if len(arms) < 2:
        raise UserError("give at least two configs, or one and --arm=NAME:KEY=VALUE")
    names = [arm.name for arm in arms]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two arms are called {twice[0]}; give them different names")
    return arms


def _name(file: str) -> str:
    path, _, argument = file.partition(":")
    return "-".join(filter(None, (pathlib.PurePath(path).stem, argument)))


def _pairs(text: str, keys: str) -> list[tuple[str, str]]:
    # A comma separates two keys only where a key follows, because a value may be a tuple.
    pairs = [part.partition("=") for part in re.split(r",(?=[\w.]+=)", keys) if part]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise UserError(f"--arm={text}: {wrong[0]!r} is not KEY=VALUE")
    return [(key.removeprefix("config."), value) for key, _, value in pairs]


# ------------------------------------------------------------------------------------------ compute


def with_budget(arms: Sequence[Arm], budget: str) -> list[Arm]:
    """Returns the arms with their numbers of updates.

    With the budget "same-updates", each arm makes as many as its config says. Raises UserError if
    these numbers differ, or for a budget below one update.
    """
    runs = [arm.resolved().config for arm in arms]
    for arm, config in zip(arms, runs):
        if config.train.patience:
            raise UserError(
                f"{arm.name}: config.train.patience={config.train.patience}: the runs of a "
                "comparison must not end early; leave it at 0"
            )
    if budget == SAME_UPDATES:
        updates = [config.train.num_steps for config in runs]
        if len({*updates}) > 1:
            named = ", ".join(f"{arm.name} {count:,}" for arm, count in zip(arms, updates))
            raise UserError(
                f"the arms have different numbers of updates: {named}; give --budget=FLOPs, or "
                "the same config.train.num_steps"
            )
    else:
        flops = flops_of(budget)
        updates = [
            updates_for(config, flops, f"--budget={budget} ({arm.name})")
            for arm, config in zip(arms, runs)
        ]
    return [dataclasses.replace(arm, updates=count) for arm, count in zip(arms, updates)]


def cost(arm: Arm) -> float:
    """Returns the FLOPs of one run of an arm."""
    return estimate.training(make_task(ConfigDict(arm.resolved().config)))[0]


# ---------------------------------------------------------------------------- what two arms share


@dataclasses.dataclass(frozen=True)
class Start:
    """The first random numbers of a run: what two arms may have in common.

    Attributes:
      batch: the arrays of the first update.
      params: the initial parameters by their paths, on the host; None if they are too many.
      shapes: their shapes.
      settings: the keys of the config, by which a difference is explained.
    """

    batch: dict[str, np.ndarray]
    params: dict[str, np.ndarray] | None
    shapes: dict[str, tuple[int, ...]]
    settings: dict[str, Any]


_MOST_PARAMETERS = 300_000_000  # that are compared by their values; beyond, memory would not do


def start_of(arm: Arm) -> Start:
    """Returns the start of the run with seed 0. This prepares the arm's data."""
    config = arm.resolved().config
    # The axis over seeds is for runs that train as one program.
    overrides = [*arm.overrides(0), ("mesh.seeds", 1)]
    state, _, batch_of = make_step(arm.config, overrides=overrides)
    flat, _ = jax.tree.flatten_with_path(state.params)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in flat}
    shapes = {name: x.shape for name, x in named.items()}
    is_small = sum(map(math.prod, shapes.values())) <= _MOST_PARAMETERS
    values = {name: np.asarray(x) for name, x in named.items()} if is_small else None
    batch = {name: np.asarray(x) for name, x in batch_of(0).items()}
    return Start(batch, values, shapes, dict(configs.flat(config)))


def shared(first: Start, second: Start) -> dict[str, Any]:
    """Returns what the runs of two arms with the same seed have in common, and why not more.

    `rows` and `other_rows` are names of arrays of a batch, `dropout` whether its keys are equal,
    `parameters` and `all_parameters` count the initial values of the second arm, and `because` are
    the keys that differ.
    """
    names = [*first.batch, *(name for name in second.batch if name not in first.batch)]
    rows = [
        name
        for name in names
        if name in first.batch
        and name in second.batch
        and np.array_equal(first.batch[name], second.batch[name])
    ]
    equal = [
        name
        for name, shape in second.shapes.items()
        if first.shapes.get(name) == shape
        and (
            first.params is None
            or second.params is None
            or np.array_equal(first.params[name], second.params[name])
        )
    ]
    absent = object()
    keys = [
        key
        for key in {**first.settings, **second.settings}
        if first.settings.get(key, absent) != second.settings.get(key, absent)
    ]
    size = {name: math.prod(shape) for name, shape in second.shapes.items()}
    return {
        "rows": rows,
        "other_rows": [name for name in names if name not in rows],
        "dropout": _seed_of_dropout(first) == _seed_of_dropout(second),
        "parameters": sum(size[name] for name in equal),
        "all_parameters": sum(size.values()),
        "values_compared": first.params is not None and second.params is not None,
        "because": keys,
    }


def _seed_of_dropout(start: Start) -> int:
    own = start.settings["train.dropout_seed"]
    return start.settings["train.seed"] if own is None else own


def described(names: tuple[str, str], common: Mapping[str, Any]) -> str:
    """Returns a line about what two arms share."""
    share = common["parameters"] / max(common["all_parameters"], 1)
    rows = f"the rows ({', '.join(common['rows'])})" if common["rows"] else "no rows"
    if common["rows"] and common["other_rows"]:
        rows = f"of the rows {', '.join(common['rows'])}, not {', '.join(common['other_rows'])}"
    by_shape = "" if common["values_compared"] else ", by path and shape alone"
    dropout = "the keys of dropout" if common["dropout"] else "no keys of dropout"
    values = (
        f"the initial values of {share:.1%} of {names[1]}'s parameters"
        if share
        else "no initial values"
    )
    text = f"{names[0]} and {names[1]} share {rows}, {dropout}, and {values}{by_shape}"
    if common["because"]:
        keys = ", ".join(common["because"][:6]) + (", ..." if len(common["because"]) > 6 else "")
        return f"{text}; they differ in {keys}"
    return f"{text}; their configs are equal"


# ------------------------------------------------------------------------------------ finished runs


def folder_of(folder: pathlib.Path | buckets.Path, arm: Arm, seed: int):
    """Returns the workdir of a run, DIR/ARM/seed-i."""
    return folder / arm.name / f"seed-{seed}"


def final_scores(folder: pathlib.Path | buckets.Path, updates: int) -> dict[str, float | None]:
    """Returns the scores of the evaluation after the last update of a run; empty if unfinished.

    A score that is not finite is None.
    """
    if not (folder / "metrics.jsonl").is_file():
        return {}
    scores = {}
    for line in spec.metrics(folder):
        # A progress line is written before the evaluation, so that it alone is no sign of the end.
        is_progress = any(name.startswith(("train/", "hook/")) for name in line)
        if line["step"] == updates and not is_progress:
            scores |= {name: value for name, value in line.items() if name != "step"}
    return scores
