"""Group relative policy optimization of a language model, by a reward model and without values
(Shao et al. 2024).
"""

import dataclasses
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.config import NonNegativeFloat, PositiveInt, Range
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.objectives import rollouts
from transformer_jax.objectives.rollouts import Answers, Policy


@dataclasses.dataclass
class GRPO(Policy):
    """The objective of Shao et al. 2024, equation 3.

    A prompt has a group of answers. The advantage of each token of an answer is the reward of the
    answer, compared with the group. The divergence from the reference is a term of the loss.
    """

    group_size: Annotated[int, Range(least=2)] = 16  # answers to a prompt
    kl_coefficient: NonNegativeFloat = 0.04
    epochs: PositiveInt = 1  # passes over the answers of a step
    # Divides the advantages of a group by the deviation of its rewards.
    divides_by_deviation: bool = True
    # Weights the estimate of the divergence by the ratio of probabilities, so that its gradient is
    # that of KL(policy, reference) (DeepSeek-AI 2025, V3.2, section 3.1).
    unbiased_kl: bool = False

    def __post_init__(self):
        self.num_answers = self.group_size
        super().__post_init__()
        self.passes = (self.epochs, self.minibatches)
        self.coefficients = {"policy": 1.0, "kl": self.kl_coefficient}

    def experience(self, params, batch, context: Context):
        """Returns answers with their advantages."""
        answered = self.answered(params, batch, context)
        answered |= self.in_parts(lambda rows: self._before(params, rows), answered)
        groups = answered["rewards"].reshape(-1, self.group_size)
        gains = rollouts.group_advantages(groups, divides_by_deviation=self.divides_by_deviation)
        return answered | {"advantages": gains.reshape(-1)}, None

    def _before(self, params, rows):
        """Returns the log-probabilities of answers before the updates of the step."""
        return {
            "old_log_probs": self.policy_log_probs(params, rows),
            "reference_log_probs": self.reference_log_probs(params, rows),
        }

    def weights(self, batch):
        num_answers = jnp.float32(batch["lengths"].size)
        return {"policy": num_answers, "kl": num_answers}

    def loss(self, params, batch, context: Context) -> Loss:
        """Returns the sums over answers, each of which counts once whatever its length."""
        filled = Answers.of(batch).filled(self.max_tokens)
        log_probs = self.policy_log_probs(params, batch)
        log_ratios = log_probs - batch["old_log_probs"]
        of_policy, divergence = objectives(
            log_ratios,
            batch["reference_log_probs"] - log_probs,
            batch["advantages"],
            self.clip,
            unbiased_kl=self.unbiased_kl,
        )
        terms = {
            "policy": token_mean(of_policy, filled).sum(),
            "kl": token_mean(divergence, filled).sum(),
        }
        count = jnp.int32(len(filled))
        measured = self.measures(batch) | self.changes(log_ratios, filled)
        loss = terms["policy"] + self.kl_coefficient * terms["kl"]
        measured |= {"policy_loss": (terms["policy"], count), "loss": (loss, count)}
        return Loss(terms, measured)

    def flops(self, row_shape: int = 0) -> float:
        # A backward pass costs two forward passes.
        of_answer = self.flops_of_experience + 3 * self.epochs * self.model.flops(self.length)
        return self.group_size * of_answer

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

    `log_ratios` are log-probabilities less those of the policy that wrote the answers.
    `to_reference` are those of the reference less those of the policy, and `gains` the advantages
    of answers.
    """
    of_policy = rollouts.clipped_policy_loss(log_ratios, gains[:, None], clip)
    divergence = rollouts.divergence_estimates(to_reference)
    if unbiased_kl:
        divergence *= jnp.exp(log_ratios)
    return of_policy, divergence


def token_mean(x: Float[Array, "B T"], filled: Bool[Array, "B T"]) -> Float[Array, " B"]:
    """Returns the mean over the tokens of each answer."""
    return jnp.where(filled, x, 0.0).sum(axis=1) / jnp.maximum(filled.sum(axis=1), 1)
