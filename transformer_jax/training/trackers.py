"""Trackers of experiments, which receive what a run measures beside metrics.jsonl.

`config.track` names them, as in "tensorboard,wandb". Each is a class of this file, and its package
is imported only if it is named. A run that resumes goes on in the same record of a tracker: its
id is in the workdir, in tracking.json. Steps that a tracker has received before are not sent again,
because a resumed run does the updates after its checkpoint a second time, with equal results.
"""

import contextlib
import importlib.util
import io
import json
import math
import os
import pathlib
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_jax.config import UserError
from transformer_jax.storage.buckets import write_whole

FILE = "tracking.json"
PROJECT = "transformer_jax"  # unless the tracker's own environment variable names another


class Subject(NamedTuple):
    """The run that is tracked.

    Attributes:
      name: the last two parts of its workdir, such as runs/quickstart.
      folder: the local folder of its files.
      config: the values of its config, by key.
      revision: the commit of the checkout, or None.
      start: the step at which this process began or resumed it.
      sent: the last step that earlier processes have written, 0 for a new run.
    """

    name: str
    folder: pathlib.Path
    config: Mapping[str, Any]
    revision: str | None
    start: int
    sent: int


class Tracker:
    """What the reporter of a run calls, in process 0 only."""

    name: str  # in `config.track`
    package: str  # that must be installed, by the extra of the same name

    identity: str | None = None  # of the record, to be found again by a resumed run

    def __init__(self, subject: Subject, identity: str | None):
        """Opens the record `identity`, or a new one."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Records finite values of a step."""
        raise NotImplementedError

    def picture(self, step: int, path: pathlib.Path) -> None:
        """Records a picture, by default not at all."""

    def flush(self) -> None:
        """Writes what is held back to files."""

    def end(self, scores: Mapping[str, float]) -> None:
        """Closes the record. `scores` are those of the last evaluation."""


class TensorBoard(Tracker):
    """Event files in WORKDIR/tensorboard."""

    name, package = "tensorboard", "tensorboardX"

    def __init__(self, subject, identity):
        import tensorboardX

        # TensorBoard hides the recorded events of steps that this run will do again, so that they
        # can be written again.
        self._writer = tensorboardX.SummaryWriter(
            str(subject.folder / "tensorboard"), purge_step=subject.start + 1
        )

    def log(self, step, values):
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self):
        self._writer.flush()

    def end(self, scores):
        self._writer.close()


class WandB(Tracker):
    """Weights & Biases, whose environment variables apply: WANDB_MODE=offline, WANDB_PROJECT."""

    name, package = "wandb", "wandb"

    def __init__(self, subject, identity):
        import wandb

        self._wandb, self.identity = wandb, identity or uuid.uuid4().hex
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=subject.name,
            id=self.identity,
            resume="allow",
            dir=str(subject.folder),
            config=dict(subject.config) | {"revision": subject.revision},
            settings=wandb.Settings(silent=True),
        )

    def log(self, step, values):
        self._run.log(dict(values), step=step)

    def picture(self, step, path):
        self._run.log({path.stem: self._wandb.Image(str(path))}, step=step)

    def end(self, scores):
        self._run.summary.update(scores)
        self._run.finish()


class Trackio(Tracker):
    """Trackio, which keeps its records on this machine: trackio show --project transformer_jax."""

    name, package = "trackio", "trackio"

    def __init__(self, subject, identity):
        import trackio

        self.identity = identity or f"{subject.name} {uuid.uuid4().hex[:8]}"
        # Its own lines would come between those of the run.
        with _quiet():
            self._run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=self.identity,
                config=dict(subject.config) | {"revision": subject.revision},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, step, values):
        self._run.log(dict(values), step=step)

    def end(self, scores):
        with _quiet():
            self._run.finish()


class MLflow(Tracker):
    """MLflow, whose environment variables apply: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME.

    Without the first, it writes to WORKDIR/mlflow.
    """

    name, package = "mlflow", "mlflow"

    def __init__(self, subject, identity):
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            # Newer releases of MLflow refuse its files unless they are told that they are meant.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (subject.folder / "mlflow").absolute().as_uri()
        self._client, self._metric = MlflowClient(tracking_uri=uri), Metric
        self.identity = identity
        if identity is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self._client.get_experiment_by_name(name)
            number = found.experiment_id if found else self._client.create_experiment(name)
            run = self._client.create_run(number, run_name=subject.name)
            self.identity = run.info.run_id
            values = {**subject.config, "revision": subject.revision}
            # MLflow takes at most 100 parameters in a call, of at most 6,000 characters.
            params = [Param(key, str(value)[:6000]) for key, value in values.items()]
            for first in range(0, len(params), 100):
                self._client.log_batch(self.identity, params=params[first : first + 100])
        else:
            self._client.update_run(self.identity, status="RUNNING")

    def log(self, step, values):
        now = int(1000 * time.time())
        # Its names may not contain every character.
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.identity, metrics=metrics)

    def picture(self, step, path):
        self._client.log_artifact(self.identity, str(path))

    def end(self, scores):
        self._client.set_terminated(self.identity)


TRACKERS = {tracker.name: tracker for tracker in Tracker.__subclasses__()}


def _quiet() -> contextlib.AbstractContextManager:
    """In the context, nothing is printed to stdout, which belongs to the results of a program."""
    return contextlib.redirect_stdout(io.StringIO())


class Trackers:
    """All trackers of a run."""

    def __init__(self, names: str, subject: Subject):
        path = subject.folder / FILE
        identities = json.loads(path.read_text()) if path.exists() else {}
        self._sent = subject.sent
        self._trackers = {}
        for name in listed(names):
            self._trackers[name] = _opened(name, subject, identities.get(name))
        new = {
            name: tracker.identity for name, tracker in self._trackers.items() if tracker.identity
        }
        if new.items() - identities.items():
            write_whole(path, json.dumps(identities | new) + "\n")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for tracker in self._unsent(step):
            tracker.log(step, finite)

    def picture(self, step: int, path: pathlib.Path) -> None:
        for tracker in self._unsent(step) if path.exists() else ():
            tracker.picture(step, path)

    def _unsent(self, step: int) -> list[Tracker]:
        """Returns the trackers that have not received this step from an earlier process."""
        return [
            tracker
            for tracker in self._trackers.values()
            if step > self._sent or isinstance(tracker, TensorBoard)
        ]

    def flush(self) -> None:
        for tracker in self._trackers.values():
            tracker.flush()

    def end(self, scores: Mapping[str, float]) -> None:
        for tracker in self._trackers.values():
            tracker.end(scores)


def listed(names: str) -> list[str]:
    """Returns the names in `config.track`. Raises UserError for an unknown or missing one."""
    found = [name.strip() for name in names.split(",") if name.strip()]
    for name in found:
        if name not in TRACKERS:
            raise UserError(
                f"config.track={names!r}: no tracker {name!r}; there are {', '.join(TRACKERS)}"
            )
        tracker = TRACKERS[name]
        if importlib.util.find_spec(tracker.package) is None:
            raise UserError(
                f"config.track={names!r}: {name} is not installed: "
                f"pip install 'transformer_jax[{name}]'"
            )
    return found


def _opened(name: str, subject: Subject, identity: str | None) -> Tracker:
    # The errors of the trackers have many classes: a wrong login, no network, a full disk.
    try:
        return TRACKERS[name](subject, identity)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        remedy = "; WANDB_MODE=offline needs neither a login nor a network" * (name == "wandb")
        raise UserError(f"config.track: {name} can't be opened ({reason}){remedy}") from None


def revision() -> str | None:
    """Returns the git revision of the code, or None outside a checkout."""
    root = pathlib.Path(__file__).parents[2]
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
