"""What a fine-tuned run says of texts, one a line of stdin: python -m transformer_jax.predict
--workdir=DIR < texts > labels

Classification takes a text a line, or two separated by a tab; tagging words separated by spaces,
and prints WORD/TAG for each (the tag follows the last slash); span a question, a tab and its
context; choice a context and its choices, separated by tabs, and between them what all begin with,
where the task has such a column (SWAG). --json gives an object a line, with probabilities.
An empty line gives an empty line, with --json an object with an empty text and a null label.
"""

import json

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_multi_string(
        "text", [], "A line, instead of those of stdin; may be given several times."
    )
    flags.DEFINE_enum(
        "long",
        None,
        ["truncate", "split", "skip", "refuse"],
        "A line longer than config.task.length: cut it (classification, choice), "
        "read it in parts (tagging, span), leave its prediction empty, or refuse it.",
    )
    flags.DEFINE_bool("json", False, "One JSON object a line.")


def main() -> None:
    from transformer_jax.data.sources.pairs import text_lines
    from transformer_jax.runs.open import open_run

    options = cli.FLAGS
    task, params = open_run(
        options.workdir,
        options.step,
        cli.overrides(allowed=("decode.", "task.null_threshold", "task.n_best", "task.max_answer")),
    )
    if not hasattr(task, "predict"):
        raise UserError(
            f"--workdir={options.workdir}: a {task.config.task.name} run, not a fine-tuned one"
        )
    lines = options.text or text_lines("-")
    for plain, found in task.predict(params, lines, long=options.long):
        print(json.dumps(found, ensure_ascii=False) if options.json else plain, flush=True)


if __name__ == "__main__":
    process.run(main, define_flags)
