"""Code that the tasks share whose model learns from rewards of its own answers."""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from ml_collections import ConfigDict

from transformer_jax import metrics
from transformer_jax.config import UserError, build_model
from transformer_jax.data import arguments
from transformer_jax.data.rows import EvalRows
from transformer_jax.distributed import hosts, sharding
from transformer_jax.distributed.placement import Placement, gathered, split_rows
from transformer_jax.inference.answers import Answers
from transformer_jax.pictures.progress import say
from transformer_jax.tasks import reward
from transformer_jax.tasks.prompted import Prompted
from transformer_jax.tasks.task import Batch, Context, Params

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
    clip: float = 0.2  # most change of a token's probability, as a ratio, that is rewarded
    minibatches: int = 1  # updates in a pass over the answers of a step
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
        for key in ("prompt_length", "max_tokens", "minibatches"):
            self.require(key, getattr(self, key) >= 1, "at least 1")
        for key in ("temperature", "clip"):
            self.require(key, getattr(self, key) > 0, "above 0")
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
            params["reward"] = reward.init(self._reward, keys[2])
        return params

    def group(self, path):
        return None if path[0] in self.other_runs else super().group(path)

    # answers

    def rewarded(self, params: Params, batch: Batch) -> Float[Array, " B"]:
        """Returns the rewards of answers by the reward model."""
        answers = Answers.of(batch)
        rewards = reward.rewards(self._reward, params["reward"], answers.ids, answers.lengths)
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
        return self.of_states(self.model, params, states, answers)

    def reference_log_probs(self, params: Params, batch: Batch) -> Float[Array, "B T"]:
        """Returns those by the reference."""
        answers, params = Answers.of(batch), params["reference"]
        states = self._states(self._reference, params, answers)
        return self.of_states(self._reference, params, states, answers)

    def _states(self, model, params, answers: Answers) -> Float[Array, "B T M"]:
        hidden = model.apply({"params": params}, answers.ids[:, :-1], method="hidden")
        return answers.states(hidden, self.max_tokens)

    def of_states(self, model, params, states, answers: Answers) -> Float[Array, "B T"]:
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
