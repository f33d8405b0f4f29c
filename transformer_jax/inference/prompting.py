"""In-context (few-shot) evaluation: task files, prompts and scores."""

import bisect
import collections
import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import from_json
from transformer_jax.inference.generation import Sampling
from transformer_jax.pictures.progress import say, track
from transformer_jax.storage import buckets

# -------------------------------------- the task file: items, examples, and the form of the prompts

NORMALIZE = ("none", "length", "unconditional")
_TYPE_NAMES = {list: "a list", int: "a whole number"}


@dataclasses.dataclass(frozen=True)
class Item:
    """A text to complete, or an example together with its completion."""

    input: str
    output: str | None = None  # the right completion
    choices: list = field(default_factory=list)  # possible completions; empty: those of the file


@dataclasses.dataclass(frozen=True)
class Prompts:
    """A task in the form of prompts: the content of a task file.

    With choices, the prediction is the likeliest choice (Brown et al. 2020, section 2.4). Without
    choices, a completion is generated greedily, and it is right if it equals `output`.

    `normalize` decides how the score of a choice is computed. "none" is log P(choice | prompt).
    "length" divides it by the number of tokens of the choice. "unconditional" subtracts
    log P(choice | answer_context) from it, so that choices that are likely in any context have no
    advantage.
    """

    items: list
    examples: list = field(default_factory=list)
    description: str = ""
    template: str = "{input} => {output}"
    separator: str = "\n"  # between description, examples and item
    choices: list = field(default_factory=list)  # of the items without choices of their own
    normalize: str = "length"
    answer_context: str = "Answer: "
    stop: str = "\n"  # ends a generated completion
    seed: int = 0  # decides which examples an item is shown

    def text(self, item: Item, examples: Iterable[Item] = ()) -> str:
        """Returns the prompt of an item."""
        template = self.template.removesuffix("{output}")
        parts = [self.description] if self.description else []
        # `replace` and not `format`, because templates and inputs may contain other braces.
        parts += [template.replace("{input}", each.input) + each.output for each in examples]
        parts.append(template.replace("{input}", item.input))
        return self.separator.join(parts)

    def choices_of(self, item: Item) -> list[str]:
        return item.choices or self.choices


def read(path: str) -> Prompts:
    """Reads a task file: a JSON object with the fields of Prompts.

    Items and examples are objects with the fields of Item. Raises UserError for an invalid file.
    """
    try:
        with buckets.reading(path):
            # utf-8-sig drops the byte order mark that some editors put in front.
            content = from_json(buckets.path(path).read_text("utf-8-sig"), path)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8") from None
    prompts = _of_json(Prompts, content, path)
    prompts = dataclasses.replace(
        prompts,
        items=_entries(prompts.items, f"{path}: item"),
        examples=_entries(prompts.examples, f"{path}: example"),
    )
    _check(prompts, path)
    return prompts


def _entries(entries: list, name: str) -> list[Item]:
    return [_of_json(Item, entry, f"{name} {number}") for number, entry in enumerate(entries, 1)]


def _of_json(cls, values, where: str):
    """Returns an instance of the dataclass `cls`, whose fields are the keys of a JSON object."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if not isinstance(values, dict):
        raise UserError(f"{where}: not a JSON object with {', '.join(fields)}")
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(
                f"{where}: unknown key {key!r}{hint}; the keys are: {', '.join(fields)}"
            )
        if not isinstance(value, fields[key].type):
            kind = _TYPE_NAMES.get(fields[key].type, "a text")
            raise UserError(f"{where}: {key} must be {kind}")
    # Only the first field has no default.
    if (first := next(iter(fields))) not in values:
        raise UserError(f"{where}: {first} is missing")
    choices = values.get("choices", [])
    if choices and not _are_choices(choices):
        raise UserError(f"{where}: choices must be at least two different texts, none empty")
    return cls(**values)


def _are_choices(choices: list) -> bool:
    are_texts = all(isinstance(choice, str) and choice.strip() for choice in choices)
    return are_texts and len(set(choices)) == len(choices) > 1


def _check(prompts: Prompts, path: str) -> None:
    if not prompts.items:
        raise UserError(f"{path}: no items")
    template = prompts.template
    if "{input}" not in template or not template.endswith("{output}"):
        raise UserError(
            f"{path}: template={template!r}: must contain {{input}} and end with {{output}}"
        )
    if prompts.normalize not in NORMALIZE:
        raise UserError(
            f"{path}: normalize={prompts.normalize!r}: must be one of {', '.join(NORMALIZE)}"
        )
    if prompts.seed < 0:
        raise UserError(f"{path}: seed={prompts.seed}: must be at least 0")
    if not prompts.stop or not prompts.answer_context.strip():
        raise UserError(f"{path}: stop and answer_context must not be empty")
    for number, item in enumerate(prompts.items, 1):
        _check_item(prompts, item, f"{path}: item {number}")
    for number, example in enumerate(prompts.examples, 1):
        where = f"{path}: example {number}"
        if example.output is None:
            raise UserError(f"{where}: output is missing")
        _check_output(prompts, example, where)


def _check_item(prompts: Prompts, item: Item, where: str) -> None:
    first = prompts.items[0]
    choices = prompts.choices_of(item)
    if bool(choices) != bool(prompts.choices_of(first)):
        difference = "no choices, but item 1 has" if not choices else "choices, but item 1 has none"
        raise UserError(f"{where}: has {difference}")
    if (item.output is None) != (first.output is None):
        missing = item.output is None
        difference = "no output, but item 1 has" if missing else "an output, but item 1 has none"
        raise UserError(f"{where}: has {difference}")
    if item.output is None and not choices:
        raise UserError(f"{where}: output is missing")
    _check_output(prompts, item, where)
    if not choices and (not item.output.strip() or prompts.stop in item.output):
        raise UserError(
            f"{where}: output {item.output!r} cannot be generated: it is empty, or contains "
            f"stop={prompts.stop!r}"
        )


def _check_output(prompts: Prompts, entry: Item, where: str) -> None:
    choices = prompts.choices_of(entry)
    if entry.output is not None and choices and entry.output not in choices:
        raise UserError(f"{where}: output {entry.output!r} is not one of its choices")


# ---------------------------------------------------------------------------- evaluation in context

# A prompt describes a task and shows zero, one or a few examples (Brown et al. 2020, section 2).

_SHOWN = 3  # items whose prompt and completion an evaluation prints
# A generated completion may have this many tokens more than the longest right one, so that a
# completion that goes on after the right one does not count as right.
_EXTRA_TOKENS = 8


def evaluate(task, params, prompts: Prompts, shots: int = 0) -> dict[str, Any]:
    """Evaluates a causal language model on the items, with `shots` examples in each prompt.

    An item gets fewer examples if the model's window has no room for all; "shortened" counts these
    items. Prints the first prompts with their completions. Returns "shots", "items", "shortened"
    and "accuracy", with shared choices also "accuracy_by_output". For items without an output, it
    returns "predictions" instead of accuracies. Raises UserError if there are fewer examples than
    shots, and for an item that is too long even without examples.
    """
    if shots > len(prompts.examples):
        raise UserError(f"{shots} shots: there are {len(prompts.examples)} examples")
    has_choices = bool(prompts.choices_of(prompts.items[0]))
    if has_choices:
        room = max(_longest(task, prompts.choices_of(item)) for item in prompts.items)
    else:
        room = _longest(task, [item.output for item in prompts.items]) + _EXTRA_TOKENS
    texts, shortened = _texts(task, prompts, shots, task.model.window - room)
    if shortened:
        say(
            f"{shots} shots: {shortened} of {len(texts)} items are shown fewer examples, since the "
            f"model reads {task.model.window} tokens"
        )
    if has_choices:
        predictions = _likeliest(task, params, prompts, texts)
    else:
        predictions = _generated(task, params, prompts, texts, max_tokens=room)
    for item, text, prediction in list(zip(prompts.items, texts, predictions))[:_SHOWN]:
        right = "" if item.output is None else f" (right: {item.output})"
        say(f"a prompt with {shots} shots, and its completion:\n{text}\n-> {prediction}{right}")
    results = {"shots": shots, "items": len(texts), "shortened": shortened}
    if prompts.items[0].output is None:
        return results | {"predictions": predictions}
    return results | _accuracies(prompts, predictions)


def _accuracies(prompts: Prompts, predictions: list[str]) -> dict[str, Any]:
    by_output = collections.defaultdict(list)
    for item, prediction in zip(prompts.items, predictions):
        # Stripped on both sides, because outputs in a file may have spaces around them, and
        # generated completions have none.
        by_output[item.output].append(prediction.strip() == item.output.strip())
    results = {"accuracy": float(np.mean(sum(by_output.values(), [])))}
    if prompts.choices:
        results["accuracy_by_output"] = {
            output: float(np.mean(by_output[output]))
            for output in prompts.choices
            if output in by_output
        }
    return results


def classify(
    task,
    params,
    texts: Sequence[str],
    labels: Sequence[str],
    template: str = "{input} {output}",
    *,
    normalize: str = "length",
) -> list[str]:
    """Returns the likeliest label of each text, without examples.

    The score is log P(label | template up to {output}), normalized as Prompts describes.
    """
    items = [Item(text) for text in texts]
    prompts = Prompts(items, template=template, choices=list(labels), normalize=normalize)
    return _likeliest(task, params, prompts, [prompts.text(item) for item in items])


def _texts(task, prompts: Prompts, shots: int, room: int) -> tuple[list[str], int]:
    """Returns the prompt of each item, and the number of items with fewer than `shots` examples.

    A prompt has as many examples, up to `shots`, as fit in `room` tokens.
    """
    texts, shortened = [], 0
    for number, item in enumerate(prompts.items):
        # Seeded by the item's index, so that its examples do not depend on the other items. A
        # permutation is cut, so that the k examples are the first k of the k + 1 with one more
        # shot.
        random = np.random.default_rng([prompts.seed, number])
        examples = [prompts.examples[i] for i in random.permutation(len(prompts.examples))[:shots]]
        candidates = _Candidates(task, prompts, item, examples)
        # A prompt grows with its number of examples, so that a bisection encodes only a few
        # prompts.
        count = bisect.bisect_right(range(shots + 1), room, key=candidates.num_tokens) - 1
        if count < 0:
            raise UserError(
                f"item {number + 1}: with its completion it exceeds "
                f"config.model.max_length={task.model.max_length}, even without examples"
            )
        texts.append(candidates.text(count))
        shortened += count < shots
    return texts, shortened


@dataclasses.dataclass(frozen=True)
class _Candidates:
    """The prompts of an item with its first 0, 1, 2, ... examples."""

    task: Any
    prompts: Prompts
    item: Item
    examples: list[Item]

    def text(self, count: int) -> str:
        return self.prompts.text(self.item, self.examples[:count])

    def num_tokens(self, count: int) -> int:
        (ids,) = self.task.tokenizer.encode([self.text(count)])
        return len(self.task.with_start(ids))


def _longest(task, completions: list[str]) -> int:
    """Returns the number of tokens of the longest completion."""
    # With the space that stands in front of it in a prompt, because tokenizers join the two.
    return max(map(len, task.tokenizer.encode([f" {completion}" for completion in completions])))


def _likeliest(task, params, prompts: Prompts, texts: list[str]) -> list[str]:
    """Returns the likeliest choice after each text."""
    choices = [prompts.choices_of(item) for item in prompts.items]
    pairs = [(text, choice) for text, own in zip(texts, choices) for choice in own]
    likelihoods = track(task.log_likelihoods(params, pairs), "comparing choices", len(pairs))
    scores = []
    for likelihood in likelihoods:
        num_tokens = likelihood.tokens if prompts.normalize == "length" else 1
        scores.append(likelihood.log_prob / num_tokens)
    if prompts.normalize == "unconditional":
        # Each distinct choice is scored once, because items often share their choices.
        distinct = list(dict.fromkeys(choice for _, choice in pairs))
        alone = [(prompts.answer_context, choice) for choice in distinct]
        priors = dict(zip(distinct, task.log_likelihoods(params, alone)))
        scores = [score - priors[choice].log_prob for score, (_, choice) in zip(scores, pairs)]
    scores = iter(scores)
    # `max` calls the key once for each choice, in their order, which the scores have, too.
    return [max(own, key=lambda _: next(scores)) for own in choices]


def _generated(task, params, prompts: Prompts, texts: list[str], *, max_tokens: int) -> list[str]:
    """Returns a greedy completion of each text."""
    # Most tokenizers join a space to the word after it, so a prompt must not end with one.
    texts = [text.rstrip(" ") for text in texts]
    continuations = task.generate(
        params,
        texts,
        max_tokens=max_tokens,
        how=Sampling(temperature=0.0),
        stop=[prompts.stop],
        window="refuse",
    )
    tracked = track(continuations, "completing", len(texts))
    return [continuation.text.strip() for continuation in tracked]
