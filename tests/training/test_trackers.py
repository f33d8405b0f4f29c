"""Trackers: what they receive, a resumed run in the same record, and mistakes."""

import json
import math
import struct

import pytest

from tests.conftest import DRAW_CURVES, build_gpt
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.runs import spec
from transformer_jax.runs.train import train
from transformer_jax.training import trackers, trainer


def build(folder, track, steps=4):
    config = build_gpt(folder)
    keys = {
        "track": track,
        "train.num_steps": steps,
        "train.log_every": 1,
        "train.eval_every": 2,
        "train.batch": 8,
        "checkpoint.every": 2,
    }
    for key, value in keys.items():
        configs.set_key(config, key, value)
    return config


class Kept(trackers.Tracker):
    """Keeps what it receives."""

    name = package = "json"  # which is always installed
    opened: list = []
    received: list = []
    pictures: list = []
    scores: list = []

    def __init__(self, subject, identity):
        self.identity = identity or f"record {len(self.opened)}"
        self.opened.append((self.identity, subject))

    def log(self, step, values):
        self.received += [(step, name, value) for name, value in values.items()]

    def picture(self, step, path):
        self.pictures.append((step, path.name, path.exists()))

    def end(self, scores, failed):
        self.scores.append((dict(scores), failed))


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setattr(trainer, "draw_curves", DRAW_CURVES)
    monkeypatch.setitem(trackers.TRACKERS, "json", Kept)
    for each in (Kept.opened, Kept.received, Kept.pictures, Kept.scores):
        each.clear()
    return Kept


class Killed(Exception):
    pass


def killed(trainer):
    raise Killed


def test_a_resumed_run_goes_on_in_the_same_record_without_doubled_steps(kept, tmp_path):
    run = tmp_path / "run"

    # Killed after the third update, of which no checkpoint knows.
    with pytest.raises(Killed):
        train(build(tmp_path, "tensorboard,json"), run, hooks=[(3, killed)])
    before = list(kept.received)
    assert {step for step, _, _ in before} == {1, 2, 3}
    scores = train(build(tmp_path, "tensorboard,json"), run)
    first, second = kept.opened
    state = json.loads((run / trackers.FILE).read_text())["json"]
    assert first[0] == second[0] == state["record"] and second[1].start == 2
    assert state["sent"] == {"train": 4, "scores": 4}
    received = kept.received
    pairs = [(step, name) for step, name, _ in received]
    assert len(pairs) == len(set(pairs)) and {step for step, _ in pairs} == {1, 2, 3, 4}
    # They are the numbers of metrics.jsonl.
    lines = spec.metrics(run)
    numbers = {(line["step"], name): value for line in lines for name, value in line.items()}
    equal = ("train/loss", "valid/loss", "train/learning_rate")
    assert all(numbers[step, name] == value for step, name, value in received if name in equal)
    assert all(math.isfinite(value) for _, _, value in received)
    assert [failed for _, failed in kept.scores] == [True, False]
    assert kept.scores[-1] == (scores, False)
    assert kept.pictures[-1] == (4, "curves.png", True)
    subject = first[1]
    assert subject.config()["train.num_steps"] == 4 and subject.name.endswith("/run")
    assert (run / "tensorboard").is_dir()


def test_a_second_crash_before_the_run_has_caught_up_doubles_nothing(kept, tmp_path):
    run = tmp_path / "run"

    for step in (3, 3):
        with pytest.raises(Killed):
            train(build(tmp_path, "json"), run, hooks=[(step, killed)])
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        # As if the second process had died at once: nothing after the checkpoint was done again.
        (run / "metrics.jsonl").write_text("".join(lines[:3]))
    train(build(tmp_path, "json"), run)
    pairs = [(step, name) for step, name, _ in kept.received]
    assert len(pairs) == len(set(pairs))


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(kept, tmp_path, monkeypatch, capsys):
    def failing(self, step, values):
        raise ConnectionError("the server\nis down")

    monkeypatch.setattr(Kept, "log", failing)
    scores = train(build(tmp_path, "json,tensorboard"), tmp_path / "run")
    assert scores and (tmp_path / "run/checkpoints/4").is_dir()
    said = capsys.readouterr().err
    assert said.count("warning: json fails (the server is down); the run goes on without it") == 1
    assert not kept.scores  # it is not closed either


def test_without_a_tracker_there_is_metrics_jsonl_alone(tmp_path):
    train(build(tmp_path, "", steps=2), tmp_path / "run")
    assert spec.metrics(tmp_path / "run")
    assert not (tmp_path / "run/tensorboard").exists()
    assert not (tmp_path / "run" / trackers.FILE).exists()
    # Another tracker may be named when the run goes on.
    train(build(tmp_path, "tensorboard", steps=4), tmp_path / "run")
    assert (tmp_path / "run/tensorboard").is_dir()


def test_mistakes_are_one_line_and_leave_nothing(kept, tmp_path, monkeypatch):
    for track, message in (
        ("wandbb", "config.track='wandbb': no tracker 'wandbb'; there are tensorboard, wandb"),
        ("wandb", r"wandb is not installed: pip install 'transformer_jax\[wandb\]'"),
    ):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(UserError, match=message):
            train(build(tmp_path, track), tmp_path / "run")
        monkeypatch.undo()
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_can_not_be_opened_is_one_line(kept, tmp_path, monkeypatch):
    def refused(self, subject, identity):
        raise RuntimeError("no login\nfor you")

    monkeypatch.setattr(Kept, "__init__", refused)
    with pytest.raises(UserError, match="^config.track: json can't be opened .no login for you.$"):
        train(build(tmp_path, "json"), tmp_path / "run")


@pytest.fixture
def resumed(tmp_path):
    """Returns a function that trains two updates, and then two more, with a tracker."""

    def trained(track):
        for steps in (2, 4):
            scores = train(build(tmp_path, track, steps), tmp_path / "run")
        return tmp_path / "run", scores, spec.metrics(tmp_path / "run")

    return trained


def wandb_records(path):
    """Yields the records of a .wandb file, a log in LevelDB's format of blocks and parts."""
    data, offset, parts = path.read_bytes(), 7, b""
    while offset + 7 <= len(data):
        room = 2**15 - offset % 2**15
        if room < 7:
            offset += room
            continue
        _, length, kind = struct.unpack("<IHB", data[offset : offset + 7])
        parts += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.full
def test_wandb_offline(resumed, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    run, scores, lines = resumed("wandb")
    identity = json.loads((run / trackers.FILE).read_text())["wandb"]["record"]
    losses = []
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        assert identity in file.name
        for content in wandb_records(file):
            record = wandb_internal_pb2.Record.FromString(content)
            items = {
                each.key or "/".join(each.nested_key): json.loads(each.value_json)
                for each in record.history.item
            }
            if "train/loss" in items:
                losses.append((record.history.step.num, items["train/loss"]))
    assert losses == [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]


@pytest.mark.full
def test_trackio_on_this_machine(resumed, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    from trackio import utils
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr(utils, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    run, scores, lines = resumed("trackio")
    identity = json.loads((run / trackers.FILE).read_text())["trackio"]["record"]
    (name,) = SQLiteStorage.get_runs("transformer_jax")
    assert name == identity
    logs = SQLiteStorage.get_logs("transformer_jax", identity)
    losses = [(each["step"], each["train/loss"]) for each in logs if "train/loss" in each]
    assert losses == [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]


@pytest.mark.full
def test_mlflow_in_files(resumed, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(trainer, "draw_curves", DRAW_CURVES)
    run, scores, lines = resumed("mlflow")
    identity = json.loads((run / trackers.FILE).read_text())["mlflow"]["record"]
    client = mlflow.MlflowClient(tracking_uri=(run / "mlflow").absolute().as_uri())
    history = [
        (each.step, each.value) for each in client.get_metric_history(identity, "train/loss")
    ]
    assert history == [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]
    recorded = client.get_run(identity)
    assert recorded.info.status == "FINISHED"
    assert recorded.data.params["model.name"] == "gpt"
    assert recorded.data.metrics["valid/loss"] == pytest.approx(scores["valid/loss"])
    assert [each.path for each in client.list_artifacts(identity)] == ["curves.png"]
