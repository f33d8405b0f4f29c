"""Training and measuring the runs of a family, each in its own folder."""

import pathlib
import types
from collections.abc import Mapping

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError, named_files
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

    Finished runs are left as they are, and unfinished runs are continued. Raises UserError as
    `runs.train.train` does, and for configs with early stopping.
    """
    folder = buckets.folder_of_run(folder)
    for name, config in configs.items():
        if config.train.patience:
            raise UserError(
                f"config.train.patience={config.train.patience} ({name}): the runs of a "
                "scaling experiment must not end early; leave it at 0"
            )
    # The FLOPs of all runs are known in advance, so they can measure the progress of the family.
    costs = {name: estimate.training(make_task(config))[0] for name, config in configs.items()}
    done = 0.0
    for number, (name, config) in enumerate(configs.items(), 1):
        if measured(folder / name, named_files(config)):
            say(f"{name}: done")
        else:
            say(
                f"run {number} of {len(configs)}: {name}, {costs[name]:.2g} FLOPs; "
                f"before it {done / sum(costs.values()):.0%} of all"
            )
            train_run(config, folder / name)
        done += costs[name]


def collect(folder, files: spec.Files = NO_FILES) -> list[Run]:
    """Returns the measurements of the finished runs in `folder`, except for the held-out run.

    Unfinished runs are listed on stderr. `files` is passed on to `spec.read`. Raises UserError if
    no run is finished.
    """
    folder = buckets.folder_of_run(folder)
    if not folder.is_dir():
        raise UserError(f"--workdir={folder}: no such folder; `run` trains a family in it")
    names = sorted(
        path.name
        for path in folder.iterdir()
        # A law that is fitted to the held-out run as well could not predict it.
        if path.name != HELD_OUT and (path / "config.json").is_file()
    )
    runs = {name: measured(folder / name, files) for name in names}
    if missing := [name for name, run in runs.items() if run is None]:
        say(f"not finished, left out: {', '.join(missing)}")
    if len(missing) == len(runs):
        raise UserError(f"--workdir={folder}: no finished run in it; `run` trains them")
    return [run for run in runs.values() if run]


def measured(folder: pathlib.Path | buckets.Path, files: spec.Files = NO_FILES) -> Run | None:
    """Returns the measurements of the run in `folder`, or None if it is unfinished."""
    if not (folder / "config.json").is_file() or not (folder / "metrics.jsonl").is_file():
        return None
    config = spec.read(folder, files).config
    lines = spec.metrics(folder)
    # Only the evaluation at the end counts, where the schedule of the learning rate has ended.
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
        make_task(config, folder).parameter_counts()["params"],
        logged[-1]["train/tokens_total"],
        logged[-1]["train/flops_total"],
        final_losses[-1],
        _curve(logged, config.train.log_every),
    )


def _curve(logged: list[dict], log_every: int) -> np.ndarray:
    """Returns the training curve of a run, (points, 2); see `Run`.

    Incomplete intervals of the log, as after an interruption, are left out.
    """
    previous_lines = [{"step": 0, "train/flops_total": 0.0}, *logged]
    points = [
        # A mean over an interval belongs to its middle: at its end, the loss is lower already.
        ((previous["train/flops_total"] + line["train/flops_total"]) / 2, line["train/loss"])
        for previous, line in zip(previous_lines, logged)
        # A loss that is not finite is null in metrics.jsonl.
        if line["step"] - previous["step"] >= log_every and line["train/loss"] is not None
    ]
    return np.array(points).reshape(-1, 2)
