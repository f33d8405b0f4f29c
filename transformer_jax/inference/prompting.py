"""In-context evaluation: a prompt describes a task and shows zero, one or a few examples (Brown et
al. 2020, section 2).
"""

import bisect
import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.inference.prompt_file import Item, Prompts
from transformer_jax.inference.sampling import Sampling
from transformer_jax.pictures.progress import say, track

# A generated answer may have more tokens than the longest right answer: enough to see that it
# continues.
_EXTRA_TOKENS = 8


def evaluate(task, params, prompts: Prompts, shots: int = 0) -> dict[str, Any]:
    """Evaluates a causal language model on the items, with `shots` examples in each prompt.

    An item has fewer examples where the model's length holds no more; "shortened" counts these
    items. Returns "shots", "items", "shortened" and "accuracy"; with shared choices also
    "accuracy_by_output"; for items without an output "predictions" instead. Raises UserError where
    there are fewer examples than shots, and for an item that is too long.
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
    results = {"shots": shots, "items": len(texts), "shortened": shortened}
    if prompts.items[0].output is None:
        return results | {"predictions": predictions}
    return results | _accuracies(prompts, predictions)


def _accuracies(prompts: Prompts, predictions: list[str]) -> dict[str, Any]:
    by_output = collections.defaultdict(list)
    for item, prediction in zip(prompts.items, predictions):
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

    A prompt has the most examples, up to `shots`, with which it has at most `room` tokens.
    """
    texts, shortened = [], 0
    for number, item in enumerate(prompts.items):
        # An item's k examples are the first k of its k + 1, whatever the other items are.
        random = np.random.default_rng([prompts.seed, number])
        examples = [prompts.examples[i] for i in random.permutation(len(prompts.examples))[:shots]]
        candidates = _Candidates(task, prompts, item, examples)
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
    return max(map(len, task.tokenizer.encode([f" {completion}" for completion in completions])))


def _likeliest(task, params, prompts: Prompts, texts: list[str]) -> list[str]:
    """Returns the likeliest choice behind each text."""
    choices = [prompts.choices_of(item) for item in prompts.items]
    pairs = [(text, choice) for text, of_text in zip(texts, choices) for choice in of_text]
    likelihoods = track(task.log_likelihoods(params, pairs), "comparing choices", len(pairs))
    scores = []
    for likelihood in likelihoods:
        num_tokens = likelihood.tokens if prompts.normalize == "length" else 1
        scores.append(likelihood.log_prob / num_tokens)
    if prompts.normalize == "unconditional":
        distinct = list(dict.fromkeys(choice for _, choice in pairs))
        alone = [(prompts.answer_context, choice) for choice in distinct]
        priors = dict(zip(distinct, task.log_likelihoods(params, alone)))
        scores = [score - priors[choice].log_prob for score, (_, choice) in zip(scores, pairs)]
    scores = iter(scores)
    return [max(of_text, key=lambda _: next(scores)) for of_text in choices]


def _generated(task, params, prompts: Prompts, texts: list[str], *, max_tokens: int) -> list[str]:
    """Returns a greedy completion of each text."""
    # A space belongs to the token of the word behind it.
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
