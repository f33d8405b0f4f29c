"""Zero-shot classification, line by line: python -m transformer_jax.classify
--workdir=DIR --labels=sports,politics,music < texts > labels

The run must be a classifier of text pairs that was fine-tuned on natural language inference (MNLI,
RTE or QNLI), with a class called entailment. The labels may be any words. A label is likely if the
text entails the hypothesis "This example is LABEL."; if the two are too long, only the text is
truncated.

By default a line has one label. With --multi_label, it has all labels whose own probability is
above one half, separated by commas. With --json, it prints one object per line, with the
probabilities of all labels in descending order. For an empty line, it prints an empty line or, with
--json, an object with an empty text and null labels.
"""

import json

from absl import flags

from transformer_jax import cli
from transformer_jax.cli.conversation import answers
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_multi_string("text", [], "A text to read instead of stdin; may be repeated.")
    flags.DEFINE_list("labels", [], "Labels, separated by commas.")
    flags.DEFINE_string(
        "hypothesis_template", "This example is {}.", "The hypothesis, with {} for the label."
    )
    flags.DEFINE_bool("multi_label", False, "Decide about each label independently.")
    flags.DEFINE_enum(
        "long",
        None,
        ["truncate", "skip", "refuse"],
        "What to do with a text longer than config.task.length: truncate it, leave its labels "
        "empty, or refuse it.",
    )
    flags.DEFINE_bool("json", False, "Print one JSON object per line.")


def main() -> None:
    options = cli.FLAGS
    if not options.labels:
        raise UserError("--labels=... is missing: labels, separated by commas")
    task, params = cli.open_run("classify", "was fine-tuned on inference")

    def classify(texts):
        return task.classify(
            params,
            texts,
            options.labels,
            hypothesis_template=options.hypothesis_template,
            multi_label=options.multi_label,
            long=options.long,
        )

    for text, details in answers(options.text, classify):
        print(json.dumps(details, ensure_ascii=False) if options.json else text, flush=True)


if __name__ == "__main__":
    cli.run(main, define_flags)
