"""Fine-tunes a pre-trained run: python -m transformer_jax.finetune
--config=configs/finetune/glue.py:sst2 --config.init_from=DIR --workdir=DIR2

The model is that of the run (or converted checkpoint) in init_from; --config.model.dropout=0.2 and
the like change it. With --seeds=3 there are three runs, in DIR2/seed-0 and so on, and the mean and
deviation of their last scores are printed as one JSON object.
"""

import json
import statistics

from transformer_jax.cli import process as cli
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_training()
    cli.define_seeds()


def main() -> None:
    from transformer_jax import config as configs
    from transformer_jax.pictures.progress import say
    from transformer_jax.runs import workdir
    from transformer_jax.storage import buckets

    options, folder = cli.FLAGS, buckets.folder_of_run(cli.FLAGS.workdir)
    config, of_model = cli.load_config(without="model.")
    if not workdir.fine_tunes(config):
        raise UserError(
            f"--config={options.config}: config.task.name={config.task.name!r} is no task of fine-tuning"
        )
    if options.seeds and cli.profile():
        raise UserError("--profile is for one run, without --seeds")
    _check_kind(folder, options.seeds)
    if not options.seeds:
        workdir.train(config, folder, of_model, cli.profile())
        return
    found = []
    for seed in range(options.seeds):
        say(f"seed {seed}")
        for key in ("train.seed", "data.seed"):
            configs.set_key(config, key, seed)
        found.append(workdir.train(config, folder / f"seed-{seed}", of_model))
    print(
        json.dumps(
            {
                "workdir": str(folder),
                "seeds": options.seeds,
                **{name: spread([scores[name] for scores in found]) for name in found[0]},
            }
        )
    )


def _check_kind(folder, seeds: int) -> None:
    """Raises UserError where `folder` holds one run and several are asked for, or the reverse."""
    if seeds and (folder / "config.json").exists():
        raise UserError(f"--workdir={folder}: holds a single run; --seeds needs another folder")
    if not seeds and (folder / "seed-0" / "config.json").exists():
        raise UserError(
            f"--workdir={folder}: holds the runs of --seeds; "
            "give --seeds to go on with them, or another folder"
        )


def spread(values: list[float]) -> dict:
    """Mean and standard deviation (of the sample) of several seeds' scores."""
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        "values": values,
    }


if __name__ == "__main__":
    cli.run(main, define_flags)
