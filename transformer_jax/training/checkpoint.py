"""Checkpoints: the only file that touches Orbax."""
import logging
import math
import pathlib
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint._src.path import gcs_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy

from transformer_jax import buckets
from transformer_jax.config import RunError, UserError
from transformer_jax.training import optimizer

FORMAT = 1
logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax reports every step of its own through it
gcs_utils.is_hierarchical_namespace_enabled = lambda path: False  # `buckets` lists and deletes objects, whatever folders there are; Google's client library is not needed to ask


class Checkpoints:
    """The checkpoints of a run below `folder`: <step>/ with `params`, `rest` (all else of the state) and `meta` (JSON).

    Saves run in the background and appear whole or not at all; leaving the context waits for the last. The newest
    `config.keep` stay, and the best by `config.best_metric` of those that were evaluated.
    """

    def __init__(self, folder: pathlib.Path | buckets.Path, config, read_only: bool = False):
        self.folder = buckets.path(folder).absolute()
        if read_only and not self.folder.is_dir():
            raise UserError(f"{self.folder}: no checkpoint yet")
        sign = -1 if config.best_mode == "min" else 1

        def score(metrics) -> float:  # higher is better; what was not measured, or is no number, is the worst
            value = metrics.get(config.best_metric)
            return sign * value if value is not None and math.isfinite(value) else -math.inf

        latest = preservation_policy.LatestN(config.keep)
        best = preservation_policy.BestN(get_metric_fn=score, n=1, keep_checkpoints_without_metrics=False)
        policy = preservation_policy.AnyPreservationPolicy([latest, best] if config.best_metric else [latest])
        options = dict(preservation_policy=policy, create=True) if not read_only else dict(read_only=True)
        self._manager = ocp.CheckpointManager(self.folder, options=ocp.CheckpointManagerOptions(best_fn=score, **options))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._manager.wait_until_finished()
        self._manager.close()

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self, state, totals: dict, scores: dict[str, float]) -> None:
        """Starts saving the state under its step; waits for the save before it. `scores`: evaluated at this very step."""
        sums = {name: [value.item() for value in pair] for name, pair in jax.device_get(state.metrics).items()}
        args = ocp.args.Composite(params=ocp.args.StandardSave(state.params), rest=ocp.args.StandardSave(_rest(state)),
                                  meta=ocp.args.JsonSave({"format": FORMAT, "totals": dict(totals), "sums": sums}))
        self._manager.save(int(state.step), args=args, metrics=scores or None, force=True)

    def save_params(self, params) -> None:
        """Starts saving parameters alone, as step 0: for use, and for runs that begin with them; no run goes on from here."""
        args = ocp.args.Composite(params=ocp.args.StandardSave(params), meta=ocp.args.JsonSave({"format": FORMAT, "totals": {}, "sums": {}}))
        self._manager.save(0, args=args, force=True)

    def restore(self, abstract_state, step: int):
        """(state, totals) of a step, laid out as `abstract_state` says, whatever mesh it was saved from.

        Sums of metrics that were not kept then begin at zero. Raises RunError where the files are not what was written.
        """
        args = ocp.args.Composite(params=ocp.args.StandardRestore(abstract_state.params), rest=ocp.args.StandardRestore(_rest(abstract_state)),
                                  meta=ocp.args.JsonRestore())
        found = self._read(step, args)
        put = lambda name, pair: tuple(jax.device_put(np.asarray(v, x.dtype), x.sharding) for v, x in zip(found.meta["sums"].get(name, (0, 0)), pair))
        sums = {name: put(name, pair) for name, pair in abstract_state.metrics.items()}
        return abstract_state.replace(params=found.params, metrics=sums, **found.rest), dict(found.meta["totals"])

    def restore_params(self, abstract_params, step: int):
        """The parameters alone, laid out as `abstract_params` says."""
        return self._read(step, ocp.args.Composite(params=ocp.args.StandardRestore(abstract_params))).params

    def compare(self, abstract_params, step: int, without: str | None = None) -> tuple[list[str], list[str], list[str]]:
        """Names of the parameters that a step and `abstract_params` share, that the latter alone has, and that it lacks.

        Names that begin with `without` count as not shared. Raises UserError where a tensor has another shape there; only the vocabulary may have grown.
        """
        wanted, there = _by_name(abstract_params), _by_name(self._stored(step))
        shared = {name for name in wanted.keys() & there.keys() if without is None or not name.startswith(without)}
        for name in sorted(shared):
            if tuple(wanted[name].shape) != tuple(there[name].shape) and not _grown(name, there[name].shape, wanted[name].shape):
                raise UserError(f"{self.folder}: {name} has shape {tuple(there[name].shape)} there, {tuple(wanted[name].shape)} in this config's model")
        return sorted(shared), sorted(wanted.keys() - shared), sorted(there.keys() - shared)

    def restore_some(self, abstract_params, step: int, chosen: list[str]) -> dict:
        """{name: array} of the `chosen` parameters of a step, laid out as `abstract_params` says; a smaller vocabulary on one device."""
        wanted, here = _by_name(abstract_params), jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def place(path, leaf):
            like = wanted.get(_name(path))
            same = like is not None and tuple(like.shape) == tuple(leaf.shape)
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=like.sharding if same else here)

        found = _by_name(self.restore_params(jax.tree_util.tree_map_with_path(place, self._stored(step), is_leaf=_is_leaf), step))
        return {name: found[name] for name in chosen}

    def _stored(self, step: int):
        """The tree of a step's parameters, with shapes and dtypes."""
        return ocp.StandardCheckpointer().metadata(self.folder / str(step) / "params").item_metadata.tree

    def _read(self, step, args):
        try:
            return self._manager.restore(step, args=args)
        except (ValueError, KeyError, OSError) as error:  # how Orbax and TensorStore tell of damage
            reason = str(error).strip().splitlines()[0][:200] if str(error) else type(error).__name__
            raise RunError(f"checkpoint {self.folder / str(step)} can't be read ({reason})") from None

    def set_aside(self, step: int) -> None:
        """Renames a checkpoint that can't be read, so that its step can be saved again and nothing is lost."""
        if (there := self.folder / str(step)).exists():  # of several processes the first has renamed it
            there.rename(self.folder / f"damaged-{step}-{time.time_ns()}")
        self._manager.reload()

    def pick(self, which: str | int) -> int:
        """The step that "best", "latest" or a number names. "best" is the latest where no checkpoint has been scored."""
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.folder}: no checkpoint yet")
        if which in ("best", "latest"):
            best = self._manager.best_step() if which == "best" else None
            return steps[-1] if best is None else best
        if not str(which).isdigit() or int(which) not in steps:
            raise UserError(f"{self.folder}: no checkpoint {which!r}; there are best, latest, {', '.join(map(str, steps))}")
        return int(which)


def _rest(state) -> dict:
    """The state but for the parameters, kept apart for those who only decode, and the sums, kept as JSON: their names may change."""
    return {field: getattr(state, field) for field in state.__dataclass_fields__ if field not in ("params", "metrics")}


def _name(path) -> str:
    return "/".join(optimizer.names(path))


def _grown(name: str, before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    return name == "token_embed/embedding" and before[0] < now[0] and tuple(before[1:]) == tuple(now[1:])


def _is_leaf(x) -> bool:
    return hasattr(x, "shape")


def _by_name(tree) -> dict:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_leaf)}
