"""The run whose parameters a new run begins with."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets
from transformer_jax.training import optimizer
from transformer_jax.training.checkpoint import Checkpoints

_HEAD_KEYS = ("name", "labels", "regression")  # of config.task: they decide what a head computes


@dataclasses.dataclass(frozen=True)
class Origin:
    """The run that `config.init_from` names: its workdir, and the config of its record."""

    workdir: pathlib.Path | buckets.Path
    config: ConfigDict

    def match(self, config, program) -> "Match":
        """Compares the best checkpoint with the model of `config`, and restores nothing.

        Raises UserError where its tensors do not fit this model's. A head is restored for its own
        task and labels only.
        """
        folder = self.workdir / "checkpoints"
        checkpoints = Checkpoints(folder, self.config.checkpoint, read_only=True)
        step = checkpoints.pick("best")
        before, now = self.config.task, config.task
        same_head = all(_plain(before, key) == _plain(now, key) for key in _HEAD_KEYS)
        known = self.config.model.vocab_size
        shared, new, dropped = checkpoints.compare(
            program.state.params,
            step,
            may_grow=known <= config.model.vocab_size,
            without=None if same_head else "head/",
        )
        if not shared:
            raise UserError(
                f"config.init_from={config.init_from}: none of its tensors is one of "
                f"this model's, as {dropped[0]} is not"
            )
        return Match(checkpoints, step, shared, new, dropped, known)

    def params(self, config, program, params):
        """`params` with the tensors of the best checkpoint in their place; prints their number."""
        match = self.match(config, program)
        restored = match.checkpoints.restore_some(program.state.params, match.step, match.shared)
        say(f"from {match.checkpoints.folder / str(match.step)}: {len(restored)} tensors restored")
        if match.new:
            say(f"  {len(match.new)} new, as initialised: {', '.join(match.new)}")
        if match.dropped:
            say(f"  {len(match.dropped)} dropped, not in this model: {', '.join(match.dropped)}")

        def with_known_rows(leaf, value):
            return leaf.at[: match.known].set(value[: match.known])

        def begun(path, leaf):
            name = "/".join(optimizer.names(path))
            value = restored.get(name, leaf)
            grows = match.known < config.model.vocab_size or value.shape != leaf.shape
            if name != "token_embed/embedding" or name not in restored or not grows:
                return value
            # Rows of new tokens begin as initialised. A table of another shape is on one device.
            put = jax.jit(with_known_rows, out_shardings=leaf.sharding)
            return put(leaf, value if value.shape == leaf.shape else np.asarray(value))

        return jax.tree_util.tree_map_with_path(begun, params)


@dataclasses.dataclass(frozen=True)
class Match:
    """How a checkpoint fits a model, by the names of tensors."""

    checkpoints: Checkpoints
    step: int
    shared: list[str]  # restored
    new: list[str]  # the checkpoint lacks them
    dropped: list[str]  # the model lacks them
    known: int  # tokens of the checkpoint's vocabulary


def _plain(section: ConfigDict, key: str) -> str:
    """A value by its content: lists and tuples are equal."""
    return json.dumps(section.get(key))
