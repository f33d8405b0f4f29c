"""The checkpoints of a run, written and read with Orbax."""

import contextlib
import json
import math
import pathlib
import time
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
import orbax.checkpoint as ocp

from transformer_jax.config import RunError, UserError
from transformer_jax.storage import buckets
from transformer_jax.storage.whole import write_whole
from transformer_jax.training import digests, frozen, orbax_use
from transformer_jax.training import state as states

FORMAT = 1


class Checkpoints:
    """The checkpoints of a run below `folder`.

    A checkpoint is the folder <step>/ with `params`, `rest` (all else of the state), `meta` (JSON)
    and `digests.json`. Saves run in the background, and a checkpoint appears whole or not at all.
    At the end of the context, the last save is complete. The newest `config.keep` checkpoints are
    kept, and the best by `config.best_metric` of those that were evaluated.

    digests.json is written before the commit, and compared before anything is restored. Checkpoints
    in a bucket have none, because a bucket checks its objects itself.

    Parameters that no update changes are written once, to frozen/<digest>/ beside `folder`. Their
    digest is in the `meta` of each checkpoint.
    """

    def __init__(
        self,
        folder: pathlib.Path | buckets.Path,
        config,
        read_only: bool = False,
        is_frozen: Callable[[tuple[str, ...]], bool] | None = None,
    ):
        """`config` is config.checkpoint; `is_frozen(path)` is for saving a run.

        Raises UserError where there is no checkpoint to read.
        """
        self.folder = buckets.path(folder).absolute()
        if read_only and not self.folder.is_dir():
            raise UserError(f"{self.folder}: no checkpoint yet")
        self._config = config
        self._is_frozen = is_frozen
        self._frozen: str | None = None  # the digest of the frozen parameters, once written
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
            options = orbax_use.writing(
                config,
                self._score,
                part_written=partial(self._write_digests, digests.write_part),
                written=partial(self._write_digests, digests.write),
            )
        with self._writing():
            self._manager = orbax_use.Manager(
                self.folder, options=options, handler_registry=orbax_use.handlers()
            )

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
        trained = state.params
        if self._is_frozen:
            trained, unchanged = frozen.split(state.params, self._is_frozen)
            self._write_frozen(unchanged)
        args = ocp.args.Composite(
            params=ocp.args.PyTreeSave(trained),
            rest=ocp.args.PyTreeSave(state.rest()),
            meta=self._meta(totals, sums),
        )
        self._save(int(state.step), args, metrics=scores or None)

    def _write_frozen(self, params) -> None:
        """Writes the frozen parameters, unless they are written."""
        if not params or self._frozen:
            return
        digest = frozen.digest(params)
        with Checkpoints(self._folder_of(digest), self._config) as written:
            if not written.steps():
                written.save_params(params)
        self._frozen = digest

    def _folder_of(self, digest: str) -> pathlib.Path | buckets.Path:
        return self.folder.parent / "frozen" / digest

    def score(self, step: int, scores: dict[str, float]) -> None:
        """Adds the scores of a checkpoint that was saved without an evaluation.

        Several processes may call it one after another; the first writes.
        """
        path = self.folder / str(step) / orbax_use.SCORES
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
        meta = {"format": FORMAT, "totals": dict(totals), "sums": sums}
        meta |= {"sealed": self._has_digests}
        return ocp.args.JsonSave(meta | ({"frozen": self._frozen} if self._frozen else {}))

    def _write_digests(self, write: Callable[[pathlib.Path], None]) -> None:
        if self._has_digests:
            write(next(self.folder.glob(f"{self._saving}.*")))

    @contextlib.contextmanager
    def _writing(self):
        """Raises an error of the disk or bucket as a RunError of one line."""
        try:
            with orbax_use.without_warnings():
                yield
        # TensorStore raises ValueErrors, and the system OSErrors.
        except (ValueError, OSError) as error:
            reason = orbax_use.reason(error)
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
        rest = orbax_use.restored_as(abstract_state.rest())
        params, items = self._params(step, abstract_state.params, rest=rest)
        sums = _restored_sums(items.meta["sums"], abstract_state.metrics)
        state = abstract_state.replace(params=params, metrics=sums, **items.rest)
        return state, dict(items.meta["totals"])

    def restore_params(self, abstract_params, step: int):
        """The parameters of a step, with the shapes and shardings of `abstract_params`."""
        return self._params(step, abstract_params)[0]

    def _params(self, step: int, abstract_params, **args):
        """(the parameters of a step, frozen ones included; the items that `args` restore)."""
        unchanged = {}
        if written := self._frozen_of(step):
            names = frozen.names(written.abstract_params(0))
            abstract_params, apart = frozen.split(abstract_params, names.__contains__)
            unchanged = written.restore_params(apart, 0)
        params = orbax_use.restored_as(abstract_params)
        meta = ocp.args.JsonRestore()
        items = self._read(step, ocp.args.Composite(params=params, meta=meta, **args))
        return frozen.merged(items.params, unchanged), items

    def _frozen_of(self, step: int) -> "Checkpoints | None":
        """The frozen parameters of a step, as a checkpoint 0; None where it has none."""
        meta = self._read(step, ocp.args.Composite(meta=ocp.args.JsonRestore())).meta
        if "frozen" not in meta:
            return None
        folder = self._folder_of(meta["frozen"])
        if not (folder / "0").is_dir():
            raise self._unreadable(step, f"{folder}: missing")
        return Checkpoints(folder, self._config, read_only=True)

    def abstract_params(self, step: int):
        """The tree of the parameters of a step, with shapes and dtypes."""
        self._verify(step)
        with orbax_use.without_warnings():
            folder = self.folder / str(step) / "params"
            tree = ocp.StandardCheckpointer().metadata(folder).item_metadata.tree
        written = self._frozen_of(step)
        return frozen.merged(tree, written.abstract_params(0)) if written else tree

    def _read(self, step, args):
        self._verify(step)
        try:
            items = self._manager.restore(step, args=args)
            path = self.folder / str(step) / digests.NAME
            if items.meta.get("sealed") and not path.exists():
                raise FileNotFoundError(f"{digests.NAME}: missing")
        # Orbax and TensorStore raise these for damaged files.
        except (ValueError, KeyError, OSError) as error:
            raise self._unreadable(step, orbax_use.reason(error)) from None
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
