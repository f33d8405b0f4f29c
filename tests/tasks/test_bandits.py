"""PPO and GRPO where the best policy is known: one prompt, and completions of one token."""

import itertools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special

from transformer_jax import config as configs
from transformer_jax.contracts.task import Context

ACTIONS = 6
REWARDS = np.array([1.0, -0.5, 0.3, 0.0, 1.5, -1.0])
REFERENCE = np.array([0.3, 0.0, -0.7, 1.0, -1.2, 0.5])  # logits
BETA = 0.5
TABLE = dict(name="bigram", vocab_size=ACTIONS, d_model=ACTIONS)
BATCH, STEPS = 1024, 300


def bandit(**task):
    """Returns a task whose policy is a table of logits, and its parameters at the beginning."""
    models = {f"{name}_model": tuple(TABLE.items()) for name in ("reference", "reward")}
    keys = dict(prompt_length=1, max_tokens=1, kl_coefficient=BETA, epochs=1) | models | task
    config = configs.experiment(model=TABLE, task=keys, train=dict(batch=BATCH))
    made = configs.named_class("task", config.task.name)(
        config, None, **configs.options(config.task)
    )
    # The end of a completion is one of the actions.
    made.tokenizer = types.SimpleNamespace(eos_id=ACTIONS - 1)
    made.rewarded = lambda params, batch: jnp.float32(REWARDS)[batch["ids"][:, 1]]
    table = {"output_embed": {"embedding": jnp.tile(jnp.float32(REFERENCE)[:, None], ACTIONS)}}
    value = {"value": {"out": {"kernel": jnp.zeros((ACTIONS, 1)), "bias": jnp.zeros(1)}}}
    return made, table | (value if made.heads else {}), {"reference": table}


def trained(task, policy, frozen):
    """Returns the policy's probabilities after one update on each of many experiences."""
    rows = BATCH // task.num_completions
    batch = {
        "prompts": jnp.zeros((rows, 1), jnp.int32),
        "prompt_lengths": jnp.ones(rows, jnp.int32),
    }
    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, STEPS))

    def objective(policy, experience):
        terms = task.loss(policy | frozen, experience, Context()).terms
        weights = task.weights(experience)
        return sum(task.coefficients[name] * terms[name] / weights[name] for name in terms)

    def update(step, state):
        policy, moments = state
        context = Context(jax.random.key(step), memory=task.initial_memory())
        experience, _ = task.experience(policy | frozen, batch, context)
        changes, moments = optimizer.update(jax.grad(objective)(policy, experience), moments)
        return optax.apply_updates(policy, changes), moments

    @jax.jit
    def run(policy):
        return jax.lax.fori_loop(0, STEPS, update, (policy, optimizer.init(policy)))[0]

    # The logits that follow token 0, the prompt.
    logits = run(policy)["output_embed"]["embedding"][:, 0]
    return scipy.special.softmax(np.float64(logits))


OPTIMUM = scipy.special.softmax(REFERENCE + REWARDS / BETA)


@pytest.mark.full
@pytest.mark.parametrize("whitens_rewards", [True, pytest.param(False, marks=pytest.mark.full)])
def test_ppo_reaches_the_optimum(whitens_rewards):
    """It is pi_ref exp(r / beta) / Z, since the penalty of the reward is the exact log-ratio."""
    keys = dict(name="ppo", target_kl=None, whitens_rewards=whitens_rewards)
    np.testing.assert_allclose(trained(*bandit(**keys)), OPTIMUM, atol=0.01)


@pytest.mark.full
def test_grpo_without_division_reaches_the_optimum():
    """A completion is part of its group's mean, so its reward counts (G - 1) / G."""
    size = 8
    keys = dict(name="grpo", group_size=size, divides_by_deviation=False, unbiased_kl=True)
    actual = trained(*bandit(**keys | dict(kl_coefficient=BETA * (1 - 1 / size))))
    np.testing.assert_allclose(actual, OPTIMUM, atol=0.01)


@pytest.mark.full
def test_grpo_with_division_reaches_its_own_fixed_point():
    """The expected gradient, over all groups of four completions, is zero there."""
    size = 4
    groups = list(itertools.combinations_with_replacement(range(ACTIONS), size))
    counts = np.array([np.bincount(group, minlength=ACTIONS) for group in groups])
    ways = [math.factorial(size) / np.prod([math.factorial(n) for n in row]) for row in counts]
    rewards = REWARDS[np.array(groups)]
    gains = rewards - rewards.mean(axis=1, keepdims=True)
    gains /= rewards.std(axis=1, keepdims=True) + 1e-4
    # The sum of the advantages of each action's completions, by group.
    sums = np.stack([(gains * (np.array(groups) == a)).sum(axis=1) for a in range(ACTIONS)], axis=1)

    def gradient(logits):
        policy = scipy.special.softmax(logits)
        chances = np.array(ways) * np.prod(policy**counts, axis=1)
        # The advantages of a group add up to 0, so the baseline of the softmax has no part.
        of_rewards = (chances[:, None] * sums).sum(axis=0) / size
        log_ratios = np.log(policy) - scipy.special.log_softmax(REFERENCE)
        return of_rewards - BETA * policy * (log_ratios - (policy * log_ratios).sum())

    logits = REFERENCE
    for _ in range(3000):
        logits = logits + gradient(logits)
    expected = scipy.special.softmax(logits)
    assert np.abs(gradient(logits)).max() < 1e-9 and np.abs(expected - OPTIMUM).max() > 0.03
    actual = trained(*bandit(name="grpo", group_size=size, unbiased_kl=True))
    np.testing.assert_allclose(actual, expected, atol=0.01)
