"""Proximal policy optimization of a language model by rewards of its completions (Schulman et al.
2017; Ziegler et al. 2019; Ouyang et al. 2022).
"""

import dataclasses
import types
from functools import cached_property

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from transformer_jax.config import NonNegativeFloat, PositiveFloat, PositiveInt, Share
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data.chat_rows import WithTexts
from transformer_jax.data.texts import TextWindows
from transformer_jax.layers.embeddings import Head
from transformer_jax.objectives import rollouts
from transformer_jax.objectives.rollouts import Completions, Policy
from transformer_jax.objectives.texts import check_row_length


@dataclasses.dataclass
class PPO(Policy):
    """Proximal policy optimization (Ziegler et al. 2019, section 2.2; Ouyang et al. 2022, eq. 2).

    The reward of a completion is given at its last token. Every token has a KL penalty, the
    coefficient times the log-ratio of the policy and the reference. The value of a token is a head
    on the policy's hidden state, whose parameters are the subtree "value".
    """

    epochs: PositiveInt = 4  # passes over the completions of a step
    kl_coefficient: NonNegativeFloat = 0.15  # initial coefficient of the KL penalty
    # divergence, in nats per completion, to which the coefficient adapts; None: it is constant
    target_kl: PositiveFloat | None = 6.0
    horizon: PositiveInt = 10_000  # completions over which the coefficient adapts
    discount: Share = 1.0  # gamma
    decay: Share = 0.95  # lambda of the advantages
    whitens_rewards: bool = True  # divides the rewards of a step by their standard deviation
    value_coefficient: NonNegativeFloat = 0.1  # weight of the loss of values
    # text files whose loss as a language model is added ("PPO-ptx")
    text_files: str = ""
    text_coefficient: NonNegativeFloat = 27.8  # weight of the loss of texts
    text_length: int = 128  # tokens of a row of texts

    heads = ("value",)

    def __post_init__(self):
        super().__post_init__()
        self.passes = (self.epochs, self.minibatches)
        self.coefficients = {"policy": 1.0, "value": self.value_coefficient}
        if self.text_files:
            self.coefficients["texts"] = self.text_coefficient
        if self.text_files:
            check_row_length("text_length", self.text_length, self.model)
        self._value = Head(1, 0.0)

    @cached_property
    def _texts(self) -> TextWindows:
        # Texts are read as the training files of a language model, so in a copy of the config they
        # replace the prompts.
        config = ConfigDict(self.config).copy_and_resolve_references()
        with config.ignore_type():
            config.data.train_files, config.data.valid_files = self.text_files, None
        return TextWindows(config, self.text_length)

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        data = super()._rows
        if self.text_files:
            data.train = WithTexts(data.train, self._texts.train(self.tokenizer))
        return data

    def fingerprint(self):
        texts = {"texts": self._texts.fingerprint()} if self.text_files else {}
        return super().fingerprint() | texts

    def batch_spec(self, row_shape: int = 0):
        spec = super().batch_spec(row_shape)
        if not self.text_files:
            return spec
        keys = ["text_tokens", "text_labels", "text_weights"]
        if self.config.data.mask_documents:
            keys += ["text_positions", "text_segment_ids"]
        return spec | self.int32_spec(dict.fromkeys(keys, (self.text_length,)))

    def init(self, rng):
        policy_key, value_key = jax.random.split(rng)
        value = self._value.init(value_key, jnp.zeros((1, self.model.d_model)))["params"]
        return super().init(policy_key) | {"value": value}

    def initial_memory(self):
        return jnp.float32(self.kl_coefficient)

    def experience(self, params, batch, context: Context):
        """Returns rollouts with advantages and returns, and the next KL coefficient."""
        rollout = self.rewarded_completions(params, batch, context)
        rollout |= self.in_parts(lambda rows: self._before(params, rows), rollout)
        filled = Completions.of(rollout).filled(self.max_tokens)
        coefficient = context.memory
        log_ratios = rollout["old_log_probs"] - rollout["reference_log_probs"]
        is_last = filled & ~jnp.pad(filled[:, 1:], ((0, 0), (0, 1)))
        rewards = jnp.where(is_last, rollout["rewards"][:, None], 0.0) - coefficient * log_ratios
        if self.whitens_rewards:
            # The mean is not shifted, as in the code of Ziegler et al. 2019.
            rewards = rollouts.whitened(rewards, filled, shifts_mean=False)
        advantages = rollouts.generalized_advantages(
            rewards, rollout["old_values"], filled, discount=self.discount, decay=self.decay
        )
        rollout |= {
            # From the advantages before whitening, because values are on the scale of the rewards.
            "returns": advantages + rollout["old_values"],
            "advantages": rollouts.whitened(advantages, filled),
            # One entry per row, because the batch is later shuffled and split by rows.
            "coefficient": jnp.broadcast_to(coefficient, rollout["rewards"].shape),
        }
        texts = {name: array for name, array in batch.items() if name.startswith("text_")}
        return rollout | texts, self._adapted(coefficient, log_ratios)

    def _before(self, params, rows):
        """Returns log-probabilities and values of completions before the updates of the step."""
        log_probs, values = self._log_probs_and_values(params, rows)
        reference = self.reference_log_probs(params, rows)
        return {
            "old_log_probs": log_probs,
            "old_values": values,
            "reference_log_probs": reference,
        }

    def _log_probs_and_values(self, params, rows):
        completions = Completions.of(rows)
        # The policy and the value function share one forward pass.
        states = self.policy_states(params, completions)
        log_probs = self.policy_log_probs_of_states(params, states, rows)
        values = self._value.apply({"params": params["value"]}, states)[..., 0]
        return log_probs, jnp.where(completions.filled(self.max_tokens), values, 0.0)

    def _adapted(self, coefficient, log_ratios):
        """Returns the KL coefficient of the next step."""
        if self.target_kl is None:
            return coefficient
        return rollouts.adapted_coefficient(
            coefficient,
            log_ratios.sum(axis=1).mean(),
            target=self.target_kl,
            horizon=self.horizon / len(log_ratios),  # in batches
        )

    def weights(self, batch):
        num_tokens = (batch["lengths"] - batch["begins"]).sum().astype(jnp.float32)
        weights = {"policy": num_tokens, "value": num_tokens}
        if self.text_files:
            weights["texts"] = batch["text_weights"].sum().astype(jnp.float32)
        return weights

    def loss(self, params, batch, context: Context) -> Loss:
        filled = Completions.of(batch).filled(self.max_tokens)
        log_probs, values = self._log_probs_and_values(params, batch)
        log_ratios = log_probs - batch["old_log_probs"]
        policy_losses = rollouts.clipped_policy_loss(log_ratios, batch["advantages"], self.clip)
        value_losses = rollouts.clipped_value_loss(
            values, batch["old_values"], batch["returns"], self.clip
        )
        terms = {
            "policy": jnp.where(filled, policy_losses, 0.0).sum(),
            "value": jnp.where(filled, value_losses, 0.0).sum(),
        }
        if self.text_files:
            terms["texts"] = self._text_loss(params, batch)
        count = jnp.int32(len(filled))
        num_tokens = filled.sum(dtype=jnp.int32)
        measured = self.measures(batch) | self.changes(log_ratios, filled)
        measured |= {
            "policy_loss": (terms["policy"], num_tokens),
            "value_loss": (terms["value"], num_tokens),
            "kl_coefficient": (batch["coefficient"].sum(), count),
        }
        loss = terms["policy"] + self.value_coefficient * terms["value"]
        return Loss(terms, measured | {"loss": (loss, num_tokens)})

    def _text_loss(self, params, batch):
        """Returns the summed cross-entropy of the texts (Ouyang et al. 2022, equation 2)."""
        positions, segments = (batch.get(f"text_{name}") for name in ("positions", "segment_ids"))
        inputs = Inputs(batch["text_tokens"], positions=positions, segment_ids=segments)
        hidden = self.model.apply({"params": params}, inputs, method="hidden")
        output = self.model.apply({"params": params}, method="scaled_output")
        weights = batch["text_weights"].astype(jnp.float32)
        return output.cross_entropy(hidden, batch["text_labels"], weights)[0]

    def flops(self, row_shape: int = 0) -> float:
        # The factor 3, because a backward pass costs two forward passes.
        texts = 3 * self.model.flops(self.text_length) if self.text_files else 0.0
        return self.flops_of_experience + self.epochs * (3 * self.model.flops(self.length) + texts)

    def positions(self, row_shape: int = 0) -> int:
        return self.max_tokens
