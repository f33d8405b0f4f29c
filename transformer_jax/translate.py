"""Translates stdin to stdout, one line in, one line out: python -m transformer_jax.translate
--workdir=DIR < in.txt > out.txt

--config.decode.beam=1 and the like change how, for this call.
"""

import os
import stat
import sys

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_integer(
        "n_best",
        1,
        "Translations of each line: so many lines out, as NUMBER ||| TEXT ||| "
        "SCORE where more than one.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "long",
        "split",
        ["split", "truncate", "skip", "refuse"],
        "A line too long for the model: split it at sentence ends, cut it, skip it, or refuse it.",
    )
    flags.DEFINE_bool(
        "scores", False, "Write SCORE<tab>TEXT: the log-probability over the length penalty."
    )
    flags.DEFINE_string(
        "attention",
        None,
        "Draw the attention of the first line's translation to its words into this PNG file.",
    )


def main() -> None:
    from transformer_jax import pictures
    from transformer_jax.runs.open import open_run

    options = cli.FLAGS
    cli.check_output("attention")
    task, params = open_run(options.workdir, options.step, cli.overrides(allowed=("decode.",)))
    if not hasattr(task, "translate"):
        raise UserError(
            f"--workdir={options.workdir}: a {task.config.task.name} run, not one that translates"
        )
    first, best = [], []  # the first line and its translation
    translated = task.translate(params, _lines(first), options.n_best, long=options.long)
    for number, found in enumerate(translated):
        if options.n_best > 1:
            lines = [f"{number} ||| {text} ||| {score:.4f}" for text, score in found]
        else:
            lines = [f"{score:.4f}\t{text}" if options.scores else text for text, score in found]
        print("\n".join(lines), flush=True)
        best = best or [found[0].text]
    if options.attention and best:
        looked = task.attention(params, first[0], best[0])
        title = "attention to the source, mean of layers and heads"
        pictures.save(pictures.mean_attention(looked, title), options.attention)


def _lines(first: list[str]):
    """The lines of stdin, with progress where it is a file; the first is kept in `first`."""
    from transformer_jax.data.sources.pairs import text_lines
    from transformer_jax.pictures.progress import Bar

    status = os.fstat(sys.stdin.fileno())
    with Bar(
        "translating (bytes)", status.st_size if stat.S_ISREG(status.st_mode) else None
    ) as bar:
        for line in text_lines("-"):
            if not first:
                first.append(line)
            yield line
            bar.advance(len(line.encode()) + 1)


if __name__ == "__main__":
    process.run(main, define_flags)
