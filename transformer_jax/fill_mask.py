"""Fills the masks of a text: python -m transformer_jax.fill_mask --workdir=DIR --text="the [MASK]
statement"

Without --text, the texts are the lines of stdin. For each mask, it prints a line of words with
their probabilities; with --json, it prints one JSON array per text. For an empty line, it prints an
empty line or, with --json, an empty array.
"""

import json

from absl import flags

from transformer_jax import cli
from transformer_jax.cli.conversation import answers
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_multi_string("text", [], "A text with at least one [MASK]; may be repeated.")
    flags.DEFINE_integer("top_k", 5, "Number of words for each mask.", lower_bound=1)
    flags.DEFINE_enum(
        "long",
        "split",
        ["split", "skip", "refuse"],
        "What to do with a text too long for the model: read it sentence by sentence, skip it, or "
        "refuse it.",
    )
    flags.DEFINE_bool("json", False, "Print one JSON array per text.")


def main() -> None:
    options = cli.FLAGS
    task, params = cli.open_run("fill", "fills masks")
    # Otherwise jax.lax.top_k would raise an error, which names no flag.
    if options.top_k > task.tokenizer.vocab_size:
        raise UserError(
            f"--top_k={options.top_k}: the vocabulary has {task.tokenizer.vocab_size} tokens"
        )

    def fill(texts):
        return task.fill(params, texts, options.top_k, long=options.long)

    write = _as_json if options.json else _as_lines
    for masks in answers(options.text, fill):
        print(write(masks), flush=True)


def _as_json(masks) -> str:
    objects = [
        [{"word": word, "probability": round(probability, 6)} for word, probability in mask]
        for mask in masks
    ]
    return json.dumps(objects, ensure_ascii=False)


def _as_lines(masks) -> str:
    """Returns one line for each mask."""
    return "\n".join(
        "  ".join(f"{word} {probability:.3f}" for word, probability in mask) for mask in masks
    )


if __name__ == "__main__":
    cli.run(main, define_flags)
