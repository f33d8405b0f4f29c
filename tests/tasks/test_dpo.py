"""DPO on a language model: its loss on whole rows, a resumed run, a mesh, and refusals."""

import shutil

import jax
import numpy as np
import pytest
import scipy.special

from tests.jitted import jitted
from tests.tasks.preferences import dpo, train
from tests.training.test_loop import final_state, lines
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import resolve
from transformer_jax.training.step import init_params

BETA = 0.3


@pytest.fixture(scope="module")
def ranking(gpt, tmp_path_factory):
    """Returns a task on rankings, parameters of two different models, and a batch."""
    folder = tmp_path_factory.mktemp("ranking")
    config = dpo(folder, gpt.workdir, "rankings", task__beta=BETA, model__dropout=0.1)
    task = resolve(config, folder / "run").task()
    policy = {name: tree for name, tree in init_params(task).items() if name != "reference"}
    batch = task.rows().train.batch(0, range(4))
    return task, policy | {"reference": gpt.params}, batch


def compiled(task):
    return jax.jit(lambda params, batch: task.loss(params, batch, Context()))


def sums_of_log_probs(task, params, batch):
    """log P of each completion (B, K) in float64, by all logits."""
    rows = batch["tokens"].reshape(-1, batch["tokens"].shape[-1])
    apply = jitted(task.model.apply)
    hidden = apply({"params": params}, rows, method="hidden")
    logits = np.float64(apply({"params": params}, hidden, method="logits"))
    log_probs = scipy.special.log_softmax(logits, axis=-1)
    labels = batch["labels"].reshape(*rows.shape, 1)
    of_labels = np.take_along_axis(log_probs, labels, axis=-1).reshape(batch["labels"].shape)
    return (of_labels * batch["weights"]).sum(axis=-1)


@pytest.mark.full
def test_the_loss_is_that_of_the_papers(ranking):
    """Equation 7 of DPO and 17 of IPO, over all pairs of rankings of two to four completions."""
    task, params, batch = ranking
    log_ratios = sums_of_log_probs(task, params, batch) - sums_of_log_probs(
        task, params["reference"], batch
    )
    counts = batch["weights"].any(axis=-1).sum(axis=1)
    assert set(counts) == {2, 3, 4}
    of_dpo, of_ipo, chosen, rejected = [], [], [], []
    for values, count in zip(log_ratios, counts):
        better, worse = np.triu_indices(count, 1)
        h = values[better] - values[worse]
        of_dpo.append(np.logaddexp(0, -BETA * h).mean())
        of_ipo.append(np.square(h - 1 / (2 * BETA)).mean())
        chosen.append(BETA * values[0])
        rejected.append(BETA * values[count - 1])
    loss = compiled(task)(params, batch)
    np.testing.assert_allclose(loss.terms["loss"], sum(of_dpo), rtol=1e-5)
    np.testing.assert_allclose(loss.metrics["chosen_reward"][0], sum(chosen), rtol=1e-4)
    np.testing.assert_allclose(loss.metrics["rejected_reward"][0], sum(rejected), rtol=1e-4)
    assert task.weights(batch)["loss"] == loss.metrics["loss"][1] == 4
    task.objective = "ipo"
    np.testing.assert_allclose(compiled(task)(params, batch).terms["loss"], sum(of_ipo), rtol=1e-5)
    task.objective = "sigmoid"


def test_only_tokens_of_completions_are_learned(ranking):
    """The end of a completion is among them, its prompt and padding are not."""
    task, params, batch = ranking
    for row in range(4):
        (start,) = task.tokenizer.encode(
            ["the cat" if "cat" in text(task, batch, row) else "the dog"]
        )
        weights = batch["weights"][row, 0]
        count = int(weights.sum())
        assert not weights[: len(start) - 1].any() and weights[len(start) - 1 :][:count].all()
        labels = batch["labels"][row, 0, weights > 0]
        assert labels[-1] == task.tokenizer.eos_id
        assert task.tokenizer.decode([labels[:-1].tolist()]) == [" sat."]
    loss = compiled(task)
    other = batch["labels"] + (batch["weights"] == 0)
    assert loss(params, batch | {"labels": other}).terms == loss(params, batch).terms


def text(task, batch, row):
    return task.tokenizer.decode([batch["tokens"][row, 0].tolist()])[0]


def test_longer_rows_and_empty_ones_change_nothing(ranking):
    task, params, batch = ranking
    assert batch["tokens"].shape[-1] < 32  # a bucket
    longer = {
        name: np.pad(array, [(0, 2), (0, 0), (0, 5)][: array.ndim]) for name, array in batch.items()
    }
    short, long = compiled(task)(params, batch), compiled(task)(params, longer)
    np.testing.assert_allclose(long.terms["loss"], short.terms["loss"], rtol=1e-6)
    for name in short.metrics.keys() - {"filled"}:
        np.testing.assert_allclose(long.metrics[name], short.metrics[name], rtol=1e-5)
    assert task.weights(longer)["loss"] == 4


def test_dropout_is_of_the_policy_in_training_alone(ranking):
    task, params, batch = ranking
    equal = params["reference"] | {"reference": params["reference"]}
    loss = compiled(task)(equal, batch)
    np.testing.assert_allclose(loss.terms["loss"], 4 * np.log(2), rtol=1e-6)

    @jax.jit
    def in_training(key):
        return task.loss(equal, batch, Context(key, train=True)).metrics["chosen_reward"][0]

    first, second = map(in_training, jax.random.split(jax.random.key(0)))
    assert task.model.dropout and abs(first) > 0.01 and first != second


@pytest.mark.full
def test_a_resumed_run_is_bit_equal_and_a_mesh_has_its_losses(gpt, tmp_path):
    """The reference stays as it is, in frozen/; a resumed run no longer needs its run."""
    source = tmp_path / "gpt"
    shutil.copytree(gpt.workdir, source)
    keys = dict(train__num_steps=3, train__log_every=1, checkpoint__every=1, checkpoint__keep=3)
    config = dpo(tmp_path / "data", source, **keys, data__valid_files=None)
    _, program = train(config, tmp_path / "straight")
    train(config, tmp_path / "mesh", 2, overrides={"mesh.tensor": 2})
    shutil.copytree(tmp_path / "straight", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "3")
    shutil.rmtree(source)
    train(config, tmp_path / "resumed", program=program)

    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    assert lines(resumed) == lines(straight)
    ends = [final_state(workdir, config, program, 3).params for workdir in (straight, resumed)]
    jax.tree.map(np.testing.assert_array_equal, *ends)
    jax.tree.map(np.testing.assert_array_equal, ends[0]["reference"], gpt.params)
    assert len(list((straight / "frozen").iterdir())) == 1
    of_mesh, of_one = losses(tmp_path / "mesh"), losses(straight)
    np.testing.assert_allclose(of_mesh, of_one, atol=1e-5, rtol=0)
    assert of_one[0] == pytest.approx(np.log(2), rel=1e-6)  # both models are equal
    assert of_one[2] < of_one[0]
    task, params = open_run(resumed)
    (continuation,) = task.generate(params, ["the cat"], max_tokens=3)
    assert continuation.tokens <= 3


def losses(workdir):
    return [line["train/loss"] for line in lines(workdir) if "train/loss" in line]


def test_it_learns_pairs_and_is_evaluated_as_in_training(gpt, tmp_path):
    last, _ = train(dpo(tmp_path, gpt.workdir), tmp_path / "run")
    assert last["valid/accuracy"] == 1 and last["valid/loss"] < 0.5
    assert last["valid/margin"] == pytest.approx(
        last["valid/chosen_reward"] - last["valid/rejected_reward"], rel=1e-4
    )
    task, params = open_run(tmp_path / "run")
    scores = task.evaluate(params, "valid")
    assert scores.pop("examples") == 8
    assert scores == pytest.approx(
        {name.removeprefix("valid/"): value for name, value in last.items()}, rel=1e-4
    )
    with pytest.raises(UserError, match="--set=test: this run has no such data"):
        task.evaluate(params, "test")


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(init_from=None), "config.init_from is missing: the workdir of the run to train"),
        (dict(task__reference=""), "config.task.reference is missing: the workdir of a run"),
        (dict(task__reference="nowhere"), "config.task.reference=nowhere: no run here"),
        (dict(task__length=100), "config.task.length=100: must be from 2 to config.model.max_le"),
        (dict(data__train_files=None), "give config.data.train_files"),
    ],
)
def test_mistakes_are_refused(gpt, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        train(dpo(tmp_path, gpt.workdir, **changes), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_ranking_with_more_completions_than_rows_is_refused(gpt, tmp_path):
    config = dpo(tmp_path, gpt.workdir, "rankings", task__completions=3)
    task = resolve(config, tmp_path / "run").task()
    with pytest.raises(UserError, match=r"l:3: 4 completions, but config.task.completions=3"):
        task.rows()
