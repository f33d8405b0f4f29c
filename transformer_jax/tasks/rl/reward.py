"""Reward models: a scalar for each completion of a prompt, learned from preferences."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import PositiveInt, UserError
from transformer_jax.data.chat_rows import Example, fitted
from transformer_jax.data.sources.chat import prompt_of, text_of
from transformer_jax.data.sources.text_files import from_json
from transformer_jax.data.tokenizers.chat import Prompt
from transformer_jax.finetuning.base import FineTuning
from transformer_jax.finetuning.predictions import Unlabelled
from transformer_jax.layers.embeddings import RewardHead
from transformer_jax.objectives import preferences
from transformer_jax.objectives.preferences import Pairs, PreferenceTask


@dataclasses.dataclass
class Reward(PreferenceTask, FineTuning):
    """A scalar head on the last token of a completion (Ouyang et al. 2022, section 3.5).

    The difference of two completions' rewards is the log-odds that the first is preferred. This
    leaves the mean of the rewards undetermined, so that they are also normalized: over the first
    training examples they have mean 0 and variance 1. Mean and deviation are measured before each
    evaluation.
    """

    reference_examples: PositiveInt = 1000  # training examples over which rewards are normalized

    two_texts = True
    adds_special_tokens = False
    empty_details = {"reward": None}

    def __post_init__(self):
        super().__post_init__()
        self.rows_of_example = self.completions

    @property
    def room(self) -> int:
        return self.length - self.special_tokens.count(2)

    def num_tokens(self, example):
        return preferences.num_tokens(example) + self.special_tokens.count(2)

    def row(self, example):
        rows = [
            self.encoder.row(self.tokenizer, example.prompt, completion, length=self.length)
            for completion in example.completions
        ]
        # A prediction has a single completion, and no rows for others.
        count = self.completions if len(rows) > 1 else 1
        return preferences.padded_rows(rows, count) | {"label": np.float32(example.label)}

    def shapes(self, length):
        rows = self.encoder.shapes(length)
        return {name: (self.completions, *shape) for name, shape in rows.items()} | {"label": ()}

    def batch_spec(self, row_shape: int):
        spec = super().batch_spec(row_shape)
        return spec | {"label": jax.ShapeDtypeStruct(spec["label"].shape, jnp.float32)}

    def head(self):
        return RewardHead(self.encoder.head(1, self.head_dropout))

    def counted(self, batch):
        # An example counts once, whatever its number of completions: see `Pairs.prompt_means`.
        return super().counted(batch)[..., 0]

    def objective(self, outputs, batch):
        filled = batch["segment_ids"][..., 0] > 0  # (B, K)
        rewards = outputs[:, 0].reshape(filled.shape)
        pairs = Pairs.of(rewards, filled, batch["tokens"], batch["segment_ids"])
        losses = preferences.bradley_terry(pairs.differences, self.preferred(batch))
        count = self.counted(batch).sum(dtype=jnp.int32)
        return pairs.prompt_means(losses).sum(), count, pairs.metrics()

    def scores(self, examples, outputs):
        """Returns the share of pairs in the right order, and statistics of normalized rewards."""
        rewards = _normalized(examples, outputs)
        margins = [
            better - worse
            for example, values in zip(examples, rewards)
            for (better, worse), differ in zip(
                itertools.combinations(values, 2), preferences.different_pairs(example)
            )
            if differ
        ]
        flat = np.concatenate(rewards)
        return {
            "accuracy": float(np.mean(np.array(margins) > 0)),
            "margin": float(np.mean(margins)),
            "reward": float(flat.mean()),
            "reward_deviation": float(flat.std()),
        }

    def calibrated(self, params):
        """Returns the parameters with the mean and deviation of the reference examples' rewards."""
        examples = self._examples("train")[: self.reference_examples]
        outputs = self._outputs(params, examples, "measuring rewards (batches)")
        # Rows beyond the completions of an example only pad it.
        learned = [x[: len(e.completions), 0] for e, x in zip(examples, outputs)]
        # Summed in float64, so that the number of examples costs no digits.
        rewards = np.concatenate(learned).astype(np.float64)
        # The deviation of equal rewards may be a rounding error instead of 0.
        deviation = rewards.std() if np.ptp(rewards) else 1.0
        measured = {"mean": rewards.mean(), "deviation": deviation}
        head = params["head"]
        return params | {"head": head | {k: _put(x, head[k]) for k, x in measured.items()}}

    def prediction(self, examples, outputs):
        ((reward,),) = _normalized(examples, outputs)
        return f"{reward:.4f}", {"reward": float(reward)}

    def unlabelled(self, lines):
        """Returns the example of each line: a prompt, a tab and a completion, or a JSON object."""
        return self._unlabelled([_prompt_and_completion(*line) for line in lines])

    def _unlabelled(self, pairs: Iterable[tuple[Prompt, str]]) -> list[Unlabelled]:
        encoded = self.encoded([(prompt, (completion,)) for prompt, completion in pairs])
        return [
            Unlabelled([fitted(example, self.room)], preferences.num_tokens(example) > self.room)
            for example in encoded
        ]

    def score(self, params, pairs: Iterable[tuple[Prompt, str]]) -> Iterator[float]:
        """Yields the normalized reward of each (prompt, completion), in order.

        A prompt is a text or the messages of a conversation. A text that is longer than
        `config.task.length` is cut as in training.
        """
        examples = [example for line in self._unlabelled(pairs) for example in line.examples]
        outputs = self._outputs(params, examples, "scoring (batches)")
        return (float(rewards[0]) for rewards in _normalized(examples, outputs))


def _normalized(examples: Iterable[Example], outputs: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Returns the normalized rewards of the completions of each example."""
    return [x[: len(example.completions), 1] for example, x in zip(examples, outputs)]


def _put(value: float, like: jax.Array) -> jax.Array:
    """Returns a number as an array with the dtype and sharding of `like`.

    All processes must pass the same number.
    """
    number = np.asarray(value, like.dtype)
    return jax.make_array_from_callback((), like.sharding, lambda _: number)


def _prompt_and_completion(number: int, line: str) -> tuple[Prompt, str]:
    """Returns the two texts of a line. A line that starts with a brace is a JSON object."""
    where = f"line {number}"
    if line.lstrip().startswith("{"):
        value = from_json(line, where)
        return prompt_of(value, where), text_of(value, "completion", where)
    prompt, *completions = line.split("\t")
    if len(completions) != 1:
        raise UserError(
            f"{where}: must hold a prompt and a completion, separated by a tab, or a JSON object "
            "with 'prompt' and 'completion'"
        )
    return prompt, completions[0]
