"""Predicts with a fine-tuned run, one line of stdin at a time: python -m transformer_jax.predict
--workdir=DIR < texts > labels

A line of stdin holds, by the task of the run:

    classification   a text, or two texts separated by a tab
    tagging          words separated by spaces; prints WORD/TAG for each, with the tag behind the
                     last slash
    span             a question, a tab and its context
    choice           a context and its choices, separated by tabs; where the task has a column with
                     the beginning of all choices (SWAG), it stands between them
    reward           a prompt, a tab and a completion, or {"prompt": ..., "completion": ...}; prints
                     its normalised reward
    image_classification
                     the path of an image file
    masked_residues  residues, a tab, and mutations such as A10V,K3R; prints their score
    contacts         residues; prints the likeliest contacts, I-J:PROBABILITY

--json gives an object a line, with probabilities. An empty line gives an empty line, with --json an
object with an empty text and a null label.
"""

import json

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process

ALLOWED = ("decode.", "task.null_threshold", "task.n_best", "task.max_answer")  # overrides


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_multi_string("text", [], "A line, instead of those of stdin; may be repeated.")
    flags.DEFINE_enum(
        "long",
        None,
        ["truncate", "split", "skip", "refuse"],
        "A line longer than config.task.length: cut it (classification, choice, reward), "
        "read it in parts (tagging, span), leave its prediction empty, or refuse it.",
    )
    flags.DEFINE_bool("json", False, "Print one JSON object a line.")


def main() -> None:
    from transformer_jax.data.sources.text_files import text_lines

    options = cli.FLAGS
    task, params = cli.open_run("predict", "was fine-tuned", ALLOWED)
    lines = options.text or text_lines("-")
    for text, details in task.predict(params, lines, long=options.long):
        print(json.dumps(details, ensure_ascii=False) if options.json else text, flush=True)


if __name__ == "__main__":
    process.run(main, define_flags)
