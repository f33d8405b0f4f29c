"""Checkpoints, kept by Orbax."""

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
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy

from transformer_jax.config import RunError, UserError
from transformer_jax.storage import buckets
from transformer_jax.training import digests, optimizer, orbax_use
from transformer_jax.training import state as states

FORMAT = 1
DIGESTS = "digests.json"
SCORES = "scores.json"  # of a checkpoint evaluated after its commit
# Orbax puts the time of the commit into it; nothing is restored from there
_STAMP = "_CHECKPOINT_METADATA"


class Checkpoints:
    """The checkpoints of a run below `folder`: <step>/ with `params`, `rest` (all else of the
    state), `meta` (JSON) and `digests.json`.

    Saves run in the background and appear whole or not at all; leaving the context waits for the
    last. The newest `config.keep` stay, and the best by `config.best_metric` of those that were
    evaluated. digests.json holds the SHA-256 of every file beside it: Orbax's compressed chunks
    carry no checksum, and a flipped bit would pass for a weight. It is written before the commit,
    compared before anything is restored. (Not in a bucket, which checks itself what it keeps.)
    """

    def __init__(self, folder: pathlib.Path | buckets.Path, config, read_only: bool = False):
        self.folder = buckets.path(folder).absolute()
        if read_only and not self.folder.is_dir():
            raise UserError(f"{self.folder}: no checkpoint yet")
        sign = -1 if config.best_mode == "min" else 1

        # higher is better; what was not measured, or is no number, is the worst
        def score(metrics) -> float:
            value = metrics.get(config.best_metric)
            return sign * value if value is not None and math.isfinite(value) else -math.inf

        latest = preservation_policy.LatestN(config.keep)
        best = preservation_policy.BestN(
            get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False
        )
        policy = preservation_policy.AnyPreservationPolicy(
            [latest, best] if config.best_metric else [latest]
        )
        writing = dict(
            preservation_policy=policy,
            create=True,
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
        )
        reading = dict(read_only=True, create=False, save_interval_steps=0)
        chosen = reading if read_only else writing
        options = ocp.CheckpointManagerOptions(best_fn=score, **chosen)
        # the step being saved; those whose files are known to be what was written
        self._saving, self._whole = None, set()
        self._score, self._sealed = score, isinstance(self.folder, pathlib.Path)
        if isinstance(self.folder, buckets.Path):
            orbax_use.ask_no_bucket_for_folders()
        with self._writing():
            handlers = orbax_use.handlers()
            self._manager = _Manager(self.folder, options=options, handler_registry=handlers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        self._manager.close()

    def wait(self) -> None:
        """Until the save under way is committed. Raises RunError where it failed."""
        with self._writing():
            self._manager.wait_until_finished()

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self, state, totals: dict, scores: dict[str, float]) -> None:
        """Starts saving the state under its step; waits for the save before it. `scores`: evaluated
        at this very step.

        Raises RunError where this one can't be begun, or the one before it failed.
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
        """What was evaluated at a step after its commit: the run had been stopped before it could."""
        # of several processes the first has written it
        if scores and not (there := self.folder / str(step) / SCORES).exists():
            buckets.write(there, json.dumps(scores))
        self._manager.reload()

    def save_params(self, params) -> None:
        """Starts saving parameters alone, as step 0: for use, and for runs that begin with them; no
        run goes on from here.
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
            {"format": FORMAT, "totals": dict(totals), "sums": sums, "sealed": self._sealed}
        )

    def _seal(self) -> None:
        """Called once all files of a checkpoint are written, before its temporary folder gets its
        name.
        """
        if not self._sealed:
            return
        folder = next(self.folder.glob(f"{self._saving}.*"))
        names = sorted(
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if path.is_file() and path.name != _STAMP
        )
        with (folder / DIGESTS).open("w") as out:
            json.dump(dict(zip(names, digests.of(folder, names))), out, indent=0)
            out.flush()
            os.fsync(out.fileno())

    @contextlib.contextmanager
    def _writing(self):
        """What goes wrong on a disk, in one line."""
        try:
            with orbax_use.without_remarks():
                yield
        except (ValueError, OSError) as error:  # TensorStore's and the system's
            if self._saving is None:
                raise RunError(f"{self.folder}: can't be opened ({_reason(error)})") from None
            raise RunError(
                f"checkpoint {self.folder / str(self._saving)} can't be written ({_reason(error)}); those before it are whole"
            ) from None

    def restore(self, abstract_state, step: int):
        """(state, totals) of a step, laid out as `abstract_state` says, whatever mesh it was saved
        from.

        Sums of metrics that were not kept then begin at zero. Raises RunError where the files are
        not what was written.
        """
        args = ocp.args.Composite(
            params=orbax_use.restored_as(abstract_state.params),
            rest=orbax_use.restored_as(_rest(abstract_state)),
            meta=ocp.args.JsonRestore(),
        )
        found = self._read(step, args)
        kept = found.meta["sums"]
        sums = {
            name: tuple(
                states.put(np.asarray(value, like.dtype), like.sharding)
                for value, like in zip(kept.get(name, (0, 0)), pair)
            )
            for name, pair in abstract_state.metrics.items()
        }
        return abstract_state.replace(params=found.params, metrics=sums, **found.rest), dict(
            found.meta["totals"]
        )

    def restore_params(self, abstract_params, step: int):
        """The parameters alone, laid out as `abstract_params` says."""
        args = ocp.args.Composite(
            params=orbax_use.restored_as(abstract_params), meta=ocp.args.JsonRestore()
        )
        return self._read(step, args).params

    def compare(
        self, abstract_params, step: int, may_grow: bool, without: str | None = None
    ) -> tuple[list[str], list[str], list[str]]:
        """Names of the parameters that a step and `abstract_params` share, that the latter alone
        has, and that it lacks.

        Names that begin with `without` count as not shared. Raises UserError where a tensor has
        another shape there; where the vocabulary `may_grow`, the token embeddings may have other
        rows.
        """
        wanted, there = _by_name(abstract_params), _by_name(self._stored(step))
        shared = {
            name
            for name in wanted.keys() & there.keys()
            if without is None or not name.startswith(without)
        }
        for name in sorted(shared):
            before, now = tuple(there[name].shape), tuple(wanted[name].shape)
            if before != now and not (
                may_grow and name == "token_embed/embedding" and before[1:] == now[1:]
            ):
                raise UserError(
                    f"{self.folder}: {name} has shape {before} there, {now} in this config's model"
                )
        return sorted(shared), sorted(wanted.keys() - shared), sorted(there.keys() - shared)

    def restore_some(self, abstract_params, step: int, chosen: list[str]) -> dict:
        """{name: array} of the `chosen` parameters of a step, laid out as `abstract_params` says;
        those of another shape on one device.
        """
        wanted, here = (
            _by_name(abstract_params),
            jax.sharding.SingleDeviceSharding(jax.local_devices()[0]),
        )

        def place(path, leaf):
            like = wanted.get(_name(path))
            same = like is not None and tuple(like.shape) == tuple(leaf.shape)
            return jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=like.sharding if same else here
            )

        found = _by_name(
            self.restore_params(
                jax.tree_util.tree_map_with_path(place, self._stored(step), is_leaf=_is_leaf), step
            )
        )
        return {name: found[name] for name in chosen}

    def _stored(self, step: int):
        """The tree of a step's parameters, with shapes and dtypes."""
        self._verify(step)
        with orbax_use.without_remarks():
            folder = self.folder / str(step) / "params"
            return ocp.StandardCheckpointer().metadata(folder).item_metadata.tree

    def _read(self, step, args):
        self._verify(step)
        try:
            found = self._manager.restore(step, args=args)
            if found.meta.get("sealed") and not (self.folder / str(step) / DIGESTS).exists():
                raise FileNotFoundError(f"{DIGESTS}: missing")
        except (ValueError, KeyError, OSError) as error:  # how Orbax and TensorStore tell of damage
            raise self._unreadable(step, _reason(error)) from None
        return found

    def _verify(self, step):
        """Raises RunError where a file is not what was written. Processes share the reading and the
        verdict; checkpoints from before there were digests pass.
        """
        folder, wrong = self.folder / str(step), None
        if step in self._whole or not (folder / DIGESTS).exists():
            return
        try:
            wanted = json.loads((folder / DIGESTS).read_bytes())
            mine = sorted(wanted)[jax.process_index() :: jax.process_count()]
            found = dict(zip(mine, digests.of(folder, mine)))
            wrong = next(
                (
                    f"{name}: {'checksum mismatch' if found[name] else 'missing'}"
                    for name in mine
                    if found[name] != wanted[name]
                ),
                None,
            )
        except (ValueError, TypeError):
            wrong = f"{DIGESTS}: not what was written"
        if (
            jax.process_count() > 1
            and multihost_utils.process_allgather(np.array(wrong is not None)).any()
        ):
            wrong = wrong or "another process found damage"
        if wrong:
            raise self._unreadable(step, wrong)
        self._whole.add(step)

    def _unreadable(self, step, reason) -> RunError:
        return RunError(f"checkpoint {self.folder / str(step)} can't be read ({reason})")

    def set_aside(self, step: int) -> None:
        """Renames a checkpoint that can't be read, so that its step can be saved again and nothing
        is lost.
        """
        # of several processes the first has renamed it
        if (there := self.folder / str(step)).exists():
            there.rename(self.folder / f"damaged-{step}-{time.time_ns()}")
        self._manager.reload()

    def pick(self, which: str | int) -> int:
        """The step that "best", "latest" or a number names. "best" is the latest where no
        checkpoint has been scored.
        """
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.folder}: no checkpoint yet")
        if which in ("best", "latest"):
            # one without that score, where none has it
            best = self._manager.best_step() if which == "best" else None
            return (
                best
                if best is not None and self._score(self._manager.metrics(best) or {}) > -math.inf
                else steps[-1]
            )
        if not str(which).isdecimal() or int(which) not in steps:
            raise UserError(
                f"{self.folder}: no checkpoint {which!r}; there are best, latest, {', '.join(map(str, steps))}"
            )
        return int(which)


class _Manager(ocp.CheckpointManager):
    """Scores that can't be read count as not measured: whether the checkpoint is damaged is decided
    when it is restored.
    """

    def metrics(self, step):
        with contextlib.suppress(ValueError):
            found, later = super().metrics(step), self.directory / str(step) / SCORES
            return json.loads(later.read_text()) if found is None and later.exists() else found


def _reason(error) -> str:
    """What an error says, short; of TensorStore's, which say where at length, what the system said."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    found = re.search(r"([^:]+) \[os_error_code", text)
    return found[1].strip() if found else text[:200]


def _rest(state) -> dict:
    """The state but for the parameters, kept apart for those who only decode, and the sums, kept as
    JSON: their names may change.
    """
    return {
        field: getattr(state, field)
        for field in state.__dataclass_fields__
        if field not in ("params", "metrics")
    }


def _name(path) -> str:
    return "/".join(optimizer.names(path))


def _is_leaf(x) -> bool:
    return hasattr(x, "shape")


def _by_name(tree) -> dict:
    return {
        _name(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_leaf)
    }
