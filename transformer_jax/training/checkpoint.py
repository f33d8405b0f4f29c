"""The checkpoints of a run, written and read with Orbax."""

import contextlib
import json
import math
import os
import pathlib
import re
import time

import jax
import numpy as np
import orbax.checkpoint as ocp

from transformer_jax.config import RunError, UserError
from transformer_jax.storage import buckets
from transformer_jax.storage.whole import write_whole
from transformer_jax.training import digests, orbax_use
from transformer_jax.training import state as states

FORMAT = 1
# The scores of a checkpoint that was evaluated after it was saved.
SCORES = "scores.json"
# Orbax writes the time of the commit into this file, and nothing is restored from it.
_STAMP = "_CHECKPOINT_METADATA"


class Checkpoints:
    """The checkpoints of a run below `folder`.

    A checkpoint is the folder <step>/ with `params`, `rest` (all else of the state), `meta` (JSON)
    and `digests.json`. Saves run in the background, and a checkpoint appears whole or not at all.
    At the end of the context, the last save is complete. The newest `config.keep` checkpoints are
    kept, and the best by `config.best_metric` of those that were evaluated.

    digests.json is written before the commit, and compared before anything is restored. Checkpoints
    in a bucket have none, because a bucket checks its objects itself.
    """

    def __init__(self, folder: pathlib.Path | buckets.Path, config, read_only: bool = False):
        """`config` is config.checkpoint. Raises UserError where there is no checkpoint to read."""
        self.folder = buckets.path(folder).absolute()
        if read_only and not self.folder.is_dir():
            raise UserError(f"{self.folder}: no checkpoint yet")
        self._best_metric = config.best_metric
        self._sign = -1 if config.best_mode == "min" else 1
        self._saving: int | None = None  # the step of the latest save
        self._verified: set[int] = set()  # steps whose files equal their digests
        self._has_digests = isinstance(self.folder, pathlib.Path)
        if isinstance(self.folder, buckets.Path):
            orbax_use.assume_flat_buckets()
        if read_only:
            options = orbax_use.reading(self._score)
        else:
            options = orbax_use.writing(config, self._score, self._write_digests)
        with self._writing():
            handlers = orbax_use.handlers()
            self._manager = _Manager(self.folder, options=options, handler_registry=handlers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        self._manager.close()

    def wait(self) -> None:
        """Waits until the latest save is complete. Raises RunError where it failed."""
        with self._writing():
            self._manager.wait_until_finished()

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self, state, totals: dict, scores: dict[str, float]) -> None:
        """Starts to save the state under its step, once the save before is complete.

        `scores` are those of an evaluation at this step. Raises RunError where this save can't be
        started, or where the one before failed.
        """
        sums = {
            name: [value.item() for value in pair]
            for name, pair in jax.device_get(state.metrics).items()
        }
        args = ocp.args.Composite(
            params=ocp.args.PyTreeSave(state.params),
            rest=ocp.args.PyTreeSave(_rest(state)),
            meta=self._meta(totals, sums),
        )
        self._save(int(state.step), args, metrics=scores or None)

    def score(self, step: int, scores: dict[str, float]) -> None:
        """Adds the scores of a checkpoint that was saved without an evaluation.

        Several processes may call it one after another; the first writes.
        """
        path = self.folder / str(step) / SCORES
        if scores and not path.exists():
            write_whole(path, json.dumps(scores))
        self._manager.reload()

    def save_params(self, params) -> None:
        """Starts to save parameters without the rest of a state, as step 0.

        A run can begin with them, but no run can resume here.
        """
        args = ocp.args.Composite(params=ocp.args.PyTreeSave(params), meta=self._meta({}, {}))
        self._save(0, args)

    def _save(self, step, args, **scores):
        self.wait()
        self._saving = step
        with self._writing():
            self._manager.save(step, args=args, force=True, **scores)

    def _meta(self, totals, sums):
        return ocp.args.JsonSave(
            {"format": FORMAT, "totals": dict(totals), "sums": sums, "sealed": self._has_digests}
        )

    def _write_digests(self) -> None:
        if self._has_digests:
            folder = next(self.folder.glob(f"{self._saving}.*"))
            digests.write(folder, without=_STAMP)

    @contextlib.contextmanager
    def _writing(self):
        """Raises an error of the disk or bucket as a RunError of one line."""
        try:
            with orbax_use.without_warnings():
                yield
        # TensorStore raises ValueErrors, and the system OSErrors.
        except (ValueError, OSError) as error:
            reason = _reason(error)
            if self._saving is None:
                raise RunError(f"{self.folder}: can't be opened ({reason})") from None
            raise RunError(
                f"checkpoint {self.folder / str(self._saving)} can't be written ({reason}); "
                "earlier checkpoints are complete"
            ) from None

    def restore(self, abstract_state, step: int):
        """Restores a step, saved on any mesh, with the shardings of `abstract_state`.

        Returns (state, totals). Sums of metrics that were not saved begin at zero. Raises RunError
        where a file is damaged.
        """
        args = ocp.args.Composite(
            params=orbax_use.restored_as(abstract_state.params),
            rest=orbax_use.restored_as(_rest(abstract_state)),
            meta=ocp.args.JsonRestore(),
        )
        items = self._read(step, args)
        sums = _restored_sums(items.meta["sums"], abstract_state.metrics)
        state = abstract_state.replace(params=items.params, metrics=sums, **items.rest)
        return state, dict(items.meta["totals"])

    def restore_params(self, abstract_params, step: int):
        """The parameters of a step, with the shapes and shardings of `abstract_params`."""
        args = ocp.args.Composite(
            params=orbax_use.restored_as(abstract_params), meta=ocp.args.JsonRestore()
        )
        return self._read(step, args).params

    def abstract_params(self, step: int):
        """The tree of the parameters of a step, with shapes and dtypes."""
        self._verify(step)
        with orbax_use.without_warnings():
            folder = self.folder / str(step) / "params"
            return ocp.StandardCheckpointer().metadata(folder).item_metadata.tree

    def _read(self, step, args):
        self._verify(step)
        try:
            items = self._manager.restore(step, args=args)
            path = self.folder / str(step) / digests.NAME
            if items.meta.get("sealed") and not path.exists():
                raise FileNotFoundError(f"{digests.NAME}: missing")
        # Orbax and TensorStore raise these for damaged files.
        except (ValueError, KeyError, OSError) as error:
            raise self._unreadable(step, _reason(error)) from None
        return items

    def _verify(self, step):
        """Raises RunError where a file differs from its digest.

        Old checkpoints without digests pass.
        """
        folder = self.folder / str(step)
        if step in self._verified or not (folder / digests.NAME).exists():
            return
        damage = digests.damage(folder)
        if damage:
            raise self._unreadable(step, damage)
        self._verified.add(step)

    def _unreadable(self, step, reason) -> RunError:
        return RunError(f"checkpoint {self.folder / str(step)} can't be read ({reason})")

    def set_aside(self, step: int) -> None:
        """Renames a checkpoint that can't be read, so that its step can be saved again.

        Several processes may call it one after another; the first renames.
        """
        folder = self.folder / str(step)
        if folder.exists():
            folder.rename(self.folder / f"damaged-{step}-{time.time_ns()}")
        self._manager.reload()

    def pick(self, name: str | int) -> int:
        """The step of the checkpoint "best", "latest", or of that number.

        "best" is the latest where no checkpoint has been evaluated. Raises UserError where there is
        no such checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.folder}: no checkpoint yet")
        if name == "latest":
            return steps[-1]
        if name == "best":
            # Where no checkpoint has a score, Orbax's best is one without.
            best = self._manager.best_step()
            if best is None or self._score(self._manager.metrics(best) or {}) == -math.inf:
                return steps[-1]
            return best
        if not str(name).isdecimal() or int(name) not in steps:
            known = ", ".join(map(str, steps))
            raise UserError(
                f"{self.folder}: no checkpoint {name!r}; there are best, latest, {known}"
            )
        return int(name)

    def _score(self, metrics) -> float:
        """Higher is better. A score that is missing or not finite is the worst."""
        value = metrics.get(self._best_metric)
        is_number = value is not None and math.isfinite(value)
        return self._sign * value if is_number else -math.inf


class _Manager(ocp.CheckpointManager):
    """Reads scores that were added later. Scores that can't be read count as missing.

    Whether a checkpoint is damaged is decided when it is restored.
    """

    def metrics(self, step):
        with contextlib.suppress(ValueError):
            scores = super().metrics(step)
            path = self.directory / str(step) / SCORES
            return json.loads(path.read_text()) if scores is None and path.exists() else scores


def _restored_sums(saved: dict, abstract_metrics):
    """The saved sums of metrics as global arrays; zeros for metrics that were not saved."""
    sums = {}
    for name, pair in abstract_metrics.items():
        values = saved.get(name, (0, 0))
        sums[name] = tuple(
            states.put(np.asarray(value, like.dtype), like.sharding)
            for value, like in zip(values, pair)
        )
    return sums


def _reason(error) -> str:
    """Returns the message of an error, in short.

    TensorStore's messages contain long paths and notes. Their error code of the system has a short
    message.
    """
    if code := re.search(r"\[os_error_code='?(\d+)", str(error)):
        return os.strerror(int(code[1]))
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return text[:200]


def _rest(state) -> dict:
    """The state without parameters and metrics, and without a carry where there is none.

    Decoding reads only the parameters. The metrics are saved as JSON, because their names may
    change.
    """
    fields = ["step", "opt_state", "skipped", "last_skipped"]
    if state.carry is not None:
        fields.append("carry")
    return {field: getattr(state, field) for field in fields}
