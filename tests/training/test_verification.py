"""The chain of a run, and what `verify` finds: eight kinds of tampering, and no false alarm."""

import contextlib
import json
import shutil

import jax
import pytest

from tests.conftest import build_gpt
from tests.programs import call, here, refused
from transformer_jax.config import UserError
from transformer_jax.runs import spec, verification
from transformer_jax.runs.train import train
from transformer_jax.runs.verification import Stretch
from transformer_jax.training import chain
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was stopped at step 14, between two kept checkpoints, and resumed."""
    folder = tmp_path_factory.mktemp("verified")
    config = build_gpt(
        folder,
        model__num_layers=1,
        train__num_steps=30,
        train__log_every=4,
        train__eval_every=10,
        checkpoint__every=30,
        checkpoint__keep=1,
        checkpoint__keep_every=10,
        checkpoint__best_metric="",
    )

    def stop(trainer):
        if trainer.step == 14:
            trainer.end("as asked")

    train(config, folder / "run", hooks=[(1, stop)])
    train(config, folder / "run")
    return folder / "run"


def test_the_chain_has_every_update_and_keeps_its_checkpoints(run):
    entries = verification.read(run)
    assert [(entry["kind"], entry["step"]) for entry in entries] == [
        ("start", 0),
        ("checkpoint", 10),
        ("checkpoint", 14),
        ("start", 14),
        ("checkpoint", 20),
        ("checkpoint", 30),
    ]
    assert sorted(verification._updates(entries)) == [*range(1, 31)]
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert kept == {"10", "20", "30"} == {*map(str, verification.kept(entries))}
    assert sum(len(entry["lines"]) for entry in entries if "lines" in entry) == 11


def test_a_true_run_differs_in_nothing(run):
    """The stretch includes the stop and the resumption, which leave no trace."""
    assert not verification.inspect(run)
    found = verification.recompute(run, Stretch(10, 24))
    assert found == (Stretch(10, 24), [], 14, True, "")


def test_a_stretch_from_the_initial_values(run):
    assert verification.recompute(run, Stretch(0, 3)).differences == []


def test_another_machine_compares_the_first_losses_up_to_a_tolerance(run, monkeypatch):
    machine = chain.machine

    def other(*arguments):
        return machine(*arguments) | {"processor": "another"}

    monkeypatch.setattr(chain, "machine", other)
    found = verification.recompute(run, Stretch(10, 24))
    assert found.compared == 5 and not found.exact and not found.differences
    assert "processor=" in found.because and 'this machine has "another"' in found.because
    (folder := run.parent / "lied").mkdir()
    shutil.copytree(run, folder, dirs_exist_ok=True)
    _rewrite_loss(folder, update=12, factor=1.1)
    (line,) = verification.recompute(folder, Stretch(10, 24)).differences
    assert line.startswith("update 12 is the first that differs")


def _rewrite_loss(folder, update, factor):
    """Changes the recorded loss of an update, with a chain that is consistent again."""
    entries = chain.read(folder)
    for entry in entries:
        if entry["kind"] == "checkpoint" and entry["after"] < update <= entry["step"]:
            values = entry["updates"][update - entry["after"] - 1]
            values[0], values[1] = "0" * 16, values[1] * factor
    _seal(folder, entries)


def _seal(folder, entries):
    previous, lines = "", []
    for entry in entries:
        content = {key: value for key, value in entry.items() if key not in ("previous", "digest")}
        sealed = chain.sealed(content, previous)
        previous = sealed["digest"]
        lines.append(json.dumps(sealed) + "\n")
    (folder / chain.FILE).write_text("".join(lines))


def _with_state(folder, change):
    """Saves a changed state as the checkpoint of step 10, whose own digests are right."""
    config = spec.read(folder).config
    program = Program.of(config, spec.make_task(config, folder), jax.devices()[:1])
    with Checkpoints(folder / "checkpoints", config.checkpoint, kept=(10, 20, 30)) as saved:
        state, totals = saved.restore(program.state, 10)
        saved.delete(10)
        saved.save(change(state), totals, {})


def metric(folder):
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    line = json.loads(lines[3])
    line["valid/loss" if "valid/loss" in line else "train/loss"] -= 0.001
    lines[3] = json.dumps(line)
    path.write_text("\n".join(lines) + "\n")


def _first_leaf_changed(tree):
    leaves, structure = jax.tree.flatten(tree)
    largest = max(range(len(leaves)), key=lambda number: leaves[number].size)
    leaves[largest] = leaves[largest] * 1.000001
    return jax.tree.unflatten(structure, leaves)


def parameter(folder):
    _with_state(folder, lambda state: state.replace(params=_first_leaf_changed(state.params)))


def optimizer_state(folder):
    def change(state):
        return state.replace(opt_state=_first_leaf_changed(state.opt_state))

    _with_state(folder, change)


def step(folder):
    _with_state(folder, lambda state: state.replace(step=state.step + 1))
    (folder / "checkpoints/11").rename(folder / "checkpoints/10")


def config(folder):
    record = json.loads((folder / "config.json").read_text())
    record["config"]["optimizer"]["learning_rate"] = 5e-3
    (folder / "config.json").write_text(json.dumps(record))


def data(folder):
    path = folder.parent / "train.txt"
    path.write_text(path.read_text().replace("cat", "dog", 1))


def tokenizer(folder):
    (path,) = (folder / "tokenizer").iterdir()
    path.write_bytes(path.read_bytes() + b"\n")


def removed_checkpoint(folder):
    shutil.rmtree(folder / "checkpoints/20")


KINDS = {
    metric: "metrics.jsonl:4: changed, a line of step",
    parameter: "checkpoints/10: params/",
    optimizer_state: "checkpoints/10: opt_state/",
    step: "checkpoints/10: step",
    config: "config.json: config.optimizer.learning_rate is 0.005, the chain has 0.01",
    data: "data: the fingerprint of train is not that of the chain",
    tokenizer: "tokenizer/byte_bpe.json: not that of the chain",
    removed_checkpoint: "checkpoints/20: missing",
}


@pytest.mark.parametrize("tamper", KINDS, ids=lambda tamper: tamper.__name__)
def test_tampering_is_found(run, tmp_path, tamper):
    folder = run
    with contextlib.ExitStack() as undo:
        if tamper is data:  # whose paths are recorded
            path = run.parent / "train.txt"
            undo.callback(path.write_text, path.read_text())
        else:
            folder = tmp_path / "run"
            shutil.copytree(run, folder)
        tamper(folder)
        found = verification.inspect(folder)
    assert found and found[0].startswith(KINDS[tamper]), found


def test_a_chain_that_was_written_anew_is_found_by_recomputation(run, tmp_path):
    """Whoever changes a file can also write a chain that agrees with it, with another head."""
    shutil.copytree(run, folder := tmp_path / "run")
    _rewrite_loss(folder, update=17, factor=0.9)
    assert not verification.inspect(folder)
    assert chain.read(folder)[-1]["digest"] != chain.read(run)[-1]["digest"]
    lines = verification.recompute(folder, Stretch(10, 20)).differences
    assert lines[0].startswith("update 17 is the first that differs")


def test_an_entry_that_was_edited_is_found(run, tmp_path):
    shutil.copytree(run, folder := tmp_path / "run")
    path = folder / chain.FILE
    path.write_text(path.read_text().replace('"after": 10', '"after": 9'))
    (line,) = verification.inspect(folder, [Stretch(0, 10)])
    assert line.startswith("chain.jsonl:3: not the entry")


def test_random_stretches_lie_between_kept_checkpoints(run):
    entries = verification.read(run)
    every = verification.stretches(entries, None, None, 9, seed=0)
    assert every == [(0, 10), (10, 20), (20, 30)]
    some = verification.stretches(entries, None, None, 2, seed=1)
    assert len(some) == 2 and {*some} < {*every}


def test_the_program(run, tmp_path):
    """It names the head of the chain, and ends with 1 if something differs."""
    done = call("verify", f"--workdir={run}")
    content = json.loads(done.stdout)
    assert done.returncode == 0 and content["verified"] and not content["recomputed"]
    assert content["chain"] == chain.read(run)[-1]["digest"] and content["chain"] in done.stderr
    shutil.copytree(run, folder := tmp_path / "run")
    removed_checkpoint(folder)
    done = call("verify", f"--workdir={folder}", "--random=1")
    assert done.returncode == 1 and "checkpoints/20: missing" in done.stderr
    assert json.loads(done.stdout)["differences"] == ["checkpoints/20: missing"]
    for flags, words in (
        (
            ["--from=11", "--to=12"],
            "--from=11: no checkpoint of this step was kept; there are 0, 10",
        ),
        (["--from=10"], "--to=None: must be above --from=10, and at most 30"),
        (["--from=10", "--to=31"], "--to=31: must be above --from=10, and at most 30"),
    ):
        refused(here("verify", f"--workdir={run}", *flags), words)
    refused(here("verify", f"--workdir={tmp_path}"), "no run here")


def test_a_run_without_a_chain_is_refused(run, tmp_path):
    shutil.copytree(run, folder := tmp_path / "run")
    (folder / chain.FILE).unlink()
    with pytest.raises(UserError, match="no chain.jsonl; a run writes it with"):
        verification.read(folder)
    (folder / chain.FILE).write_text("{")
    with pytest.raises(UserError, match="not a chain"):
        verification.read(folder)
