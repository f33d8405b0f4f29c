"""The run whose parameters a new run begins with."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError, named_class
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets
from transformer_jax.training import optimizer
from transformer_jax.training.checkpoint import Checkpoints

_HEAD_KEYS = ("name", "labels", "regression")  # of config.task: they determine a head


@dataclasses.dataclass(frozen=True)
class Origin:
    """The run that `config.init_from` names: its workdir, and the config of its record."""

    workdir: pathlib.Path | buckets.Path
    config: ConfigDict

    def match(self, config, program) -> "Match":
        """Compares the best checkpoint with the model of `config`, and restores nothing.

        A head matches only if its task and labels are the same. Raises UserError where a tensor has
        another shape, or where no tensor is shared. Only the tensors of the vocabulary may have
        fewer rows.
        """
        folder = self.workdir / "checkpoints"
        checkpoints = Checkpoints(folder, self.config.checkpoint, read_only=True)
        step = checkpoints.pick("best")
        stored = by_name(checkpoints.abstract_params(step))
        wanted = by_name(program.state.params)
        same_head = all(
            _plain(self.config.task, key) == _plain(config.task, key) for key in _HEAD_KEYS
        )
        vocab_size = self.config.model.vocab_size
        vocabulary = _vocabulary(config)
        shared = {
            name
            for name in wanted.keys() & stored.keys()
            if same_head or not name.startswith("head/")
        }
        for name in sorted(shared):
            may_grow = name in vocabulary and vocab_size <= config.model.vocab_size
            _check_shape(folder, name, stored[name].shape, wanted[name].shape, may_grow=may_grow)
        if not shared:
            raise UserError(
                f"config.init_from={config.init_from}: shares no tensor with this model; it has "
                f"{min(stored)}, which this model lacks"
            )
        return Match(
            checkpoints=checkpoints,
            step=step,
            shared=sorted(shared),
            new=sorted(wanted.keys() - shared),
            dropped=sorted(stored.keys() - shared),
            vocab_size=vocab_size,
        )

    def params(self, config, program, params):
        """`params` with the tensors of the best checkpoint in their place; prints their number."""
        match = self.match(config, program)
        restored = match.restore(program.state.params)
        say(f"from {match.checkpoints.folder / str(match.step)}: {len(restored)} tensors restored")
        if match.new:
            say(f"  {len(match.new)} new, as initialised: {', '.join(match.new)}")
        if match.dropped:
            say(f"  {len(match.dropped)} dropped, not in this model: {', '.join(match.dropped)}")

        vocabulary = _vocabulary(config)

        def with_known_rows(leaf, value):
            return leaf.at[: match.vocab_size].set(value[: match.vocab_size])

        def restored_or_initial(path, leaf):
            name = "/".join(optimizer.names(path))
            value = restored.get(name, leaf)
            grows = match.vocab_size < config.model.vocab_size or value.shape != leaf.shape
            if name not in vocabulary or name not in restored or not grows:
                return value
            # The rows of new tokens are as initialised. A table of another shape is on one device.
            put = jax.jit(with_known_rows, out_shardings=leaf.sharding)
            return put(leaf, value if value.shape == leaf.shape else np.asarray(value))

        return jax.tree_util.tree_map_with_path(restored_or_initial, params)


@dataclasses.dataclass(frozen=True)
class Match:
    """How a checkpoint fits a model.

    Attributes:
      checkpoints: those of the earlier run.
      step: the checkpoint.
      shared: names of the tensors to restore.
      new: names of tensors that the checkpoint lacks.
      dropped: names of tensors that the model lacks.
      vocab_size: the number of tokens of the earlier run.
    """

    checkpoints: Checkpoints
    step: int
    shared: list[str]
    new: list[str]
    dropped: list[str]
    vocab_size: int

    def restore(self, abstract_params) -> dict[str, jax.Array]:
        """The shared tensors by name, with the shardings of `abstract_params`.

        A tensor of another shape is on one device.
        """
        wanted = by_name(abstract_params)
        one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def place(path, leaf):
            like = wanted.get(_name(path))
            is_same = like is not None and tuple(like.shape) == tuple(leaf.shape)
            sharding = like.sharding if is_same else one_device
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        stored = self.checkpoints.abstract_params(self.step)
        placed = jax.tree_util.tree_map_with_path(place, stored, is_leaf=_is_leaf)
        tensors = by_name(self.checkpoints.restore_params(placed, self.step))
        return {name: tensors[name] for name in self.shared}


def by_name(tree) -> dict:
    """The leaves of a tree of arrays, or of their shapes, by name, such as "norm/scale"."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_leaf)
    return {_name(path): leaf for path, leaf in leaves}


def _name(path) -> str:
    return "/".join(optimizer.names(path))


def _vocabulary(config) -> tuple[str, ...]:
    """The names of the tensors whose rows are the tokens of the vocabulary."""
    return named_class("model", config.model.name).vocabulary


def _is_leaf(x) -> bool:
    return hasattr(x, "shape")


def _check_shape(folder, name: str, stored, wanted, *, may_grow: bool) -> None:
    """Raises UserError where the shapes differ; if it `may_grow`, in more than the rows."""
    stored = tuple(stored)
    wanted = tuple(wanted)
    if stored != wanted and not (may_grow and stored[1:] == wanted[1:]):
        raise UserError(
            f"{folder}: {name} has shape {stored} there, {wanted} in this config's model; "
            "change config.model or config.init_from"
        )


def _plain(section: ConfigDict, key: str) -> str:
    """A value by its content: lists and tuples are equal."""
    return json.dumps(section.get(key))
