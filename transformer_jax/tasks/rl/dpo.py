"""Direct preference optimization: a language model learns from preferences, without a reward
model (Rafailov et al. 2023; Azar et al. 2023).
"""

import dataclasses
import types
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from transformer_jax.config import PositiveFloat, PositiveInt, UserError, build_model
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import arguments, rows
from transformer_jax.finetuning import predictions
from transformer_jax.objectives import preferences
from transformer_jax.objectives.preferences import Pairs, PreferenceTask
from transformer_jax.objectives.texts import Continued, check_row_length, states
from transformer_jax.pictures.progress import say


@dataclasses.dataclass
class DPO(PreferenceTask, Continued):
    """DPO (Rafailov et al. 2023, equation 7) and IPO (Azar et al. 2023, equation 17).

    The implicit reward of a completion is beta times the log-ratio of its probabilities by the
    policy and by the reference. The reference is frozen, and its parameters are the subtree
    "reference".
    """

    length: int = 512  # tokens of a row, at most
    # sigmoid: DPO; ipo: the squared distance of the log-ratios' difference from 1 / (2 beta)
    objective: Literal["sigmoid", "ipo"] = "sigmoid"
    beta: PositiveFloat = 0.1  # strength of the KL penalty; tau in IPO
    # updates whose examples are sorted by length together, so that batches hold less padding
    group_by_length: PositiveInt = 1
    reference: str = ""  # the run whose model is the reference, usually config.init_from
    # keys of the reference's config.model, ((key, value), ...); the run in config.task.reference
    # gives its own
    reference_model: tuple = ()

    other_runs = ("reference",)

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        check_row_length("length", self.length, self.model)
        if not self.reference_model:
            raise UserError(
                "config.task.reference is missing: the workdir of the run that config.model stays "
                "close to, usually config.init_from"
            )
        self._reference = build_model(ConfigDict({"model": dict(self.reference_model)}))
        self._check()
        self.lengths = predictions.lengths_on_mesh(self.config.mesh, self.length)
        self.num_row_shapes = len(self.lengths)

    def _check(self) -> None:
        """Raises UserError for models and keys that do not go together."""
        for key, model in (("model.name", self.model), ("task.reference", self._reference)):
            if model.kind != "causal":
                raise UserError(
                    f"config.{key}: {type(model).__name__} is not a language model; only a causal "
                    "model gives completions a probability"
                )
        if self._reference.vocab_size != self.model.vocab_size:
            raise UserError(
                f"config.model.vocab_size={self.model.vocab_size}: must be the reference's "
                f"{self._reference.vocab_size}"
            )
        if self.length > self._reference.window:
            raise UserError(
                f"config.task.length={self.length}: must be at most the reference's "
                f"{self._reference.max_length}"
            )

    @property
    def room(self) -> int:
        return self.length + 1  # the last token is a label only, and is not read

    def _examples(self, split: str) -> predictions.Examples | None:
        records = self.read(split)
        if records is None:
            return None
        examples = self.examples(records)
        if not examples:
            raise UserError(f"config.data.{split}_files: no example in it")
        say(f"{split}: {len(examples):,} examples")
        num_tokens = np.array([preferences.num_tokens(example) - 1 for example in examples])
        return predictions.Examples(examples, self._row, num_tokens, self.lengths, self._shapes)

    def _row(self, example) -> rows.Row:
        """Returns the rows of an example, one per completion.

        `tokens` (K, L) are the ids of prompt and completion, `labels` (K, L) the next token at each
        position, and `weights` (K, L) is 1 where the label belongs to the completion.
        """
        ids = [np.array(example.prompt + completion) for completion in example.completions]
        prompt = len(example.prompt)
        each = [
            {"tokens": x[:-1], "labels": x[1:], "weights": np.arange(1, len(x)) >= prompt}
            for x in ids
        ]
        padded = [
            {name: rows.padded(values, self.length) for name, values in row.items()} for row in each
        ]
        arrays = preferences.padded_rows(padded, self.completions)
        return arrays | {"label": np.float32(example.label)}

    def _shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        arrays = dict.fromkeys(("tokens", "labels", "weights"), (self.completions, length))
        return arrays | {"label": ()}

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        valid = self._examples("valid")  # raises its errors before training
        train = self._examples("train")
        drawn = rows.train_rows([train], self.config.train, self.config.data.seed)
        batches = predictions.Batches(drawn, train, self.group_by_length)
        evaluated = {} if valid is None else {"valid": rows.EvalRows(valid)}
        return types.SimpleNamespace(train=batches, eval=evaluated)

    def rows(self):
        return self._rows

    def batch_spec(self, row_shape: int):
        spec = self.int32_spec(self._shapes(self.lengths[row_shape]))
        return spec | {"label": jax.ShapeDtypeStruct(spec["label"].shape, jnp.float32)}

    def init(self, rng):
        tokens = jnp.zeros((1, self.length), jnp.int32)
        policy_key, reference_key = jax.random.split(rng)
        reference = self._reference.init(reference_key, tokens)["params"]
        return {**self.model.init(policy_key, tokens)["params"], "reference": reference}

    def group(self, path):
        return None if path[0] == "reference" else super().group(path)

    def weights(self, batch):
        # Prompts are counted and not pairs, because the loss adds one mean for each prompt, however
        # many completions it has (Ouyang et al. 2022, equation 1).
        return {"loss": _filled(batch)[:, 0].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        filled = _filled(batch)
        # The training step asks for no gradient of frozen parameters; any other caller gets zeros.
        reference = jax.lax.stop_gradient(params["reference"])
        policy_log_probs = log_probs(self.model, params, batch, context)
        # The reference has no dropout, because its log-probabilities are constants of the data.
        # `Context()` is an evaluation's context.
        reference_log_probs = log_probs(self._reference, reference, batch, Context())
        log_ratios = policy_log_probs - reference_log_probs  # (B, K)
        pairs = Pairs.of(log_ratios, filled, batch["labels"], batch["weights"])
        loss = pairs.prompt_means(self.pair_losses(pairs.differences, self.preferred(batch))).sum()
        count = filled[:, 0].sum(dtype=jnp.int32)
        # The implicit reward is beta times the log-ratio there, so its metrics are on the scale of
        # a reward model's.
        rewards = pairs._replace(differences=self.beta * pairs.differences)
        num_filled = batch["weights"].sum(dtype=jnp.int32)
        measured = {
            "loss": (loss, count),
            **rewards.metrics(),
            **_extreme_rewards(self.beta * log_ratios, filled),
            "filled": (num_filled, jnp.int32(batch["weights"].size)),
        }
        return Loss({"loss": loss}, measured)

    def pair_losses(self, differences, preferred) -> Float[Array, "B P"]:
        """Returns the losses of pairs, given the differences of their log-ratios."""
        if self.objective == "sigmoid":
            return preferences.bradley_terry(self.beta * differences, preferred)
        return squared_distance(differences, preferred, self.beta)

    def flops(self, row_shape: int = 0) -> float:
        # The factor 3, because a backward pass costs two forward passes. The frozen reference has
        # none.
        length = self.lengths[row_shape]
        row = 3 * self.model.flops(length) + self._reference.flops(length)
        return self.completions * row

    def positions(self, row_shape: int = 0) -> int:
        return self.completions * self.lengths[row_shape]

    def evaluate(self, params, split: str) -> dict:
        """Returns the loss of a split, and the metrics of its implicit rewards.

        Raises UserError if the run has no such split.
        """
        arguments.held_out(self.read, split, "files")
        examples = self._examples(split)
        means = self.mean_metrics(params, rows.EvalRows(examples))
        means.pop("filled")
        return means | {"examples": len(examples)}


def log_probs(model: Any, params, batch, context: Context) -> Float[Array, "B K"]:
    """Returns the log-probability of each completion, summed over its tokens and its end token.

    A missing completion has log-probability 0.
    """
    shape = batch["weights"].shape  # (B, K, L)
    tokens, labels = (batch[name].reshape(-1, shape[-1]) for name in ("tokens", "labels"))
    hidden = states(model, params, Inputs(tokens), context)
    output = model.apply({"params": params}, method="scaled_output")
    label_log_probs = output.label_log_probs(hidden, labels).reshape(shape)
    return jnp.sum(label_log_probs * batch["weights"], axis=-1)


def squared_distance(
    differences: Float[Array, "B P"], preferred: Float[Array, "B 1"], tau: float
) -> Float[Array, "B P"]:
    """Returns the losses of IPO, given the differences of log-ratios (Azar et al. 2023, eq. 17).

    With probability 1 - `preferred`, the completion labeled as worse is the preferred one.
    """
    # IPO pulls the difference to a finite target, where DPO's loss falls forever: with preferences
    # that are certain, DPO would ignore the KL penalty.
    target = 1 / (2 * tau)
    right, wrong = jnp.square(differences - target), jnp.square(differences + target)
    return preferred * right + (1 - preferred) * wrong


def _filled(batch):
    """Returns which completions exist (B, K)."""
    return batch["weights"].any(axis=-1)


def _extreme_rewards(
    rewards: Float[Array, "B K"], filled
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Returns the mean rewards of the best and of the worst completions."""
    # Completions are in the order of preference, and missing ones are at the end. A row that only
    # pads the batch has none, and would have the index -1.
    worst = jnp.maximum(filled.sum(axis=1) - 1, 0)
    exists, count = filled[:, 0], filled[:, 0].sum(dtype=jnp.int32)
    worst_rewards = jnp.take_along_axis(rewards, worst[:, None], axis=1)[:, 0]
    return {
        "chosen_reward": (jnp.where(exists, rewards[:, 0], 0.0).sum(), count),
        "rejected_reward": (jnp.where(exists, worst_rewards, 0.0).sum(), count),
    }
