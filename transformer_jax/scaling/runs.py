"""Training and measurements of a family's runs, each in its folder."""

import pathlib
import types
from collections.abc import Mapping

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.configuration import classes
from transformer_jax.pictures.progress import say
from transformer_jax.planning import estimate
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task
from transformer_jax.runs.train import train as train_run
from transformer_jax.scaling.family import HELD_OUT
from transformer_jax.scaling.laws import Run
from transformer_jax.storage import buckets

NO_FILES: spec.Files = types.MappingProxyType({})


def train(configs: Mapping[str, ConfigDict], folder) -> None:
    """Trains each config in `folder`/name, one after the other.

    A finished run is left as it is. An unfinished run continues. Raises as `runs.train.train` does.
    """
    folder = buckets.folder_of_run(folder)
    for name, config in configs.items():
        if config.train.patience:
            raise UserError(
                f"config.train.patience={config.train.patience} ({name}): the runs of a "
                "scaling law must not end early; leave it at 0"
            )
    costs = {name: estimate.training(make_task(config))[0] for name, config in configs.items()}
    done = 0.0
    for number, (name, config) in enumerate(configs.items(), 1):
        if measured(folder / name, classes.in_config(config)):
            say(f"{name}: done")
        else:
            say(
                f"run {number} of {len(configs)}: {name}, {costs[name]:.2g} FLOPs; "
                f"before it {done / sum(costs.values()):.0%} of all"
            )
            train_run(config, folder / name)
        done += costs[name]


def collect(folder, files: spec.Files = NO_FILES) -> list[Run]:
    """Returns the measurements of the finished runs in `folder`, without the held-out one.

    Unfinished runs are named on stderr. `files` are those of `spec.read`. Raises UserError if no
    run is finished.
    """
    folder = buckets.folder_of_run(folder)
    if not folder.is_dir():
        raise UserError(f"--workdir={folder}: no such folder; `run` trains a family in it")
    names = sorted(
        path.name
        for path in folder.iterdir()
        if path.name != HELD_OUT and (path / "config.json").is_file()
    )
    runs = {name: measured(folder / name, files) for name in names}
    if missing := [name for name, run in runs.items() if run is None]:
        say(f"not finished, left out: {', '.join(missing)}")
    if len(missing) == len(runs):
        raise UserError(f"--workdir={folder}: no finished run in it; `run` trains them")
    return [run for run in runs.values() if run]


def measured(folder: pathlib.Path | buckets.Path, files: spec.Files = NO_FILES) -> Run | None:
    """Returns the measurements in metrics.jsonl of the run in `folder`, or None if unfinished."""
    if not (folder / "config.json").is_file() or not (folder / "metrics.jsonl").is_file():
        return None
    config = spec.read(folder, files).config
    lines = spec.metrics(folder)
    final_losses = [
        line["valid/loss"]
        for line in lines
        if line["step"] == config.train.num_steps and line.get("valid/loss") is not None
    ]
    logged = [line for line in lines if "train/loss" in line]
    if not final_losses or not logged:
        return None
    return Run(
        folder.name,
        estimate.parameters(make_task(config, folder))["params"],
        logged[-1]["train/tokens_total"],
        logged[-1]["train/flops_total"],
        final_losses[-1],
        _curve(logged, config.train.log_every),
    )


def _curve(logged: list[dict], log_every: int) -> np.ndarray:
    """Returns the curve (points, 2) of a run.

    It has the FLOPs in the middle of each complete interval of the log and its mean training loss.
    """
    previous_lines = [{"step": 0, "train/flops_total": 0.0}, *logged]
    points = [
        ((previous["train/flops_total"] + line["train/flops_total"]) / 2, line["train/loss"])
        for previous, line in zip(previous_lines, logged)
        if line["step"] - previous["step"] >= log_every and line["train/loss"] is not None
    ]
    return np.array(points).reshape(-1, 2)
