"""Asks whether one config is better than another: trains pairs of runs and judges the difference.

python -m transformer_jax.compare A.py B.py --workdir=DIR --pairs=8
python -m transformer_jax.compare BASE.py --arm=NAME:KEY=VALUE,KEY=VALUE --workdir=DIR

Every arm is compared with the first. Pair i trains each of them with seed i, and they share all
random numbers that their configs allow: rows, masks, dropout and initial values. The runs are
ordinary ones in DIR/ARM/seed-i, and the same command goes on after any stop. It prints one JSON
object with the scores of each arm, the paired differences with their 95 % intervals and the
verdicts, and draws them in DIR/comparison.png and .svg.

--budget=60TFLOP gives every run the same compute instead of the same number of updates.
--until=decided stops after the first pair that decides, by an interval that holds however often one
looks. --plan=DIFFERENCE trains nothing, and says from the finished runs in DIR how many pairs would
find a difference. --config.KEY=VALUE changes all arms.

Under Slurm, a job array has a job for each run, numbered from 0; then the same command without
--only prints the verdict:

sbatch --array=0-15 launch/slurm.sbatch .venv/bin/python -m transformer_jax.compare A.py B.py \\
    --workdir=DIR --pairs=8
"""

import json
import sys
import types

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_files()
    cli.define_workdir()
    cli.define_hosts()
    flags.DEFINE_multi_string(
        "arm", [], "NAME:KEY=VALUE,KEY=VALUE: one more arm, the config with these changes."
    )
    flags.DEFINE_integer("pairs", 8, "Runs of each arm, with the seeds 0, 1, ...", lower_bound=1)
    flags.DEFINE_string(
        "budget",
        "same-updates",
        "FLOPs of each run, such as 60TFLOP or 6e13; same-updates: as many updates for all.",
    )
    flags.DEFINE_list(
        "score", ["valid/loss"], "Scores to compare, of those in metrics.jsonl, with commas."
    )
    flags.DEFINE_string(
        "margin", "", "The smallest difference that matters: 0.01, or 1% of the first arm's mean."
    )
    flags.DEFINE_enum(
        "texts",
        "",
        ["", "valid", "test"],
        "Also score the texts of this split one at a time, by BLEU, accuracy and the like, with a "
        "bootstrap over texts and pairs.",
    )
    flags.DEFINE_enum(
        "better",
        None,
        ["lower", "higher"],
        "Which scores are better; by default, losses, distances and error rates if they are lower.",
    )
    flags.DEFINE_enum(
        "until", "pairs", ["pairs", "decided"], "Train --pairs, or until all is decided."
    )
    flags.DEFINE_integer(
        "max_pairs", 40, "With --until=decided, the most pairs to train.", lower_bound=1
    )
    flags.DEFINE_float(
        "plan", None, "Train nothing; say how many pairs would find this difference."
    )
    cli.define_together()
    cli.define_only()


def main() -> None:
    from transformer_jax.laboratory import arms, comparison
    from transformer_jax.pictures.progress import say
    from transformer_jax.storage import buckets

    options = cli.FLAGS
    is_sequential = options.until == "decided"
    question = comparison.Question(
        tuple(filter(None, options.score)),
        options.margin,
        options.max_pairs if is_sequential else options.pairs,
        is_sequential,
        options.texts,
        options.better,
    )
    question.check()
    named = arms.parse(cli.files(), options.arm, cli.overrides())
    asked = comparison.Comparison(
        tuple(arms.with_budget(named, options.budget)),
        buckets.folder_of_run(options.workdir),
        question,
        options.budget,
        options.together,
    )
    runs = [*asked.runs()]
    only = cli.only(len(runs))
    if options.plan is not None:
        if not options.plan > 0:
            raise UserError(f"--plan={options.plan}: must be a difference above 0")
        print(json.dumps(asked.plan(options.plan)))
    elif only is not None:
        cli.check_one(only)
        asked.begin()
        asked.train(*runs[only])
    else:
        result = asked.run()
        say("\n".join(comparison.lines(result)))
        print(json.dumps(result))


class _Program(types.ModuleType):
    """Makes this module callable, as the function `transformer_jax.compare`; see train.py."""

    def __call__(self, *arguments, **options):
        from transformer_jax.laboratory.comparison import compare

        return compare(*arguments, **options)


sys.modules[__name__].__class__ = _Program

if __name__ == "__main__":
    cli.run(main, define_flags)
