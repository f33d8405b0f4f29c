"""Trains one config at several values of its keys, with several seeds each, and the best again.

python -m transformer_jax.sweep CONFIG --vary=optimizer.learning_rate=1e-4,3e-4,1e-3 \\
    --vary=model.d_model=64,128 --seeds=3 --workdir=DIR
python -m transformer_jax.sweep CONFIG --random=20 --vary=optimizer.learning_rate=log:1e-5:1e-2 \\
    --workdir=DIR

It trains every combination of the values, or --random points, each with the seeds 0, 1, ... in
DIR/POINT/seed-i, and goes on after any stop. Then the best point is trained with as many fresh
seeds, whose interval is reported, because the best of many is flattered by its own noise. It prints
one JSON object and draws DIR/sweep.png and .svg. A config file may hold its sweep as a function
`sweep` that returns {key: values}. --config.KEY=VALUE changes all points.

--halving trains all points for a quarter of the updates, the better half of them for twice as many,
and the better half of those to the end. Under Slurm, a job array has a job for each run, numbered
from 0; then the same command without --only trains the best point's fresh seeds.
"""

import json

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_files()
    cli.define_workdir()
    cli.define_hosts()
    flags.DEFINE_multi_string(
        "vary", [], "KEY=VALUE,VALUE: values of a key; with --random also KEY=log:LOW:HIGH."
    )
    flags.DEFINE_integer("random", 0, "Draw so many points; 0: all combinations.", lower_bound=0)
    flags.DEFINE_integer("seeds", 3, "Runs of each point.", lower_bound=1)
    flags.DEFINE_string("score", "valid/loss", "Score that decides, of those in metrics.jsonl.")
    flags.DEFINE_string(
        "budget", "same-updates", "FLOPs of each run, such as 60TFLOP; same-updates: by the config."
    )
    flags.DEFINE_bool("halving", False, "Drop the worse half of the points, twice on the way.")
    flags.DEFINE_bool(
        "any_schedule", False, "Allow --halving with schedules that depend on the run's length."
    )
    flags.DEFINE_enum(
        "better",
        None,
        ["lower", "higher"],
        "Which scores are better; by default, losses, distances and error rates if they are lower.",
    )
    cli.define_together()
    cli.define_only()


def main() -> None:
    from transformer_jax.laboratory import sweeps
    from transformer_jax.laboratory.comparison import Comparison, Question
    from transformer_jax.pictures.progress import say
    from transformer_jax.storage import buckets

    options = cli.FLAGS
    if len(cli.files()) != 1:
        raise UserError("name one config, such as gpt/quickstart")
    (config,) = cli.files()
    varied = options.vary or sweeps.varied_by(config)
    if not varied:
        raise UserError("--vary=KEY=VALUE,VALUE is missing: what the points differ in")
    points = (
        sweeps.drawn(varied, options.random)
        if options.random
        else sweeps.grid(sweeps.axes_of(varied))
    )
    asked = sweeps.Sweep(
        config,
        tuple(points),
        buckets.folder_of_run(options.workdir),
        options.score,
        options.seeds,
        options.budget,
        options.halving,
        tuple(cli.overrides()),
        options.better,
        options.together,
    )
    asked.check(options.any_schedule)
    question = Question((options.score,), pairs=options.seeds)
    runs = Comparison(tuple(asked.arms()), asked.folder, question)
    numbered = [*runs.runs()]
    if (only := cli.only(len(numbered))) is not None:
        cli.check_one(only)
        if options.halving:
            raise UserError("--only: the runs of --halving depend on each other")
        runs.train(*numbered[only])
        return
    result = asked.run()
    say("\n".join(sweeps.lines(result)))
    print(json.dumps(result))


if __name__ == "__main__":
    cli.run(main, define_flags)
