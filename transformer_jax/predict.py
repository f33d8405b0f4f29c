"""Predicts with a fine-tuned run, line by line: python -m transformer_jax.predict
--workdir=DIR < texts > labels

What a line of stdin contains depends on the task of the run:

    classification   a text, or two texts separated by a tab
    tagging          words separated by spaces; prints WORD/TAG for each, with the tag after the
                     last slash
    span             a question, a tab and its context
    choice           a context and its choices, separated by tabs; if the task has a column for the
                     common start of all choices (SWAG), it comes between them
    reward           a prompt, a tab and a completion, or {"prompt": ..., "completion": ...}; prints
                     its normalized reward
    image_classification
                     the path of an image file
    masked_residues  residues, a tab, and mutations such as A10V,K3R; prints their score
    contacts         residues; prints the likeliest contacts as I-J:PROBABILITY

With --json, it prints one object per line, with probabilities. For an empty line, it prints an
empty line or, with --json, an object with an empty text and a null label.
"""

import json

from absl import flags

from transformer_jax import cli

# Only these keys may be overridden, because the others decide what the run has learned.
ALLOWED = ("decode.", "task.null_threshold", "task.n_best", "task.max_answer")


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_multi_string("text", [], "A line to read instead of stdin; may be repeated.")
    flags.DEFINE_enum(
        "long",
        None,
        ["truncate", "split", "skip", "refuse"],
        "What to do with a line longer than config.task.length: truncate it (classification, "
        "choice, reward), split it (tagging, span), leave its prediction empty, or refuse it.",
    )
    flags.DEFINE_bool("json", False, "Print one JSON object per line.")


def main() -> None:
    from transformer_jax.data.sources.text_files import text_lines

    options = cli.FLAGS
    task, params = cli.open_run("predict", "was fine-tuned", ALLOWED)
    lines = options.text or text_lines("-")
    for text, details in task.predict(params, lines, long=options.long):
        print(json.dumps(details, ensure_ascii=False) if options.json else text, flush=True)


if __name__ == "__main__":
    cli.run(main, define_flags)
