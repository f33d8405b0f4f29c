"""Zero-shot classification, one line of stdin at a time: python -m transformer_jax.classify
--workdir=DIR --labels=sports,politics,music < texts > labels

The run is a classifier of pairs that was fine-tuned on inference (MNLI, RTE, QNLI): one of its
classes is called entailment. The labels may be any words. A label is likely where the text entails
its hypothesis, "This example is LABEL."; only the text is cut where both are too long.

Without --multi_label a line has one label. With it, a line has all labels whose own probability is
above one half, separated by commas. --json gives an object a line, with the probabilities of all
labels, the largest first. An empty line gives an empty line, with --json an object with an empty
text and null labels.
"""

import json

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_multi_string("text", [], "A text, instead of those of stdin; may be repeated.")
    flags.DEFINE_list("labels", [], "Labels, separated by commas.")
    flags.DEFINE_string(
        "hypothesis_template", "This example is {}.", "The hypothesis, with {} for the label."
    )
    flags.DEFINE_bool("multi_label", False, "Decide about each label by itself.")
    flags.DEFINE_enum(
        "long",
        None,
        ["truncate", "skip", "refuse"],
        "A text longer than config.task.length: cut it, leave its labels empty, or refuse it.",
    )
    flags.DEFINE_bool("json", False, "Print one JSON object a line.")


def main() -> None:
    from transformer_jax.data.sources.text_files import text_lines

    options = cli.FLAGS
    if not options.labels:
        raise UserError("--labels=... is missing: labels, separated by commas")
    task, params = cli.open_run("classify", "was fine-tuned on inference")
    predictions = task.classify(
        params,
        options.text or text_lines("-"),
        options.labels,
        hypothesis_template=options.hypothesis_template,
        multi_label=options.multi_label,
        long=options.long,
    )
    for text, details in predictions:
        print(json.dumps(details, ensure_ascii=False) if options.json else text, flush=True)


if __name__ == "__main__":
    process.run(main, define_flags)
