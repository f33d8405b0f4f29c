"""Scaling experiments: a family of sizes and budgets, trained, fitted, and a larger model predicted
before it is trained.

python -m transformer_jax.scaling run     --config=configs/scaling/cpu.py --workdir=DIR        every run in turn, in DIR/NAME; the same command goes on
python -m transformer_jax.scaling fit     --workdir=DIR                                        the laws, with pictures in DIR; one JSON object last
python -m transformer_jax.scaling predict --config=configs/scaling/cpu.py --workdir=DIR        the held-out run's loss, into DIR/prediction.json
python -m transformer_jax.scaling run     --config=configs/scaling/cpu.py --workdir=DIR --held_out
python -m transformer_jax.scaling check   --workdir=DIR                                        the prediction beside the measurement

A run is an ordinary one: train_gpt --config=configs/scaling/cpu.py:NAME --workdir=DIR/NAME does the
same. Under Slurm, a job for each (numbers from 0): sbatch --array=0-17 launch/slurm.sbatch
.venv/bin/python -m transformer_jax.scaling run --config=FILE --workdir=DIR
"""

import json
import os

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_commands("run", "fit", "predict", "check")
    cli.define_config(required=False)
    cli.define_workdir()
    cli.define_hosts()
    flags.DEFINE_integer(
        "only",
        None,
        "run: the run of this number alone, from 0; in a Slurm job array the task's number.",
        lower_bound=0,
    )
    flags.DEFINE_bool("held_out", False, "run: the held-out run, which has to be predicted before.")


def main() -> None:
    {"run": run, "fit": fit, "predict": predict, "check": check}[cli.command()]()


def run() -> None:
    from transformer_jax.scaling import fits, runs
    from transformer_jax.scaling.family import HELD_OUT

    options, names = cli.FLAGS, _family().names
    only = (
        int(os.environ["SLURM_ARRAY_TASK_ID"])
        if options.only is None and "SLURM_ARRAY_TASK_ID" in os.environ
        else options.only
    )
    if options.held_out:
        fits.predicted(options.workdir)
        names = [HELD_OUT]
    elif only is not None:
        if only >= len(names):
            raise UserError(f"--only={only}: the family has the runs 0 to {len(names) - 1}")
        names = [names[only]]
    runs.train({name: cli.load_config(argument=name) for name in names}, options.workdir)


def fit() -> None:
    from transformer_jax.pictures.progress import say
    from transformer_jax.scaling import fits, pictures, runs

    found = runs.collect(cli.FLAGS.workdir)
    fitted = fits.fit(found)
    say("\n".join(fitted.lines()))
    drawn = pictures.draw(found, fitted, cli.FLAGS.workdir)
    print(
        json.dumps(
            {"runs": len(found), **fitted.record(), "pictures": [str(path) for path in drawn]}
        )
    )


def predict() -> None:
    from transformer_jax.scaling import fits, runs
    from transformer_jax.scaling.family import HELD_OUT

    family, found = _family(), runs.collect(cli.FLAGS.workdir)
    if family.held_out is None:
        raise UserError(f"--config={cli.FLAGS.config}: its family holds no run out")
    if missing := set(family.names) - {one.name for one in found}:
        raise UserError(
            f"--workdir={cli.FLAGS.workdir}: {len(missing)} of the family's {len(family.names)} runs are not finished: {', '.join(sorted(missing))}"
        )
    print(json.dumps(fits.predict(cli.load_config(argument=HELD_OUT), found, cli.FLAGS.workdir)))


def check() -> None:
    from transformer_jax.scaling import fits

    print(json.dumps(fits.check(cli.FLAGS.workdir)))


def _family():
    """The FAMILY that the file of --config describes. Raises UserError where it describes none."""
    from transformer_jax import config as configs

    options = cli.FLAGS
    if not options.config:
        raise UserError(
            "--config=... is missing: the file of a family, such as configs/scaling/cpu.py"
        )
    cli.load_config()  # says what is wrong with the file
    family = getattr(configs.load_module(options.config.partition(":")[0]), "FAMILY", None)
    if family is None:
        raise UserError(
            f"--config={options.config}: describes no family (FAMILY = Family(...), as configs/scaling/cpu.py does)"
        )
    return family


if __name__ == "__main__":
    process.run(main, define_flags)
