"""Scaling experiments: trains models of several sizes and budgets, fits scaling laws to them, and
predicts the loss of a larger model. Finds out whether learning rates transfer to wider models.

python -m transformer_jax.scaling run --config=configs/scaling/cpu.py --workdir=DIR
    trains every run in DIR/NAME, one after the other; the same command continues after a stop
python -m transformer_jax.scaling fit --workdir=DIR
    fits the laws, draws them in DIR and prints one JSON object
python -m transformer_jax.scaling predict --config=configs/scaling/cpu.py --workdir=DIR
    predicts the loss of the held-out run and writes DIR/prediction.json
python -m transformer_jax.scaling run --config=configs/scaling/cpu.py --workdir=DIR --held_out
    trains the held-out run
python -m transformer_jax.scaling check --workdir=DIR
    prints the prediction and the measurement

Each run is an ordinary one: train_gpt --config=configs/scaling/cpu.py:NAME --workdir=DIR/NAME does
the same. Under Slurm, an array has a job for each run, numbered from 0:

sbatch --array=0-17 launch/slurm.sbatch .venv/bin/python -m transformer_jax.scaling run \\
    --config=FILE --workdir=DIR

Two commands measure muP, the parametrization that `config.optimizer.base` turns on, beside the
standard one. --widths are values of d_model. The widths of `config.optimizer.base` grow in
proportion, or without it d_ff, if the config sets it:

python -m transformer_jax.scaling coordinates --config=gpt/quickstart --widths=64,128,256,512
    measures how much activations change in the first updates; with --workdir=DIR, draws it there
python -m transformer_jax.scaling transfer --config=gpt/quickstart --widths=64,128,256 \\
    --rates=5e-4,1e-3,2e-3,4e-3 --workdir=DIR
    trains a run of each width, rate and seed in DIR, finds the best rate of each width and draws
    it; the same command continues after a stop, and an array has a job for each run
"""

import json

from absl import flags

from transformer_jax import cli
from transformer_jax import config as configs
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_commands(*_COMMANDS)
    cli.define_config(required=False)
    cli.define_workdir(required=False)
    cli.define_hosts()
    cli.define_only()
    flags.DEFINE_bool(
        "held_out", False, "run: trains the held-out run, which must be predicted first."
    )
    flags.DEFINE_list("widths", [], "coordinates, transfer: values of d_model.")
    flags.DEFINE_list("rates", [], "transfer: learning rates.")
    flags.DEFINE_integer(
        "seeds", None, "Seeds of each model; default: coordinates 5, transfer 3.", lower_bound=1
    )


def main() -> None:
    command = cli.command()
    if command != "coordinates" and not cli.FLAGS.workdir:
        raise UserError("--workdir=DIR is missing")
    _COMMANDS[command]()


def run() -> None:
    from transformer_jax.scaling import fits, runs
    from transformer_jax.scaling.family import HELD_OUT

    options = cli.FLAGS
    names = _family().names
    if options.held_out:
        fits.predicted(options.workdir)  # raises UserError if nothing has been predicted yet
        names = [HELD_OUT]
    elif (only := cli.only(len(names))) is not None:
        names = [names[only]]
    runs.train({name: cli.load_config(argument=name) for name in names}, options.workdir)


def fit() -> None:
    from transformer_jax.pictures.progress import say
    from transformer_jax.scaling import fits, pictures, runs

    files = _files()
    finished = runs.collect(cli.FLAGS.workdir, files)
    fitted = fits.fit(finished)
    say("\n".join(fitted.lines()))
    drawn = pictures.draw(finished, fitted, cli.FLAGS.workdir, files)
    print(
        json.dumps(
            {"runs": len(finished), **fitted.record(), "pictures": [str(path) for path in drawn]}
        )
    )


def predict() -> None:
    from transformer_jax.scaling import fits, runs
    from transformer_jax.scaling.family import HELD_OUT

    folder = cli.FLAGS.workdir
    family = _family()
    finished = runs.collect(folder, _files())
    if family.held_out is None:
        raise UserError(
            f"--config={cli.FLAGS.config}: its family has no held-out run; set Family.held_out"
        )
    # All runs, because a choice among them would be a choice of the prediction.
    if missing := set(family.names) - {run.name for run in finished}:
        raise UserError(
            f"--workdir={folder}: {len(missing)} of the family's {len(family.names)} runs are not "
            f"finished: {', '.join(sorted(missing))}"
        )
    print(json.dumps(fits.predict(cli.load_config(argument=HELD_OUT), finished, folder)))


def check() -> None:
    from transformer_jax.scaling import fits

    print(json.dumps(fits.check(cli.FLAGS.workdir, _files())))


def coordinates() -> None:
    from transformer_jax.pictures import widths as pictures
    from transformer_jax.pictures.progress import say
    from transformer_jax.scaling import coordinates
    from transformer_jax.storage import buckets

    options = cli.FLAGS
    folder = options.workdir and buckets.folder_of_run(options.workdir)
    if folder:
        with buckets.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    result = coordinates.check(_config(), _numbers("widths", int), options.seeds or 5)
    say("\n".join(coordinates.lines(result)))
    print(json.dumps(result))
    if folder:
        _draw(pictures.coordinates(result), "coordinates")


def transfer() -> None:
    from transformer_jax.pictures import widths as pictures
    from transformer_jax.pictures.progress import say
    from transformer_jax.scaling import runs, transfer

    options = cli.FLAGS
    asked = (_config(), _numbers("widths", int), _numbers("rates", float), options.seeds or 3)
    configs_of_runs = {name: config for name, (_, config) in transfer.runs_of(*asked).items()}
    if (only := cli.only(len(configs_of_runs))) is not None:
        configs_of_runs = dict([[*configs_of_runs.items()][only]])
    runs.train(configs_of_runs, options.workdir)
    result = transfer.measure(*asked, options.workdir)
    say("\n".join(transfer.lines(result)))
    print(json.dumps(result))
    if only is None:  # the jobs of an array would write the same file
        _draw(pictures.transfer(result), "transfer")


def _config():
    if not cli.FLAGS.config:
        raise UserError("--config=... is missing, such as gpt/quickstart")
    return cli.load_config()


def _numbers(flag: str, kind: type) -> list:
    values = getattr(cli.FLAGS, flag)
    try:
        return [kind(value) for value in values]
    except ValueError:
        raise UserError(f"--{flag}={','.join(values)}: must be numbers, such as 64,128") from None


def _draw(figure, name: str) -> None:
    """Writes a figure into the workdir, as PNG and SVG."""
    from transformer_jax.pictures.figure import save
    from transformer_jax.storage import buckets

    for end in (".png", ".svg"):
        save(figure, buckets.folder_of_run(cli.FLAGS.workdir) / f"{name}{end}")


def _files():
    """Returns the files of classes that the flags name.

    A path that is recorded in a run is not used, because opening a run must not execute the file.
    """

    files, _ = configs.split_files(cli.overrides())
    return files


def _family():
    """Returns the FAMILY in the file of --config. Raises UserError if there is none."""
    from transformer_jax import config as configs

    options = cli.FLAGS
    if not options.config:
        raise UserError(
            "--config=... is missing: the file of a family, such as configs/scaling/cpu.py"
        )
    cli.load_config()  # raises UserError for a wrong file
    family = getattr(
        configs.load_module(configs.config_file(options.config.partition(":")[0])), "FAMILY", None
    )
    if family is None:
        raise UserError(
            f"--config={options.config}: describes no family; set FAMILY = Family(...), as "
            "configs/scaling/cpu.py does"
        )
    return family


_COMMANDS = {
    "run": run,
    "fit": fit,
    "predict": predict,
    "check": check,
    "coordinates": coordinates,
    "transfer": transfer,
}


if __name__ == "__main__":
    cli.run(main, define_flags)
