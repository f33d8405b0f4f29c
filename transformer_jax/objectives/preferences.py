"""Shared by the tasks on preferences: examples, pairwise losses, and reward models."""

import dataclasses
import functools
import itertools
import operator
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.config import Range, UserError
from transformer_jax.data.chat_rows import (
    Example,
    completion_ids,
    end_id,
    fitted,
    prompt_ids,
)
from transformer_jax.data.sources import chat
from transformer_jax.data.tokenizers.chat import Prompt
from transformer_jax.finetuning.encoder import Encoder
from transformer_jax.inference import batching
from transformer_jax.layers.embeddings import RewardHead
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# Examples, which have a row for each completion, and losses of pairs of completions. The pairs of a
# prompt share these rows, because pairs of rows would compute each completion several times.


@dataclasses.dataclass
class PreferenceTask:
    """The examples of a task on preferences, with a row for each completion.

    The task defines `room`, the largest number of tokens of a prompt and a completion together.
    """

    # most completions of a prompt in the data, from 2 to 9
    completions: Annotated[int, Range(least=chat.FEWEST, most=chat.MOST)] = 2
    # share of the labels that are wrong; a completion is preferred with the probability
    # (1 - label_smoothing) * label + label_smoothing * (1 - label)
    label_smoothing: Annotated[float, Range(least=0, below=0.5)] = 0.0

    def read(self, split: str) -> chat.Preferences | None:
        return chat.open_preferences(self.config.data, split)

    def examples(self, records) -> list[Example]:
        """Returns the rankings as token ids.

        Completions may have equal tokens after they are cut. A ranking without a pair of different
        ones is left out, because its loss would be constant. Raises UserError if none is left, or
        for a prompt with more than `config.task.completions` completions.
        """
        records = list(records)
        for record in records:
            if len(record.completions) > self.completions:
                raise UserError(
                    f"{record.where}: {len(record.completions)} completions, but "
                    f"config.task.completions={self.completions}"
                )
        encoded = self.encoded([(record.prompt, record.completions) for record in records])
        examples = [fitted(example, self.room) for example in encoded]
        if num_cut := sum(example != whole for example, whole in zip(examples, encoded)):
            say(f"{num_cut:,} of {len(examples):,} examples are cut to config.task.length tokens")
        kept = [
            example._replace(label=record.label)
            for example, record in zip(examples, records)
            if any(different_pairs(example))
        ]
        equal = sum(not different for example in kept for different in different_pairs(example))
        left_out = f"{len(examples) - len(kept):,} of {len(examples):,} examples"
        reason = f"equal within config.task.length={self.length} tokens"
        if examples and not kept:
            raise UserError(f"{left_out}: their completions are {reason}, so that none teaches")
        if len(kept) < len(examples) or equal:
            pairs = f", and equal pairs of the others: {equal:,}" if equal else ""
            say(f"left out {left_out}{pairs} (their completions are {reason})")
        return kept

    def encoded(self, texts: list[tuple[Prompt, tuple[str, ...]]]) -> list[Example]:
        """Returns prompts with their completions as token ids.

        For a language model, a completion includes its end token. For any other model, `row` adds
        the special tokens.
        """
        end = (end_id(self.tokenizer),) if self.model.kind == "causal" else ()
        prompts = prompt_ids(self.tokenizer, [prompt for prompt, _ in texts], self._started)
        flat = [text for _, completions in texts for text in completions]
        ids = iter(completion_ids(self.tokenizer, flat, end))
        return [
            Example(prompt, [next(ids) for _ in completions])
            for prompt, (_, completions) in zip(prompts, texts)
        ]

    def _started(self, ids: list[int]) -> list[int]:
        if self.model.kind != "causal":
            return ids
        return batching.with_start(ids, self.tokenizer, self.config.data.mask_documents)

    def preferred(self, batch) -> Float[Array, "B 1"]:
        """Returns the probabilities that the better of two completions is preferred."""
        label = batch["label"][:, None]
        return label * (1 - self.label_smoothing) + (1 - label) * self.label_smoothing


def different_pairs(example: Example) -> list[bool]:
    """Returns for each pair of completions, in the order of `Pairs`, whether their tokens differ.

    A text that is scored alone has no pairs.
    """
    return [one != other for one, other in itertools.combinations(example.completions, 2)]


def num_tokens(example: Example) -> int:
    """Returns the number of tokens of an example's prompt and its longest completion together."""
    return len(example.prompt) + max(map(len, example.completions))


def padded_rows(rows: list[dict], count: int) -> dict[str, np.ndarray]:
    """Returns the arrays (count, ...) of the rows of an example, padded with rows of zeros."""
    missing = [jax.tree.map(np.zeros_like, rows[0])] * (count - len(rows))
    return {name: np.stack([row[name] for row in (*rows, *missing)]) for name in rows[0]}


class Pairs(NamedTuple):
    """All P pairs of completions of each of B prompts."""

    differences: Float[Array, "B P"]  # the better completion's value minus the worse one's
    filled: Bool[Array, "B P"]  # whether both completions exist and differ

    @classmethod
    def of(
        cls, values: Float[Array, "B K"], filled: Bool[Array, "B K"], *tokens: Int[Array, "B K L"]
    ) -> "Pairs":
        """Returns the pairs of K completions, the best first.

        Completions that have equal `tokens` in all of these arrays are no pair. One of the arrays
        tells tokens from padding.
        """
        # NumPy, because the indices depend on shapes alone and so are constants of the program.
        better, worse = np.triu_indices(values.shape[1], 1)
        differences = values[:, better] - values[:, worse]
        filled = filled[:, better] & filled[:, worse]
        if tokens:
            differ = [jnp.any(x[:, better] != x[:, worse], axis=-1) for x in tokens]
            filled &= functools.reduce(operator.or_, differ)
        return cls(differences, filled)

    @property
    def count(self) -> Int[Array, ""]:
        return self.filled.sum(dtype=jnp.int32)

    def prompt_means(self, losses: Float[Array, "B P"]) -> Float[Array, " B"]:
        """Returns the mean of the pairs' losses for each prompt, 0 for a prompt without pairs.

        All pairs of a prompt are in one update, and each prompt has the same weight (Ouyang et al.
        2022, equation 1). Pairs that are shuffled one by one make a reward model overfit, because a
        completion is then learned from several times in an epoch (section 3.5 there).
        """
        sums = jnp.where(self.filled, losses, 0.0).sum(axis=1)
        # The maximum keeps 0 / 0 = NaN out of prompts without pairs, such as padding.
        return sums / jnp.maximum(self.filled.sum(axis=1), 1)

    def metrics(self) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Returns the share of pairs that are ordered correctly, and the mean difference."""
        is_right = (self.differences > 0) & self.filled
        margins = jnp.where(self.filled, self.differences, 0.0).sum()
        return {
            "accuracy": (is_right.sum(dtype=jnp.float32), self.count),
            "margin": (margins, self.count),
        }


def bradley_terry(
    differences: Float[Array, "B P"], preferred: Float[Array, "B 1"]
) -> Float[Array, "B P"]:
    """Returns the cross-entropy of preferences whose log-odds are `differences`.

    `preferred` is the probability that the better completion is preferred. If it is 1, the loss is
    -log sigmoid(difference) (Bradley & Terry 1952; Ouyang et al. 2022, equation 1).
    """
    # Not log(sigmoid(x)), which is -inf where the sigmoid underflows to 0.
    right, wrong = jax.nn.log_sigmoid(differences), jax.nn.log_sigmoid(-differences)
    return -(preferred * right + (1 - preferred) * wrong)


# --------------------------------------------------------------------------------------------------
# Reward models: the rewards of texts, and the initial parameters. These are functions of a tree of
# parameters, because it is a subtree in the tasks that learn from rewards.


def rewards(
    model: Any, params, tokens: Int[Array, "B L"], lengths: Int[Array, " B"]
) -> Float[Array, " B"]:
    """Returns the normalized rewards of texts (B,) float32, for a task that learns from them.

    `model` is the Causal model of a run of the task "reward", and `params` are the parameters of
    that run. A text is a prompt and a completion with its end token, the first `lengths` of its
    `tokens`. No dropout is applied.
    """
    encoder = Encoder(model, adds_special_tokens=False)
    segment_ids = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.int32)
    batch = dict(tokens=tokens, segment_ids=segment_ids, token_types=jnp.zeros_like(tokens))
    hidden = encoder.hidden(params, batch, None, train=False)
    vectors = encoder.summary(params, hidden, batch)
    # The second number of the head is the normalized reward, which has no gradient.
    head = RewardHead(encoder.head(1, 0.0))
    return head.apply({"params": params["head"]}, vectors)[:, 1]


def init_reward(model: Any, rng: jax.Array) -> dict:
    """Returns the initial parameters of `rewards`, boxed with their logical axes."""
    encoder = Encoder(model, adds_special_tokens=False)
    head_key, encoder_key = jax.random.split(rng)
    head = RewardHead(encoder.head(1, 0.0)).init(head_key, jnp.zeros((1, model.d_model)))
    return {**encoder.init(encoder_key, summary=True), "head": head["params"]}
