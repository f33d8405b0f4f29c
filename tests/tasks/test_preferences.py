"""The losses of preferences against float64 references, and the bandit whose optimum is known."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special

from tests.fixtures import make_trl
from tests.tasks.preferences import dpo, reward
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.objectives.preferences import Pairs, bradley_terry
from transformer_jax.runs.spec import resolve
from transformer_jax.tasks.rl.dpo import squared_distance

RANDOM = np.random.default_rng(0)
VALUES = RANDOM.normal(size=(4, 5)) * 2
NUMBERS = (5, 2, 3, 0)  # of completions; the last row of a batch may be empty
FILLED = np.arange(5) < np.array(NUMBERS)[:, None]
PREFERRED = np.array([[1.0], [0.9], [0.3], [0.0]])


def log_sigmoid(x):
    return -np.logaddexp(0, -x)


def expected(of_pair):
    """The mean over the pairs of each ranking, by a loop in float64."""
    means = []
    for values, count, (label,) in zip(VALUES, NUMBERS, PREFERRED):
        pairs = itertools.combinations(values[:count], 2)
        losses = [of_pair(better - worse, label) for better, worse in pairs]
        means.append(np.mean(losses) if losses else 0.0)
    return means


def of_reward(difference, label):
    """-E[log sigmoid(r_w - r_l)], with a label that is a probability."""
    return -(label * log_sigmoid(difference) + (1 - label) * log_sigmoid(-difference))


def of_ipo(difference, label):
    """E[(h - 1 / (2 tau))^2] (Azar et al. 2023, equation 17)."""
    target = 1 / (2 * 0.3)
    return label * (difference - target) ** 2 + (1 - label) * (difference + target) ** 2


@pytest.mark.parametrize(
    "loss, reference",
    [
        (bradley_terry, of_reward),
        (lambda differences, label: squared_distance(differences, label, 0.3), of_ipo),
    ],
    ids=["Bradley-Terry", "IPO"],
)
def test_the_losses_of_rankings_are_the_means_over_their_pairs(loss, reference):
    pairs = Pairs.of(jnp.float32(VALUES), jnp.array(FILLED))
    losses = pairs.prompt_means(loss(pairs.differences, jnp.float32(PREFERRED)))
    np.testing.assert_allclose(losses, expected(reference), rtol=1e-5)
    (right, count), (margins, _) = (pairs.metrics()[name] for name in ("accuracy", "margin"))
    differences = [
        better - worse
        for values, count in zip(VALUES, NUMBERS)
        for better, worse in itertools.combinations(values[:count], 2)
    ]
    assert count == len(differences) == 10 + 1 + 3
    assert right == sum(difference > 0 for difference in differences)
    np.testing.assert_allclose(margins, sum(differences), rtol=1e-5)


def test_equal_completions_are_no_pair():
    """The other pairs of their ranking keep their losses, and are the whole of its mean."""
    tokens = RANDOM.integers(1, 9, size=(4, 5, 3)) * FILLED[..., None]
    tokens[0, 3] = tokens[0, 1]  # two of five
    tokens[2, 1:3] = tokens[2, 0]  # all of three
    weights = np.ones_like(tokens)
    tokens[1, 0], tokens[1, 1], weights[1, 1] = [7, 0, 0], [7, 0, 0], [1, 0, 0]  # other lengths
    pairs = Pairs.of(jnp.float32(VALUES), jnp.array(FILLED), jnp.array(tokens), jnp.array(weights))
    losses = pairs.prompt_means(bradley_terry(pairs.differences, jnp.float32(PREFERRED)))
    means = expected(of_reward)
    others = [pair for pair in itertools.combinations(range(5), 2) if pair != (1, 3)]
    means[0] = np.mean([of_reward(VALUES[0][i] - VALUES[0][j], 1.0) for i, j in others])
    means[2] = 0.0
    np.testing.assert_allclose(losses, means, rtol=1e-5)
    assert pairs.count == pairs.metrics()["accuracy"][1] == 9 + 1


YES = " yes" * 40
EQUAL = [  # within 16 tokens
    {"prompt": "q", "chosen": f"{YES} good", "rejected": f"{YES} bad"},
    {"prompt": "q", "chosen": " sat.", "rejected": " ran."},
    {"prompt": "q", "completions": [f"{YES} 1", " sat.", f"{YES} 3"]},
    {"prompt": "q", "completions": [f"{YES} 1", f"{YES} 2", f"{YES} 3"]},
]


@pytest.mark.parametrize("build", [dpo, reward])
def test_completions_that_are_equal_after_the_cut_are_left_out(build, gpt, tmp_path, capsys):
    config = build(tmp_path, gpt.workdir, "rankings", task__length=16, task__completions=3)
    for name, values in (("train", EQUAL), ("valid", EQUAL[1:2])):
        lines = "".join(json.dumps(value) + "\n" for value in values)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    task = resolve(config, tmp_path / "run").task()
    task.rows()
    said = " ".join(capsys.readouterr().err.split())
    expected = "left out 2 of 4 examples, and equal pairs of the others: 1 (their completions are "
    assert expected + "equal within config.task.length=16 tokens)" in said
    assert said.count("left out") == 1
    assert len(task._examples("train")) == 2 and len(task._examples("valid")) == 1
    batch = task.rows().train.batch(0, range(2))
    kind = "weights" if build is dpo else "segment_ids"
    assert sorted(batch[kind].any(axis=-1).sum(axis=1)) == [2, 3]
    (tmp_path / "valid.jsonl").write_text(json.dumps(EQUAL[0]) + "\n")
    with pytest.raises(UserError, match="1 of 1 examples: their completions are equal within con"):
        resolve(config, tmp_path / "other").task().rows()


TRL = json.loads((make_trl.HERE / "trl_dpo.json").read_text())


@pytest.mark.parametrize("name", make_trl.LOSSES)
def test_the_losses_are_those_of_trl(name):
    """Of its DPOTrainer, where a completion's log-probability is the sum over its tokens."""
    _, smoothing = make_trl.LOSSES[name]
    x = {key: np.array(values) for key, values in TRL["inputs"].items()}
    log_ratios = np.stack([x["chosen"] - x["ref_chosen"], x["rejected"] - x["ref_rejected"]], 1)
    task, _ = bandit(
        objective="ipo" if name == "ipo" else "sigmoid", label_smoothing=smoothing, beta=TRL["beta"]
    )
    pairs = Pairs.of(jnp.float32(log_ratios), jnp.ones((7, 2), bool))
    preferred = task.preferred({"label": jnp.ones(7)})
    losses = task.pair_losses(pairs.differences, preferred)[:, 0]
    np.testing.assert_allclose(losses, TRL["results"][name]["losses"], rtol=1e-5)


# A bandit: one prompt, and completions of one token.
ACTIONS = 6
REWARDS = np.array([1.0, -0.5, 0.3, 0.0, 2.0, -1.0])
REFERENCE = np.array([0.3, 0.0, -0.7, 1.0, -1.2, 0.5])  # logits
BETA = 0.5
TABLE = dict(name="bigram", vocab_size=ACTIONS, d_model=ACTIONS)


def bandit(**task):
    """Returns the task of a table of logits, and its parameters at the beginning."""
    keys = dict(name="dpo", reference="run", reference_model=tuple(TABLE.items()), length=2)
    config = configs.experiment(model=TABLE, task=keys | dict(beta=BETA) | task)
    task = make_task_without_runs(config)
    table = {"output_embed": {"embedding": jnp.tile(jnp.float32(REFERENCE)[:, None], ACTIONS)}}
    return task, table


def make_task_without_runs(config):
    return configs.named_class("task", config.task.name)(
        config, None, **configs.options(config.task)
    )


def optimum(task, table, pairs, labels):
    """Returns the policy's probabilities after updates by the task's loss on all pairs."""
    labels = jnp.float32(labels)
    batch = {
        "tokens": jnp.zeros((len(pairs), 2, 1), jnp.int32),
        "labels": jnp.array(pairs, jnp.int32)[..., None],
        "weights": jnp.ones((len(pairs), 2, 1), jnp.int32),
        "label": labels,
    }
    steps = 600
    optimizer = optax.adam(optax.cosine_decay_schedule(0.1, steps))

    def objective(policy):
        loss = task.loss(policy | {"reference": table}, batch, Context(train=False))
        return loss.terms["loss"] / task.weights(batch)["loss"]

    def update(_, state):
        policy, moments = state
        changes, moments = optimizer.update(jax.grad(objective)(policy), moments)
        return optax.apply_updates(policy, changes), moments

    policy = jax.jit(lambda state: jax.lax.fori_loop(0, steps, update, state)[0])(
        (table, optimizer.init(table))
    )
    # The logits that follow token 0, the prompt.
    return scipy.special.softmax(np.float64(policy["output_embed"]["embedding"][:, 0]))


def test_dpo_with_soft_labels_reaches_the_optimum_of_the_bandit():
    """It is pi_ref exp(r / beta) / Z (Rafailov et al. 2023, equation 4)."""
    task, table = bandit()
    pairs = list(itertools.combinations(range(ACTIONS), 2))
    labels = [scipy.special.expit(REWARDS[i] - REWARDS[j]) for i, j in pairs]
    expected = scipy.special.softmax(REFERENCE + REWARDS / BETA)
    np.testing.assert_allclose(optimum(task, table, pairs, labels), expected, rtol=1e-3)


def test_label_smoothing_is_that_of_the_labels():
    smoothed, table = bandit(label_smoothing=0.1)
    plain, _ = bandit()
    pairs = [(0, 1), (2, 3)]
    of_smoothed = optimum(smoothed, table, pairs, [1.0, 0.25])
    np.testing.assert_allclose(of_smoothed, optimum(plain, table, pairs, [0.9, 0.3]), rtol=1e-5)


def test_ipo_reaches_the_optimum_of_two_completions():
    """The difference of log-ratios is (p - 1 / 2) / tau, finite where p is 1 (equation 7)."""
    task, table = bandit(objective="ipo")
    for label in (1.0, 0.8):
        policy = np.log(optimum(task, table, [(4, 2)], [label])) - REFERENCE
        assert policy[4] - policy[2] == pytest.approx((label - 0.5) / BETA, rel=1e-3)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(reference_model=()), "config.task.reference is missing: the workdir of the run"),
        (
            dict(reference_model=(("name", "bigram"), ("vocab_size", 7), ("d_model", 7))),
            "config.model.vocab_size=6: must be the reference's 7",
        ),
        (
            dict(reference_model=(("name", "bert"), ("vocab_size", 6))),
            "config.task.reference: BERT is not a language model",
        ),
    ],
)
def test_wrong_keys_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        bandit(**changes)
