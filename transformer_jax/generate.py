"""Continues text with a trained language model: python -m transformer_jax.generate --workdir=DIR
--prompt="def " --max_tokens=100

--beam=4 searches for the likeliest continuation in place of drawing one. Prompts from a file, or
several continuations of a prompt, give one JSON object a line, in order.
"""

import itertools
import json
import sys

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError

# The flags that a beam search has no use for.
_DRAWING = (
    "num_samples",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "stop",
    "seed",
    "window",
)


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_string(
        "prompt", None, "Text to continue; without --prompt and --prompts the text is new."
    )
    flags.DEFINE_string(
        "prompts",
        None,
        "File of prompts, one a line (*.jsonl: JSON strings, which may hold line "
        "ends); - is stdin.",
    )
    flags.DEFINE_integer(
        "max_tokens",
        None,
        "Most tokens of a continuation; by default 100, with --window=refuse at "
        "most the room left.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "window",
        "slide",
        ["slide", "refuse"],
        "A text longer than config.model.max_length: continue from its last half, or refuse it.",
    )
    flags.DEFINE_integer("num_samples", 1, "Continuations of each prompt.", lower_bound=1)
    flags.DEFINE_float("temperature", 1.0, "Divisor of the logits; 0: always the likeliest token.")
    flags.DEFINE_integer("top_k", 0, "Draw from the k likeliest tokens; 0: from all.")
    flags.DEFINE_float(
        "top_p", 1.0, "Draw from the likeliest tokens that together have this probability."
    )
    flags.DEFINE_float(
        "repetition_penalty",
        1.0,
        "Above 1: tokens that are already in the text become less likely.",
    )
    flags.DEFINE_multi_string("stop", [], "End before this text; may be repeated.")
    flags.DEFINE_integer(
        "seed", 0, "Equal seeds give equal text.", lower_bound=0, upper_bound=2**31 - 1
    )
    flags.DEFINE_integer(
        "beam",
        None,
        "Beam search with so many open texts, in place of drawing; --config.decode.alpha sets the "
        "length penalty.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "n_best", 1, "Continuations of each prompt by --beam, the best first.", lower_bound=1
    )


def main() -> None:
    from transformer_jax.inference.sampling import Sampling

    options = cli.FLAGS
    if options.prompt is not None and options.prompts:
        raise UserError("--prompt and --prompts: give one of them")
    if options.beam:
        _search()
        return
    if options["n_best"].present:
        raise UserError(f"--n_best={options.n_best}: only with --beam; --num_samples draws texts")
    how = Sampling(options.repetition_penalty, options.temperature, options.top_k, options.top_p)
    task, params = cli.open_run("generate", "continues text")
    settings = dict(
        max_tokens=options.max_tokens,
        how=how,
        stop=options.stop,
        seed=options.seed,
        window=options.window,
    )
    prompts = _prompts()
    if options.prompts or options.num_samples > 1:
        repeated = (prompt for prompt in prompts for _ in range(options.num_samples))
        to_print, to_continue = itertools.tee(repeated)
        _print_objects(to_print, task.generate(params, to_continue, **settings))
    else:
        _print_as_written(task, params, prompts[0], settings)


def _search() -> None:
    """Prints the best continuations by beam search."""
    options = cli.FLAGS
    for name in _DRAWING:
        if options[name].present and options[name].value != "refuse":
            raise UserError(f"--{name} and --beam: a beam search has no --{name}; give one of them")
    task, params = cli.open_run("generate_beam", "continues text")
    settings = dict(beam=options.beam, n_best=options.n_best, max_tokens=options.max_tokens)
    to_print, to_continue = itertools.tee(_prompts())
    best = task.generate_beam(params, to_continue, **settings)
    if options.prompts or options.n_best > 1:
        for prompt, continuations in zip(to_print, best):
            _print_objects([prompt] * len(continuations), continuations)
    else:
        print(next(to_print) + next(best)[0].text)


def _print_objects(prompts, continuations) -> None:
    """Prints a JSON object for each continuation: the prompt, and the fields of a continuation."""
    for prompt, continuation in zip(prompts, continuations):
        fields = {"prompt": prompt, "text": continuation.text, "finished": continuation.finished}
        print(json.dumps(fields | continuation._asdict(), ensure_ascii=False), flush=True)


def _print_as_written(task, params, prompt: str, settings: dict) -> None:
    """Prints the prompt and its continuation while the model writes it."""
    written = None

    def show(texts: list[str]) -> None:
        nonlocal written
        ready = texts[0].removesuffix("\ufffd")  # a character whose other bytes are still to come
        ready = ready[: len(ready) - _held_back(ready)]
        sys.stdout.write(prompt + ready if written is None else ready[len(written) :])
        sys.stdout.flush()
        written = max(written or "", ready, key=len)

    (continuation,) = task.generate(params, [prompt], watch=show, **settings)
    print(continuation.text[len(written) :])


def _held_back(text: str) -> int:
    """Returns the number of last characters that may be the beginning of a stop string."""
    lengths = [
        length
        for stop in cli.FLAGS.stop
        for length in range(len(stop))
        if text.endswith(stop[:length])
    ]
    return max(lengths, default=0)


def _prompts():
    return _lines(cli.FLAGS.prompts) if cli.FLAGS.prompts else [cli.FLAGS.prompt or ""]


def _lines(path: str):
    from transformer_jax.data.sources.text_files import from_json, text_lines
    from transformer_jax.storage import buckets

    if path != "-" and not buckets.path(path).is_file():
        raise UserError(f"--prompts={path}: no such file")
    for number, line in enumerate(text_lines(path), 1):
        if path.endswith(".jsonl"):
            line = from_json(line, f"{path}:{number}")
            if not isinstance(line, str):
                raise UserError(f"{path}:{number}: not a JSON string")
        yield line


if __name__ == "__main__":
    process.run(main, define_flags)
