"""Warm starts: the parameters with which a run begins, and adapters that alone are trained."""

import dataclasses
import fnmatch
import functools
import json
import pathlib
import zlib
from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError, named_class
from transformer_jax.configuration.sections import Beginning
from transformer_jax.contracts.task import Batch, Context, EvaluationProgram, Loss, Params, Task
from transformer_jax.data import array_files
from transformer_jax.distributed import hosts
from transformer_jax.layers import low_rank, parameters
from transformer_jax.layers.low_rank import Adapters
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets
from transformer_jax.training.checkpoint import Checkpoints

# --------------------------------------------------------------------------------------------------
# The parameters with which a run begins, before its first update.
#
# `config.init_from` names the runs whose tensors it takes, and `config.train.init_vectors` names a
# file of word vectors.

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
        key of its own. Raises UserError where a tensor has another shape, or where no tensor is
        shared. Only the tensors of the vocabulary, and those for which the model has a rule
        (`Model.resize`), may have another shape.
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
    inner = {prefix for prefix in prefixes if parameters.is_below(prefix, beginning.prefix)}
    everything = parameters.tensors_by_name(program.state.params)
    wanted = parameters.below(everything, beginning.prefix, inner - {beginning.prefix})
    if not wanted:
        first = sorted({name.partition("/")[0] for name in everything})
        raise UserError(
            f"config.init_from: no parameter begins with {beginning.prefix!r}; there are "
            f"{', '.join(first)}"
        )
    checkpoints = _opened(part, config, wanted)
    folder, step = checkpoints.folder, checkpoints.pick("best")
    stored = parameters.below(
        parameters.tensors_by_name(checkpoints.abstract_params(step)), beginning.part
    )
    of_task = beginning.prefix in named_class("task", config.task.name).other_runs
    same_head = of_task or all(
        _plain(part.config.task, key) == _plain(config.task, key) for key in _HEAD_KEYS
    )
    vocab_size = _vocab_size(part.config)
    names = [name for name in wanted if same_head or not name.startswith("head/")]
    shared = {name: _origin_of(config, name, stored) for name in names}
    shared = {name: source for name, source in shared.items() if source in stored}
    if not shared:
        lacks = f"it has {min(stored)}, which this model lacks" if stored else "it is empty"
        raise UserError(
            f"config.init_from={beginning.run}: shares no tensor with this model; {lacks}"
        )
    traits = parameters.tensors_by_name(program.traits)
    stacks = {}
    for name, source in sorted(shared.items()):
        shape = tuple(stored[source].shape)
        if beginning.layers and traits[parameters.joined(beginning.prefix, name)].is_stack:
            stacks[name] = _chosen(beginning, shape[0])
            shape = (len(stacks[name]), *shape[1:])
        may_grow = name in _vocabulary(config) and vocab_size <= _vocab_size(config)
        if _change(config, name, shape, wanted[name].shape) is None:
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
        new=[parameters.joined(beginning.prefix, name) for name in new],
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
    opened = Checkpoints if continues else checkpoints(part.config.lora)
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
            parameters.joined(self.beginning.prefix, name) for name in _vocabulary(config)
        }

        def with_known_rows(leaf, value):
            return leaf.at[: self.vocab_size].set(value[: self.vocab_size])

        own = {parameters.joined(self.beginning.prefix, name): name for name in self.shared}

        def restored_or_initial(path, leaf):
            name = parameters.tensor_name(path)
            value = restored.get(name, leaf)
            change = _change(config, own.get(name, ""), value.shape, leaf.shape)
            if change is not None:
                return jax.jit(change, out_shardings=leaf.sharding)(np.asarray(value))
            grows = self.vocab_size < _vocab_size(config) or value.shape != leaf.shape
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
        wanted = parameters.tensors_by_name(abstract_params)
        places = {}
        for name, source in self.shared.items():
            places.setdefault(parameters.joined(self.beginning.part, source), []).append(name)
        one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def place(path, leaf):
            name = next(iter(places.get(parameters.tensor_name(path), ())), "")
            like = wanted.get(parameters.joined(self.beginning.prefix, name)) if name else None
            is_same = like is not None and tuple(like.shape) == tuple(leaf.shape)
            # The layers of a stack are not split.
            sharding = like.sharding if is_same or name in self.stacks else one_device
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        stored = self.checkpoints.abstract_params(self.step)
        placed = jax.tree_util.tree_map_with_path(place, stored, is_leaf=parameters.is_leaf)
        tensors = parameters.tensors_by_name(self.checkpoints.restore_params(placed, self.step))
        restored = {}
        for stored_name, (first, *copies) in places.items():
            tensor = self._of_layers(first, tensors[stored_name])
            restored[parameters.joined(self.beginning.prefix, first)] = tensor
            for name in copies:
                # An update takes the memory of each parameter, so that two can't share it.
                restored[parameters.joined(self.beginning.prefix, name)] = jnp.copy(tensor)
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
    stored = [parameters.joined(beginning.part, name) for name in names]
    return [name for name in stored if not any(parameters.is_below(name, part) for part in taken)]


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


# --------------------------------------------- the rules of a model for tensors of another shape


def _vocabulary(config) -> tuple[str, ...]:
    """The names of the tensors whose rows are the tokens of the vocabulary."""
    return _model(config).vocabulary


def _vocab_size(config) -> int:
    """The number of tokens; 0 for a model of images or sound."""
    return config.model.get("vocab_size", 0)


def _origin_of(config, name: str, stored: Mapping) -> str:
    """Returns the name of the stored tensor with which a tensor begins, if there is one."""
    return name if name in stored else _model(config).origin(name)


def _change(
    config, name: str, stored: tuple[int, ...], wanted: tuple[int, ...]
) -> Callable[[jax.Array], jax.Array] | None:
    """Returns the function from a stored tensor to one of another shape.

    None where the shapes are equal, and where the model has no rule for the tensor.
    """
    stored, wanted = tuple(stored), tuple(wanted)
    if stored == wanted or not stored:
        return None
    if stored[0] < wanted[0] and stored[1:] == wanted[1:]:
        rows = _model(config).origins_of_rows(name, stored[0], wanted[0])
        if rows is not None:
            return lambda tensor: tensor[np.array(rows)]
    return _model(config).resize(name, stored, wanted)


def _model(config) -> type:
    return named_class("model", config.model.name)


# -------------------------------------------------------------------------------- word vectors


def check_vectors(task, program, *, is_new: bool) -> None:
    """Raises UserError where the embeddings and a file that the config names do not fit.

    For a new run, it reads the whole file, so that a damaged one is refused before the workdir is
    made.
    """
    train = task.config.train
    if not (train.init_vectors or train.freeze_vectors):
        return
    key = "init_vectors" if train.init_vectors else "freeze_vectors"
    table = parameters.tensors_by_name(program.state.params).get(task.model.word_table)
    if task.reads_source or table is None:
        raise UserError(
            f"config.train.{key}={train[key]}: a {task.config.task.name} run has no embeddings of "
            "words of its own"
        )
    if not train.init_vectors:
        return
    width = array_files.width(train.init_vectors)
    if width != table.shape[1]:
        raise UserError(
            f"config.train.init_vectors={train.init_vectors}: its vectors have {width} numbers, "
            f"the embeddings of this model {table.shape[1]}; change config.model"
        )
    if is_new:
        for _ in array_files.read(train.init_vectors):
            pass


def put_vectors(task, params):
    """Returns parameters with the vectors of the file that the config names; prints their number.

    A token takes the vector of the word that it stands for. Other rows stay.
    """
    path = task.config.train.init_vectors
    if not path:
        return params
    tokenizer = task.tokenizer.target
    ids = np.flatnonzero(~tokenizer.special).tolist()
    id_of = dict(zip(tokenizer.pieces(ids), ids))
    rows = {}
    for word, vector in array_files.read(path):
        if word in id_of:
            rows.setdefault(id_of[word], vector)  # of a repeated word, the first
    if not rows:
        raise UserError(f"config.train.init_vectors={path}: has no word of the vocabulary")
    say(f"from {path}: the vectors of {len(rows):,} of {len(ids):,} words")
    places, vectors = np.array([*rows]), np.stack([*rows.values()])

    def with_vectors(key_path, leaf):
        if parameters.tensor_name(key_path) != task.model.word_table:
            return leaf
        put = jax.jit(lambda table: table.at[places].set(vectors), out_shardings=leaf.sharding)
        return put(leaf)

    return jax.tree_util.tree_map_with_path(with_vectors, params)


# --------------------------------------------------------------------------------------------------
# Tasks of which only low-rank adapters are trained (Hu et al. 2021), as `config.lora` says.
#
# The adapters stand in the tree of the parameters, beside their matrices. The task that is adapted
# gets the tree that it knows, with W + alpha / r A B in the place of W.

Path = tuple[str, ...]


@functools.cache
def adapted(task: type[Task]) -> type[Task]:
    """Returns the class of a task of which only adapters are trained."""
    return type(f"Adapted{task.__name__}", (Adapted, task), {})


class Adapted(Task):
    """The methods of a task that read parameters with adapters.

    `loss`, `rollouts`, `experience`, `calibrated` and `evaluations` of the task itself get
    parameters without them.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._lora = self.config.lora
        self._adapters = Adapters.of(self._lora)
        if self.experience is not None:
            self.experience = functools.partial(self._with_merged, self.experience)
        if self.rollouts is not None:
            self.rollouts = functools.partial(self._with_merged, self.rollouts)
        if self.calibrated is not None:
            self.calibrated = functools.partial(self._calibrated, self.calibrated)

    def init(self, rng: jax.Array) -> Params:
        params = super().init(rng)
        adapters = {}
        for path in self._matrices:
            *folders, name = path
            box, tree = params, adapters
            for folder in folders:
                box, tree = box[folder], tree.setdefault(folder, {})
            key = jax.random.fold_in(rng, zlib.crc32("/".join(path).encode()))
            pair = self._adapters.initial(key, self._lora.rank, box[name])
            tree[name + low_rank.A], tree[name + low_rank.B] = pair
        return parameters.merged(params, adapters)

    def loss(self, params: Params, batch: Batch, context: Context) -> Loss:
        return super().loss(low_rank.joined(params, self._adapters.lazy), batch, context)

    def _with_merged(self, function, params: Params, batch: Batch, context: Context):
        return function(low_rank.joined(params, self._adapters.merged), batch, context)

    def _calibrated(self, calibrated, params: Params) -> Params:
        """Returns the parameters with those that are measured, which belong to heads."""
        measured = calibrated(self.merged(params))
        return params | {name: measured[name] for name in self.heads}

    def group(self, path: Path) -> str | None:
        """Returns the group of an adapter, that of its matrix; None for what is not trained."""
        *folders, name = path
        matrix = (*folders, low_rank.matrix_of(name))
        is_trained = low_rank.is_adapter(name) or self._is_whole(path)
        return super().group(matrix) if is_trained else None

    def depth(self, path: Path) -> int | None:
        *folders, name = path
        return super().depth((*folders, low_rank.matrix_of(name)))

    def merged(self, params: Params) -> Params:
        return super().merged(low_rank.joined(params, self._merge))

    def _merge(self, matrix: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        return hosts.run(low_rank.placed, self._adapters, matrix.sharding, matrix, a, b)

    def evaluations(self):
        def on_merged(evaluation):
            return lambda params: evaluation(self.merged(params))

        return {name: on_merged(each) for name, each in super().evaluations().items()}

    def evaluation_programs(self, params: Params):
        merged = low_rank.without(params)
        programs = super().evaluation_programs(merged)
        # The merged parameters are in memory beside the state.
        return {
            name: EvaluationProgram(lowered, (held, merged), remedy)
            for name, (lowered, held, remedy) in programs.items()
        }

    @functools.cached_property
    def _traits(self) -> dict[Path, parameters.Traits]:
        """The traits of the task's own parameters, by path."""
        traits = parameters.traits(jax.eval_shape(super().init, jax.random.key(0)))
        leaves = jax.tree_util.tree_leaves_with_path(traits)
        return {parameters.names(path): each for path, each in leaves}

    @functools.cached_property
    def _matrices(self) -> tuple[Path, ...]:
        """The paths of the matrices with adapters, of those that the task trains without them.

        Raises UserError where `config.lora` names a matrix, a layer or a parameter that the task
        lacks.
        """
        could = [
            path
            for path, traits in self._traits.items()
            if low_rank.is_matrix(traits)
            and super(Adapted, self).group(path) is not None
            and not self._is_whole(path)
        ]
        chosen = _matching("matrices", self._lora.matrices, could)
        if self._lora.layers and self.config.optimizer.layer_decay != 1:
            raise UserError(
                f"config.optimizer.layer_decay={self.config.optimizer.layer_decay}: needs adapters "
                "in all layers; leave config.lora.layers empty"
            )
        for path in chosen:
            self._check_layers("/".join(path), self._traits[path].layers)
        return chosen

    def _check_layers(self, name: str, num_layers: int) -> None:
        chosen = self._adapters.chosen(num_layers)
        if num_layers and not (chosen and max(chosen) < num_layers):
            raise UserError(
                f"config.lora.layers={self._lora.layers!r}: {name} has {num_layers} layers, "
                "numbered from 0"
            )

    @functools.cached_property
    def _trained(self) -> frozenset[Path]:
        """The paths of the parameters that `config.lora.trained` names."""
        return frozenset(_matching("trained", self._lora.trained, self._traits))

    def _is_whole(self, path: Path) -> bool:
        """Returns whether a parameter is trained whole."""
        return path[0] in self.heads or path in self._trained


def checkpoints(lora) -> Callable[..., Checkpoints]:
    """Returns the class of the checkpoints of a run with this section `config.lora`.

    They are read as those of a run without adapters, whose matrices have taken them up.
    """
    return Checkpoints if lora.rank is None else functools.partial(_Merged, Adapters.of(lora))


class _Merged(Checkpoints):
    def __init__(self, adapters: Adapters, *args, **options):
        super().__init__(*args, **options)
        self._adapters = adapters

    def abstract_params(self, step: int) -> Params:
        return low_rank.without(super().abstract_params(step))

    def restore_params(self, abstract_params: Params, step: int) -> Params:
        abstract_params = _with_adapters(super().abstract_params(step), abstract_params)
        return low_rank.joined(super().restore_params(abstract_params, step), self._merge)

    def _merge(self, matrix: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        return low_rank.placed(self._adapters, matrix.sharding, matrix, a, b)


def _with_adapters(stored: Params, params: Params) -> Params:
    """Returns shapes with shardings, and with the stored adapters, whole on each device."""
    tree = {}
    for name, leaf in stored.items():
        if isinstance(leaf, dict):
            tree[name] = _with_adapters(leaf, params[name])
        elif low_rank.is_adapter(name):
            sharding = params[low_rank.matrix_of(name)].sharding
            if isinstance(sharding, jax.sharding.NamedSharding):
                sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
            tree[name] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        else:
            tree[name] = params[name]
    return tree


def _matching(key: str, patterns: Iterable[str], paths: Iterable[Path]) -> tuple[Path, ...]:
    """Returns the paths whose name, or the end of it, matches a pattern of `config.lora.<key>`.

    Raises UserError for a pattern that none matches.
    """
    by_name = {"/".join(path): path for path in paths}
    matching = {}
    for pattern in patterns:
        names = [name for name in by_name if fnmatch.fnmatchcase(f"/{name}", f"*/{pattern}")]
        if not names:
            raise UserError(
                f"config.lora.{key}: no parameter matches {pattern!r}; there are "
                f"{', '.join(sorted(by_name))}"
            )
        matching |= {name: by_name[name] for name in names}
    return tuple(matching[name] for name in sorted(matching))
