"""Transcribes audio files: python -m transformer_jax.transcribe --workdir=DIR < files.txt

Each line of stdin, or each --audio, is the path of a WAV or FLAC file. Its transcript is printed as
one line. With --json, it prints one object per line, with the file, its transcript, the score of
the decoder and the duration in seconds.

--config.decode.beam=16 uses prefix beam search, and 1 takes the likeliest path. With beam search,
--config.task.lm_order=5 adds a character n-gram language model. It is counted on the transcripts of
the training data, or on --config.task.lm_files=FILE, which has one sentence per line.
"""

import json

from absl import flags

from transformer_jax import cli

# Only these keys may be overridden, because the others decide what the run has learned.
ALLOWED = ("decode.", "task.lm_", "task.length_bonus", "data.cache")


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_multi_string("audio", [], "A file to read instead of stdin; may be repeated.")
    flags.DEFINE_integer(
        "most_samples",
        5_760_000,
        "Maximum number of samples of a file, over all channels; a longer file is not decoded.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "faulty",
        "refuse",
        ["refuse", "skip"],
        "What to do with a file that is missing, empty, damaged or too long: stop with an error, "
        "or write an empty transcript.",
    )
    flags.DEFINE_bool("json", False, "Print one JSON object per line.")


def main() -> None:
    from transformer_jax.data.sources.text_files import text_lines

    options = cli.FLAGS
    task, params = cli.open_run("transcribe", "transcribes sound", ALLOWED)
    files = []  # (file, number of samples), because files are read ahead of their transcripts
    rate = task.model.sampling_rate
    sounds = _sounds(options.audio or text_lines("-"), rate, files)
    for number, (best, *_) in enumerate(task.transcribe(params, sounds)):
        file, samples = files[number]
        if options.json:
            line = {"audio": file, "text": best.text, "score": best.score}
            print(json.dumps(line | {"seconds": samples / rate}, ensure_ascii=False), flush=True)
        else:
            print(best.text, flush=True)


def _sounds(names, rate: int, files: list[tuple[str, int]]):
    """Yields the samples of each file at `rate` samples a second.

    A faulty file that is skipped has no samples.
    """
    import numpy as np

    from transformer_jax.data import speech
    from transformer_jax.pictures.progress import say

    options = cli.FLAGS
    for name in names:
        try:
            samples = speech.read(name, name, options.most_samples, rate)
        except speech.DamagedSound as error:
            if options.faulty == "refuse":
                raise
            say(f"skipped: {error}")
            samples = np.zeros(0, np.int16)
        files.append((name, len(samples)))
        yield samples


if __name__ == "__main__":
    cli.run(main, define_flags)
