"""Advantages and the losses that learn from them, against float64 references by loops."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.make_trl import HERE
from transformer_jax.config import UserError
from transformer_jax.objectives import rollouts
from transformer_jax.tasks.rl import grpo

RANDOM = np.random.default_rng(0)
NUMBERS = (5, 1, 3, 0)  # of tokens; a row that fills up a batch has none
FILLED = np.arange(5) < np.array(NUMBERS)[:, None]
REWARDS, VALUES, OLD, RETURNS = RANDOM.normal(size=(4, 4, 5))
RATIOS = np.exp(RANDOM.normal(size=(4, 5)) * 0.3)
CLIP = 0.2


def single(*arrays):
    return tuple(np.float32(array) for array in arrays)


@pytest.mark.parametrize("discount, decay", [(1.0, 0.95), (0.9, 0.5), (0.9, 1.0), (1.0, 0.0)])
def test_generalized_advantages_are_sums_of_residuals(discount, decay):
    """A_t = sum_l (gamma lambda)^l delta_(t+l) (Schulman et al. 2015, equation 16)."""
    expected = np.zeros((4, 5))
    for row, count in enumerate(NUMBERS):
        values = [*VALUES[row, :count], 0.0]
        residuals = [REWARDS[row, t] + discount * values[t + 1] - values[t] for t in range(count)]
        for t in range(count):
            expected[row, t] = sum(
                (discount * decay) ** (later - t) * residuals[later] for later in range(t, count)
            )
    actual = rollouts.generalized_advantages(
        *single(REWARDS, VALUES), FILLED, discount=discount, decay=decay
    )
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_whitened_numbers_have_variance_1_over_the_tokens():
    chosen = REWARDS[FILLED]
    for shifts_mean in (True, False):
        actual = np.float64(
            rollouts.whitened(*single(REWARDS * 3 + 1), FILLED, shifts_mean=shifts_mean)
        )
        chosen = (REWARDS * 3 + 1)[FILLED]
        mean = 0.0 if shifts_mean else chosen.mean()
        expected = (chosen - chosen.mean()) / chosen.std() + mean
        np.testing.assert_allclose(actual[FILLED], expected, atol=1e-5)
        assert not actual[~FILLED].any()
    same = rollouts.whitened(np.ones((4, 5), np.float32), FILLED)
    assert np.isfinite(same).all()


def test_group_advantages_compare_the_completions_of_a_prompt():
    for divides in (True, False):
        expected = REWARDS - REWARDS.mean(axis=1, keepdims=True)
        if divides:
            expected /= REWARDS.std(axis=1, keepdims=True) + 1e-4
        actual = rollouts.group_advantages(*single(REWARDS), divides_by_deviation=divides)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert not rollouts.group_advantages(np.full((2, 3), 0.7, np.float32)).any()


@pytest.mark.parametrize("reward", [0.1, -0.7, 100.1, 1000.1, 1e6, 1e30])
@pytest.mark.parametrize("size", [2, 3, 16, 33])
def test_equal_rewards_of_any_size_have_no_advantage(reward, size):
    rewards = np.full((2, size), reward, np.float32)
    for divides in (True, False):
        assert not rollouts.group_advantages(rewards, divides_by_deviation=divides).any()
    filled = np.arange(size) < np.array([size, 1])[:, None]
    assert not rollouts.whitened(rewards, filled).any()
    kept = rollouts.whitened(rewards, filled, shifts_mean=False)
    np.testing.assert_allclose(kept, np.where(filled, np.float32(reward), 0.0))


def test_advantages_do_not_depend_on_the_mean_of_large_rewards():
    steps = np.float32(RANDOM.integers(-8, 8, size=(4, 5)))  # which float32 has at 1e6, too
    for divides in (True, False):
        small, large = (
            rollouts.group_advantages(steps + np.float32(mean), divides_by_deviation=divides)
            for mean in (0, 1e6)
        )
        np.testing.assert_allclose(large, small, rtol=1e-5, atol=1e-5)
    white = [rollouts.whitened(steps + np.float32(mean), FILLED) for mean in (0, 1e6)]
    np.testing.assert_allclose(*white, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reward", [np.inf, -np.inf, np.nan])
def test_a_reward_that_is_not_finite_is_not_hidden(reward):
    for rewards in ([[reward] * 4], [[reward, 1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0, reward]]):
        for divides in (True, False):
            advantages = rollouts.group_advantages(
                jnp.float32(rewards), divides_by_deviation=divides
            )
            assert not np.isfinite(advantages).all()
        white = rollouts.whitened(jnp.float32(rewards), jnp.ones((1, 4), bool))
        assert not np.isfinite(white).all()


@pytest.mark.parametrize("reward", [np.inf, -np.inf, np.nan, 1e39, 10**400, "3", None])
def test_a_function_may_give_finite_numbers_of_float32_alone(reward):
    config = types.SimpleNamespace(task=types.SimpleNamespace(name="mine.py:Brief"))
    task = types.SimpleNamespace(config=config, reward_of=lambda prompt, completion: reward)
    with pytest.raises(UserError, match=r"reward_of\('a', 'b'\) is .*; must be a finite number"):
        rollouts.Policy._score(task, "a", "b")
    task.reward_of = lambda prompt, completion: -2
    assert rollouts.Policy._score(task, "a", "b") == -2


def test_the_clipped_losses_are_those_of_the_papers():
    """Schulman et al. 2017, equation 7, and its counterpart for values."""
    for_policy, for_value = np.zeros((2, 4, 5))
    for index in np.ndindex(4, 5):
        ratio, gain = RATIOS[index], REWARDS[index]
        for_policy[index] = -min(ratio * gain, min(max(ratio, 1 - CLIP), 1 + CLIP) * gain)
        value, old = VALUES[index], OLD[index]
        near = min(max(value, old - CLIP), old + CLIP)
        errors = (value - RETURNS[index]) ** 2, (near - RETURNS[index]) ** 2
        for_value[index] = max(errors) / 2
    actual = rollouts.clipped_policy_loss(*single(np.log(RATIOS), REWARDS), CLIP)
    np.testing.assert_allclose(actual, for_policy, rtol=1e-5)
    actual = rollouts.clipped_value_loss(*single(VALUES, OLD, RETURNS), CLIP)
    np.testing.assert_allclose(actual, for_value, rtol=1e-5)


def test_the_estimate_of_the_divergence_has_its_mean():
    p, reference = np.random.default_rng(1).dirichlet(np.ones(7), size=2)
    estimates = np.float64(rollouts.divergence_estimates(*single(np.log(reference / p)[None])))
    assert (estimates >= 0).all()
    divergence = (p * np.log(p / reference)).sum()
    np.testing.assert_allclose((p * estimates[0]).sum(), divergence, rtol=1e-5)


def test_extreme_log_ratios_have_finite_losses_and_gradients():
    """A ratio that does not count gives no gradient; one that does still has its direction."""
    log_ratios = np.array([[200.0, 200.0, 200.0, 30.0, -200.0]])
    advantages = np.array([[1.0, 0.0, -1.0, -1.0, -1.0]])

    @jax.jit
    def policy(x, gains):
        losses = rollouts.clipped_policy_loss(x, gains, CLIP)
        return losses.sum(), losses

    (_, losses), grads = jax.jit(jax.value_and_grad(policy, has_aux=True))(
        *single(log_ratios, advantages)
    )
    np.testing.assert_allclose(losses[0, [0, 1, 4]], [-1.2, 0, 0.8], rtol=1e-6)
    np.testing.assert_allclose(grads[0], [0, 0, np.exp(20), np.exp(20), 0], rtol=1e-5)
    assert np.isfinite(losses).all() and losses[0, 2] > losses[0, 3] > np.exp(20)

    divergences = jax.jit(jax.value_and_grad(lambda x: rollouts.divergence_estimates(x).sum()))
    for x in (200.0, 1e4):  # towards the reference, from which the policy is too far
        value, grad = divergences(*single(np.array([[x]])))
        assert np.exp(20) < value < np.inf
        np.testing.assert_allclose(grad, np.exp(20) - 1, rtol=1e-5)


def test_log_ratios_of_any_training_are_those_of_the_exponential():
    x = np.linspace(-30, 20, 101)
    for function, expected in (
        (rollouts.probability_ratios, jnp.exp),
        (rollouts.divergence_estimates, lambda x: jnp.expm1(x) - x),
    ):
        actual, expected = (jax.jit(f)(*single(x[None])) for f in (function, expected))
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("divergence, error", [(12.0, 0.2), (6.6, 0.1), (6.0, 0.0), (0.0, -0.2)])
def test_the_coefficient_follows_the_divergence(divergence, error):
    """beta (1 + K clip(KL / target - 1, -0.2, 0.2)) (Ziegler et al. 2019, section 2.2)."""
    actual = rollouts.adapted_coefficient(
        *single(0.15, divergence), target=6.0, horizon=10_000 / 512
    )
    np.testing.assert_allclose(actual, 0.15 * (1 + error * 512 / 10_000), rtol=1e-6)


def test_the_loss_of_grpo_is_that_of_trl():
    """Each completion counts once, whatever its length (Shao et al. 2024, equation 3)."""
    values = json.loads((HERE / "trl_grpo.json").read_text())
    arrays = {name: np.float32(x) for name, x in values["inputs"].items()}
    filled = np.arange(5) < np.array(values["counts"])[:, None]
    policy, divergence = grpo.objectives(
        arrays["log_probs"] - arrays["old_log_probs"],
        arrays["reference_log_probs"] - arrays["log_probs"],
        arrays["advantages"],
        values["clip"],
    )
    losses = grpo.token_mean(policy + values["beta"] * divergence, filled)
    np.testing.assert_allclose(losses.mean(), values["loss"], rtol=1e-5)
