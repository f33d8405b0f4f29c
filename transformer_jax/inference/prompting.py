"""In-context evaluation: a task that is only described and shown in the prompt, with zero, one or a
few examples (Brown et al. 2020, section 2).
"""

import bisect
import collections
import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import field

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.sources.pairs import from_json
from transformer_jax.inference.sampling import Sampling
from transformer_jax.pictures.progress import say, track
from transformer_jax.storage import buckets

NORMALIZE = ("none", "length", "unconditional")
# tokens a written answer may have more than the longest right one: enough to see that it goes on
_SLACK = 8


@dataclasses.dataclass(frozen=True)
class Item:
    """Something to complete, or an example of it completed."""

    input: str
    output: str | None = None  # the right completion
    choices: list = field(default_factory=list)  # completions to choose from; none: the file's


@dataclasses.dataclass(frozen=True)
class Prompts:
    """A task as prompts. With choices the likeliest is taken (section 2.4), without them a
    completion is written, greedily, and must be `output` exactly.

    `normalize`: what is compared of log P(choice | prompt): "none" itself, "length" per token of
    the choice, "unconditional" less log P(choice | answer_context).
    """

    items: list
    examples: list = field(default_factory=list)
    description: str = ""
    template: str = "{input} => {output}"
    separator: str = "\n"  # between description, examples and item
    choices: list = field(default_factory=list)  # of every item that has none of its own
    normalize: str = "length"
    answer_context: str = "Answer: "
    stop: str = "\n"  # ends a written completion
    seed: int = 0  # which examples an item is shown

    def text(self, item: Item, examples: Iterable[Item] = ()) -> str:
        before = self.template.removesuffix("{output}")
        shown = [before.replace("{input}", example.input) + example.output for example in examples]
        return self.separator.join(
            [self.description] * bool(self.description)
            + shown
            + [before.replace("{input}", item.input)]
        )

    def of(self, item: Item) -> list[str]:
        return item.choices or self.choices


def read(path: str) -> Prompts:
    """The JSON file of a task: an object with Prompts' fields; items and examples are objects with
    Item's. Raises UserError for what is wrong there.
    """
    try:
        content = from_json(buckets.path(path).read_text("utf-8-sig"), path)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8") from None
    prompts = _of_json(Prompts, content, path)
    groups = [
        [
            _of_json(Item, entry, f"{path}: {kind} {number}")
            for number, entry in enumerate(entries, 1)
        ]
        for kind, entries in (("item", prompts.items), ("example", prompts.examples))
    ]
    prompts = dataclasses.replace(prompts, items=groups[0], examples=groups[1])
    _check(prompts, path)
    return prompts


def _of_json(cls, values, where: str):
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if not isinstance(values, dict):
        raise UserError(f"{where}: not a JSON object with {', '.join(fields)}")
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            raise UserError(
                f"{where}: unknown key {key!r}{f'; did you mean {near[0]}?' if near else ''}; there are: {', '.join(fields)}"
            )
        if not isinstance(value, fields[key].type):
            raise UserError(
                f"{where}: {key} must be {'a list' if fields[key].type is list else 'a whole number' if fields[key].type is int else 'a text'}"
            )
    if (first := next(iter(fields))) not in values:
        raise UserError(f"{where}: {first} is missing")
    choices = values.get("choices", [])
    if choices and (
        len(choices) == 1
        or not all(isinstance(choice, str) and choice.strip() for choice in choices)
        or len(set(choices)) < len(choices)
    ):
        raise UserError(f"{where}: choices must be at least two texts, none empty, none twice")
    return cls(**values)


def _check(prompts: Prompts, path: str) -> None:
    if not prompts.items:
        raise UserError(f"{path}: no items")
    if "{input}" not in prompts.template or not prompts.template.endswith("{output}"):
        raise UserError(
            f"{path}: template={prompts.template!r} must hold {{input}} and end with {{output}}"
        )
    if prompts.normalize not in NORMALIZE:
        raise UserError(
            f"{path}: normalize={prompts.normalize!r} is not one of {', '.join(NORMALIZE)}"
        )
    if prompts.seed < 0:
        raise UserError(f"{path}: seed={prompts.seed} must be at least 0")
    if not prompts.stop or not prompts.answer_context.strip():
        raise UserError(f"{path}: stop and answer_context must not be empty")
    first = prompts.items[0]
    for kind, entries in (("item", prompts.items), ("example", prompts.examples)):
        for number, entry in enumerate(entries, 1):
            where, choices = f"{path}: {kind} {number}", prompts.of(entry)
            if kind == "item" and bool(choices) != bool(prompts.of(first)):
                raise UserError(
                    f"{where}: item 1 has {'choices, this has none' if prompts.of(first) else 'no choices, this has'}"
                )
            if kind == "item" and (entry.output is None) != (first.output is None):
                raise UserError(
                    f"{where}: item 1 has {'no output, this has' if first.output is None else 'an output, this has none'}"
                )
            if entry.output is None and (kind == "example" or not choices):
                raise UserError(f"{where}: output is missing")
            if entry.output is not None and choices and entry.output not in choices:
                raise UserError(f"{where}: output {entry.output!r} is not among its choices")
            if (
                kind == "item"
                and not choices
                and (not entry.output.strip() or prompts.stop in entry.output)
            ):
                raise UserError(
                    f"{where}: output {entry.output!r} can't be written: it is empty, or holds stop={prompts.stop!r}"
                )


def evaluate(task, params, prompts: Prompts, shots: int = 0) -> dict:
    """What a run of a causal language model does with the items, `shots` examples before each;
    fewer where the model's length holds no more.

    {"shots", "items", "shortened": items shown fewer examples} and "accuracy", with shared choices
    "accuracy_by_output", too; of items without an output their "predictions" instead. Raises
    UserError where there are fewer examples, or an item is too long.
    """
    if shots > len(prompts.examples):
        raise UserError(f"{shots} shots: there are {len(prompts.examples)} examples")
    chosen = bool(prompts.of(prompts.items[0]))
    if chosen:
        room = max(_longest(task, prompts.of(item)) for item in prompts.items)
    else:
        room = _longest(task, [item.output for item in prompts.items]) + _SLACK
    texts, shortened = _texts(task, prompts, shots, task.model.max_length - room)
    if shortened:
        say(
            f"{shots} shots: {shortened} of {len(texts)} items are shown fewer examples, for the model takes {task.model.max_length} tokens"
        )
    predictions = (
        _likeliest(task, params, prompts, texts)
        if chosen
        else _written(task, params, prompts, texts, room)
    )
    found = {"shots": shots, "items": len(texts), "shortened": shortened}
    if prompts.items[0].output is None:
        return {**found, "predictions": predictions}
    right = collections.defaultdict(list)
    for item, prediction in zip(prompts.items, predictions):
        right[item.output].append(prediction.strip() == item.output.strip())
    found["accuracy"] = float(np.mean(sum(right.values(), [])))
    if prompts.choices:
        found["accuracy_by_output"] = {
            output: float(np.mean(right[output])) for output in prompts.choices if output in right
        }
    return found


def classify(
    task,
    params,
    texts: Sequence[str],
    labels: Sequence[str],
    template: str = "{input} {output}",
    normalize: str = "length",
) -> list[str]:
    """The likeliest label of each text, zero-shot: log P(label | template up to {output}),
    normalized as Prompts says.
    """
    prompts = Prompts(
        [Item(text) for text in texts], template=template, choices=list(labels), normalize=normalize
    )
    return _likeliest(task, params, prompts, [prompts.text(item) for item in prompts.items])


def _texts(task, prompts: Prompts, shots: int, room: int) -> tuple[list[str], int]:
    """Each item's prompt with the most examples, up to `shots`, that leave it within `room` tokens;
    and how many have fewer.
    """
    texts, shortened = [], 0
    for number, item in enumerate(prompts.items):
        # an item's k examples are the first of its k + 1, whatever the other items
        random = np.random.default_rng([prompts.seed, number])
        order = random.permutation(len(prompts.examples))[:shots]
        text = lambda count: prompts.text(item, [prompts.examples[i] for i in order[:count]])
        count = (
            bisect.bisect_left(
                range(shots + 1),
                True,
                key=lambda count: len(task.begun(task.tokenizer.encode([text(count)])[0])) > room,
            )
            - 1
        )
        if count < 0:
            raise UserError(
                f"item {number + 1}: with its completion it exceeds config.model.max_length={task.model.max_length}, even without examples"
            )
        texts.append(text(count))
        shortened += count < shots
    return texts, shortened


def _longest(task, completions: list[str]) -> int:
    return max(map(len, task.tokenizer.encode([f" {completion}" for completion in completions])))


def _likeliest(task, params, prompts: Prompts, texts: list[str]) -> list[str]:
    choices = [prompts.of(item) for item in prompts.items]
    pairs = [(text, choice) for text, some in zip(texts, choices) for choice in some]
    likelihoods = track(task.log_likelihoods(params, pairs), "comparing choices", len(pairs))
    scores = [
        found.log_prob / (found.tokens if prompts.normalize == "length" else 1)
        for found in likelihoods
    ]
    if prompts.normalize == "unconditional":
        distinct = list(dict.fromkeys(choice for _, choice in pairs))
        alone = task.log_likelihoods(
            params, [(prompts.answer_context, choice) for choice in distinct]
        )
        prior = {choice: found.log_prob for choice, found in zip(distinct, alone)}
        scores = [score - prior[choice] for score, (_, choice) in zip(scores, pairs)]
    scores = iter(scores)
    return [max(some, key=lambda _: next(scores)) for some in choices]


def _written(task, params, prompts: Prompts, texts: list[str], max_tokens: int) -> list[str]:
    # a space belongs to the token of the word behind it
    texts = [text.rstrip(" ") for text in texts]
    settings = dict(max_tokens=max_tokens, how=Sampling(temperature=0.0), stop=[prompts.stop])
    found = task.generate(params, texts, window="refuse", **settings)
    return [continuation.text.strip() for continuation in track(found, "completing", len(texts))]
