"""Shared by the on-policy RL tasks: rollouts, prompts, advantages, losses and rewards.

The last section, attention rollout, is for the tasks on images.
"""

import dataclasses
import numbers
import types
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from ml_collections import ConfigDict

from transformer_jax import losses
from transformer_jax.config import (
    PositiveFloat,
    PositiveInt,
    Renamed,
    UserError,
    build_model,
    renamed_in,
)
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Batch, Context, Params
from transformer_jax.data import arguments, chat_rows
from transformer_jax.data.chat_rows import PromptRows
from transformer_jax.data.rows import EvalRows, train_rows
from transformer_jax.data.sources import chat
from transformer_jax.distributed import hosts, sharding
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference.generation import Fixed, Sampling, Texts, sample
from transformer_jax.layers.decoding import split
from transformer_jax.objectives import preferences
from transformer_jax.objectives.texts import Continued
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# Rollouts: completions that a causal model samples within a compiled step, in order to learn from
# them. The parameters of the step sample, so that no copy of them must be kept up to date.


class Completions(NamedTuple):
    """B prompts with their completions of up to T tokens each.

    Attributes:
      ids: (B, P + T) int32, the tokens of prompt and completion, including the end token.
      begins: (B,) int32, the number of tokens of each prompt.
      lengths: (B,) int32, the number of tokens of prompt and completion together.
      ended: (B,) bool, whether the completion has an end token. Otherwise it stopped at the limit.
      drawn_log_probs: (B, T) float32, the log-probability of each token of the completion, by the
        logits that it was drawn from.
    """

    ids: Int[Array, "B L"]
    begins: Int[Array, " B"]
    lengths: Int[Array, " B"]
    ended: Bool[Array, " B"]
    drawn_log_probs: Float[Array, "B T"]

    @classmethod
    def of(cls, batch: dict[str, Array]) -> "Completions":
        """Returns the completions whose arrays a batch holds by name, among others."""
        return cls(*(batch[name] for name in cls._fields))

    def filled(self, size: int) -> Bool[Array, "B T"]:
        """Returns which of the first `size` positions of each completion have a token."""
        return jnp.arange(size) < (self.lengths - self.begins)[:, None]

    def tokens(self, size: int) -> Int[Array, "B T"]:
        """Returns the tokens of the completions without the prompts, padded with zeros."""
        # Indices beyond the row are clipped, because a gather would fill them with NaN. They are
        # beyond the completion, too, so what they read is masked.
        positions = jnp.minimum(self._positions(size), self.ids.shape[1] - 1)
        tokens = jnp.take_along_axis(self.ids, positions, axis=1)
        return jnp.where(self.filled(size), tokens, 0)

    def states(self, hidden: Float[Array, "B L M"], size: int) -> Float[Array, "B T M"]:
        """Returns the hidden states that predict the tokens of the completions.

        Each token is predicted at the position before its own.
        """
        # Clipped for the same reason as in `tokens`.
        positions = jnp.minimum(self._positions(size) - 1, hidden.shape[1] - 1)
        return jnp.take_along_axis(hidden, positions[..., None], axis=1)

    def _positions(self, size: int) -> Int[Array, "B T"]:
        return self.begins[:, None] + jnp.arange(size)


class Writer(NamedTuple):
    """Samples completions by the cached generation of `generate`, on the mesh of the step.

    The parameters are the training's, with whatever sharding they have.
    """

    model: Any  # the Linen module
    how: Sampling
    max_tokens: int  # of a completion, including its end token
    eos_id: int

    def __call__(
        self, params, prompts: Int[Array, "B P"], lengths: Int[Array, " B"], keys: Key[Array, " B"]
    ) -> Completions:
        """Returns a completion of each prompt. `lengths` (B,) are the numbers of prompt tokens.

        Each row has its own key, so that it depends neither on the size of the batch nor on its
        distribution over devices.
        """
        batch, length = prompts.shape
        slots = length + self.max_tokens
        params = self.model.for_decoding(params)
        logits, state = self._prefilled(params, prompts, lengths, slots)
        ids = jnp.zeros((batch, slots), jnp.int32).at[:, :length].set(prompts)
        fixed = Fixed(keys, jnp.zeros_like(lengths), lengths + self.max_tokens)
        drawn = jnp.zeros((batch, self.max_tokens), jnp.float32)
        state = state, logits, drawn, jnp.int32(0)
        texts = Texts(ids, lengths, jnp.zeros(batch, bool), None, logits, state)

        def step(state, tokens):
            state, logits, drawn, number = state
            drawn = drawn.at[:, number].set(self.log_probs(logits, tokens[:, 0]))
            # Sharded parameters are gathered in each step of the loop. Otherwise XLA would move the
            # gathers out of the loop, and hold all parameters whole on each device.
            logits, state = _alone(self.model.step, *sharding.gather_after(params, state), tokens)
            return logits, (state, logits[:, 0], drawn, number + 1)

        steps = jnp.int32(self.max_tokens)
        texts = sample(step, texts, fixed, steps, how=self.how, ends=(self.eos_id,))
        state, _, drawn, _ = texts.state
        return self._with_ends(split(texts._replace(state=state)), fixed, split(drawn))

    def _prefilled(self, params, prompts: Int[Array, "B P"], lengths: Int[Array, " B"], slots: int):
        """Returns the logits of the first tokens of completions, and the decoding state."""
        begin = partial(self.model.begin, slots=slots)
        return _alone(begin, params, prompts, lengths)

    def log_probs(
        self, logits: Float[Array, "B V"], tokens: Int[Array, " B"]
    ) -> Float[Array, " B"]:
        """Returns the log-probabilities of tokens that are drawn from logits."""

        def log_probs(logits, tokens):
            found = jax.nn.log_softmax(logits.astype(jnp.float32) / self.how.temperature)
            return jnp.take_along_axis(found, tokens[:, None], axis=1)[:, 0]

        return _alone(log_probs, logits, tokens)

    def given(self, params, completions: Completions) -> Float[Array, "B T"]:
        """Returns the log-probabilities of the tokens of completions, as if they were drawn.

        The decoding steps are those of `__call__`, and read the given tokens.
        """
        slots = completions.ids.shape[1]
        length = slots - self.max_tokens
        is_prompt = jnp.arange(length) < completions.begins[:, None]
        prompts = jnp.where(is_prompt, completions.ids[:, :length], 0)
        params = self.model.for_decoding(params)
        logits, state = self._prefilled(params, prompts, completions.begins, slots)

        def step(carry, tokens):
            state, logits = carry
            found = self.log_probs(logits, tokens)
            logits, state = _alone(self.model.step, params, state, tokens[:, None])
            return (state, logits[:, 0]), found

        tokens = completions.tokens(self.max_tokens)
        return jax.lax.scan(step, (state, logits), tokens.T)[1].T

    def _with_ends(self, texts: Texts, fixed: Fixed, drawn: Float[Array, "B T"]) -> Completions:
        """Returns the completions with their end tokens. A text at its limit has no end token."""
        ended = texts.lengths < fixed.limits
        positions = jnp.arange(texts.ids.shape[1])
        is_end = (positions == texts.lengths[:, None]) & ended[:, None]
        # The padding after a prompt may not have been overwritten completely.
        is_text = positions < texts.lengths[:, None]
        ids = jnp.where(is_end, self.eos_id, jnp.where(is_text, texts.ids, 0))
        prompt_lengths = fixed.limits - self.max_tokens
        completions = Completions(ids, prompt_lengths, texts.lengths + ended, ended, drawn)
        filled = completions.filled(self.max_tokens)
        return completions._replace(drawn_log_probs=jnp.where(filled, drawn, 0.0))


def row_by_row(f: Callable, params: Any, *rows):
    """Returns f(params, *rows), computed for one row at a time, so that the batch has no effect."""

    def one(row):
        found = f(params, *jax.tree.map(lambda x: x[None], row))
        return jax.tree.map(lambda x: x[0], found)

    return jax.lax.map(one, rows)


def _alone(f: Callable, *inputs):
    """Returns f(*inputs), which XLA does not fuse with the operations around it.

    What it computes is then rounded alike wherever it stands in a program.
    """
    return jax.lax.optimization_barrier(f(*jax.lax.optimization_barrier(inputs)))


@jax.custom_jvp
def _with_value(x: jax.Array, value: jax.Array) -> jax.Array:
    """Returns `value`, with the gradient of `x`."""
    return value


_with_value.defjvp(lambda inputs, tangents: (inputs[1], tangents[0]))


# --------------------------------------------------------------------------------------------------
# Tasks that sample completions of prompts: the data, and the rollouts in a compiled step.


@dataclasses.dataclass
class Prompted(Continued):
    """A task whose language model samples completions of the prompts of `config.data`.

    A row of a batch is a prompt: `prompts` (P,) and `prompt_lengths` (), int32.
    """

    prompt_length: PositiveInt = 64  # most tokens of a prompt; a longer one loses its first tokens
    max_tokens: PositiveInt = 32  # most tokens of a completion, including its end token
    temperature: PositiveFloat = 1.0  # divisor of the logits, in sampling and in learning
    # computes the log-probabilities of completions by the decoding steps that draw them, one row at
    # a time, so that both are equal bit for bit; this takes more than ten times as long
    batch_invariant: bool = False

    evaluates_rows = False
    num_completions = 1  # completions of each prompt; a subclass may compare several

    @property
    def length(self) -> int:
        """The number of tokens of a row: a prompt and its completion."""
        return self.prompt_length + self.max_tokens

    def read(self, split: str) -> chat.Prompts | None:
        return chat.open_prompts(self.config.data, split)

    def prompt_rows(self, split: str) -> PromptRows | None:
        """Returns the prompts of a split; None if `config.data` names none."""
        texts = self.read(split)
        if texts is None:
            return None
        ids = chat_rows.prompt_ids(self.tokenizer, list(texts), self.with_start)
        if not ids:
            raise UserError(f"config.data.{split}_files: no prompt in it")
        num_cut = sum(len(prompt) > self.prompt_length for prompt in ids)
        say(f"{split}: {len(ids):,} prompts")
        if num_cut:
            say(f"{num_cut:,} prompts are cut to their last {self.prompt_length} tokens")
        return PromptRows([prompt[-self.prompt_length :] for prompt in ids], self.prompt_length)

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        valid = self.prompt_rows("valid")  # raises its errors before training
        train = self.prompt_rows("train")
        if train is None:
            raise UserError("config.data.train_files is missing: the prompts to be completed")
        drawn = train_rows([train], self.config.train, self.config.data.seed)
        # The loss of a completion needs the experience of a step, so no mean loss is evaluated.
        return types.SimpleNamespace(train=drawn, eval={}, valid=valid)

    def rows(self):
        return self._rows

    def batch_spec(self, row_shape: int = 0):
        return self.int32_spec({"prompts": (self.prompt_length,), "prompt_lengths": ()})

    @cached_property
    def end_id(self) -> int:
        """The token that ends a completion; 0 in a run that is only planned without a tokenizer."""
        return chat_rows.end_id(self.tokenizer) if self.has_tokenizer else 0

    def written(self, params: Params, batch: Batch, key: jax.Array) -> Batch:
        """Samples `num_completions` completions of each prompt of a batch.

        Returns the arrays of `Completions` by name. Those of a prompt are consecutive rows.
        """
        prompts, lengths = (
            jnp.repeat(batch[name], self.num_completions, axis=0)
            for name in ("prompts", "prompt_lengths")
        )
        own = self._own(params)
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(len(lengths)))
        if not self.batch_invariant:
            return self._writer(own, prompts, lengths, keys)._asdict()
        return row_by_row(self._writer, own, prompts, lengths, keys)._asdict()

    @property
    def _writer(self) -> Writer:
        how = Sampling(temperature=self.temperature)
        return Writer(self._limited(self.model), how, self.max_tokens, self.end_id)

    def _own(self, params: Params) -> Params:
        """Returns the parameters of the model, without the subtrees of heads and other runs."""
        others = self.heads + self.other_runs
        return {name: tree for name, tree in params.items() if name not in others}

    def _limited(self, model: Any) -> Any:
        """Returns a model whose next tokens are limited to those of the tokenizer, if it is known.

        A run that is only planned has none.
        """
        data = self.config.data
        return model.limited_to(self.tokenizer, data) if self.has_tokenizer else model

    def texts_of(self, completions: Completions) -> tuple[list[str], list[str]]:
        """Returns the texts of the prompts and of their completions, given arrays on the host."""
        ends = completions.lengths - completions.ended
        rows = [*zip(completions.ids.tolist(), completions.begins, ends)]
        prompts = [ids[:start] for ids, start, _ in rows]
        return self.tokenizer.decode(prompts), self.tokenizer.decode(
            [ids[start:end] for ids, start, end in rows]
        )


# --------------------------------------------------------------------------------------------------
# Advantages of completions, and the losses of the policy and of the value function.
#
# Arrays (B, T) belong to the first T tokens of B completions. `filled` says which of these tokens
# exist: completions differ in length, and are padded at their ends.

_SMALL = 1e-8  # added to variances, which are 0 if all values are equal
# Added to the standard deviation of a group, which is 0 if all its rewards are equal.
_SMALL_DEVIATION = 1e-4
_LARGEST = 20.0  # log-ratio from which a tangent replaces exp, long before it overflows


def generalized_advantages(
    rewards: Float[Array, "B T"],
    values: Float[Array, "B T"],
    filled: Bool[Array, "B T"],
    *,
    discount: float,
    decay: float,
) -> Float[Array, "B T"]:
    """Returns generalized advantage estimates (Schulman et al. 2015, equation 16).

    The value after the last token of a completion is 0. `discount` is gamma and `decay` lambda.
    """
    # The scan starts at the padding and would carry its values into the completion.
    rewards, values = (jnp.where(filled, x, 0.0) for x in (rewards, values))
    following = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
    residuals = rewards + discount * following - values

    def add(later, residual):
        advantage = residual + discount * decay * later
        return advantage, advantage

    start = jnp.zeros_like(residuals[:, 0])
    advantages = jax.lax.scan(add, start, residuals.T, reverse=True)[1].T
    return jnp.where(filled, advantages, 0.0)


def whitened(
    x: Float[Array, "B T"], filled: Bool[Array, "B T"], *, shifts_mean: bool = True
) -> Float[Array, "B T"]:
    """Returns `x` scaled to variance 1 over all tokens, with mean 0 or, else, the mean of `x`."""
    count = jnp.maximum(filled.sum(), 1)
    # The mean of equal numbers may differ from them by rounding, which the variance of 1 would
    # blow up. Relative to one of the numbers, all of them are 0.
    origin = jnp.max(x, where=filled, initial=-jnp.inf)
    relative = jnp.where(filled, x - origin, 0.0)
    mean = relative.sum() / count
    variance = jnp.where(filled, jnp.square(relative - mean), 0.0).sum() / count
    white = (relative - mean) * jax.lax.rsqrt(variance + _SMALL)
    return jnp.where(filled, white if shifts_mean else white + (origin + mean), 0.0)


def group_advantages(
    rewards: Float[Array, "B G"], *, divides_by_deviation: bool = True
) -> Float[Array, "B G"]:
    """Returns the rewards of G completions of each prompt, minus their mean.

    The differences are divided by the standard deviation of the group (Shao et al. 2024, section
    4.1.2), or left as they are (Liu et al. 2025, section 3.2). Equal rewards of any finite size
    have advantages of exactly 0; a reward that is not finite gives NaN, which stops the run.
    """
    # Relative to the first reward, because the mean of equal rewards may differ from them by
    # rounding, and the deviation may be as small as that.
    relative = rewards - rewards[:, :1]
    advantages = relative - relative.mean(axis=1, keepdims=True)
    if divides_by_deviation:
        advantages /= relative.std(axis=1, keepdims=True) + _SMALL_DEVIATION
    return advantages


def probability_ratios(log_ratios: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Returns exp(log_ratios), continued by its tangent where a log-ratio is above 20.

    In float32, exp overflows at 88. The loss of a token would then be infinite, and its gradient
    NaN even where the ratio does not count, because it is clipped or the advantage is 0.
    """
    bounded = jnp.minimum(log_ratios, _LARGEST)
    return jnp.exp(bounded) * (1 + (log_ratios - bounded))


def clipped_policy_loss(
    log_ratios: Float[Array, "B T"], advantages: Float[Array, "B T"], clip: float
) -> Float[Array, "B T"]:
    """Returns the negative clipped objective of tokens (Schulman et al. 2017, equation 7).

    `log_ratios` are the log-probabilities by the policy minus those by the policy that sampled the
    completions.
    """
    ratios = probability_ratios(log_ratios)
    clipped = jnp.clip(ratios, 1 - clip, 1 + clip)
    # The larger loss is the pessimistic bound: clipping takes away the gain of a further change,
    # but never the penalty of one in the wrong direction.
    return jnp.maximum(-advantages * ratios, -advantages * clipped)


def clipped_value_loss(
    values: Float[Array, "B T"],
    old_values: Float[Array, "B T"],
    returns: Float[Array, "B T"],
    clip: float,
) -> Float[Array, "B T"]:
    """Returns half of the larger squared error, of the values and of the clipped values.

    Values are clipped to within `clip` of `old_values`, as in the code of Ziegler et al. 2019.
    """
    near = old_values + jnp.clip(values - old_values, -clip, clip)
    return 0.5 * jnp.maximum(jnp.square(values - returns), jnp.square(near - returns))


def divergence_estimates(log_ratios: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Returns estimates of the divergence from a reference (Shao et al. 2024, equation 4).

    `log_ratios` are the log-probabilities by the reference minus those by the policy. The estimate
    is never negative, and its mean over tokens sampled by the policy is KL(policy, reference). It
    is continued by its tangent where a log-ratio is above 20, see `probability_ratios`.
    """
    bounded = jnp.minimum(log_ratios, _LARGEST)
    beyond = jnp.exp(bounded) * (log_ratios - bounded)
    # expm1, because exp(x) - 1 - x cancels in float32 near 0, where most log-ratios are.
    return jnp.expm1(bounded) + beyond - log_ratios


def adapted_coefficient(
    coefficient: Float[Array, ""],
    divergence: Float[Array, ""],
    *,
    target: float,
    horizon: float,
) -> Float[Array, ""]:
    """Returns the coefficient of the KL penalty after a batch (Ziegler et al. 2019, section 2.2).

    It is a proportional controller: the coefficient grows while the divergence is above its target,
    and falls while it is below. The relative change is the relative error, clipped to 0.2, divided
    by `horizon`, a number of batches.
    """
    error = jnp.clip(divergence / target - 1, -0.2, 0.2)
    return coefficient * (1 + error / horizon)


# --------------------------------------------------------------------------------------------------
# The base class of the on-policy tasks, whose model learns from the rewards of its own completions.
# They differ only in what they make of the rewards.

_SHOWN = 3  # completions that an evaluation prints


@dataclasses.dataclass
class Policy(Prompted):
    """A language model as a policy: completions of prompts, rewards, and a frozen reference.

    The policy is the model of `config.model`. It is trained without dropout, because the
    probability ratio of a token would otherwise compare two different dropout masks. The
    subtrees "reference" and "reward" of the parameters are frozen: they belong to the run from
    which the policy must not diverge, and to the run of the reward model. A subclass defines the
    loss.
    """

    # reward of a completion without its end token, whatever its text; None: as by the reward model
    unfinished_reward: float | None = None
    clip: PositiveFloat = 0.2  # most change of a token's probability, as a ratio, that is rewarded
    minibatches: PositiveInt = 1  # updates in a pass over the completions of a step
    reference: str = ""  # the run that the policy stays close to, usually config.init_from
    reward: str = ""  # the run of a reward model
    # keys of the reference's config.model, ((key, value), ...); the run in config.task.reference
    # gives its own
    reference_model: tuple = ()
    # keys of the reward model's config.model; the run in config.task.reward gives its own
    reward_model: tuple = ()

    other_runs = ("reference", "reward")
    # The reward first: the loss of a policy is near 0 throughout, because the advantages of a step
    # have a mean of 0.
    progress_metrics = ("reward", "kl", "loss")
    # Optional: (prompt, completion) -> number, defined by a subclass instead of a reward model. It
    # must be a pure function, so that a resumed run computes the same rewards again.
    reward_of: ClassVar[Callable[[str, str], float] | None] = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if cls.reward_of is not None:
            cls.other_runs = ("reference",)

    def __post_init__(self):
        self.model = build_model(self.config)
        self._reference = self._built(self.reference_model)
        self._reward = None if self.reward_of else self._built(self.reward_model)
        # Plain Python can't be compiled, so the rollouts are a program of their own, after which
        # `scored` runs on the host.
        if self.reward_of:
            self.rollouts = self._rollouts
        self._check()

    def _built(self, keys: tuple):
        """Returns the model of another run; None if the config names no such run."""
        return build_model(ConfigDict({"model": dict(keys)})) if keys else None

    def _check(self) -> None:
        """Raises UserError for models and keys that do not go together."""
        models = {"task.reference": self._reference, "task.reward": self._reward}
        if self.reward_of is not None:
            del models["task.reward"]
        for key, model in models.items():
            if model is None:
                raise UserError(f"config.{key} is missing: the workdir of a run")
        for key, model in {"model.name": self.model, **models}.items():
            if model.kind != "causal":
                raise UserError(
                    f"config.{key}: {type(model).__name__} is not a language model; completions "
                    "are sampled and rewarded by causal models"
                )
            if self.length > model.window:
                raise UserError(
                    f"config.task.prompt_length={self.prompt_length} and max_tokens="
                    f"{self.max_tokens}: their sum must be at most {model.window}, the most tokens "
                    f"of the model of config.{key}"
                )
        for batch in filter(None, (self.config.train.batch, self.config.train.first_batch)):
            if batch * self.num_completions % self._num_parts:
                raise UserError(
                    f"config.train.batch={batch}: its {batch * self.num_completions} completions "
                    f"can't be divided into config.task.minibatches={self.minibatches} x "
                    f"config.train.accumulation={self.config.train.accumulation} parts"
                )

    @property
    def _num_parts(self) -> int:
        """The number of parts of a step's completions that are computed one after the other."""
        return self.minibatches * self.config.train.accumulation

    def init(self, rng):
        tokens = jnp.zeros((1, self.length), jnp.int32)
        keys = jax.random.split(rng, 3)
        params = {
            **self.model.init(keys[0], tokens)["params"],
            "reference": self._reference.init(keys[1], tokens)["params"],
        }
        if self.reward_of is None:
            params["reward"] = preferences.init_reward(self._reward, keys[2])
        return params

    def group(self, path):
        return None if path[0] in self.other_runs else super().group(path)

    def rewarded(self, params: Params, batch: Batch) -> Float[Array, " B"]:
        """Returns the rewards that the reward model gives to completions."""
        completions = Completions.of(batch)
        rewards = preferences.rewards(
            self._reward, params["reward"], completions.ids, completions.lengths
        )
        if self.unfinished_reward is None:
            return rewards
        return jnp.where(completions.ended, rewards, self.unfinished_reward)

    def scored(self, rollouts: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the rewards that `reward_of` gives to completions.

        Raises UserError for a reward that is not a finite number.
        """
        completions = Completions.of(rollouts)
        rows = zip(completions.begins, *self.texts_of(completions))
        # A row that only pads the last batch of an evaluation has no prompt.
        rewards = np.array([self._score(*texts) if n else 0.0 for n, *texts in rows], np.float32)
        if self.unfinished_reward is None:
            return rewards
        return np.where(completions.ended, rewards, np.float32(self.unfinished_reward))

    def _score(self, prompt: str, completion: str) -> float:
        value = self.reward_of(prompt, completion)
        # Rewards are float32, whose range is smaller than the range of Python's numbers.
        largest = float(np.finfo(np.float32).max)
        if not isinstance(value, numbers.Real) or not abs(value) <= largest:
            raise UserError(
                f"config.task.name={self.config.task.name}: reward_of({prompt!r}, {completion!r}) "
                f"is {value!r}; must be a finite number"
            )
        return value

    def rewarded_completions(self, params: Params, batch: Batch, context: Context) -> Batch:
        """Returns completions of the prompts of a step, with their rewards."""
        if "rewards" in batch:  # the rollouts have been sampled, and scored by `scored`
            return {name: batch[name] for name in (*Completions._fields, "rewards")}
        completions = self.written(params, batch, context.rng)
        return completions | {"rewards": self.rewarded(params, completions)}

    answered = Renamed("answered", "rewarded_completions")

    def _rollouts(self, params: Params, batch: Batch, context: Context) -> Batch:
        """Returns completions of the prompts of a batch, and the batch's other arrays."""
        others = {name: x for name, x in batch.items() if not name.startswith("prompt")}
        return self.written(params, batch, context.rng) | others

    def policy_states(self, params: Params, completions: Completions) -> Float[Array, "B T M"]:
        """Returns the hidden states of the policy that predict the tokens of completions."""
        return self._states(self.model, params, completions)

    def policy_log_probs(self, params: Params, batch: Batch) -> Float[Array, "B T"]:
        """Returns the log-probabilities of completion tokens by the policy."""
        states = self.policy_states(params, Completions.of(batch))
        return self.policy_log_probs_of_states(params, states, batch)

    def policy_log_probs_of_states(
        self, params: Params, states: Float[Array, "B T M"], batch: Batch
    ) -> Float[Array, "B T"]:
        """Returns the same, given the hidden states that predict the tokens.

        With `batch_invariant`, their values are those of the decoding steps, and their gradients
        those of the states.
        """
        completions = Completions.of(batch)
        parallel = self.log_probs_of_states(self.model, params, states, completions)
        if not self.batch_invariant:
            return parallel
        fixed = jax.lax.stop_gradient(self._own(params))
        stepwise = row_by_row(self._writer.given, fixed, completions)
        filled = completions.filled(self.max_tokens)
        return _with_value(parallel, jnp.where(filled, stepwise, 0.0))

    def reference_log_probs(self, params: Params, batch: Batch) -> Float[Array, "B T"]:
        """Returns the log-probabilities of completion tokens by the reference."""
        completions, params = Completions.of(batch), params["reference"]
        states = self._states(self._reference, params, completions)
        return self.log_probs_of_states(self._reference, params, states, completions)

    def _states(self, model, params, completions: Completions) -> Float[Array, "B T M"]:
        hidden = model.apply({"params": params}, Inputs(completions.ids[:, :-1]), method="hidden")
        return completions.states(hidden, self.max_tokens)

    def log_probs_of_states(
        self, model, params, states, completions: Completions
    ) -> Float[Array, "B T"]:
        """Returns the log-probabilities of completion tokens, given the states that predict them.

        They are at the sampling temperature, because the policy that samples is the tempered one,
        and over the same tokens.
        """
        output = self._limited(model).apply({"params": params}, method="limited_output")
        output = output.tempered(self.temperature)
        log_probs = output.label_log_probs(states, completions.tokens(self.max_tokens))
        return jnp.where(completions.filled(self.max_tokens), log_probs, 0.0)

    def in_parts(self, measure: Callable[[Batch], Batch], batch: Batch) -> Batch:
        """Returns measure(batch), computed in parts as large as those that the loss receives.

        Then the log-probabilities of a step's completions are rounded as in the loss, so that the
        probability ratio is exactly 1 in the first update. It also needs no more memory than the
        loss.
        """
        if self._num_parts == 1:
            return measure(batch)

        def divided(x):
            # The parts follow each other on all devices, so the rows within each part are split.
            x = x.reshape(self._num_parts, -1, *x.shape[1:])
            return sharding.constrain(x, None, "batch", *[None] * (x.ndim - 2))

        measured = jax.lax.map(measure, jax.tree.map(divided, batch))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), measured)

    def measures(self, batch: Batch) -> losses.Metrics:
        """Returns means over completions: reward, divergence, length, share with an end token.

        "entropy" is an estimate, the mean of -log p over the tokens that the policy sampled.
        "mismatch" is the largest difference in the batch of a token's log-probability from that by
        which it was drawn, before the updates of the step.
        """
        completions = Completions.of(batch)
        exists = completions.begins > 0  # false in rows that only pad an evaluation's last batch
        filled = completions.filled(self.max_tokens) & exists[:, None]
        count, num_tokens = (x.sum(dtype=jnp.int32) for x in (exists, filled))
        log_ratios = batch["old_log_probs"] - batch["reference_log_probs"]
        mismatch = jnp.abs(batch["old_log_probs"] - batch["drawn_log_probs"])
        return {
            "mismatch": (jnp.max(mismatch, where=filled, initial=0.0), jnp.int32(1)),
            "reward": (jnp.where(exists, batch["rewards"], 0.0).sum(), count),
            "kl": (jnp.where(filled, log_ratios, 0.0).sum(), count),
            "entropy": (-jnp.where(filled, batch["old_log_probs"], 0.0).sum(), num_tokens),
            "length": (num_tokens.astype(jnp.float32), count),
            "ended": ((completions.ended & exists).sum(dtype=jnp.float32), count),
            "filled": (num_tokens, jnp.int32(filled.size)),
        }

    def changes(
        self, log_ratios: Float[Array, "B T"], filled: Bool[Array, "B T"]
    ) -> losses.Metrics:
        """Returns how far the policy is from the one that sampled the completions.

        "change" is the mean absolute log-ratio of tokens, and "clip_share" the share of tokens
        whose ratio is clipped.
        """
        num_tokens = filled.sum(dtype=jnp.int32)
        is_clipped = (jnp.abs(jnp.exp(log_ratios) - 1) > self.clip) & filled
        return {
            "change": (jnp.where(filled, jnp.abs(log_ratios), 0.0).sum(), num_tokens),
            "clip_share": (is_clipped.sum(dtype=jnp.float32), num_tokens),
        }

    @property
    def flops_of_experience(self) -> float:
        """The FLOPs per completion before the loss: sampling, log-probabilities and reward."""
        # The policy counts twice: for sampling and for the log-probabilities.
        models = filter(None, (self.model, self.model, self._reference, self._reward))
        return sum(model.flops(self.length) for model in models)

    def evaluations(self):
        return {"valid": self._evaluated} if self.read("valid") is not None else {}

    def _evaluated(self, params) -> dict[str, float]:
        return self._scores(params, EvalRows(self._rows.valid))

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean reward and divergence of completions of the prompts of a split.

        Raises UserError if the run has no such split.
        """
        arguments.held_out(self.read, split, "files")
        evaluated = EvalRows(self.prompt_rows(split))
        return self._scores(params, evaluated) | {"prompts": len(evaluated)}

    def _scores(self, params, evaluated: EvalRows) -> dict[str, float]:
        step = jax.jit(self._completed, static_argnums=0)
        placement = Placement.of(params, self.config.mesh)
        size = placement.rows(self.config.decode.batch)
        sums = []
        for number in range(evaluated.num_batches(size)):
            batch = evaluated.batch(number, range(size), size)
            completed = jax.device_get(hosts.run(step, placement, params, batch, np.int32(number)))
            if self.reward_of is not None:
                completed["rewards"] = self.scored(completed)
            if number == 0:
                self._show(Completions.of(completed))
            # Sums are added in float64 on the host, because float32 would round large ones.
            sums.append(jax.device_get(self.measures(completed)))
        means = losses.mean_metrics(jax.tree.map(lambda *x: np.sum(x, dtype=np.float64), *sums))
        means.pop("filled")
        return means

    def _completed(self, placement: Placement, params, batch, number) -> Batch:
        """Returns completions of a batch of prompts, with the arrays that `measures` reads."""
        with placement.use():
            # The seed and the batch number alone, so that all evaluations of a run draw alike.
            key = jax.random.fold_in(jax.random.key(self.config.train.seed), number)
            batch = self.written(params, split_rows(batch), key)
            if self.reward_of is None:
                batch["rewards"] = self.rewarded(params, batch)
            batch["old_log_probs"] = self.policy_log_probs(params, batch)
            batch["reference_log_probs"] = self.reference_log_probs(params, batch)
            # Replicated, so that `device_get` gives all processes the same values.
            return gathered(batch)

    def _show(self, completions: Completions) -> None:
        """Prints the first prompts with their completions."""
        first = Completions(*(x[:_SHOWN][completions.begins[:_SHOWN] > 0] for x in completions))
        for prompt, completion in zip(*self.texts_of(first)):
            say(f"a completion: {prompt!r} -> {completion!r}")


# --------------------------------------------------------------------------------------------------
# Attention rollout: the share of each input in a hidden state of the last layer.
#
# It has only its name in common with the rollouts above. The tasks on images use it.


def rollout(weights: np.ndarray) -> np.ndarray:
    """Returns the shares of the inputs (keys) in the states of the last layer, float32 (L, L).

    `weights` are the attention weights of all layers (layers, H, L, L). They are averaged over the
    heads of a layer, and mixed half and half with the identity for the residual connection (Abnar &
    Zuidema 2020, section 3). Each row sums to 1.
    """
    # In float64, because the product over the layers accumulates rounding.
    mean = weights.astype(np.float64).mean(axis=1)
    shares = np.eye(weights.shape[-1])
    for layer in 0.5 * mean + 0.5 * np.eye(weights.shape[-1]):
        shares = layer @ shares
    return (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)


def patch_shares(weights: np.ndarray, pools_class: bool) -> np.ndarray:
    """Returns the shares of the patches of a square image, float32 (G, G), which sum to 1.

    `weights` (layers, H, 1 + G^2, 1 + G^2) belong to a row of a class token and G^2 patches. The
    shares are taken in the hidden state of the class token if `pools_class`, else in the mean of
    the patches' hidden states.
    """
    shares = rollout(weights)
    # The share of the class token is left out, so that the others no longer sum to 1.
    shares = shares[0, 1:] if pools_class else shares[1:, 1:].mean(axis=0)
    side = round(len(shares) ** 0.5)
    return (shares / shares.sum()).reshape(side, side)


__getattr__ = renamed_in(__name__, {"Answers": "Completions"})
