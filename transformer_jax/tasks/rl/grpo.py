"""Group relative policy optimization of a language model, without a value function (Shao et al.
2024).
"""

import dataclasses
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.config import NonNegativeFloat, PositiveInt, Range
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.objectives import rollouts
from transformer_jax.objectives.rollouts import Completions, Policy


@dataclasses.dataclass
class GRPO(Policy):
    """Group relative policy optimization (Shao et al. 2024, equation 3).

    Each prompt has a group of completions. The advantage of each token of a completion is the
    completion's reward relative to the group. The divergence from the reference is a term of the
    loss, not of the reward.
    """

    group_size: Annotated[int, Range(least=2)] = 16  # completions of a prompt
    kl_coefficient: NonNegativeFloat = 0.04  # weight of the divergence from the reference
    epochs: PositiveInt = 1  # passes over the completions of a step
    # divides the advantages of a group by the standard deviation of its rewards
    divides_by_deviation: bool = True
    # weights the estimate of the divergence by the probability ratio, so that its gradient is the
    # gradient of KL(policy, reference) (DeepSeek-AI 2025, V3.2, section 3.1)
    unbiased_kl: bool = False

    def __post_init__(self):
        self.num_completions = self.group_size
        super().__post_init__()
        self.passes = (self.epochs, self.minibatches)
        self.coefficients = {"policy": 1.0, "kl": self.kl_coefficient}

    def experience(self, params, batch, context: Context):
        """Returns rollouts with their advantages. There is no memory."""
        rollout = self.rewarded_completions(params, batch, context)
        rollout |= self.in_parts(lambda rows: self._before(params, rows), rollout)
        # The completions of a prompt are consecutive rows, so that a reshape makes the groups.
        groups = rollout["rewards"].reshape(-1, self.group_size)
        advantages = rollouts.group_advantages(
            groups, divides_by_deviation=self.divides_by_deviation
        )
        return rollout | {"advantages": advantages.reshape(-1)}, None

    def _before(self, params, rows):
        """Returns the log-probabilities of completions before the updates of the step."""
        return {
            "old_log_probs": self.policy_log_probs(params, rows),
            "reference_log_probs": self.reference_log_probs(params, rows),
        }

    def weights(self, batch):
        count = jnp.float32(batch["lengths"].size)
        return {"policy": count, "kl": count}

    def loss(self, params, batch, context: Context) -> Loss:
        """Returns the sums over completions, each of which has the same weight at any length."""
        filled = Completions.of(batch).filled(self.max_tokens)
        log_probs = self.policy_log_probs(params, batch)
        log_ratios = log_probs - batch["old_log_probs"]
        policy_losses, divergences = objectives(
            log_ratios,
            batch["reference_log_probs"] - log_probs,
            batch["advantages"],
            self.clip,
            unbiased_kl=self.unbiased_kl,
        )
        terms = {
            "policy": token_mean(policy_losses, filled).sum(),
            "kl": token_mean(divergences, filled).sum(),
        }
        count = jnp.int32(len(filled))
        measured = self.measures(batch) | self.changes(log_ratios, filled)
        loss = terms["policy"] + self.kl_coefficient * terms["kl"]
        measured |= {"policy_loss": (terms["policy"], count), "loss": (loss, count)}
        return Loss(terms, measured)

    def flops(self, row_shape: int = 0) -> float:
        # The factor 3, because a backward pass costs two forward passes.
        learning = 3 * self.epochs * self.model.flops(self.length)
        return self.group_size * (self.flops_of_experience + learning)

    def positions(self, row_shape: int = 0) -> int:
        return self.group_size * self.max_tokens


def objectives(
    log_ratios: Float[Array, "B T"],
    to_reference: Float[Array, "B T"],
    gains: Float[Array, " B"],
    clip: float,
    *,
    unbiased_kl: bool = False,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Returns the clipped losses of tokens, and the estimates of their divergence.

    `log_ratios` are the log-probabilities by the policy minus those by the policy that sampled the
    completions. `to_reference` are the log-probabilities by the reference minus those by the
    policy, and `gains` the advantages of completions.
    """
    policy_losses = rollouts.clipped_policy_loss(log_ratios, gains[:, None], clip)
    divergences = rollouts.divergence_estimates(to_reference)
    if unbiased_kl:
        divergences *= rollouts.probability_ratios(log_ratios)
    return policy_losses, divergences


def token_mean(x: Float[Array, "B T"], filled: Bool[Array, "B T"]) -> Float[Array, " B"]:
    """Returns the mean over the tokens of each completion."""
    return jnp.where(filled, x, 0.0).sum(axis=1) / jnp.maximum(filled.sum(axis=1), 1)
