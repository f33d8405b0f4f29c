"""Translates stdin to stdout, line by line: python -m transformer_jax.translate
--workdir=DIR < in.txt > out.txt

--config.decode.beam=1 and other keys of config.decode apply to this call only.
"""

import os
import stat
import sys

from absl import flags

from transformer_jax import cli
from transformer_jax.cli.conversation import answers


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_integer(
        "n_best",
        1,
        "Number of translations of each line. If there are several, each is written on a line of "
        "its own, as NUMBER ||| TEXT ||| SCORE.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "long",
        None,
        ["split", "truncate", "skip", "refuse"],
        "What to do with a line too long for the model: split it at sentence ends, truncate it, "
        "skip it, or refuse it. By default, translation runs split it and other runs truncate it.",
    )
    flags.DEFINE_bool(
        "scores", False, "Write SCORE<tab>TEXT: log-probability divided by the length penalty."
    )
    flags.DEFINE_string(
        "attention",
        None,
        "PNG file for a picture of the attention from the first translation to its source.",
    )


def main() -> None:
    from transformer_jax import pictures

    options = cli.FLAGS
    cli.check_output("attention")
    task, params = cli.open_run("translate", "translates")
    first_line, first_translation = [], None

    def translate(lines):
        return task.translate(params, _kept(lines, first_line), options.n_best, long=options.long)

    lines = None if sys.stdin.isatty() else _stdin()
    for number, hypotheses in enumerate(answers(lines, translate)):
        for text, score in hypotheses:
            print(_line(number, text, score), flush=True)
        if first_translation is None:
            first_translation = hypotheses[0].text
    if options.attention and first_translation:
        weights = task.attention(params, first_line[0], first_translation)
        title = "attention to the source, mean of layers and heads"
        pictures.save(pictures.mean_attention(weights, title), options.attention)


def _line(number: int, text: str, score: float) -> str:
    if cli.FLAGS.n_best > 1:
        return f"{number} ||| {text} ||| {score:.4f}"
    return f"{score:.4f}\t{text}" if cli.FLAGS.scores else text


def _kept(lines, first_line: list[str]):
    """Yields the lines, and appends the first one to `first_line`, if that is empty."""
    for line in lines:
        if not first_line:
            first_line.append(line)
        yield line


def _stdin():
    """Yields the lines of stdin, and shows their progress.

    The progress bar has a total only if stdin is a file, whose size is known.
    """
    from transformer_jax.data.sources.text_files import text_lines
    from transformer_jax.pictures.progress import Bar

    status = os.fstat(sys.stdin.fileno())
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    with Bar("translating (bytes)", size) as bar:
        for line in text_lines("-"):
            yield line
            # 1 more for the line end, so that the bar reaches the size of the file.
            bar.advance(len(line.encode()) + 1)


if __name__ == "__main__":
    cli.run(main, define_flags)
