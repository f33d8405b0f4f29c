"""Evaluates a run and prints one JSON object: python -m transformer_jax.evaluate --workdir=DIR
[--set=test]

--prompts=FILE.json --shots=0,1,8 evaluates a language model in context instead; see
inference/prompting.py for the format of the file. Flags such as --config.decode.beam=1 and
--config.data.test_source=FILE apply to this call only.

--zero_shot=wikitext2 --file=wiki.test.tokens evaluates a language model on one of the eight data
sets of GPT-2's zero-shot table, by the measure that it reports; see inference/zero_shot.py.

--minimal_pairs='blimp/*.jsonl' --skip_equal asks whether the right sentence of each pair is
likelier than the wrong one, by file and by phenomenon: each line is {"sentence_good": ...,
"sentence_bad": ...}. --pair_scores=FILE.jsonl writes the scores of both.

--against=DIR2 compares the run with another one, whose outputs for the same set are scored by the
same measures. It prints both scores, their difference with its 95% confidence interval, and its
p-value, by the paired bootstrap.
"""

import json
import pathlib

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError

# Only these keys may be overridden, because the others decide what the run has learned.
ALLOWED = (
    "decode.",
    "data.valid_",
    "data.test_",
    "data.tfds_dir",
    "data.split_on",
    "data.text_field",
    "data.cache",
    "task.null_threshold",
    "task.n_best",
    "task.max_answer",
    "task.scheme",
    "task.lm_",
    "task.length_bonus",
)
# The keys of inference.zero_shot.SETS, which is not imported for --help.
ZERO_SHOT = ["lambada", "cbt", "wikitext2", "ptb", "enwik8", "text8", "wikitext103", "1bw"]


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_enum("set", "valid", ["valid", "test"], "Part of the data to evaluate.")
    flags.DEFINE_string("against", None, "Workdir of another run whose outputs are compared.")
    flags.DEFINE_string(
        "prompts", None, "JSON file of a task with its examples and items, instead of --set."
    )
    flags.DEFINE_enum(
        "zero_shot",
        None,
        ZERO_SHOT,
        "Data set of GPT-2's zero-shot table, which --file holds, instead of --set.",
    )
    flags.DEFINE_string("file", None, "With --zero_shot: file of the data set.")
    flags.DEFINE_string(
        "minimal_pairs",
        None,
        "Files of pairs of a right and a wrong sentence, as JSON lines, instead of --set.",
    )
    flags.DEFINE_list(
        "pair_keys",
        ["sentence_good", "sentence_bad"],
        "With --minimal_pairs: keys of the right and the wrong sentence.",
    )
    flags.DEFINE_enum(
        "normalize",
        "sum",
        ["sum", "tokens", "characters"],
        "With --minimal_pairs: what a log-probability is divided by: nothing, or the length.",
    )
    flags.DEFINE_enum(
        "steps",
        None,
        ["all"],
        "With --minimal_pairs: evaluate all checkpoints of the run, instead of --step.",
    )
    flags.DEFINE_string(
        "output", None, "With --steps: picture of the accuracies over the words of training text."
    )
    flags.DEFINE_bool(
        "skip_equal", False, "With --minimal_pairs: leave out pairs whose sentences are equal."
    )
    flags.DEFINE_bool(
        "within_word",
        False,
        "With --minimal_pairs and a masked model: also mask what follows in the same word.",
    )
    flags.DEFINE_string(
        "pair_scores",
        None,
        "With --minimal_pairs: file for the scores of both sentences of each pair, as JSON lines.",
    )
    flags.DEFINE_list(
        "shots", ["0"], "With --prompts: numbers of examples in each prompt, such as 0,1,8."
    )


def main() -> None:
    options = cli.FLAGS
    _check_flags(options)
    if options.prompts:
        results = _in_context(options)
    elif options.zero_shot:
        results = _zero_shot(options)
    elif options.minimal_pairs is not None:
        results = _minimal_pairs(options)
    elif options.against:
        results = {"set": options.set, "against": options.against, **_compared(options)}
    else:
        task, params = cli.open_run("evaluate", "can be evaluated", ALLOWED)
        results = {"set": options.set, **task.evaluate(params, options.set)}
    print(
        json.dumps({"workdir": options.workdir, "step": options.steps or options.step, **results})
    )


def _check_flags(options) -> None:
    if options["shots"].present and not options.prompts:
        raise UserError("--shots needs --prompts")
    if options["set"].present and options.prompts:
        raise UserError("--set and --prompts: give one of them")
    if options.against and options.prompts:
        raise UserError("--against and --prompts: give one of them")
    if options.file and not options.zero_shot:
        raise UserError("--file needs --zero_shot, the name of its data set")
    if options.zero_shot:
        if options.file is None:
            raise UserError("--zero_shot needs --file, your copy of the data set")
    for name in ("zero_shot", "minimal_pairs"):
        for other in ("prompts", "against", "set", "minimal_pairs"):
            if options[name].present and options[other].present and other != name:
                raise UserError(f"--{name} and --{other}: give one of them")
    for name in ("pair_keys", "normalize", "skip_equal", "within_word", "steps", "pair_scores"):
        if options[name].present and options.minimal_pairs is None:
            raise UserError(f"--{name} needs --minimal_pairs")
    if options.output and not options.steps:
        raise UserError("--output needs --steps=all, whose results it draws")
    if options.steps and options["step"].present:
        raise UserError("--steps and --step: give one of them")
    if options.steps and options.pair_scores:
        raise UserError(
            "--steps and --pair_scores: give one of them; --step=N chooses a checkpoint"
        )
    cli.check_output("output")
    cli.check_output("pair_scores")
    if options.pair_scores and (taken := {"where", "scores"} & {*options.pair_keys}):
        raise UserError(
            f"--pair_keys={','.join(options.pair_keys)}: --pair_scores writes {min(taken)!r} for "
            "something else; rename the key"
        )
    if len(options.pair_keys) != 2:
        raise UserError(
            f"--pair_keys={','.join(options.pair_keys)}: must be two keys, of the right and of the "
            "wrong sentence"
        )


def _compared(options) -> dict:
    """Returns the comparison of the outputs of --workdir and --against."""
    from transformer_jax.inference import translating

    outputs = []
    # The run of --workdir is opened last, since its task provides the measures.
    for workdir in (options.against, options.workdir):
        task, params = cli.open_run("split_outputs", "has outputs to compare", ALLOWED, workdir)
        outputs.append(task.split_outputs(params, options.set))
    others, own = outputs
    compared = translating.comparison(task.measures, own, others)
    return {"examples": len(own.outputs), "scores": compared}


def _in_context(options) -> dict:
    """Returns the results of in-context evaluation for each number of examples."""
    from transformer_jax.inference import prompting

    prompts = prompting.read(options.prompts)
    # Checked before the run is opened, which takes much longer.
    shots = _shots(options, len(prompts.examples))
    task, params = cli.open_run("next_tokens", "takes prompts", ALLOWED)
    results = [prompting.evaluate(task, params, prompts, count) for count in shots]
    return {"prompts": options.prompts, "results": results}


def _zero_shot(options) -> dict:
    """Returns the scores of --zero_shot."""
    from transformer_jax.inference import zero_shot

    task, params = cli.open_run("next_tokens", "is of a causal model", ALLOWED)
    scores = zero_shot.evaluate(task, params, options.zero_shot, options.file)
    return {"zero_shot": options.zero_shot, "file": options.file, **scores}


def _minimal_pairs(options) -> dict:
    """Returns the accuracies of --minimal_pairs."""
    from transformer_jax.inference import minimal_pairs
    from transformer_jax.runs.open import checkpoint_steps

    # Read before the run is opened, which takes much longer.
    keys = tuple(options.pair_keys)
    pairs = minimal_pairs.read(options.minimal_pairs, keys, skip_equal=options.skip_equal)
    how = dict(normalize=options.normalize, within_word=options.within_word)
    found = []
    for step in checkpoint_steps(options.workdir) if options.steps else [options.step]:
        task, params = cli.open_run(
            "log_probability", "has log-probabilities of texts", ALLOWED, step=step
        )
        scores = minimal_pairs.sentence_scores(task, params, pairs, **how)
        found.append({"step": step, **minimal_pairs.accuracies(pairs, scores)})
    baselines = minimal_pairs.baselines(task, pairs)
    shorter = baselines["shorter"]
    results = _over_words(options, task, found, shorter) if options.steps else found[0]
    if options.pair_scores:
        _write_scores(options.pair_scores, pairs, scores, keys)
    return {
        "minimal_pairs": options.minimal_pairs,
        "kind": task.scoring.kind,
        "normalize": options.normalize,
        **results,
        "baselines": baselines,
    }


def _write_scores(path: str, pairs, scores: list[float], keys: tuple[str, str]) -> None:
    """Writes a line for each pair, with both sentences and their scores."""
    from transformer_jax.storage import buckets

    # good and bad sentences in turn
    lines = [
        json.dumps(
            {
                "where": str(pair.where),
                **dict(zip(keys, (pair.good, pair.bad))),
                "scores": [good, bad],
            },
            ensure_ascii=False,
        )
        for pair, good, bad in zip(pairs, scores[::2], scores[1::2])
    ]
    buckets.write_whole(pathlib.Path(path), "".join(f"{line}\n" for line in lines))


def _over_words(options, task, found: list[dict], shorter: dict) -> dict:
    """Returns what the results of all checkpoints show, and draws them in --output."""
    from transformer_jax.inference import minimal_pairs
    from transformer_jax.pictures import figure, learning_curves
    from transformer_jax.pictures.progress import say

    try:
        for result in found:
            result["words"] = task.words_read(result["step"])
        against = "words"
    except UserError as error:
        # A run can still be evaluated where its training text has been deleted.
        say(f"words are not counted: {error}")
        against = "step"
    if options.output:
        curves = minimal_pairs.curves(found, against)
        names = {"words": "words of training text", "step": "updates"}
        drawn = learning_curves.accuracies(curves, names[against], 0.5)
        figure.save(drawn, options.output)
    learned = minimal_pairs.learned(found, against, shorter)
    return {"checkpoints": found, "first_above_chance": learned}


def _shots(options, num_examples: int) -> list[int]:
    if not options.shots:
        raise UserError("--shots=: must be numbers of examples, as in --shots=0,1,8")
    for count in options.shots:
        if not count.strip().isdecimal():
            raise UserError(
                f"--shots={','.join(options.shots)}: {count!r} is not a number of examples"
            )
        if int(count) > num_examples:
            raise UserError(f"--shots={count}: {options.prompts} has {num_examples} examples")
    return [int(count) for count in options.shots]


if __name__ == "__main__":
    cli.run(main, define_flags)
