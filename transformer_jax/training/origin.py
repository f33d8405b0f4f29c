"""The run whose parameters a new run begins with."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError, named_class
from transformer_jax.configuration.beginnings import Beginning
from transformer_jax.layers import low_rank
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets
from transformer_jax.training import adapters, growth, tensor_names
from transformer_jax.training.checkpoint import Checkpoints

_HEAD_KEYS = ("name", "labels", "regression")  # of config.task: they determine a head


@dataclasses.dataclass(frozen=True)
class Part:
    """A run that `config.init_from` names: its workdir, the config of its record, and its part."""

    workdir: pathlib.Path | buckets.Path
    config: ConfigDict
    beginning: Beginning


@dataclasses.dataclass(frozen=True)
class Origin:
    """The runs whose parameters a new run begins with."""

    parts: tuple[Part, ...]

    def match(self, config, program) -> "list[Match]":
        """Compares the best checkpoint of each run with the parameters, and restores nothing.

        A head matches only if its task and labels are the same, or if the task names its run in a
        key of its own. Raises UserError where a tensor has
        another shape, or where no tensor is shared. Only the tensors of the vocabulary, and those
        for which the model has a rule (growth.py), may have another shape.
        """
        return [_match(part, config, program, self.parts) for part in self.parts]

    def params(self, config, program, params):
        """`params` with the tensors of the best checkpoints in their place; prints their number."""
        for match in self.match(config, program):
            params = match.put(config, program.state.params, params)
        return params


def _match(part: Part, config, program, parts: Iterable[Part]) -> "Match":
    beginning = part.beginning
    prefixes = {other.beginning.prefix for other in parts}
    inner = {prefix for prefix in prefixes if tensor_names.is_below(prefix, beginning.prefix)}
    everything = tensor_names.by_name(program.state.params)
    wanted = tensor_names.below(everything, beginning.prefix, inner - {beginning.prefix})
    if not wanted:
        first = sorted({name.partition("/")[0] for name in everything})
        raise UserError(
            f"config.init_from: no parameter begins with {beginning.prefix!r}; there are "
            f"{', '.join(first)}"
        )
    checkpoints = _opened(part, config, wanted)
    folder, step = checkpoints.folder, checkpoints.pick("best")
    stored = tensor_names.below(
        tensor_names.by_name(checkpoints.abstract_params(step)), beginning.part
    )
    of_task = beginning.prefix in named_class("task", config.task.name).other_runs
    same_head = of_task or all(
        _plain(part.config.task, key) == _plain(config.task, key) for key in _HEAD_KEYS
    )
    vocab_size = growth.vocab_size(part.config)
    names = [name for name in wanted if same_head or not name.startswith("head/")]
    shared = {name: growth.origin(config, name, stored) for name in names}
    shared = {name: source for name, source in shared.items() if source in stored}
    if not shared:
        lacks = f"it has {min(stored)}, which this model lacks" if stored else "it is empty"
        raise UserError(
            f"config.init_from={beginning.run}: shares no tensor with this model; {lacks}"
        )
    traits = tensor_names.by_name(program.traits)
    stacks = {}
    for name, source in sorted(shared.items()):
        shape = tuple(stored[source].shape)
        if beginning.layers and traits[tensor_names.joined(beginning.prefix, name)].is_stack:
            stacks[name] = _chosen(beginning, shape[0])
            shape = (len(stacks[name]), *shape[1:])
        may_grow = name in growth.vocabulary(config) and vocab_size <= growth.vocab_size(config)
        if growth.change(config, name, shape, wanted[name].shape) is None:
            _check_shape(folder, name, shape, wanted[name].shape, may_grow=may_grow)
    new = sorted(wanted.keys() - shared.keys())
    if new and of_task:
        # Nothing trains these parameters.
        raise UserError(
            f"config.task.{beginning.prefix}={beginning.run}: its checkpoint lacks {new[0]}; take "
            "a run that has trained all parameters of its model"
        )
    return Match(
        checkpoints=checkpoints,
        step=step,
        beginning=beginning,
        shared=shared,
        new=[tensor_names.joined(beginning.prefix, name) for name in new],
        dropped=sorted(_unread(stored.keys() - set(shared.values()), beginning, parts)),
        stacks=stacks,
        vocab_size=vocab_size,
    )


def _opened(part: Part, config, wanted: Iterable[str]) -> Checkpoints:
    """Returns the checkpoints of a run. A run with the same adapters continues them.

    Any other takes the matrices with the adapters merged into them.
    """
    is_same = all(_plain(part.config.lora, key) == _plain(config.lora, key) for key in config.lora)
    continues = is_same and any(map(low_rank.is_adapter, wanted))
    opened = Checkpoints if continues else adapters.checkpoints(part.config.lora)
    return opened(part.workdir / "checkpoints", part.config.checkpoint, read_only=True)


@dataclasses.dataclass(frozen=True)
class Match:
    """How a checkpoint fits the parameters of a run.

    Attributes:
      checkpoints: those of the earlier run.
      step: the checkpoint.
      beginning: the part of the parameters.
      shared: names of the tensors to restore, and their names in the earlier run, without the
        prefixes of either run.
      new: names of tensors that the checkpoint lacks.
      dropped: names of tensors that the new run lacks.
      stacks: the layers to take of each shared stack; without it, all.
      vocab_size: the number of tokens of the earlier run.
    """

    checkpoints: Checkpoints
    step: int
    beginning: Beginning
    shared: dict[str, str]
    new: list[str]
    dropped: list[str]
    stacks: dict[str, list[int]]
    vocab_size: int

    def put(self, config, abstract_params, params):
        """`params` with the shared tensors in their place; prints their number."""
        restored = self.restore(abstract_params)
        say(f"from {self.checkpoints.folder / str(self.step)}: {len(restored)} tensors restored")
        if self.new:
            say(f"  {len(self.new)} new, as initialised: {', '.join(self.new)}")
        if self.dropped:
            say(f"  {len(self.dropped)} dropped, not in this model: {', '.join(self.dropped)}")
        vocabulary = {
            tensor_names.joined(self.beginning.prefix, name) for name in growth.vocabulary(config)
        }

        def with_known_rows(leaf, value):
            return leaf.at[: self.vocab_size].set(value[: self.vocab_size])

        own = {tensor_names.joined(self.beginning.prefix, name): name for name in self.shared}

        def restored_or_initial(path, leaf):
            name = tensor_names.of_path(path)
            value = restored.get(name, leaf)
            change = growth.change(config, own.get(name, ""), value.shape, leaf.shape)
            if change is not None:
                return jax.jit(change, out_shardings=leaf.sharding)(np.asarray(value))
            grows = self.vocab_size < growth.vocab_size(config) or value.shape != leaf.shape
            if name not in vocabulary or name not in restored or not grows:
                return value
            # The rows of new tokens are as initialised. A table of another shape is on one device.
            put = jax.jit(with_known_rows, out_shardings=leaf.sharding)
            return put(leaf, value if value.shape == leaf.shape else np.asarray(value))

        return jax.tree_util.tree_map_with_path(restored_or_initial, params)

    def restore(self, abstract_params) -> dict[str, jax.Array]:
        """The shared tensors by their names in the new run, with the shardings of these parameters.

        A tensor of another shape is on one device.
        """
        wanted = tensor_names.by_name(abstract_params)
        places = {}
        for name, source in self.shared.items():
            places.setdefault(tensor_names.joined(self.beginning.part, source), []).append(name)
        one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def place(path, leaf):
            name = next(iter(places.get(tensor_names.of_path(path), ())), "")
            like = wanted.get(tensor_names.joined(self.beginning.prefix, name)) if name else None
            is_same = like is not None and tuple(like.shape) == tuple(leaf.shape)
            # The layers of a stack are not split.
            sharding = like.sharding if is_same or name in self.stacks else one_device
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        stored = self.checkpoints.abstract_params(self.step)
        placed = jax.tree_util.tree_map_with_path(place, stored, is_leaf=tensor_names.is_leaf)
        tensors = tensor_names.by_name(self.checkpoints.restore_params(placed, self.step))
        restored = {}
        for stored_name, (first, *copies) in places.items():
            tensor = self._of_layers(first, tensors[stored_name])
            restored[tensor_names.joined(self.beginning.prefix, first)] = tensor
            for name in copies:
                # An update takes the memory of each parameter, so that two can't share it.
                restored[tensor_names.joined(self.beginning.prefix, name)] = jnp.copy(tensor)
        return restored

    def _of_layers(self, name: str, tensor: jax.Array) -> jax.Array:
        """The chosen layers of a stack; other tensors as they are."""
        if name not in self.stacks:
            return tensor
        layers = np.array(self.stacks[name])
        return jax.jit(lambda stack: stack[layers], out_shardings=tensor.sharding)(tensor)


def _unread(names: Iterable[str], beginning: Beginning, parts: Iterable[Part]) -> list[str]:
    """Returns the names in the checkpoint of those that no other part of its run takes."""
    others = [other.beginning for other in parts if other.beginning.run == beginning.run]
    taken = [other.part for other in others if other.part and other.part != beginning.part]
    stored = [tensor_names.joined(beginning.part, name) for name in names]
    return [name for name in stored if not any(tensor_names.is_below(name, part) for part in taken)]


def _chosen(beginning: Beginning, num_layers: int) -> list[int]:
    layers = beginning.chosen(num_layers)
    if not layers or max(layers) >= num_layers:
        raise UserError(
            f"config.init_from: {beginning.prefix!r} takes the layers {beginning.layers!r} of "
            f"{beginning.run}, which has {num_layers}, numbered from 0"
        )
    return layers


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
