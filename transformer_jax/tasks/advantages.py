"""Advantages of answers, and the losses of policies and values that learn from them.

Arrays (B, T) belong to the T first tokens of B answers. `filled` says which tokens exist: the first
ones of each answer.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

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
