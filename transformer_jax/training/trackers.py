"""Trackers of experiments, which receive what a run measures beside metrics.jsonl.

`config.track` names them, as in "tensorboard,wandb". Each is a class of this file, and its package
is imported only if it is named. A run that resumes goes on in the same record of a tracker, which
tracking.json in the workdir names. Steps that a tracker has received before are not sent again,
because a resumed run does the updates after its checkpoint a second time, with equal results.
"""

import contextlib
import importlib.util
import io
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.config import UserError
from transformer_jax.pictures.progress import say
from transformer_jax.storage.buckets import write_whole

FILE = "tracking.json"
PROJECT = "transformer_jax"  # unless the tracker's own environment variable names another


class Subject(NamedTuple):
    """The run that is tracked.

    Attributes:
      name: the last two parts of its workdir, such as runs/quickstart.
      folder: the local folder of its files.
      config: returns the values of its config, by key. A function, because TensorBoard needs none.
      revision: the commit of the checkout, or None.
      start: the step at which this process began or resumed it.
    """

    name: str
    folder: pathlib.Path
    config: Callable[[], Mapping[str, Any]]
    revision: str | None
    start: int


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

    def end(self, scores: Mapping[str, float], failed: bool) -> None:
        """Closes the record. `scores` are those of the last evaluation.

        `failed` says whether an error ended the run, or a signal.
        """


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

    def end(self, scores, failed):
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
            config=dict(subject.config()) | {"revision": subject.revision},
            settings=wandb.Settings(silent=True),
        )

    def log(self, step, values):
        self._run.log(dict(values), step=step)

    def picture(self, step, path):
        self._run.log({path.stem: self._wandb.Image(str(path))}, step=step)

    def end(self, scores, failed):
        self._run.summary.update(scores)
        self._run.finish(exit_code=int(failed))


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
                config=dict(subject.config()) | {"revision": subject.revision},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, step, values):
        self._run.log(dict(values), step=step)

    def end(self, scores, failed):
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
            folder = (subject.folder / "mlflow").absolute()
            uri = folder.as_uri()
            if not folder.exists():  # the workdir is in a bucket, from which it is not copied back
                identity = None
        self._client, self._metric = MlflowClient(tracking_uri=uri), Metric
        self.identity = identity
        if identity is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self._client.get_experiment_by_name(name)
            number = found.experiment_id if found else self._client.create_experiment(name)
            run = self._client.create_run(number, run_name=subject.name)
            self.identity = run.info.run_id
            values = {**subject.config(), "revision": subject.revision}
            # MLflow takes at most 100 parameters in a call, of at most 6,000 characters.
            params = [Param(key, str(value)[:6000]) for key, value in values.items()]
            for first in range(0, len(params), 100):
                self._client.log_batch(self.identity, params=params[first : first + 100])
        else:
            self._client.update_run(self.identity, status="RUNNING")

    def log(self, step, values):
        now = int(1000 * time.time())
        # Its names have letters, digits and a few other characters.
        names = {name: re.sub(r"[^\w.\- :/]", "_", name) for name in values}
        metrics = [self._metric(names[name], x, now, step) for name, x in values.items()]
        self._client.log_batch(self.identity, metrics=metrics)

    def picture(self, step, path):
        self._client.log_artifact(self.identity, str(path))

    def end(self, scores, failed):
        self._client.set_terminated(self.identity, "FAILED" if failed else "FINISHED")


TRACKERS = {tracker.name: tracker for tracker in Tracker.__subclasses__()}


def _quiet() -> contextlib.AbstractContextManager:
    """In the context, nothing is printed to stdout, which belongs to the results of a program."""
    return contextlib.redirect_stdout(io.StringIO())


class Trackers:
    """All trackers of a run.

    The file tracking.json keeps, for each tracker, its record and the last step that it received of
    each kind of line: of the training, of evaluations, and of hooks. A tracker that fails is left
    out from then on, because the run matters more than its record.
    """

    def __init__(self, names: str, subject: Subject):
        self._path = subject.folder / FILE
        self._state = json.loads(self._path.read_text()) if self._path.exists() else {}
        self._trackers = {}
        for name in listed(names):
            kept = self._state.setdefault(name, {"record": None, "sent": {}})
            self._trackers[name] = _opened(name, subject, kept["record"])
            kept["record"] = self._trackers[name].identity
        self._save()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        kind = _kind(values)
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for name, tracker in [*self._trackers.items()]:
            sent = self._state[name]["sent"]
            # TensorBoard itself hides the steps that a resumed run does again.
            if step > sent.get(kind, 0) or isinstance(tracker, TensorBoard):
                self._call(name, "log", step, finite)
                sent[kind] = max(step, sent.get(kind, 0))
        self._save()

    def picture(self, step: int, path: pathlib.Path) -> None:
        for name in [*self._trackers] if path.exists() else ():
            self._call(name, "picture", step, path)

    def flush(self) -> None:
        for name in [*self._trackers]:
            self._call(name, "flush")

    def end(self, scores: Mapping[str, float], failed: bool) -> None:
        for name in [*self._trackers]:
            self._call(name, "end", scores, failed)

    def _call(self, name: str, method: str, *arguments) -> None:
        # The errors of the trackers have many classes: no network, a full disk, a server's answer.
        try:
            getattr(self._trackers[name], method)(*arguments)
        except Exception as error:
            del self._trackers[name]
            say(f"warning: {name} fails ({_reason(error)}); the run goes on without it")

    def _save(self) -> None:
        if any(name != TensorBoard.name for name in self._trackers):
            write_whole(self._path, json.dumps(self._state) + "\n")


def _kind(values: Mapping[str, float]) -> str:
    """Returns what a line of metrics.jsonl is about."""
    first = next(iter(values), "").partition("/")[0]
    return first if first in ("train", "hook") else "scores"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def listed(names: str) -> list[str]:
    """Returns the names in `config.track`. Raises UserError for an unknown or missing one."""
    found = [*dict.fromkeys(name.strip() for name in names.split(",") if name.strip())]
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
        remedy = "; WANDB_MODE=offline needs neither a login nor a network" * (name == "wandb")
        raise UserError(
            f"config.track: {name} can't be opened ({_reason(error)}){remedy}"
        ) from None


def revision() -> str | None:
    """Returns the git revision of the code, or None outside a checkout."""
    root = pathlib.Path(__file__).parents[2]
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
