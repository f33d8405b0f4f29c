"""Fills the masks of a text: python -m transformer_jax.fill_mask --workdir=DIR --text="the [MASK]
statement"

Without --text the texts come from stdin, one a line. Each mask gives a line of words with their
probabilities; --json gives objects instead. An empty line gives an empty line, with --json an empty
list.
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
        "text", [], "A text with one [MASK] or several; may be given several times."
    )
    flags.DEFINE_integer("top_k", 5, "Words of each mask.", lower_bound=1)
    flags.DEFINE_enum(
        "long",
        "split",
        ["split", "skip", "refuse"],
        "A text too long for the model: read its sentences one by one, leave it "
        "empty, or refuse it.",
    )
    flags.DEFINE_bool("json", False, "One JSON object a text.")


def main() -> None:
    from transformer_jax.data.sources.pairs import text_lines
    from transformer_jax.runs.open import open_run

    options = cli.FLAGS
    task, params = open_run(options.workdir, options.step, cli.overrides(allowed=("decode.",)))
    if not hasattr(task, "fill"):
        raise UserError(
            f"--workdir={options.workdir}: a {task.config.task.name} run, not one that fills masks"
        )
    if options.top_k > task.tokenizer.vocab_size:
        raise UserError(
            f"--top_k={options.top_k}: the vocabulary has {task.tokenizer.vocab_size} tokens"
        )
    texts = options.text or text_lines("-")
    for masks in task.fill(params, texts, options.top_k, long=options.long):
        if options.json:
            print(
                json.dumps(
                    [
                        [{"word": word, "probability": round(p, 6)} for word, p in mask]
                        for mask in masks
                    ],
                    ensure_ascii=False,
                ),
                flush=True,
            )
        else:
            print(
                "\n".join("  ".join(f"{word} {p:.3f}" for word, p in mask) for mask in masks),
                flush=True,
            )


if __name__ == "__main__":
    process.run(main, define_flags)
