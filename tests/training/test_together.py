"""Several runs that train as one program: each is what it would be alone."""

import functools
import json
import re
import shutil

import jax
import numpy as np
import pytest

from tests import programs
from tests.conftest import build_gpt
from tests.finetuning import examples
from tests.layers.test_mup import TINY
from tests.training.stopping import stopping_at
from tests.training.test_loop import all_lines
from transformer_jax.config import Preempted, RunError, UserError
from transformer_jax.runs import train as train_module
from transformer_jax.runs.open import open_run
from transformer_jax.runs.train import train, train_together
from transformer_jax.storage import buckets
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.training import together

KEYS = {
    "train.batch": 8,
    "train.num_steps": 20,
    "train.log_every": 1,
    "train.eval_every": 10,
    "checkpoint.every": 10,
    "checkpoint.keep": 9,
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return build_gpt(tmp_path_factory.mktemp("text"))


@pytest.fixture
def two(monkeypatch):
    """Lets two groups of devices have one device each."""
    devices = jax.devices()[:2]
    monkeypatch.setattr(jax, "devices", lambda *platform: devices)


def own(seed, **changes):
    return {"train.seed": seed, "data.seed": seed} | changes


RATE = {"optimizer.learning_rate": 2e-2}
MEMBERS = {"seed-0": own(0), "seed-1": own(1), "fast": own(1) | RATE}


def members(folder, runs=None):
    return [(folder / name, keys) for name, keys in (runs or MEMBERS).items()]


def together_in(folder, config, keys, runs=None):
    return train_together(config, members(folder, runs), overrides=keys)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, config):
    """Returns the folder of three runs that have trained together, and their scores."""
    folder = tmp_path_factory.mktemp("together")
    scores = together_in(folder, config, KEYS)
    return folder, scores


def losses(workdir):
    return np.array([line["train/loss"] for line in all_lines(workdir) if "train/loss" in line])


def params(workdir, step="latest"):
    return [np.asarray(x) for x in jax.tree.leaves(open_run(workdir, step)[1])]


def assert_equal_runs(one, other):
    for first, second in zip(params(one), params(other), strict=True):
        np.testing.assert_array_equal(first, second)
    assert measured(one) == measured(other)


def measured(workdir):
    timed = ("train/tokens_per_second", "train/mfu")
    return [
        {k: v for k, v in line.items() if not k.startswith("seconds/") and k not in timed}
        for line in all_lines(workdir)
    ]


@pytest.mark.parametrize("name", MEMBERS)
def test_each_run_is_the_one_that_trains_alone(whole, config, tmp_path, name):
    """Its losses, learning rates and scores, and its parameters when it is opened."""
    folder, scores = whole
    alone = train(config, tmp_path / name, overrides=KEYS | MEMBERS[name])
    np.testing.assert_allclose(losses(folder / name), losses(tmp_path / name), rtol=1e-5)
    assert len(losses(folder / name)) == 20
    rates = [
        [line["train/learning_rate"] for line in all_lines(run / name) if "train/loss" in line]
        for run in (folder, tmp_path)
    ]
    assert rates[0] == rates[1]
    found = scores[[*MEMBERS].index(name)]
    assert found == pytest.approx(alone, rel=1e-5)
    for one, other in zip(params(folder / name), params(tmp_path / name), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_runs_differ(whole):
    folder, _ = whole
    first, second, fast = (losses(folder / name) for name in MEMBERS)
    assert abs(first - second).min() > 1e-4
    # The warm-up has the first updates of all rates almost alike.
    assert second[0] == fast[0] and abs(second - fast).max() > 1e-3


@pytest.mark.parametrize(
    "point",
    [pytest.param(21, marks=pytest.mark.full), 29, pytest.param(33, marks=pytest.mark.full)],
)
def test_stopped_anywhere_all_save_one_step_and_resume_bit_equal(
    whole, config, tmp_path, monkeypatch, point
):
    """The points are in an update, in the hooks of another run, and in a read of a batch."""
    folder, _ = whole
    with monkeypatch.context() as patch:
        patch.setattr(together, "Stop", stopping_at(point))
        with pytest.raises(Preempted, match="state saved"):
            together_in(tmp_path, config, KEYS)
    saved = [steps(tmp_path / name) for name in MEMBERS]
    assert saved[0] and saved == [saved[0]] * 3
    together_in(tmp_path, config, KEYS)
    for name in MEMBERS:
        assert_equal_runs(tmp_path / name, folder / name)


def test_resumes_from_the_newest_step_that_all_have(whole, config, tmp_path, capsys):
    """As after a kill between two saves: one run has its checkpoint, the others lack theirs."""
    folder, _ = whole
    for name in MEMBERS:
        shutil.copytree(folder / name, tmp_path / name)
        if name != "seed-1":
            shutil.rmtree(tmp_path / name / "checkpoints" / "20")
    capsys.readouterr()
    keys = KEYS | {"train.num_steps": 24}
    together_in(tmp_path, config, keys)
    # seed-1 had made as many updates as were asked for.
    assert capsys.readouterr().err.count("resuming from step 10") == 3
    straight = tmp_path / "straight"
    for name in MEMBERS:
        shutil.copytree(folder / name, straight / name)
    together_in(straight, config, keys)
    for name in MEMBERS:
        assert_equal_runs(tmp_path / name, straight / name)


@pytest.mark.full
def test_patience_ends_one_run_alone(config, tmp_path):
    """Of three runs of one seed, the one with a rate of zero never improves."""
    runs = {"still": own(0) | {"optimizer.learning_rate": 0.0}, "seed-0": own(0)}
    keys = KEYS | {"train.eval_every": 2, "train.num_steps": 12, "train.patience": 2}
    keys |= {"checkpoint.every": 2}
    scores = together_in(tmp_path, config, keys, runs)
    ended, whole = (all_lines(tmp_path / name)[-1]["step"] for name in runs)
    assert (ended, whole) == (6, 12)
    assert scores[1]["valid/loss"] < scores[0]["valid/loss"]
    # The run that goes on is not changed by the end of the other.
    train(config, tmp_path / "alone", overrides=keys | own(0))
    np.testing.assert_allclose(losses(tmp_path / "seed-0"), losses(tmp_path / "alone"), rtol=1e-5)
    # Nothing is left to do.
    assert together_in(tmp_path, config, keys, runs) == scores


def test_a_run_that_diverges_leaves_the_others_to_go_on(config, tmp_path):
    runs = {"lost": own(0) | {"optimizer.learning_rate": 1e38}, "seed-0": own(0)}
    keys = KEYS | {"train.num_steps": 12, "optimizer.clip_norm": 0.0}
    with pytest.raises(RunError, match=f"^{re.escape(str(tmp_path))}/lost: .* not finite") as error:
        together_in(tmp_path, config, keys, runs)
    assert "seed-0" not in str(error.value)
    assert all_lines(tmp_path / "seed-0")[-1]["step"] == 12
    assert not all_lines(tmp_path / "lost")

    skipping = keys | {"train.nonfinite": "skip"}
    together_in(tmp_path / "skipping", config, skipping, runs)
    skipped = [all_lines(tmp_path / "skipping" / name)[-2]["train/skipped"] for name in runs]
    assert skipped[0] > 0 and skipped[1] == 0


@pytest.fixture(scope="module")
def over_devices(tmp_path_factory, config):
    """Returns the folder of two runs on a device each, and the text of their compiled update."""
    folder = tmp_path_factory.mktemp("devices")
    programs = []
    joint = together.JointStep._joint_step.func

    @functools.cache
    def recorded(self):
        step = joint(self)

        def run(*arguments):
            if not programs:
                programs.append(step.lower(*arguments).compile().as_text())
            return step(*arguments)

        return run

    devices = jax.devices()[:2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *platform: devices)
        patch.setattr(together.JointStep, "_joint_step", property(recorded))
        together_in(folder, config, KEYS | {"mesh.seeds": 2}, TWO)
    return folder, programs[0]


TWO = {name: MEMBERS[name] for name in ("seed-0", "fast")}


def test_over_devices_nothing_is_communicated(over_devices):
    _, program = over_devices
    assert "fusion" in program
    assert not re.search(r"all-|collective|reduce-scatter|send|recv", program)


@pytest.mark.parametrize("name", TWO)
def test_over_devices_each_run_is_what_it_is_on_one(whole, over_devices, name):
    (folder, _), (devices, _) = whole, over_devices
    np.testing.assert_allclose(losses(devices / name), losses(folder / name), rtol=1e-5)
    # The run itself is on one device, wherever it is opened.
    assert open_run(devices / name)[0].config.mesh.seeds == 1


@pytest.mark.full
def test_over_devices_a_run_that_has_ended_leaves_its_device(config, tmp_path, two):
    runs = {"lost": own(0) | {"optimizer.learning_rate": 1e38}, "seed-0": own(0)}
    keys = KEYS | {"train.num_steps": 6, "optimizer.clip_norm": 0.0}
    with pytest.raises(RunError, match="lost"):
        together_in(tmp_path, config, keys | {"mesh.seeds": 2}, runs)
    train(config, tmp_path / "alone", overrides=keys | own(0))
    np.testing.assert_allclose(losses(tmp_path / "seed-0"), losses(tmp_path / "alone"), rtol=1e-5)


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    """Returns the config of a classification of short and long texts, two in a batch."""
    folder = tmp_path_factory.mktemp("lengths")
    origin = examples.pretrained(folder, "bert")
    config = examples.build(
        folder, "classification", origin, train__batch=2, train__num_steps=12, train__log_every=1
    )
    texts = ["cat\tthe cat sat" + " on the mat the cat sat" * (n % 4 == 0) for n in range(24)]
    for split in ("train", "valid"):
        (folder / f"{split}.tsv").write_text("".join(f"{text}\ndog\ta dog\n" for text in texts))
    return config


@pytest.mark.full
def test_rows_of_different_lengths_are_computed_one_after_another(lengths, tmp_path, monkeypatch):
    runs = {"seed-0": own(0), "seed-1": own(1)}
    shapes = []
    call = together.JointStep.__call__

    def recorded(self, trainers, batches):
        shapes.append([batch["tokens"].shape for batch in batches])
        return call(self, trainers, batches)

    monkeypatch.setattr(together.JointStep, "__call__", recorded)
    train_together(lengths, members(tmp_path, runs))
    # Alone, and together where the shapes happen to be equal.
    assert {len(each) for each in shapes} == {1, 2}
    assert all(len({*each}) == 1 for each in shapes) and len({each[0] for each in shapes}) > 1
    # A shape that occurs again is not counted as compiled once more.
    assert any("train/mfu" in x and x["train/mfu"] for x in all_lines(tmp_path / "seed-0")[6:])
    train(lengths, tmp_path / "alone", overrides=own(1))
    np.testing.assert_allclose(losses(tmp_path / "seed-1"), losses(tmp_path / "alone"), rtol=1e-5)


def test_saves_by_the_clock_fall_on_the_same_steps(config, tmp_path):
    keys = KEYS | {"checkpoint.minutes": 0.005, "checkpoint.every": 20, "train.eval_every": 20}
    together_in(tmp_path, config, keys)
    saved = [steps(tmp_path / name) for name in MEMBERS]
    assert saved[0] == saved[1] == saved[2] and len(saved[0]) > 1


def steps(workdir):
    return {int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal()}


@pytest.mark.full
def test_a_run_that_is_far_behind_does_not_take_the_others_back(config, tmp_path):
    """It could not go on, and has the checkpoint of step 10 alone, where the others have 20."""
    keys = KEYS | {"checkpoint.every": 5}
    together_in(tmp_path, config, keys)
    for step in (10, 15, 20):
        shutil.rmtree(tmp_path / "fast" / "checkpoints" / str(step))
    together_in(tmp_path, config, keys | {"train.num_steps": 24})
    assert {10, 15, 20} <= steps(tmp_path / "seed-0") and 24 in steps(tmp_path / "fast")


@pytest.mark.full
def test_a_signal_saves_the_others_where_one_has_diverged(config, tmp_path, monkeypatch):
    runs = {"seed-0": own(0), "lost": own(0) | {"optimizer.learning_rate": 1e38}, "seed-1": own(1)}
    keys = KEYS | {"optimizer.clip_norm": 0.0, "train.log_every": 20}
    monkeypatch.setattr(together, "Stop", stopping_at(28))
    with pytest.raises(Preempted, match="state saved"):
        together_in(tmp_path, config, keys, runs)
    assert steps(tmp_path / "seed-0") == steps(tmp_path / "seed-1") != set()
    assert not steps(tmp_path / "lost")


def test_a_run_in_a_bucket_resumes(config, gcs):
    runs = {"seed-0": own(0), "seed-1": own(1)}
    folder = buckets.folder_of_run("gs://bucket/together")
    together_in(folder, config, KEYS | {"train.num_steps": 2}, runs)
    scores = together_in(folder, config, KEYS | {"train.num_steps": 4}, runs)
    assert len(scores) == 2 and (folder / "seed-1" / "checkpoints" / "4").is_dir()


@pytest.mark.full
def test_the_command_line_prints_one_summary_and_goes_on(config, tmp_path):
    keys = TINY | {"data.corpus": "", "data.tokenizer": "byte_bpe", "train.eval_every": 2}
    keys |= {f"data.{name}": config.data[name] for name in ("train_files", "valid_files")}
    words = ["--config=gpt/quickstart", f"--workdir={tmp_path / 'runs'}", "--seeds=2", "--together"]
    words += [f"--config.{key}={value}" for key, value in keys.items()]
    first = programs.call("train", *words)
    summary = json.loads(first.stdout)
    assert summary["seeds"] == 2 and len(summary["valid/loss"]["values"]) == 2
    assert "seed-1: step 2  valid/accuracy" in first.stderr
    again = programs.call("train", *words)
    assert json.loads(again.stdout) == summary and "nothing to do" in again.stderr
    alone = programs.call("train", *[word for word in words if word != "--together"])
    assert alone.returncode == 2 and "go on with --together" in alone.stderr


def test_mistakes_are_refused(whole, config, tmp_path):
    folder, _ = whole
    keys = KEYS
    with pytest.raises(UserError, match="seed-0: trains together with others .*seed-1"):
        train(config, folder / "seed-0", overrides=keys | own(0))
    with pytest.raises(UserError, match="config.model.dropout=0.3, seed-0 0.1; only seeds"):
        together_in(
            tmp_path, config, keys, {"seed-0": own(0), "one": own(1) | {"model.dropout": 0.3}}
        )
    with pytest.raises(UserError, match="config.mesh.seeds=3: does not divide the 8 devices"):
        together_in(tmp_path, config, keys | {"mesh.seeds": 3})
    with pytest.raises(UserError, match="config.track=wandb: wandb keeps one record in a process"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train_module.trackers, "listed", lambda names: names.split(","))
            together_in(tmp_path, config, keys | {"track": "wandb"})
    for wrong in ([], [tmp_path], [(tmp_path,)]):
        with pytest.raises(UserError, match="takes one or more pairs"):
            train_together(config, wrong)
    with pytest.raises(UserError, match="two runs have the workdir"):
        train_together(config, [(tmp_path / "one", {}), (tmp_path / "one", {})])
    with pytest.raises(UserError, match="config.mesh.seeds=2: is for runs that train as one"):
        train(config, tmp_path / "one", overrides=keys | {"mesh.seeds": 2})
    assert not [*tmp_path.iterdir()]

    train(config, tmp_path / "seed-0", overrides=keys | {"train.num_steps": 1})
    before = (tmp_path / "seed-0" / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match="seed-0 has trained alone"):
        together_in(tmp_path, config, keys)
    assert (tmp_path / "seed-0" / "metrics.jsonl").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["seed-0"]


def test_a_task_whose_rewards_python_computes_is_refused_by_name(config, tmp_path, monkeypatch):
    monkeypatch.setattr(CausalLM, "rollouts", lambda self, params, batch, context: batch)
    with pytest.raises(UserError, match="config.task.name='causal_lm': Python computes its rew"):
        together_in(tmp_path, config, KEYS)
    assert not [*tmp_path.iterdir()]
