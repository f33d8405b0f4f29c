"""Continues text with a trained language model: python -m transformer_jax.generate --workdir=DIR
--prompt="def " --max_tokens=100

Prompts from a file or several samples come as JSON objects, one a line, in order.
"""

import itertools
import json
import sys

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_string(
        "prompt", None, "Text to continue; without it and --prompts, text from nothing."
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
        "Where a text is longer than config.model.max_length: go on from the last half, or refuse.",
    )
    flags.DEFINE_integer("num_samples", 1, "Continuations of each prompt.", lower_bound=1)
    flags.DEFINE_float("temperature", 1.0, "0: always the likeliest token.")
    flags.DEFINE_integer("top_k", 0, "Draw from the k likeliest tokens; 0: from all.")
    flags.DEFINE_float(
        "top_p", 1.0, "Draw from the likeliest tokens that together have this probability."
    )
    flags.DEFINE_float(
        "repetition_penalty",
        1.0,
        "Above 1: tokens that stand in the text already become less likely.",
    )
    flags.DEFINE_multi_string("stop", [], "End before this text; may be given several times.")
    flags.DEFINE_integer(
        "seed", 0, "Equal seeds give equal text.", lower_bound=0, upper_bound=2**31 - 1
    )


def main() -> None:
    from transformer_jax.inference.sampling import Sampling
    from transformer_jax.runs.open import open_run

    options = cli.FLAGS
    if options.prompt is not None and options.prompts:
        raise UserError("--prompt and --prompts: give one of them")
    how = Sampling(options.repetition_penalty, options.temperature, options.top_k, options.top_p)
    task, params = open_run(options.workdir, options.step, cli.overrides(allowed=("decode.",)))
    if not hasattr(task, "generate"):
        raise UserError(
            f"--workdir={options.workdir}: a {task.config.task.name} run, not one that continues text"
        )
    prompts = _lines(options.prompts) if options.prompts else [options.prompt or ""]
    repeated = (prompt for prompt in prompts for _ in range(options.num_samples))
    settings = dict(max_tokens=options.max_tokens, how=how, stop=options.stop, seed=options.seed)
    settings["window"] = options.window
    if options.prompts or options.num_samples > 1:
        shown, continued = itertools.tee(repeated)
        for prompt, found in zip(shown, task.generate(params, continued, **settings)):
            print(
                json.dumps(
                    {
                        "prompt": prompt,
                        "text": found.text,
                        "finished": found.finished,
                        "tokens": found.tokens,
                    },
                    ensure_ascii=False,
                ),
                flush=True,
            )
        return
    written = None

    def show(texts: list[str]) -> None:
        nonlocal written
        ready = texts[0].removesuffix("\ufffd")  # the rest of a character is still to come
        # what may become a stop string
        hold = max(
            (n for s in options.stop for n in range(len(s)) if ready.endswith(s[:n])), default=0
        )
        ready = ready[: len(ready) - hold]
        sys.stdout.write(
            (options.prompt or "") + ready if written is None else ready[len(written) :]
        )
        sys.stdout.flush()
        written = max(written or "", ready, key=len)

    (found,) = task.generate(params, repeated, watch=show, **settings)
    print(found.text[len(written) :])


def _lines(path: str):
    from transformer_jax.data.sources.pairs import from_json, text_lines
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
