"""Checkpoints: the only file that touches Orbax."""
import logging
import pathlib

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from transformer_jax.config import UserError

FORMAT = 1
logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax reports every step of its own through it


class Checkpoints:
    """The checkpoints of a run below `folder`: <step>/ with `params`, `rest` (all else of the state) and `meta` (JSON).

    Saves run in the background and appear whole or not at all. The newest `config.keep` and the best by
    `config.best_metric` stay.
    """

    def __init__(self, folder: pathlib.Path, config, read_only: bool = False):
        self.folder, self._best_metric = pathlib.Path(folder).absolute(), config.best_metric
        if read_only and not self.folder.is_dir():
            raise UserError(f"{self.folder}: no checkpoint yet")
        options = dict(read_only=read_only, create=not read_only)
        policies = [preservation_policy.LatestN(config.keep)]
        if config.best_metric:
            score = lambda metrics: metrics[config.best_metric]
            policies.append(preservation_policy.BestN(get_metric_fn=score, reverse=config.best_mode == "min", n=1, keep_checkpoints_without_metrics=False))
            options |= dict(best_fn=score, best_mode=config.best_mode)
        if not read_only:
            options["preservation_policy"] = preservation_policy.AnyPreservationPolicy(policies)
        self._manager = ocp.CheckpointManager(self.folder, options=ocp.CheckpointManagerOptions(**options))

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self, state, meta: dict, metrics: dict[str, float]) -> None:
        """Starts saving the state under its step; waits for the save before it. `metrics`: evaluated at this very step."""
        rest = {field: getattr(state, field) for field in state.__dataclass_fields__ if field != "params"}
        args = ocp.args.Composite(params=ocp.args.StandardSave(state.params), rest=ocp.args.StandardSave(rest),
                                  meta=ocp.args.JsonSave({"format": FORMAT, **meta}))
        scored = {self._best_metric: metrics[self._best_metric]} if self._best_metric in metrics else None
        self._manager.save(int(state.step), args=args, metrics=scored, force=True)

    def restore(self, abstract_state, step: int):
        """(state, meta) of a step, laid out as `abstract_state` says, whatever mesh it was saved from."""
        rest = {field: getattr(abstract_state, field) for field in abstract_state.__dataclass_fields__ if field != "params"}
        args = ocp.args.Composite(params=ocp.args.StandardRestore(abstract_state.params), rest=ocp.args.StandardRestore(rest), meta=ocp.args.JsonRestore())
        found = self._manager.restore(step, args=args)
        return abstract_state.replace(params=found.params, **found.rest), dict(found.meta)

    def restore_params(self, abstract_params, step: int):
        """The parameters alone, laid out as `abstract_params` says."""
        return self._manager.restore(step, args=ocp.args.Composite(params=ocp.args.StandardRestore(abstract_params))).params

    def pick(self, which: str | int) -> int:
        """The step that "best", "latest" or a number names. "best" is the latest where no checkpoint has been scored."""
        steps = self.steps()
        if not steps:
            raise UserError(f"{self.folder}: no checkpoint yet")
        if which == "latest":
            return steps[-1]
        if which == "best":
            return self._best(steps)
        if not str(which).isdigit() or int(which) not in steps:
            raise UserError(f"{self.folder}: no checkpoint {which!r}; there are best, latest, {', '.join(map(str, steps))}")
        return int(which)

    def _best(self, steps):
        best = self._manager.best_step()
        return steps[-1] if best is None else best

    def close(self) -> None:
        """Waits for the last save."""
        self._manager.wait_until_finished()
        self._manager.close()
