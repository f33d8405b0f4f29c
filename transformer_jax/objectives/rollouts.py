"""What the on-policy tasks share: answers, prompts, advantages, losses and rewards.

The last section, attention rollout, belongs to tasks on images.
"""

import dataclasses
import math
import numbers
import types
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from ml_collections import ConfigDict

from transformer_jax import metrics
from transformer_jax.config import PositiveFloat, PositiveInt, UserError, build_model
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
# Answers that a causal model writes within a compiled step, to learn from them.


class Answers(NamedTuple):
    """B answers behind their prompts, of up to T tokens each.

    Attributes:
      ids: (B, P + T) int32, the tokens of prompt and answer, the end of the answer included.
      begins: (B,) int32, the number of tokens of each prompt.
      lengths: (B,) int32, that of prompt and answer together.
      ended: (B,) bool, whether the answer has an end. Others stop at the limit.
    """

    ids: Int[Array, "B L"]
    begins: Int[Array, " B"]
    lengths: Int[Array, " B"]
    ended: Bool[Array, " B"]

    @classmethod
    def of(cls, batch: dict[str, Array]) -> "Answers":
        """Returns the answers whose arrays a batch holds by name, beside others."""
        return cls(*(batch[name] for name in cls._fields))

    def filled(self, size: int) -> Bool[Array, "B T"]:
        """Returns which of `size` places of each answer have a token."""
        return jnp.arange(size) < (self.lengths - self.begins)[:, None]

    def tokens(self, size: int) -> Int[Array, "B T"]:
        """Returns the tokens of the answers alone, then zeros."""
        places = jnp.minimum(self._places(size), self.ids.shape[1] - 1)
        tokens = jnp.take_along_axis(self.ids, places, axis=1)
        return jnp.where(self.filled(size), tokens, 0)

    def states(self, hidden: Float[Array, "B L M"], size: int) -> Float[Array, "B T M"]:
        """Returns the states of rows that predict the tokens of the answers."""
        places = jnp.minimum(self._places(size) - 1, hidden.shape[1] - 1)
        return jnp.take_along_axis(hidden, places[..., None], axis=1)

    def _places(self, size: int) -> Int[Array, "B T"]:
        return self.begins[:, None] + jnp.arange(size)


class Writer(NamedTuple):
    """How answers are written: by the cached generation of `generate`, on the mesh of the step.

    The parameters are those of training, whatever their sharding.
    """

    model: Any  # the Linen module
    how: Sampling
    max_tokens: int  # of an answer, its end included
    eos_id: int

    def __call__(
        self, params, prompts: Int[Array, "B P"], lengths: Int[Array, " B"], key: Key[Array, ""]
    ) -> Answers:
        """Returns an answer to each prompt. `lengths` (B,) are the tokens of the prompts.

        The randomness of row j comes from fold_in(key, j).
        """
        batch, length = prompts.shape
        slots = length + self.max_tokens
        params = self.model.for_decoding(params)
        logits, state = self.model.begin(params, prompts, lengths, slots=slots)
        ids = jnp.zeros((batch, slots), jnp.int32).at[:, :length].set(prompts)
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(batch))
        fixed = Fixed(keys, jnp.zeros_like(lengths), lengths + self.max_tokens)
        texts = Texts(ids, lengths, jnp.zeros(batch, bool), None, logits, state)

        def step(state, tokens):
            return self.model.step(*sharding.gather_after(params, state), tokens)

        steps = jnp.int32(self.max_tokens)
        texts = split(sample(step, texts, fixed, steps, how=self.how, eos_id=self.eos_id))
        return self._with_ends(texts, fixed)

    def _with_ends(self, texts: Texts, fixed: Fixed) -> Answers:
        """Returns the answers with their end tokens. A text at its limit has none."""
        ended = texts.lengths < fixed.limits
        places = jnp.arange(texts.ids.shape[1])
        is_end = (places == texts.lengths[:, None]) & ended[:, None]
        # Behind the end of a prompt there may be padding that no token has replaced.
        is_text = places < texts.lengths[:, None]
        ids = jnp.where(is_end, self.eos_id, jnp.where(is_text, texts.ids, 0))
        begins = fixed.limits - self.max_tokens
        return Answers(ids, begins, texts.lengths + ended, ended)


# --------------------------------------------------------------------------------------------------
# Tasks that write answers to prompts: their prompts, and the answers in a compiled step.


@dataclasses.dataclass
class Prompted(Continued):
    """A language model that writes answers to the prompts of `config.data`.

    A row of a batch is a prompt: `prompts` (P,) and `prompt_lengths` (), int32.
    """

    prompt_length: PositiveInt = 64  # most tokens of a prompt; a longer one loses its beginning
    max_tokens: PositiveInt = 32  # most tokens of an answer, its end included
    temperature: PositiveFloat = 1.0  # divisor of the logits, in sampling and in learning

    evaluates_rows = False
    num_answers = 1  # to each prompt

    @property
    def length(self) -> int:
        """The tokens of a row: a prompt and its answer."""
        return self.prompt_length + self.max_tokens

    # data

    def read(self, split: str) -> chat.Prompts | None:
        return chat.open_prompts(self.config.data, split)

    def prompt_rows(self, split: str) -> PromptRows | None:
        """Returns the prompts of a split; None where `config.data` names none."""
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
            raise UserError("config.data.train_files is missing: the prompts of the answers")
        drawn = train_rows([train], self.config.train, self.config.data.seed)
        # The loss of an answer needs the experience of a step, so no mean loss is evaluated.
        return types.SimpleNamespace(train=drawn, eval={}, valid=valid)

    def rows(self):
        return self._rows

    def batch_spec(self, row_shape: int = 0):
        return self.int32_spec({"prompts": (self.prompt_length,), "prompt_lengths": ()})

    # answers

    @cached_property
    def end_id(self) -> int:
        """The token that ends an answer; 0 in a run that is only planned, without a tokenizer."""
        return chat_rows.end_id(self.tokenizer) if self.has_tokenizer else 0

    def written(self, params: Params, batch: Batch, key: jax.Array) -> Batch:
        """Returns the arrays of `Answers` to the prompts of a batch, `num_answers` to each."""
        prompts, lengths = (
            jnp.repeat(batch[name], self.num_answers, axis=0)
            for name in ("prompts", "prompt_lengths")
        )
        how = Sampling(temperature=self.temperature)
        write = Writer(self.model, how, self.max_tokens, self.end_id)
        apart = self.heads + self.other_runs  # what the model does not read
        own = {name: tree for name, tree in params.items() if name not in apart}
        return write(own, prompts, lengths, key)._asdict()

    def texts_of(self, answers: Answers) -> tuple[list[str], list[str]]:
        """Returns the texts of prompts and of their answers, from arrays on the host."""
        ends = answers.lengths - answers.ended
        rows = [*zip(answers.ids.tolist(), answers.begins, ends)]
        prompts = [ids[:begin] for ids, begin, _ in rows]
        return self.tokenizer.decode(prompts), self.tokenizer.decode(
            [ids[begin:end] for ids, begin, end in rows]
        )


# --------------------------------------------------------------------------------------------------
# Advantages of answers, and the losses of policies and values that learn from them.
#
# Arrays (B, T) belong to the T first tokens of B answers. `filled` says which tokens exist: the
# first ones of each answer.

_SMALL = 1e-8  # added to variances
_SMALL_DEVIATION = 1e-4  # added to the deviations of groups


def generalized_advantages(
    rewards: Float[Array, "B T"],
    values: Float[Array, "B T"],
    filled: Bool[Array, "B T"],
    *,
    discount: float,
    decay: float,
) -> Float[Array, "B T"]:
    """Returns generalized advantage estimates (Schulman et al. 2015, equation 16).

    The value behind the last token of an answer is 0. `discount` is gamma and `decay` lambda.
    """
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
    """Returns numbers with variance 1 over all tokens, and mean 0 or the mean of `x`."""
    count = jnp.maximum(filled.sum(), 1)
    mean = jnp.where(filled, x, 0.0).sum() / count
    variance = jnp.where(filled, jnp.square(x - mean), 0.0).sum() / count
    white = (x - mean) * jax.lax.rsqrt(variance + _SMALL)
    return jnp.where(filled, white if shifts_mean else white + mean, 0.0)


def group_advantages(
    rewards: Float[Array, "B G"], *, divides_by_deviation: bool = True
) -> Float[Array, "B G"]:
    """Returns the rewards of G answers to each prompt, less their mean.

    The differences are divided by the standard deviation of the group (Shao et al. 2024, section
    4.1.2), or stay as they are (Liu et al. 2025, section 3.2).
    """
    advantages = rewards - rewards.mean(axis=1, keepdims=True)
    if divides_by_deviation:
        advantages /= rewards.std(axis=1, keepdims=True) + _SMALL_DEVIATION
    return advantages


def clipped_policy_loss(
    log_ratios: Float[Array, "B T"], advantages: Float[Array, "B T"], clip: float
) -> Float[Array, "B T"]:
    """Returns the negative clipped objective of tokens (Schulman et al. 2017, equation 7).

    `log_ratios` are log-probabilities less those of the policy that wrote the answers.
    """
    ratios = jnp.exp(log_ratios)
    clipped = jnp.clip(ratios, 1 - clip, 1 + clip)
    return jnp.maximum(-advantages * ratios, -advantages * clipped)


def clipped_value_loss(
    values: Float[Array, "B T"],
    old_values: Float[Array, "B T"],
    returns: Float[Array, "B T"],
    clip: float,
) -> Float[Array, "B T"]:
    """Returns half of the larger squared error, of the values and of the values near the old ones.

    Values are cut to a distance of `clip` from `old_values`, as in the code of Ziegler et al. 2019.
    """
    near = old_values + jnp.clip(values - old_values, -clip, clip)
    return 0.5 * jnp.maximum(jnp.square(values - returns), jnp.square(near - returns))


def divergence_estimates(log_ratios: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Returns estimates of the divergence from a reference (Shao et al. 2024, equation 4).

    `log_ratios` are the log-probabilities of the reference less those of the policy. An estimate is
    not negative, and its mean over tokens of the policy is the divergence KL(policy, reference).
    """
    return jnp.expm1(log_ratios) - log_ratios


def adapted_coefficient(
    coefficient: Float[Array, ""],
    divergence: Float[Array, ""],
    *,
    target: float,
    horizon: float,
) -> Float[Array, ""]:
    """Returns the coefficient of the penalty after a batch (Ziegler et al. 2019, section 2.2).

    It grows where the divergence is above its target, and falls where it is below. The change is
    the relative error, at most 0.2, divided by `horizon`, a number of batches.
    """
    error = jnp.clip(divergence / target - 1, -0.2, 0.2)
    return coefficient * (1 + error / horizon)


# --------------------------------------------------------------------------------------------------
# The base class of the on-policy tasks, whose model learns from the rewards of its own answers.

_SHOWN = 3  # answers that an evaluation prints


@dataclasses.dataclass
class Policy(Prompted):
    """A language model as a policy: its answers to prompts, their rewards, and a frozen reference.

    The policy is the model of `config.model`, without dropout. Below "reference" and "reward" are
    the frozen parameters of the runs that it stays close to and is rewarded by. A subclass defines
    what is learned from answers.
    """

    # the reward of an answer without its end, whatever it says; None: that of the reward model
    unfinished_reward: float | None = None
    clip: PositiveFloat = 0.2  # most change of a token's probability, as a ratio, that is rewarded
    minibatches: PositiveInt = 1  # updates in a pass over the answers of a step
    reference: str = ""  # the run that the policy stays close to, usually that of config.init_from
    reward: str = ""  # the run of a reward model
    # keys of config.model of these two, ((key, value), ...); the runs give their own
    reference_model: tuple = ()
    reward_model: tuple = ()

    other_runs = ("reference", "reward")
    # Optional: (prompt, answer) -> number, a pure function in a subclass, in place of a reward
    # model. A resumed run computes the same rewards again.
    reward_of: ClassVar[Callable[[str, str], float] | None] = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if cls.reward_of is not None:
            cls.other_runs = ("reference",)

    def __post_init__(self):
        self.model = build_model(self.config)
        self._reference = self._built(self.reference_model)
        self._reward = None if self.reward_of else self._built(self.reward_model)
        if self.reward_of:
            self.rollouts = self._rollouts
        self._check()

    def _built(self, keys: tuple):
        """Returns the model of another run; None where the config names no such run."""
        return build_model(ConfigDict({"model": dict(keys)})) if keys else None

    def _check(self) -> None:
        """Raises UserError for models and keys that do not suit each other."""
        models = {"task.reference": self._reference, "task.reward": self._reward}
        if self.reward_of is not None:
            del models["task.reward"]
        for key, model in models.items():
            if model is None:
                raise UserError(f"config.{key} is missing: the workdir of a run")
        for key, model in {"model.name": self.model, **models}.items():
            if model.kind != "causal":
                raise UserError(
                    f"config.{key}: {type(model).__name__} is no language model; answers are "
                    "written and rewarded by causal models"
                )
            if self.length > model.window:
                raise UserError(
                    f"config.task.prompt_length={self.prompt_length} and max_tokens="
                    f"{self.max_tokens}: their sum must be at most {model.window}, the most tokens "
                    f"of the model of config.{key}"
                )
        for batch in filter(None, (self.config.train.batch, self.config.train.first_batch)):
            if batch * self.num_answers % self._num_parts:
                raise UserError(
                    f"config.train.batch={batch}: its {batch * self.num_answers} answers can't be "
                    f"divided into config.task.minibatches={self.minibatches} x "
                    f"config.train.accumulation={self.config.train.accumulation} parts"
                )

    @property
    def _num_parts(self) -> int:
        """The parts of a step's answers that are computed one after the other."""
        return self.minibatches * self.config.train.accumulation

    # parameters

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

    # answers

    def rewarded(self, params: Params, batch: Batch) -> Float[Array, " B"]:
        """Returns the rewards of answers by the reward model."""
        answers = Answers.of(batch)
        rewards = preferences.rewards(self._reward, params["reward"], answers.ids, answers.lengths)
        if self.unfinished_reward is None:
            return rewards
        return jnp.where(answers.ended, rewards, self.unfinished_reward)

    def scored(self, rollouts: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the rewards of answers by `reward_of`. Raises UserError for what is no number."""
        answers = Answers.of(rollouts)
        rows = zip(answers.begins, *self.texts_of(answers))
        # A row that fills up the last batch of an evaluation has no prompt.
        rewards = np.array([self._score(*texts) if n else 0.0 for n, *texts in rows], np.float32)
        if self.unfinished_reward is None:
            return rewards
        return np.where(answers.ended, rewards, np.float32(self.unfinished_reward))

    def _score(self, prompt: str, answer: str) -> float:
        value = self.reward_of(prompt, answer)
        is_number = isinstance(value, numbers.Real) and math.isfinite(value)
        if not is_number:
            raise UserError(
                f"config.task.name={self.config.task.name}: reward_of({prompt!r}, {answer!r}) is "
                f"{value!r}; must be a finite number"
            )
        return value

    def answered(self, params: Params, batch: Batch, context: Context) -> Batch:
        """Returns the answers to the prompts of a step, with their rewards."""
        if "rewards" in batch:  # by `scored`
            return {name: batch[name] for name in (*Answers._fields, "rewards")}
        answers = self.written(params, batch, context.rng)
        return answers | {"rewards": self.rewarded(params, answers)}

    def _rollouts(self, params: Params, batch: Batch, context: Context) -> Batch:
        """Returns answers to the prompts of a batch, and its other arrays."""
        others = {name: x for name, x in batch.items() if not name.startswith("prompt")}
        return self.written(params, batch, context.rng) | others

    def policy_states(self, params: Params, answers: Answers) -> Float[Array, "B T M"]:
        """Returns the states of the policy that predict the tokens of answers."""
        return self._states(self.model, params, answers)

    def policy_log_probs(self, params: Params, batch: Batch) -> Float[Array, "B T"]:
        """Returns the log-probabilities of the tokens of answers, by the policy as it is."""
        answers = Answers.of(batch)
        states = self.policy_states(params, answers)
        return self.log_probs_of_states(self.model, params, states, answers)

    def reference_log_probs(self, params: Params, batch: Batch) -> Float[Array, "B T"]:
        """Returns those by the reference."""
        answers, params = Answers.of(batch), params["reference"]
        states = self._states(self._reference, params, answers)
        return self.log_probs_of_states(self._reference, params, states, answers)

    def _states(self, model, params, answers: Answers) -> Float[Array, "B T M"]:
        hidden = model.apply({"params": params}, Inputs(answers.ids[:, :-1]), method="hidden")
        return answers.states(hidden, self.max_tokens)

    def log_probs_of_states(self, model, params, states, answers: Answers) -> Float[Array, "B T"]:
        """Returns the log-probabilities of answers from the states that predict them."""
        output = model.apply({"params": params}, method="output").tempered(self.temperature)
        log_probs = output.label_log_probs(states, answers.tokens(self.max_tokens))
        return jnp.where(answers.filled(self.max_tokens), log_probs, 0.0)

    def in_parts(self, measure: Callable[[Batch], Batch], batch: Batch) -> Batch:
        """Returns measure(batch), computed in parts of the size that the loss gets.

        So the log-probabilities of a step's answers have the rounding of the loss, and the ratio of
        probabilities is exactly 1 in its first update. No more is in memory than in the loss.
        """
        if self._num_parts == 1:
            return measure(batch)

        def divided(x):
            x = x.reshape(self._num_parts, -1, *x.shape[1:])
            return sharding.constrain(x, None, "batch", *[None] * (x.ndim - 2))

        measured = jax.lax.map(measure, jax.tree.map(divided, batch))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), measured)

    def measures(self, batch: Batch) -> metrics.Metrics:
        """Returns means over answers: reward, divergence, length, share with an end.

        "entropy" is an estimate, the mean of -log p over the tokens that the policy drew.
        """
        answers = Answers.of(batch)
        exists = answers.begins > 0  # not in the rows that fill up the last batch of an evaluation
        filled = answers.filled(self.max_tokens) & exists[:, None]
        count, num_tokens = (x.sum(dtype=jnp.int32) for x in (exists, filled))
        log_ratios = batch["old_log_probs"] - batch["reference_log_probs"]
        return {
            "reward": (jnp.where(exists, batch["rewards"], 0.0).sum(), count),
            "kl": (jnp.where(filled, log_ratios, 0.0).sum(), count),
            "entropy": (-jnp.where(filled, batch["old_log_probs"], 0.0).sum(), num_tokens),
            "length": (num_tokens.astype(jnp.float32), count),
            "ended": ((answers.ended & exists).sum(dtype=jnp.float32), count),
            "filled": (num_tokens, jnp.int32(filled.size)),
        }

    def changes(
        self, log_ratios: Float[Array, "B T"], filled: Bool[Array, "B T"]
    ) -> metrics.Metrics:
        """Returns how far the policy is from the one that wrote the answers, means over tokens.

        "change" is the absolute log-ratio, "clip_share" the share of ratios that are clipped.
        """
        num_tokens = filled.sum(dtype=jnp.int32)
        is_clipped = (jnp.abs(jnp.exp(log_ratios) - 1) > self.clip) & filled
        return {
            "change": (jnp.where(filled, jnp.abs(log_ratios), 0.0).sum(), num_tokens),
            "clip_share": (is_clipped.sum(dtype=jnp.float32), num_tokens),
        }

    @property
    def flops_of_experience(self) -> float:
        """The FLOPs of an answer before it is learned from: written, compared and rewarded."""
        models = filter(None, (self.model, self.model, self._reference, self._reward))
        return sum(model.flops(self.length) for model in models)

    # evaluation

    def evaluations(self):
        return {"valid": self._evaluated} if self.read("valid") is not None else {}

    def _evaluated(self, params) -> dict[str, float]:
        return self._scores(params, EvalRows(self._rows.valid))

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean reward and divergence of answers to the prompts of a split.

        Raises UserError where the run has no such split.
        """
        arguments.held_out(self.read, split, "files")
        evaluated = EvalRows(self.prompt_rows(split))
        return self._scores(params, evaluated) | {"prompts": len(evaluated)}

    def _scores(self, params, evaluated: EvalRows) -> dict[str, float]:
        step = jax.jit(self._answered, static_argnums=0)
        placement = Placement.of(params, self.config.mesh)
        size = placement.rows(self.config.decode.batch)
        sums = []
        for number in range(evaluated.num_batches(size)):
            batch = evaluated.batch(number, range(size), size)
            done = hosts.run(step, placement, params, batch, np.int32(number))
            answered = jax.device_get(done)
            if self.reward_of is not None:
                answered["rewards"] = self.scored(answered)
            if number == 0:
                self._show(Answers.of(answered))
            sums.append(jax.device_get(self.measures(answered)))
        means = metrics.means(jax.tree.map(lambda *x: np.sum(x, dtype=np.float64), *sums))
        means.pop("filled")
        return means

    def _answered(self, placement: Placement, params, batch, number) -> Batch:
        """Returns the answers to a batch of prompts, as `measures` reads them."""
        with placement.use():
            key = jax.random.fold_in(jax.random.key(self.config.train.seed), number)
            batch = self.written(params, split_rows(batch), key)
            if self.reward_of is None:
                batch["rewards"] = self.rewarded(params, batch)
            batch["old_log_probs"] = self.policy_log_probs(params, batch)
            batch["reference_log_probs"] = self.reference_log_probs(params, batch)
            return gathered(batch)

    def _show(self, answers: Answers) -> None:
        """Prints the first prompts with their answers."""
        first = Answers(*(x[:_SHOWN][answers.begins[:_SHOWN] > 0] for x in answers))
        for prompt, answer in zip(*self.texts_of(first)):
            say(f"an answer: {prompt!r} -> {answer!r}")


# --------------------------------------------------------------------------------------------------
# Attention rollout: the share of each input in a state of the last layer.
#
# It has only its name in common with the rollouts above. The tasks on images use it.


def rollout(weights: np.ndarray) -> np.ndarray:
    """Returns the shares of the inputs (keys) in the states of the last layer, float32 (L, L).

    `weights` are the attention weights of all layers (layers, H, L, L). The weights of a layer are
    the mean over its heads, and half of a state is the residual branch (Abnar & Zuidema 2020,
    section 3). Each row sums to 1.
    """
    mean = weights.astype(np.float64).mean(axis=1)
    shares = np.eye(weights.shape[-1])
    for layer in 0.5 * mean + 0.5 * np.eye(weights.shape[-1]):
        shares = layer @ shares
    return (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)


def patch_shares(weights: np.ndarray, pools_class: bool) -> np.ndarray:
    """Returns the shares of the patches of a square image, float32 (G, G), which sum to 1.

    `weights` are those of a row of a class token and G^2 patches (layers, H, 1 + G^2, 1 + G^2). The
    shares are those in the state of the class token, or else in the mean of the other states.
    """
    shares = rollout(weights)
    shares = shares[0, 1:] if pools_class else shares[1:, 1:].mean(axis=0)
    side = round(len(shares) ** 0.5)
    return (shares / shares.sum()).reshape(side, side)
