"""Reward models: their loss, normalized rewards, scores of texts, and refusals."""

import itertools
import json
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.finetuning.examples import pretrained
from tests.tasks.preferences import reward, train
from transformer_jax import config as configs
from transformer_jax.config import Preempted, UserError, build_model
from transformer_jax.contracts.task import Context
from transformer_jax.objectives.preferences import init_reward, rewards
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import resolve
from transformer_jax.training import trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program, init_params


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the last scores, the task, the parameters and the folder of a run on rankings."""
    folder = tmp_path_factory.mktemp("reward")
    origin = pretrained(folder, "gpt")
    config = reward(folder, origin, "rankings", optimizer__learning_rate=5e-3)
    last, _ = train(config, folder / "run")
    return last, *open_run(folder / "run"), folder


@pytest.mark.full
def test_it_learns_rankings_and_is_evaluated_as_in_training(trained):
    last, task, params, _ = trained
    assert last["valid/accuracy"] == 1 and last["valid/loss"] < 0.3
    scores = task.evaluate(params, "valid")
    assert scores.pop("examples") == 8
    assert scores == pytest.approx(
        {name.removeprefix("valid/"): value for name, value in last.items()}, rel=1e-4, abs=1e-6
    )
    assert task.model.vocab_size == 300  # that of the language model, without new special tokens


def test_rewards_of_the_training_examples_have_mean_0_and_variance_1(trained):
    _, task, params, _ = trained
    assert_normalized(task, params)
    head = params["head"]
    assert head["mean"].shape == head["deviation"].shape == () and head["deviation"] != 1


def test_equal_rewards_have_deviation_1(trained, monkeypatch):
    """The deviation of equal numbers is not their rounding error."""
    _, task, params, _ = trained
    equal = np.full((4, 2), 1000.1, np.float32)
    monkeypatch.setattr(task, "_outputs", lambda params, examples, _: [equal] * len(examples))
    head = task.calibrated(params)["head"]
    assert head["deviation"] == 1 and head["mean"] == pytest.approx(1000.1)


@pytest.mark.full
def test_rewards_of_a_model_with_adapters_are_normalized(trained):
    _, task, _, folder = trained
    keys = dict(train__num_steps=20, train__eval_every=20, optimizer__learning_rate=0.05)
    origin = task.config.init_from
    train(reward(folder, origin, "rankings", lora__rank=2, **keys), folder / "adapted")
    assert_normalized(*open_run(folder / "adapted"))


def assert_normalized(task, params):
    records = list(task.read("train"))
    pairs = [(record.prompt, text) for record in records for text in record.completions]
    scores = np.array(list(task.score(params, pairs)))
    assert len(scores) == 24 * 3
    np.testing.assert_allclose([scores.mean(), scores.std()], [0, 1], atol=1e-5)


def test_the_loss_is_the_mean_over_the_pairs_of_each_prompt(trained):
    """Equation 1 of Ouyang et al. 2022, by a loop over rows that are read one by one."""
    _, task, params, _ = trained
    batch = task.rows().train.batch(0, range(4))
    loss = jax.jit(lambda params, batch: task.loss(params, batch, Context()))(params, batch)
    filled = batch["segment_ids"].sum(axis=-1)
    tokens = batch["tokens"]
    learned = jax.jit(lambda *rows: rewards(task.model, params, *rows))
    values = np.float64(learned(tokens.reshape(16, -1), np.maximum(filled, 1).reshape(16)))
    values = (values * params["head"]["deviation"] + params["head"]["mean"]).reshape(4, 4)
    total, right, count = 0.0, 0, 0
    for row, lengths in zip(values, filled):
        existing = row[: (lengths > 0).sum()]
        differences = [x - y for x, y in itertools.combinations(existing, 2)]
        total += np.mean(np.logaddexp(0, np.negative(differences)))
        right += sum(difference > 0 for difference in differences)
        count += len(differences)
    np.testing.assert_allclose(loss.terms["task"], total, rtol=1e-5)
    assert loss.metrics["accuracy"] == (right, count)
    assert task.weights(batch)["task"] == 4


def test_rewards_of_tokens_are_the_scores_of_texts(trained):
    """A task that learns from rewards calls them on rows of another length, in its own program."""
    _, task, params, _ = trained
    texts = [("the cat", " sat."), ("the dog", " sat on the dog."), ("", " ran.")]
    rows = [
        example
        for (prompt, completion) in texts
        for example in [task.encoded([(prompt, (completion,))])[0]]
    ]
    ids = [example.prompt + example.completions[0] for example in rows]
    assert all(row[-1] == task.tokenizer.eos_id for row in ids)
    tokens = np.full((3, 40), 7, np.int32)  # any tokens may follow
    for row, values in zip(tokens, ids):
        row[: len(values)] = values
    lengths = jnp.array([*map(len, ids)])
    model = build_model(task.config)
    of_tokens = jax.jit(lambda *rows: rewards(model, params, *rows))(jnp.array(tokens), lengths)
    np.testing.assert_allclose(of_tokens, list(task.score(params, texts)), atol=1e-5)
    initial = jax.eval_shape(lambda: init_reward(model, jax.random.key(0)))
    own = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    assert jax.tree.structure(initial) == jax.tree.structure(own)


LEARNER = """
import dataclasses
from ml_collections import ConfigDict
from transformer_jax.config import build_model
from transformer_jax.objectives.preferences import init_reward
from transformer_jax.tasks.causal_lm import CausalLM

@dataclasses.dataclass
class Learner(CausalLM):
    reward: str = ""
    reward_model: tuple = ()
    other_runs = ("reward",)

    def init(self, rng):
        model = build_model(ConfigDict({"model": dict(self.reward_model)}))
        return {**super().init(rng), "reward": init_reward(model, rng)}

    def group(self, path):
        return None if path[0] == "reward" else super().group(path)
"""


@pytest.mark.full
def test_a_task_that_names_a_reward_model_has_its_head_and_measures(trained, tmp_path):
    _, _, params, folder = trained
    (tmp_path / "learner.py").write_text(LEARNER)
    config = configs.experiment(
        model=dict(name="gpt"),
        task=dict(name=str(tmp_path / "learner.py"), length=16, reward=str(folder / "run")),
        init_from=str(folder / "gpt_run"),
    )
    config.model = open_run(folder / "gpt_run")[0].config.model
    resolved = resolve(config, tmp_path / "run")
    task = resolved.task()
    program = Program.of(resolved.config, task, jax.devices()[:1])
    initial = jax.tree.map(jnp.asarray, init_params(task))
    loaded = resolved.origin.params(resolved.config, program, initial)
    jax.tree.map(np.testing.assert_array_equal, loaded["reward"], params)


def test_texts_are_scored_line_by_line(trained):
    _, task, params, _ = trained
    lines = ["the cat\t sat.", '{"prompt": "the cat", "completion": " sat."}', "", "\t ran."]
    first, same, empty, last = task.predict(params, lines)
    assert first == same and float(first.text) == pytest.approx(first.details["reward"], abs=1e-4)
    assert empty == ("", {"text": "", "reward": None}) and last.text
    assert (
        first.details["reward"] > next(task.predict(params, ["the cat\t ran."])).details["reward"]
    )
    assert json.dumps(first.details)
    for line, message in [
        ("no tab", "line 1: must hold a prompt and a completion, separated by a tab, or a JSON"),
        ("a\tb\tc", "line 1: must hold a prompt and a completion"),
        ('{"prompt": "a"}', "line 1: no key 'completion'"),
        ("{", "line 1: not JSON"),
    ]:
        with pytest.raises(UserError, match=message):
            list(task.predict(params, [line]))
    long = "the cat\t" + " sat on the mat" * 20
    assert list(task.predict(params, [long]))[0].text
    with pytest.raises(UserError, match="line 1: longer than config.task.length=32"):
        list(task.predict(params, [long], long="refuse"))


@pytest.mark.full
def test_a_run_that_stops_at_an_evaluation_has_measured_its_rewards(trained, monkeypatch):
    """The checkpoint depends on the number of its update alone."""
    *_, folder = trained
    config = reward(folder, folder / "run", "rankings", train__num_steps=1, train__eval_every=1)

    def evaluated(self):
        raise AssertionError("a run that has to stop is not evaluated")

    class Stopping(trainer.Reporter):
        def step(self):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(trainer.Trainer, "_evaluated", evaluated)
    monkeypatch.setattr(trainer, "Reporter", Stopping)
    with pytest.raises(Preempted):
        train(config, folder / "stopped")
    task, params = open_run(folder / "stopped")
    assert Checkpoints(folder / "stopped" / "checkpoints", config.checkpoint).steps() == [1]
    measured = task.calibrated(params)["head"]
    np.testing.assert_array_equal(measured["mean"], params["head"]["mean"])
    np.testing.assert_array_equal(measured["deviation"], params["head"]["deviation"])


@pytest.mark.full
def test_an_encoder_gives_rewards_too(tmp_path):
    """Its rows have the special tokens of two texts."""
    origin = pretrained(tmp_path, "bert")
    task = resolve(reward(tmp_path / "data", origin), tmp_path / "none").task()
    first = task._examples("train")[0]
    row = task.row(first)
    cls, sep = task.tokenizer.cls_id, task.tokenizer.sep_id
    expected = [cls, *first.prompt, sep, *first.completions[1], sep]
    assert row["tokens"][1, : len(expected)].tolist() == expected
    params = init_params(task)
    (score,) = task.score(task.calibrated(params), [("the cat", " sat.")])
    assert np.isfinite(score)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(task__completions=1), "config.task.completions=1: must be from 2 to 9"),
        (dict(task__reference_examples=0), "config.task.reference_examples=0: must be at least 1"),
        (dict(task__label_smoothing=-0.1), "config.task.label_smoothing=-0.1: must be at least 0"),
        (dict(init_from=None), "config.init_from is missing: the run"),
        (dict(data__train_files=None), "give config.data.train_files"),
    ],
)
def test_mistakes_are_refused(gpt, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        train(reward(tmp_path, gpt.workdir, **changes), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
