"""Evaluates a run, and prints one JSON object: python -m transformer_jax.evaluate --workdir=DIR
[--set=test]

--prompts=FILE.json --shots=0,1,8 asks a language model by prompts instead (prompting.py says what the file holds).
--config.decode.beam=1, --config.data.test_source=FILE and the like hold for this call.
"""

import json

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_enum("set", "valid", ["valid", "test"], "Which text.")
    flags.DEFINE_string(
        "prompts", None, "Instead of a text: JSON file of a task, its examples and its items."
    )
    flags.DEFINE_list(
        "shots", ["0"], "With --prompts: examples in each prompt, one number or several."
    )


def main() -> None:
    from transformer_jax.runs.open import open_run

    options = cli.FLAGS
    prompts, shots = _prompts(options)
    allowed = (
        "decode.",
        "data.valid_",
        "data.test_",
        "data.tfds_dir",
        "data.split_on",
        "data.text_field",
        "data.cache",
        "task.null_threshold",
        "task.n_best",
        "task.max_answer",
    )
    task, params = open_run(options.workdir, options.step, cli.overrides(allowed))
    if prompts:
        from transformer_jax.inference import prompting

        if not hasattr(task, "log_likelihoods"):
            raise UserError(
                f"--workdir={options.workdir}: a {task.config.task.name} run, not one that takes prompts"
            )
        found = {
            "prompts": options.prompts,
            "results": [prompting.evaluate(task, params, prompts, count) for count in shots],
        }
    else:
        found = {"set": options.set, **task.evaluate(params, options.set)}
    print(json.dumps({"workdir": options.workdir, "step": options.step, **found}))


def _prompts(options):
    """(the task of --prompts, numbers of --shots), or (None, None); refused before the run is
    opened.
    """
    if not options.prompts:
        if options["shots"].present:
            raise UserError("--shots needs --prompts")
        return None, None
    if options["set"].present:
        raise UserError("--set and --prompts: give one of them")
    from transformer_jax.inference import prompting

    prompts = prompting.read(options.prompts)
    if not options.shots:
        raise UserError("--shots=: numbers of examples are asked for, as in --shots=0,1,8")
    for count in options.shots:
        if not count.strip().isdecimal():
            raise UserError(
                f"--shots={','.join(options.shots)}: {count!r} is not a number of examples"
            )
        if int(count) > len(prompts.examples):
            raise UserError(
                f"--shots={count}: {options.prompts} has {len(prompts.examples)} examples"
            )
    return prompts, [int(count) for count in options.shots]


if __name__ == "__main__":
    process.run(main, define_flags)
