"""Trains any task: python -m transformer_jax.train --config=configs/gpt/quickstart.py --workdir=DIR

The same command continues a run that was stopped. Fine-tuning starts from the run in
--config.init_from=DIR. With --seeds=3, it trains three runs in DIR/seed-0 and so on, and prints the
mean and the standard deviation of their final scores as one JSON object; with --together, it trains
them at once, as one program. --help_config prints every key of the config with its type, default
and meaning, and needs no --workdir.
"""

import json
import statistics
import sys
import types

from transformer_jax import cli
from transformer_jax.config import UserError

# Imports of JAX and of the training code are inside the functions, so that --help and wrong flags
# are answered at once.


def main(task: str | None = None) -> None:
    """Trains the run of --config and --workdir. Raises UserError for a task other than `task`."""
    from transformer_jax import config as configs
    from transformer_jax.runs.train import train
    from transformer_jax.storage import buckets

    config = configs.read(cli.FLAGS.config)
    if task and config.task.name != task:
        raise UserError(
            f"--config={cli.FLAGS.config}: config.task.name={config.task.name!r}, "
            f"this trainer's is {task!r}"
        )
    overrides = cli.overrides()
    check_folder(cli.FLAGS.workdir)
    if cli.FLAGS.budget:
        overrides.append(("train.num_steps", updates(config, overrides)))
    check_together()
    if cli.FLAGS.seeds:
        if cli.profile():
            raise UserError("--profile is for one run, without --seeds")
        folder = buckets.folder_of_run(cli.FLAGS.workdir)
        summary = train_seeds(config, folder, overrides)
        print(json.dumps({"workdir": str(folder), "seeds": cli.FLAGS.seeds, **summary}))
    else:
        train(config, cli.FLAGS.workdir, cli.profile(), overrides=overrides)


def check_together() -> None:
    """Raises UserError if --together is given without a number of runs."""
    if cli.FLAGS.together and not cli.FLAGS.seeds:
        raise UserError("--together: give the number of seeds too, such as --seeds=8")


def updates(config, overrides) -> int:
    """Returns the number of updates that --budget pays for."""
    from transformer_jax.pictures.progress import say
    from transformer_jax.planning.budgets import flops_of, updates_for
    from transformer_jax.runs.spec import resolve

    budget = cli.FLAGS.budget
    resolved = resolve(config, overrides=overrides).config
    number = updates_for(resolved, flops_of(budget), f"--budget={budget}")
    say(f"--budget={budget}: {number:,} updates")
    return number


def train_seeds(config, workdir, overrides) -> dict[str, dict]:
    """Trains --seeds runs in `workdir`/seed-0 and so on. Returns {score: its `spread`}."""
    from transformer_jax.pictures.progress import say
    from transformer_jax.runs.train import train, train_together

    # Both seeds, because a score varies with initialization and dropout as well as with the order
    # of the data.
    runs = [
        (workdir / f"seed-{seed}", [("train.seed", seed), ("data.seed", seed)])
        for seed in range(cli.FLAGS.seeds)
    ]
    if cli.FLAGS.together:
        scores = train_together(config, runs, overrides=overrides)
    else:
        scores = []
        for run, seeds in runs:
            say(run.name.replace("-", " "))
            scores.append(train(config, run, overrides=[*overrides, *seeds]))
    return {name: spread([one[name] for one in scores]) for name in scores[0]}


def check_folder(workdir) -> None:
    """Raises UserError if a folder holds one run and --seeds is given, or vice versa."""
    from transformer_jax.runs import spec
    from transformer_jax.storage import buckets

    folder = buckets.folder_of_run(workdir)
    if cli.FLAGS.seeds and spec.exists(folder):
        raise UserError(f"--workdir={folder}: holds a single run; --seeds needs another folder")
    if not cli.FLAGS.seeds and spec.exists(folder / "seed-0"):
        raise UserError(
            f"--workdir={folder}: holds the runs of --seeds; "
            "give --seeds to continue them, or another folder"
        )


def spread(values: list[float]) -> dict:
    """Returns the mean and the sample standard deviation of a score over seeds."""
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        "values": values,
    }


class _Program(types.ModuleType):
    """Makes this module callable.

    Importing it sets the attribute `train` of the package to the module, which would otherwise hide
    the function `transformer_jax.train`.
    """

    def __call__(self, *arguments, **options):
        from transformer_jax.runs.train import train

        return train(*arguments, **options)


sys.modules[__name__].__class__ = _Program

if __name__ == "__main__":
    cli.run(main, cli.define_training)
