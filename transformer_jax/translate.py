"""Translates stdin to stdout, one line in, one line out: python -m transformer_jax.translate --workdir=DIR < in.txt > out.txt"""
import sys

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError

cli.define_workdir()
flags.DEFINE_string("step", "best", "Checkpoint: best, latest or a step.")


def main() -> None:
    from transformer_jax import workdir

    task, params = workdir.open_run(cli.FLAGS.workdir, cli.FLAGS.step)
    if not hasattr(task, "translate"):
        raise UserError(f"--workdir={cli.FLAGS.workdir}: a {task.config.task.name} run, not one that translates")
    for line in task.translate(params, _lines()):
        print(line, flush=True)


def _lines():
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise UserError(f"stdin:{number}: not UTF-8") from None


if __name__ == "__main__":
    cli.run(main)
