"""Continues text with a trained language model: python -m transformer_jax.generate --workdir=DIR
--prompt="def " --max_tokens=100

--show_probabilities prints the likeliest next tokens of a prompt with their probabilities instead
of a continuation.

--beam=4 uses beam search instead of sampling. For prompts from a file, or several continuations of
a prompt, the output is one JSON object per line, in order.

--chat holds a conversation with a run that was trained on conversations, until Ctrl-D. If stdin is
not a terminal, each of its lines is a message, and each line of stdout is the reply to one. With
--prompt or --prompts, each prompt is a message that starts its own conversation.

--best_of=16 --reward=DIR2 samples 16 continuations of each prompt, and returns the one with the
highest reward according to a reward model.
"""

import itertools
import json
from functools import partial

from absl import flags

from transformer_jax import cli
from transformer_jax.cli import conversation
from transformer_jax.cli.conversation import Streamed
from transformer_jax.config import UserError

# Flags that are refused with --chat, and those that a live conversation refuses as well. A flag
# without effect would leave the user in doubt about the texts.
_TEXTS = ("beam", "n_best", "window")
_PROMPTS = ("num_samples", "best_of")
# Flags that are refused with --beam, which draws no tokens and never slides a window.
_SAMPLING = (
    "num_samples",
    "best_of",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "stop",
    "seed",
    "window",
)
# The flags of continuations, which are refused with --show_probabilities.
_CONTINUING = (
    "max_tokens",
    *(name for name in _SAMPLING if name != "top_k"),
    "beam",
    "n_best",
    "chat",
    "system",
    "reward",
)
_SHOWN = 10  # next tokens that --show_probabilities prints, unless --top_k is given


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_string(
        "prompt", None, "Text to continue; without --prompt and --prompts, starts a new text."
    )
    flags.DEFINE_string(
        "prompts",
        None,
        "File of prompts, one per line (*.jsonl: JSON strings, which may contain line breaks); - "
        "is stdin.",
    )
    flags.DEFINE_integer(
        "max_tokens",
        None,
        "Maximum number of tokens of a continuation; default: 100, with --window=refuse at most "
        "the room left in the window, with --chat a quarter of the window.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "window",
        "slide",
        ["slide", "refuse"],
        "What to do with a text longer than config.model.max_length: continue from the last half "
        "of the window, or refuse it.",
    )
    flags.DEFINE_integer("num_samples", 1, "Number of continuations per prompt.", lower_bound=1)
    flags.DEFINE_float("temperature", 1.0, "Divisor of the logits; 0: always the likeliest token.")
    flags.DEFINE_integer("top_k", 0, "Sample from the k likeliest tokens; 0: from all.")
    flags.DEFINE_bool(
        "show_probabilities",
        False,
        "Print the likeliest next tokens of each prompt with their probabilities, as many as "
        f"--top_k says (default: {_SHOWN}), instead of continuing it.",
    )
    flags.DEFINE_float(
        "top_p", 1.0, "Sample from the likeliest tokens whose probabilities sum to this."
    )
    flags.DEFINE_float(
        "repetition_penalty",
        1.0,
        "Above 1: tokens that are already in the text become less likely.",
    )
    flags.DEFINE_multi_string("stop", [], "End in front of this text; may be repeated.")
    flags.DEFINE_integer(
        "seed", 0, "Equal seeds give equal texts.", lower_bound=0, upper_bound=2**31 - 1
    )
    flags.DEFINE_integer(
        "beam",
        None,
        "Use beam search with this many open hypotheses instead of sampling; "
        "--config.decode.alpha sets the length penalty.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "n_best", 1, "With --beam: number of continuations per prompt, best first.", lower_bound=1
    )
    flags.DEFINE_bool("chat", False, "Reply to prompts, or hold a conversation; Ctrl-D ends it.")
    flags.DEFINE_string("system", None, "System message at the start of the conversation.")
    flags.DEFINE_integer(
        "best_of",
        None,
        "Number of continuations per prompt from which --reward chooses.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "reward", None, "Workdir of a reward model, which chooses among --best_of continuations."
    )


def main() -> None:
    from transformer_jax.inference.generation import Sampling

    options = cli.FLAGS
    if options.prompt is not None and options.prompts:
        raise UserError("--prompt and --prompts: give one of them")
    if options.system is not None and not options.chat:
        raise UserError("--system: only with --chat")
    if (options.best_of is None) != (options.reward is None):
        raise UserError("--best_of and --reward: give both, or neither")
    if options.best_of and options["num_samples"].present:
        raise UserError("--num_samples and --best_of: give one of them")
    has_prompts = options.prompt is not None or options.prompts
    if options.show_probabilities:
        _refuse(_CONTINUING, "--show_probabilities", "a list of next tokens")
        _show_probabilities()
        return
    if options.chat:
        _refuse(_TEXTS, "--chat", "a reply")
        if not has_prompts:
            _refuse(_PROMPTS, "--chat without --prompts", "a conversation")
    elif options.beam:
        _search()
        return
    elif options["n_best"].present:
        raise UserError(f"--n_best={options.n_best}: only with --beam; --num_samples draws texts")
    how = Sampling(options.repetition_penalty, options.temperature, options.top_k, options.top_p)
    settings = dict(max_tokens=options.max_tokens, how=how, stop=options.stop, seed=options.seed)
    if not options.chat:
        task, params = cli.open_run("generate", "continues text")
        _suggest_chat(task.tokenizer)
        _write(partial(task.generate, params, window=options.window, **settings))
        return
    task, params = cli.open_run("replies", "holds conversations")
    if has_prompts:
        _write(partial(task.replies, params, **settings))
    else:
        conversation.hold(task, params, options.system, settings)


def _write(draw) -> None:
    """Prints the texts that `draw(prompts)` generates for the prompts."""
    options = cli.FLAGS
    prompts = _prompts()
    if options.best_of:
        _choose(draw, prompts)
    elif options.prompts or options.num_samples > 1:
        repeated = (prompt for prompt in prompts for _ in range(options.num_samples))
        # A tee keeps prompts from stdin a stream, of which each is printed once it is continued.
        to_print, to_continue = itertools.tee(repeated)
        _print_objects(to_print, draw(_as_turns(to_continue)))
    else:
        _print_as_written(draw, prompts[0])


def _suggest_chat(tokenizer) -> None:
    """Suggests --chat for a run that was trained on conversations."""
    from transformer_jax.data.tokenizers import conversational
    from transformer_jax.pictures.progress import say

    # Plain text is still continued, because that is what the command asks for.
    if conversational(tokenizer) is not None:
        say("this run has a form for conversations; --chat replies, this continues plain text")


def _as_turns(prompts):
    """Returns the prompts to be continued; with --system, each becomes a conversation."""
    if cli.FLAGS.system is None:
        return prompts
    history = conversation.first_messages(cli.FLAGS.system)
    return ([*history, conversation.user_message(prompt)] for prompt in prompts)


def _before(prompt: str) -> str:
    """Returns what is printed in front of a generated text: its prompt, but nothing for a reply."""
    return "" if cli.FLAGS.chat else prompt


def _refuse(names: tuple[str, ...], flag: str, use: str) -> None:
    """Raises UserError if one of the flags `names` is given, which do not apply to `use`."""
    for name in names:
        option = cli.FLAGS[name]
        # --window=refuse is let through, because a beam search and a reply do just that.
        if option.present and option.value != "refuse":
            raise UserError(f"--{name} and {flag}: {use} has no --{name}; give one of them")


def _choose(draw, prompts) -> None:
    """Prints the continuation of each prompt that the run of --reward prefers."""
    from transformer_jax.inference.generation import best_of

    options = cli.FLAGS
    reward, params = cli.open_run("score", "scores completions", flag="reward")
    to_print, to_continue = itertools.tee(prompts)
    score = partial(reward.score, params)
    chosen = best_of(draw, score, _as_turns(to_continue), options.best_of)
    if options.prompts:
        _print_objects(to_print, chosen)
    else:
        # The prompt is not printed earlier, because the text is chosen only once all are complete.
        print(_before(next(to_print)) + next(chosen).text)


def _search() -> None:
    """Prints the best continuations by beam search."""
    options = cli.FLAGS
    _refuse(_SAMPLING, "--beam", "a beam search")
    task, params = cli.open_run("generate_beam", "continues text")
    settings = dict(beam=options.beam, n_best=options.n_best, max_tokens=options.max_tokens)
    to_print, to_continue = itertools.tee(_prompts())
    best = task.generate_beam(params, to_continue, **settings)
    if options.prompts or options.n_best > 1:
        for prompt, continuations in zip(to_print, best):
            _print_objects([prompt] * len(continuations), continuations)
    else:
        print(next(to_print) + next(best)[0].text)


def _show_probabilities() -> None:
    """Prints the likeliest next tokens: one a line or, for --prompts, a JSON object per prompt."""
    options = cli.FLAGS
    task, params = cli.open_run("next_tokens", "continues text")
    to_print, to_read = itertools.tee(_prompts())
    for prompt, tokens in zip(to_print, task.next_tokens(params, to_read, options.top_k or _SHOWN)):
        if options.prompts:
            listed = [
                {"token": token, "probability": round(probability, 6)}
                for token, probability in tokens
            ]
            print(json.dumps({"prompt": prompt, "next": listed}, ensure_ascii=False), flush=True)
        else:
            for token, probability in tokens:
                print(f"{probability:.4f}  {token}")


def _print_objects(prompts, continuations) -> None:
    """Prints a JSON object for each continuation, with its prompt and its fields."""
    for prompt, continuation in zip(prompts, continuations):
        fields = {"prompt": prompt, "text": continuation.text, "finished": continuation.finished}
        print(json.dumps(fields | continuation._asdict(), ensure_ascii=False), flush=True)


def _print_as_written(draw, prompt: str) -> None:
    """Prints the prompt and its continuation, or a reply, while it is generated."""
    show = Streamed(cli.FLAGS.stop, before=_before(prompt))
    (drawn,) = draw(_as_turns([prompt]), watch=show)
    show.end(drawn.text)


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
    cli.run(main, define_flags)
