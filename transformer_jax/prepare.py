"""Tokenizes the data of a config ahead of time: python -m transformer_jax.prepare --config=FILE
[--config.data.cache=gs://BUCKET/PREFIX] [--beam_runner=DirectRunner]

The text is divided into parts, which are processed in parallel by the processes of the job or by
the workers of an Apache Beam runner. The same command continues a preparation that was stopped. A
training run with the same config then uses the prepared data.
"""

from transformer_jax import cli
from transformer_jax.config import UserError


def main() -> None:
    config = cli.load_config()
    from transformer_jax.data import store
    from transformer_jax.data.sources import text_files
    from transformer_jax.distributed import hosts
    from transformer_jax.pictures.progress import say
    from transformer_jax.runs.spec import fine_tunes, make_task

    if fine_tunes(config):
        raise UserError(
            f"--config={cli.FLAGS.config}: fine-tuning reads its examples when it starts, so "
            "there is nothing to prepare"
        )
    team = _workers()
    if not team.leads:
        config.data.rebuild = False  # process 0 rebuilds the data
    task = make_task(config)
    # In turns, because the parts need the tokenizer, which is trained once and then read by the
    # others.
    with hosts.first():
        if team.leads:
            task.fingerprint()  # trains the tokenizer, which all parts need
            if task.reads_source:
                task.rows()  # here and not in parts, because records come one after the other
    # Otherwise each process would read all files for their digests.
    text_files.share()
    with store.using(team):
        task.rows()
    say(f"ready in {config.data.cache}")


def _workers():
    """Returns the workers that build the parts of the stores."""
    from transformer_jax.data import store
    from transformer_jax.distributed import hosts

    if not cli.FLAGS.beam_runner:
        if cli.FLAGS.beam_pipeline_options:
            raise UserError("--beam_pipeline_options needs --beam_runner=RUNNER")
        return store.Processes() if hosts.count() > 1 else store.Alone()
    if hosts.count() > 1:
        raise UserError(
            f"--beam_runner={cli.FLAGS.beam_runner}: starts from one process, not from "
            f"{hosts.count()}; the runner has its own workers"
        )
    return store.Beam(cli.FLAGS.beam_runner, cli.FLAGS.beam_pipeline_options)


if __name__ == "__main__":
    cli.run(main, cli.define_preparation)
