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
    masked_lm        two texts separated by a tab; prints IsNext if the second follows the first,
                     else NotNext; a run that has learned the order of sentences, as ALBERT does,
                     prints InOrder or Swapped

--glue=SST-2 --test_file=test.tsv --submission=submission.zip predicts a test set of GLUE and adds
SST-2.tsv to the ZIP file that gluebenchmark.com takes; see finetuning/glue.py for the names.

With --json, it prints one object per line, with probabilities. For an empty line, it prints an
empty line or, with --json, an object with an empty text and a null label.
"""

import json

from absl import flags

from transformer_jax import cli
from transformer_jax.cli.conversation import answers
from transformer_jax.config import UserError

# Only these keys may be overridden, because the others decide what the run has learned.
ALLOWED = ("decode.", "task.null_threshold", "task.n_best", "task.max_answer")
_GLUE = ("glue", "test_file", "submission")


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_multi_string("text", [], "A line to read instead of stdin; may be repeated.")
    flags.DEFINE_enum(
        "long",
        None,
        ["truncate", "split", "skip", "refuse"],
        "What to do with a line that is too long: truncate it (classification, choice, reward, "
        "masked_lm), split it (tagging, span), leave its prediction empty, or refuse it.",
    )
    flags.DEFINE_bool("json", False, "Print one JSON object per line.")
    flags.DEFINE_string(
        "glue",
        None,
        "Test set of GLUE to predict: CoLA, SST-2, MRPC, STS-B, QQP, MNLI-m, MNLI-mm, QNLI, RTE, "
        "WNLI or AX, the diagnostic set, which a run of MNLI predicts.",
    )
    flags.DEFINE_string(
        "test_file", None, "With --glue: the file of the test set, as GLUE ships it."
    )
    flags.DEFINE_string(
        "submission", None, "With --glue: ZIP file to which the predictions are added."
    )


def main() -> None:
    options = cli.FLAGS
    if options.glue or options.test_file or options.submission:
        _submit(options)
        return
    task, params = cli.open_run("predict", "was fine-tuned", ALLOWED)

    def predict(lines):
        return task.predict(params, lines, long=options.long)

    for text, details in answers(options.text, predict):
        print(json.dumps(details, ensure_ascii=False) if options.json else text, flush=True)


def _submit(options) -> None:
    """Adds the predictions of a test set of GLUE to a submission."""
    from transformer_jax.finetuning import glue

    if missing := [name for name in _GLUE if not options[name].value]:
        raise UserError(
            f"--{missing[0]} is missing: --glue, --test_file and --submission go together"
        )
    for name in ("text", "json", "long"):
        if options[name].present:
            raise UserError(f"--{name} and --glue: a submission has no --{name}; give one of them")
    cli.check_output("submission")
    task, params = cli.open_run("predict", "was fine-tuned", ALLOWED)
    glue.add(task, params, options.glue, options.test_file, options.submission)
    print(options.submission)


if __name__ == "__main__":
    cli.run(main, define_flags)
