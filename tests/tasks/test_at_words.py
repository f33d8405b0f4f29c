"""Checkpoints at numbers of words, which are kept, and what models know at each of them."""

import json

import pytest

from tests.conftest import build_bert, build_gpt
from tests.decoding.test_minimal_pairs import write
from tests.programs import call, refused
from tests.tasks.conftest import trained
from transformer_jax.config import UserError
from transformer_jax.data import rows
from transformer_jax.runs.open import checkpoint_steps
from transformer_jax.runs.spec import make_task
from transformer_jax.training.trainer import steps_at_words


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    config = build_gpt(folder, checkpoint__keep=1, checkpoint__best_metric="")
    config.checkpoint.at_words = (200, 1000.0, 1e9)
    return trained(config, folder)


def test_words_are_those_of_the_text_that_the_rows_have_covered(run):
    task = run.task
    words = sum(len(document.split()) for document in task.texts.text("train"))
    train = task.rows().train
    (component,) = train.phases[0].components
    for step in (0, 7, 60):
        share = step * train.size(0) / len(component)
        assert task.words_read(step) == pytest.approx(share * words)
    first, second = steps_at_words(task)
    for step, count in ((first, 200), (second, 1000)):
        assert task.words_read(step - 1) < count <= task.words_read(step)


def test_these_checkpoints_are_kept(run):
    assert checkpoint_steps(run.workdir) == [*steps_at_words(run.task), 60]


def test_phases_and_mixtures_add_up():
    def phase(count, num_steps, weights=(1, 3)):
        components = [range(100), range(count)]
        return rows.Phase(components, 8, num_steps, weights)

    train = rows.TrainRows([phase(50, 10), phase(200, None)], seed=0)
    # 10 updates of 8 rows, of which 2 and 6 are of the components, and then 5 more.
    assert train.epochs_before(15) == pytest.approx([30 / 100, 60 / 50 + 30 / 200])
    assert train.epochs_before(4) == pytest.approx([8 / 100, 24 / 50])


@pytest.mark.parametrize("values", [(0,), ("many",), (True,), (float("inf"),)])
def test_wrong_numbers_are_refused(tmp_path, values):
    config = build_bert(tmp_path)
    config.checkpoint.at_words = values
    with pytest.raises(UserError, match="config.checkpoint.at_words=.*: must be numbers of words"):
        steps_at_words(make_task(config))


def test_a_task_without_words_is_refused(translation):
    task = translation.task
    with task.config.unlocked():
        task.config.checkpoint.at_words = (10,)
    with pytest.raises(
        UserError, match=r"config.checkpoint.at_words=\(10,\): .* reads no text whose words"
    ):
        steps_at_words(task)


def test_all_checkpoints_are_evaluated_and_drawn(run, tmp_path):
    pairs = write(tmp_path / "x.jsonl", ("the cat sat", "sat cat the"), ("a dog ran", "dog a ran"))
    flags = f"--workdir={run.workdir}", f"--minimal_pairs={pairs}"
    done = call("evaluate", *flags, "--steps=all", f"--output={tmp_path}/over.svg")
    results = json.loads(done.stdout)
    steps = checkpoint_steps(run.workdir)
    assert [each["step"] for each in results["checkpoints"]] == steps
    words = [each["words"] for each in results["checkpoints"]]
    assert words == pytest.approx([run.task.words_read(step) for step in steps])
    assert results["first_above_chance"] == {
        "all": {"all pairs": None},
        "by_file": {"x": None},
    }
    assert "words of training text" in (tmp_path / "over.svg").read_text()
    last = json.loads(call("evaluate", *flags, "--step=60").stdout)
    assert results["checkpoints"][-1]["accuracy"] == last["accuracy"]
    refused(call("evaluate", *flags, "--output=x.png"), "--output needs --steps=all")
    refused(call("evaluate", *flags, "--steps=all", "--step=60"), "--steps and --step")
