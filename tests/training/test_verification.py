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
    """A run that was stopped at step 14, between two kept checkpoints, and resumed.

    It has a hook that records a value, and goes on with other intervals of its progress lines.
    """
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
        if trainer.step == 7:
            trainer.record({"seven": 7})
        if trainer.step == 14:
            trainer.end("as asked")

    train(config, folder / "run", hooks=[(1, stop)])
    train(config, folder / "run", overrides={"train.log_every": 3})
    # Nothing is left to do, but config.json is written again.
    train(config, folder / "run", overrides={"train.log_every": 3, "checkpoint.keep": 2})
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
        ("start", 30),
    ]
    assert sorted(verification._updates(entries)) == [*range(1, 31)]
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert kept == {"10", "20", "30"} == {*map(str, chain.kept(entries))}
    assert all("after" not in entry for entry in entries if entry["kind"] == "start")


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


def added_checkpoint(folder):
    shutil.copytree(folder / "checkpoints/20", folder / "checkpoints/40")


def other_checkpoint(folder):
    shutil.rmtree(folder / "checkpoints/30")
    shutil.copytree(folder / "checkpoints/20", folder / "checkpoints/30")


def no_checkpoints(folder):
    shutil.rmtree(folder / "checkpoints")


def added_line(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "valid/loss": 0.01}\n')


def unreadable_line(folder):
    path = folder / "metrics.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first[:9] + "\n", *others]))


def versions(folder):
    record = json.loads((folder / "config.json").read_text())
    record["versions"]["jax"] = "9.9.9"
    (folder / "config.json").write_text(json.dumps(record))


def earlier_config(folder):
    entries = chain.read(folder)
    entries[0]["record"]["config"]["train"]["seed"] = 7
    _seal(folder, entries)


def missing_entry(folder):
    entries = chain.read(folder)
    del entries[2]
    _seal(folder, entries)


KINDS = {
    metric: "metrics.jsonl: a line of step 10 was changed",
    parameter: "checkpoints/10: params/",
    optimizer_state: "checkpoints/10: opt_state/",
    step: "checkpoints/10: step",
    config: "config.json: config.optimizer.learning_rate is 0.005, the chain has 0.01",
    added_checkpoint: "checkpoints/40: not in the chain",
    other_checkpoint: "checkpoints/30: ",
    no_checkpoints: "checkpoints/10: missing",
    added_line: "metrics.jsonl: ",
    unreadable_line: "metrics.jsonl: a line of step None was changed",
    versions: 'config.json: versions.jax is "9.9.9", the chain has ',
    earlier_config: "chain.jsonl: at step 0, config.train.seed was 7, and later 0",
    missing_entry: "chain.jsonl: nothing about the updates 11 to 14",
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


def test_an_evaluation_that_was_left_out_is_found_by_recomputation(run, tmp_path):
    shutil.copytree(run, folder := tmp_path / "run")
    path, entries = folder / "metrics.jsonl", chain.read(folder)
    lines = path.read_text().splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if "valid/loss" in line)
    path.write_text("".join(lines[:number] + lines[number + 1 :]))
    entries[1]["lines"] = [
        chain.digest(line) for line in chain.lines_of(path) if line["step"] <= 10
    ]
    _seal(folder, entries)
    assert not verification.inspect(folder)
    (line,) = verification.recompute(folder, Stretch(0, 10)).differences
    assert line == "metrics.jsonl: a line of step 10 is not what is recomputed"


def test_the_incomplete_line_of_a_killed_run_is_no_difference(run, tmp_path):
    shutil.copytree(run, folder := tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "tra')
    assert not verification.inspect(folder)


def test_a_chain_goes_on_as_long_as_its_run(run, tmp_path):
    """Without the key, the checkpoints that it lists would be deleted."""
    shutil.copytree(run, folder := tmp_path / "run")
    config = spec.read(folder).config
    changes = {"checkpoint.keep_every": None, "train.num_steps": 32}
    with pytest.raises(UserError, match="has a chain of digests, which needs config.checkpoint"):
        train(config, folder, overrides=changes)


def test_an_entry_that_was_edited_is_found(run, tmp_path):
    shutil.copytree(run, folder := tmp_path / "run")
    path = folder / chain.FILE
    path.write_text(path.read_text().replace('"after": 10', '"after": 9'))
    first, *_ = verification.inspect(folder)
    assert first.startswith("chain.jsonl:3: does not match its digest")


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
    entry = json.dumps({"kind": "checkpoint", "step": 3})
    for text in ("{", "[]", '{"kind": "x"}', entry, "3"):
        (folder / chain.FILE).write_text(text)
        with pytest.raises(UserError, match="jsonl:1: not an entry of a chain"):
            verification.read(folder)
