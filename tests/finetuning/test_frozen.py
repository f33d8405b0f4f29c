"""Parameters that no update changes are written once, and checkpoints refer to them."""

import shutil

import jax
import numpy as np
import pytest

from tests.finetuning.examples import build
from transformer_jax.config import RunError
from transformer_jax.layers import parameters
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import resolve
from transformer_jax.runs.train import train
from transformer_jax.training import checkpoint
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program

STEPS = 4


@pytest.fixture(scope="module")
def config(runs, tmp_path_factory):
    return build(
        tmp_path_factory.mktemp("examples"),
        "classification",
        runs["bert"],
        task__frozen=True,
        train__num_steps=STEPS,
        checkpoint__every=2,
        checkpoint__keep=9,
    )


@pytest.fixture(scope="module")
def straight(config, tmp_path_factory):
    """The workdir of a run from beginning to end."""
    workdir = tmp_path_factory.mktemp("frozen") / "run"
    train(config, workdir)
    return workdir


def files(folder):
    """Returns the time of the last change of each file."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def without_steps(straight, folder, *steps):
    shutil.copytree(straight, folder)
    for step in steps:
        shutil.rmtree(folder / "checkpoints" / str(step))
    return folder


def test_a_checkpoint_holds_what_is_trained_and_refers_to_the_rest(straight, runs, config):
    [part] = (straight / "frozen").iterdir()
    assert (part / "0" / "digests.json").is_file()
    size = {
        name: sum(path.stat().st_size for path in (straight / name).rglob("*") if path.is_file())
        for name in ("frozen", "checkpoints/2", "checkpoints/4")
    }
    assert size["checkpoints/2"] < size["frozen"] / 2 and size["checkpoints/4"] < size["frozen"] / 2
    _, params = open_run(straight, STEPS)
    _, pretrained = open_run(runs["bert"])
    np.testing.assert_array_equal(
        params["encoder"]["layers"]["mlp"]["wi"]["kernel"],
        pretrained["encoder"]["layers"]["mlp"]["wi"]["kernel"],
    )
    _, mean = open_run(straight, overrides={"decode.average": 2})
    assert jax.tree.structure(mean) == jax.tree.structure(params)


def test_a_resumed_run_is_bit_equal_and_writes_nothing_twice(straight, config, tmp_path):
    workdir = without_steps(straight, tmp_path / "run", STEPS)
    before = files(workdir / "frozen")
    train(config, workdir)
    assert files(workdir / "frozen") == before
    expected, actual = (open_run(folder, STEPS)[1] for folder in (straight, workdir))
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.full
def test_a_run_killed_before_its_first_checkpoint_begins_again(straight, config, tmp_path):
    workdir = without_steps(straight, tmp_path / "run", 2, STEPS)
    [part] = (workdir / "frozen").iterdir()
    before = files(part / "0")
    train(config, workdir)
    assert files(part / "0") == before  # whole, so it stays
    expected, actual = (open_run(folder, STEPS)[1] for folder in (straight, workdir))
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.full
def test_a_run_with_frozen_parameters_in_its_checkpoints_continues(
    straight, config, tmp_path, monkeypatch
):
    """So did runs before there was a folder for them."""
    with monkeypatch.context() as patch:
        patch.setattr(parameters, "split", lambda params, _: (params, {}))
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "frozen").exists()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / str(STEPS))
    train(config, tmp_path / "run")
    assert (tmp_path / "run" / "frozen").exists()
    for step in (2, STEPS):
        expected, actual = (open_run(f, step)[1] for f in (straight, tmp_path / "run"))
        jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_another_run_begins_with_all_parameters(straight, config, tmp_path):
    other = build(tmp_path / "examples", "classification", straight, train__num_steps=1)
    run = resolve(other, tmp_path / "other")
    [match] = run.origin.match(run.config, Program.of(run.config, run.task(), jax.devices()[:1]))
    assert not match.new and not match.dropped


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_frozen_parameters_that_cannot_be_read_are_named(how, straight, config, tmp_path):
    workdir = without_steps(straight, tmp_path / "run")
    [part] = (workdir / "frozen").iterdir()
    if how == "missing":
        shutil.rmtree(part)
    else:
        largest = max((part / "0" / "params").rglob("*"), key=lambda path: path.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    reading = Checkpoints(workdir / "checkpoints", config.checkpoint, read_only=True)
    with pytest.raises(RunError, match=rf"frozen/{part.name}.*({how}|checksum mismatch)"):
        reading.restore_params(reading.abstract_params(2), 2)


def test_the_digest_is_that_of_the_bits_on_every_mesh():
    mesh = jax.make_mesh((2, 4), ("a", "b"))

    def placed(values, *axes):
        spec = jax.sharding.PartitionSpec(*axes)
        return {"x": {"kernel": jax.device_put(values, jax.sharding.NamedSharding(mesh, spec))}}

    values = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    digest = checkpoint.digest_of_params(placed(values))
    assert checkpoint.digest_of_params(placed(values, "a", "b")) == digest
    exchanged = values[::-1].copy()
    changed = values.copy()
    changed[3, 3] = -changed[3, 3]
    others = [checkpoint.digest_of_params(placed(x)) for x in (exchanged, changed, values.T)]
    assert len({digest, *others}) == 4
