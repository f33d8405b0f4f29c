"""Code that the tasks share whose model learns from rewards of its own answers."""

import dataclasses
import types
from collections.abc import Callable
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from ml_collections import ConfigDict

from transformer_jax import metrics
from transformer_jax.config import UserError, build_model
from transformer_jax.data import arguments, tokenizers
from transformer_jax.data.completions import prompt_ids
from transformer_jax.data.prompt_rows import PromptRows
from transformer_jax.data.rows import EvalRows, train_rows
from transformer_jax.data.sources import prompts
from transformer_jax.distributed import hosts, sharding
from transformer_jax.distributed.placement import Placement, gathered, split_rows
from transformer_jax.inference.answers import Answers, Writer
from transformer_jax.inference.causal import CausalUse
from transformer_jax.inference.sampling import Sampling
from transformer_jax.pictures.progress import say
from transformer_jax.tasks import reward
from transformer_jax.tasks.base import BaseTask
from transformer_jax.tasks.task import Batch, Context, Params

_SHOWN = 3  # answers that an evaluation prints


@dataclasses.dataclass
class Policy(CausalUse, BaseTask):
    """A language model as a policy: its answers to prompts, their rewards, and a frozen reference.

    The policy is the model of `config.model`, without dropout. Below "reference" and "reward" are
    the frozen parameters of the runs that it stays close to and is rewarded by. A subclass defines
    what is learned from answers.
    """

    prompt_length: int = 64  # most tokens of a prompt; a longer one loses its beginning
    max_tokens: int = 32  # most tokens of an answer, its end included
    # divisor of the logits of the policy and the reference, in sampling and in learning
    temperature: float = 1.0
    # the reward of an answer without its end, whatever it says; None: that of the reward model
    unfinished_reward: float | None = None
    clip: float = 0.2  # most change of a token's probability, as a ratio, that is rewarded
    minibatches: int = 1  # updates in a pass over the answers of a step
    reference: str = ""  # the run that the policy stays close to, usually that of config.init_from
    reward: str = ""  # the run of a reward model
    # keys of config.model of these two, ((key, value), ...); the runs give their own
    reference_model: tuple = ()
    reward_model: tuple = ()

    takes_model = True
    begins_with_run = True
    evaluates_rows = False
    other_runs = ("reference", "reward")
    num_answers = 1  # to each prompt

    def __post_init__(self):
        self.model = build_model(self.config)
        self._reference, self._reward = (
            build_model(ConfigDict({"model": dict(keys)})) if keys else None
            for keys in (self.reference_model, self.reward_model)
        )
        self._check()

    def _check(self) -> None:
        """Raises UserError for models and keys that do not suit each other."""
        models = {"task.reference": self._reference, "task.reward": self._reward}
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

    def require(self, key: str, is_right: bool, bounds: str) -> None:
        """Raises UserError for a value of config.task.<key> out of its bounds."""
        if not is_right:
            raise UserError(f"config.task.{key}={getattr(self, key)}: must be {bounds}")

    @property
    def length(self) -> int:
        """The tokens of a row: a prompt and its answer."""
        return self.prompt_length + self.max_tokens

    @property
    def _num_parts(self) -> int:
        """The parts of a step's answers that are computed one after the other."""
        return self.minibatches * self.config.train.accumulation

    # data

    @cached_property
    def tokenizer(self):
        if self.tokenizer_folder is None and not self.config.data.tokenizer_files:
            raise UserError("config.init_from is missing: the workdir of the run to train further")
        # No tokenizer is trained, so there is no text for it.
        return tokenizers.of_run(
            self.tokenizer_folder, self.config.data, lambda: (), self.model.vocab_size
        )

    def read(self, split: str) -> prompts.Prompts | None:
        return prompts.of_split(self.config.data, split)

    def _prompts(self, split: str) -> PromptRows | None:
        texts = self.read(split)
        if texts is None:
            return None
        ids = prompt_ids(self.tokenizer, list(texts), self.with_start)
        if not ids:
            raise UserError(f"config.data.{split}_files: no prompt in it")
        num_cut = sum(len(prompt) > self.prompt_length for prompt in ids)
        say(f"{split}: {len(ids):,} prompts")
        if num_cut:
            say(f"{num_cut:,} prompts are cut to their last {self.prompt_length} tokens")
        return PromptRows([prompt[-self.prompt_length :] for prompt in ids], self.prompt_length)

    @cached_property
    def _valid(self) -> PromptRows | None:
        return self._prompts("valid")

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        self._valid  # noqa: B018, raises its errors before training
        train = self._prompts("train")
        if train is None:
            raise UserError("config.data.train_files is missing: the prompts of the answers")
        return types.SimpleNamespace(train=train_rows([train], self.config), eval={})

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        return {
            "train": self.read("train").fingerprint(),
            "tokenizer": self.tokenizer.fingerprint(),
        }

    # parameters

    def batch_spec(self, row_shape: int = 0):
        return self.int32_spec({"prompts": (self.prompt_length,), "prompt_lengths": ()})

    def init(self, rng):
        tokens = jnp.zeros((1, self.length), jnp.int32)
        keys = jax.random.split(rng, 3)
        return {
            **self.model.init(keys[0], tokens)["params"],
            "reference": self._reference.init(keys[1], tokens)["params"],
            "reward": reward.init(self._reward, keys[2]),
        }

    def group(self, path):
        return None if path[0] in self.other_runs else super().group(path)

    # answers

    def written(self, params: Params, batch: Batch, key: jax.Array) -> Batch:
        """Returns the arrays of `Answers` to the prompts of a batch, `num_answers` to each."""
        prompts, lengths = (
            jnp.repeat(batch[name], self.num_answers, axis=0)
            for name in ("prompts", "prompt_lengths")
        )
        how = Sampling(temperature=self.temperature)
        write = Writer(self.model, how, self.max_tokens, self.end_id)
        policy = {name: tree for name, tree in params.items() if name not in self.apart}
        return write(policy, prompts, lengths, key)._asdict()

    @property
    def apart(self) -> tuple[str, ...]:
        """The subtrees of the parameters that are no part of the policy."""
        return self.heads + self.other_runs

    @cached_property
    def end_id(self) -> int:
        """The token that ends an answer."""
        return self.tokenizer.eos_id

    def rewarded(self, params: Params, batch: Batch) -> Float[Array, " B"]:
        """Returns the rewards of answers."""
        answers = Answers.of(batch)
        rewards = reward.rewards(self._reward, params["reward"], answers.ids, answers.lengths)
        if self.unfinished_reward is None:
            return rewards
        return jnp.where(answers.ended, rewards, self.unfinished_reward)

    def answered(self, params: Params, batch: Batch, context: Context) -> Batch:
        """Returns the answers to the prompts of a step, with their rewards."""
        answers = self.written(params, batch, context.rng)
        return answers | {"rewards": self.rewarded(params, answers)}

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

        "change" is the absolute log-ratio, and "clip_share" the share of ratios that are clipped.
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
        models = (self.model, self.model, self._reference, self._reward)
        return sum(model.flops(self.length) for model in models)

    # evaluation

    def derived(self, name, means):
        return {}

    def evaluations(self):
        return {"valid": self._evaluated} if self.read("valid") is not None else {}

    def _evaluated(self, params) -> dict[str, float]:
        return self._scores(params, EvalRows(self._valid))

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean reward and divergence of answers to the prompts of a split.

        Raises UserError where the run has no such split.
        """
        arguments.held_out(self.read, split, "files")
        evaluated = EvalRows(self._prompts(split))
        return self._scores(params, evaluated) | {"prompts": len(evaluated)}

    def _scores(self, params, evaluated: EvalRows) -> dict[str, float]:
        step = jax.jit(self._answered, static_argnums=0)
        placement = Placement.of(params, self.config.mesh)
        size = placement.rows(self.config.decode.batch)
        sums = []
        for number in range(evaluated.num_batches(size)):
            batch = evaluated.batch(number, range(size), size)
            done = hosts.run(step, placement, params, batch, np.int32(number))
            measured, answers = jax.device_get(done)
            if number == 0:
                self._show(answers)
            sums.append(measured)
        means = metrics.means(jax.tree.map(lambda *x: np.sum(x, dtype=np.float64), *sums))
        means.pop("filled")
        return means

    def _answered(self, placement: Placement, params, batch, number):
        """Returns the measures of the answers to a batch of prompts, and the first answers."""
        with placement.use():
            key = jax.random.fold_in(jax.random.key(self.config.train.seed), number)
            batch = self.written(params, split_rows(batch), key)
            batch["rewards"] = self.rewarded(params, batch)
            batch["old_log_probs"] = self.policy_log_probs(params, batch)
            batch["reference_log_probs"] = self.reference_log_probs(params, batch)
            return gathered((self.measures(batch), Answers.of(batch)))

    def _show(self, answers: Answers) -> None:
        """Prints the first prompts with their answers."""
        first = [*zip(answers.ids, answers.begins, answers.lengths)][:_SHOWN]
        for ids, begin, end in first:
            parts = [ids[:begin].tolist(), ids[begin:end].tolist()]
            prompt, answer = self.tokenizer.decode(parts)
            if begin:
                say(f"an answer: {prompt!r} -> {answer!r}")
