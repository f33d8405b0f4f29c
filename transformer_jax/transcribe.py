"""Transcribes sound files: python -m transformer_jax.transcribe --workdir=DIR < files.txt

A line of stdin, or each --audio, names a WAV or FLAC file. Its transcript is a line of stdout.
--json gives an object a line: the file, its transcript, the score of the decoder and the seconds.

--config.decode.beam=16 searches by prefix beams, and 1 takes the likeliest path. With beams,
--config.task.lm_order=5 adds a language model of n-grams of characters. It counts the transcripts
of training, or --config.task.lm_files=FILE, text with a sentence a line.
"""

import json

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process

ALLOWED = ("decode.", "task.lm_", "task.length_bonus", "data.cache")  # overrides


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_multi_string("audio", [], "A file, instead of those of stdin; may be repeated.")
    flags.DEFINE_integer(
        "most_samples",
        5_760_000,
        "Samples of a file over all channels; a longer one is not decoded.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "faulty",
        "refuse",
        ["refuse", "skip"],
        "A file that is missing, empty, damaged or too long: an error, or an empty transcript.",
    )
    flags.DEFINE_bool("json", False, "Print one JSON object a line.")


def main() -> None:
    from transformer_jax.data.sources.text_files import text_lines
    from transformer_jax.data.speech import RATE

    options = cli.FLAGS
    task, params = cli.open_run("transcribe", "transcribes sound", ALLOWED)
    files = []  # those that were read: (file, number of samples)
    sounds = _sounds(options.audio or text_lines("-"), files)
    for number, (best, *_) in enumerate(task.transcribe(params, sounds)):
        file, samples = files[number]
        if options.json:
            line = {"audio": file, "text": best.text, "score": best.score}
            print(json.dumps(line | {"seconds": samples / RATE}, ensure_ascii=False), flush=True)
        else:
            print(best.text, flush=True)


def _sounds(names, files: list[tuple[str, int]]):
    """Yields the samples of each file, none of a faulty one that is skipped."""
    import numpy as np

    from transformer_jax.data import speech
    from transformer_jax.pictures.progress import say

    options = cli.FLAGS
    for name in names:
        try:
            samples = speech.read(name, name, options.most_samples)
        except speech.DamagedSound as error:
            if options.faulty == "refuse":
                raise
            say(f"skipped: {error}")
            samples = np.zeros(0, np.int16)
        files.append((name, len(samples)))
        yield samples


if __name__ == "__main__":
    process.run(main, define_flags)
