"""Warm starts: initial parameters from other runs or word vectors, and low-rank adapters."""

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

from transformer_jax.config import UserError, WarmStart, named_class
from transformer_jax.contracts.task import Batch, Context, EvaluationProgram, Loss, Params, Task
from transformer_jax.data import array_files
from transformer_jax.distributed import hosts
from transformer_jax.layers import low_rank, parameters
from transformer_jax.layers.low_rank import Adapters
from transformer_jax.pictures.progress import say
from transformer_jax.storage import buckets
from transformer_jax.training.checkpoint import Checkpoints

# ------------------------------------------- initial parameters from the runs in `config.init_from`

# If one of these keys of config.task differs, the outputs of a head mean something else.
_HEAD_KEYS = ("name", "labels", "regression")


@dataclasses.dataclass(frozen=True)
class Part:
    """A run that `config.init_from` names: its workdir, its recorded config, and what to take."""

    workdir: pathlib.Path | buckets.Path
    config: ConfigDict
    start: WarmStart


@dataclasses.dataclass(frozen=True)
class Origin:
    """The runs from which a new run takes its initial parameters."""

    parts: tuple[Part, ...]

    def match(self, config, program) -> "list[Match]":
        """Matches the best checkpoint of each run to the parameters, without restoring anything.

        A head matches only if its task and labels are the same, or if the task has a key of its own
        that names the run. Raises UserError if a tensor has another shape, or if no tensor is
        shared. Only the tensors of the vocabulary, and those for which the model has a rule
        (`Model.resize`), may have another shape.
        """
        return [_match(part, config, program, self.parts) for part in self.parts]

    def params(self, config, program, params):
        """Returns `params` with tensors from the best checkpoints, and prints their number."""
        for match in self.match(config, program):
            params = match.put(config, program.state.params, params)
        return params


def untrained_tokens(task, program, origin: Origin) -> str:
    """Returns a line about new tokens whose random embeddings no update trains, or ""."""
    traits = parameters.tensors_by_name(program.traits)
    sizes = [_vocab_size(part.config) for part in origin.parts if not part.start.prefix]
    num_new = _vocab_size(task.config) - max(sizes, default=_vocab_size(task.config))
    tables = [
        name
        for name in _vocabulary(task.config)
        if name in traits
        and low_rank.is_matrix(traits[name])
        and name + low_rank.A not in traits
        and task.group(tuple(name.split("/"))) is None
    ]
    if num_new < 1 or not tables:
        return ""
    patterns = ",".join(f'"{name}"' for name in tables)
    return (
        f"warning: the embeddings of the {num_new} new tokens are random, and are not trained; "
        f"--config.lora.trained='({patterns},)' trains them"
    )


def _match(part: Part, config, program, parts: Iterable[Part]) -> "Match":
    start = part.start
    # Parameters below a longer prefix are initialized from another part.
    prefixes = {other.start.prefix for other in parts}
    inner = {prefix for prefix in prefixes if parameters.is_below(prefix, start.prefix)}
    everything = parameters.tensors_by_name(program.state.params)
    wanted = parameters.below(everything, start.prefix, inner - {start.prefix})
    if not wanted:
        first = sorted({name.partition("/")[0] for name in everything})
        raise UserError(
            f"config.init_from: no parameter begins with {start.prefix!r}; there are "
            f"{', '.join(first)}"
        )
    checkpoints = _opened(part, config, wanted)
    folder, step = checkpoints.folder, checkpoints.pick("best")
    stored = parameters.below(
        parameters.tensors_by_name(checkpoints.abstract_params(step)), start.part
    )
    # A run that the task names in a key of its own, such as a reward model, is taken with its head.
    named_by_task = start.prefix in named_class("task", config.task.name).other_runs
    same_head = named_by_task or all(
        _plain(part.config.task, key) == _plain(config.task, key) for key in _HEAD_KEYS
    )
    vocab_size = _vocab_size(part.config)
    # The outputs of a head for another task or other labels mean something else, so such a head
    # keeps its initial values.
    names = [name for name in wanted if same_head or not name.startswith("head/")]
    shared = {name: _origin_of(config, name, stored) for name in names}
    shared = {name: source for name, source in shared.items() if source in stored}
    if not shared:
        lacks = f"it has {min(stored)}, which this model lacks" if stored else "it is empty"
        raise UserError(f"config.init_from={start.run}: shares no tensor with this model; {lacks}")
    traits = parameters.tensors_by_name(program.traits)
    stacks = {}
    for name, source in sorted(shared.items()):
        shape = tuple(stored[source].shape)
        if start.layers and traits[parameters.joined(start.prefix, name)].is_stack:
            stacks[name] = _chosen(start, shape[0])
            shape = (len(stacks[name]), *shape[1:])
        # The rows of new tokens keep their initial values; a vocabulary can't lose tokens.
        may_grow = name in _vocabulary(config) and vocab_size <= _vocab_size(config)
        if _change(config, name, shape, wanted[name].shape) is None:
            _check_shape(folder, name, shape, wanted[name].shape, may_grow=may_grow)
    new = sorted(wanted.keys() - shared.keys())
    if new and named_by_task:
        # No update trains this model, so missing parameters would keep their random initial values.
        raise UserError(
            f"config.task.{start.prefix}={start.run}: its checkpoint lacks {new[0]}; take "
            "a run that has trained all parameters of its model"
        )
    return Match(
        checkpoints=checkpoints,
        step=step,
        start=start,
        shared=shared,
        new=[parameters.joined(start.prefix, name) for name in new],
        dropped=sorted(_unread(stored.keys() - set(shared.values()), start, parts)),
        stacks=stacks,
        vocab_size=vocab_size,
    )


def _opened(part: Part, config, wanted: Iterable[str]) -> Checkpoints:
    """Returns the checkpoints of a run, as the new run reads them.

    A run with the same adapters continues to train them. Any other run takes the matrices with the
    adapters merged into them.
    """
    is_same = all(_plain(part.config.lora, key) == _plain(config.lora, key) for key in config.lora)
    continues = is_same and any(map(low_rank.is_adapter, wanted))
    make_checkpoints = Checkpoints if continues else checkpoints(part.config.lora)
    return make_checkpoints(part.workdir / "checkpoints", part.config.checkpoint, read_only=True)


@dataclasses.dataclass(frozen=True)
class Match:
    """How the tensors of a checkpoint correspond to the parameters of a new run.

    Attributes:
      checkpoints: the checkpoints of the earlier run.
      step: the step of the checkpoint.
      start: which parameters of which run are taken.
      shared: {name: name in the earlier run} of the tensors to restore, without the prefixes of
        either run.
      new: the names of tensors that the checkpoint lacks.
      dropped: the names of tensors that the new run lacks.
      stacks: {name: layers to take} for stacks of which not all layers are taken.
      vocab_size: the vocabulary size of the earlier run.
    """

    checkpoints: Checkpoints
    step: int
    start: WarmStart
    shared: dict[str, str]
    new: list[str]
    dropped: list[str]
    stacks: dict[str, list[int]]
    vocab_size: int

    def put(self, config, abstract_params, params):
        """Returns `params` with the shared tensors restored, and prints their number."""
        restored = self.restore(abstract_params)
        say(f"from {self.checkpoints.folder / str(self.step)}: {len(restored)} tensors restored")
        if self.new:
            say(f"  {len(self.new)} new, as initialized: {', '.join(self.new)}")
        if self.dropped:
            say(f"  {len(self.dropped)} dropped, not in this model: {', '.join(self.dropped)}")
        vocabulary = {parameters.joined(self.start.prefix, name) for name in _vocabulary(config)}

        def with_known_rows(leaf, value):
            return leaf.at[: self.vocab_size].set(value[: self.vocab_size])

        own = {parameters.joined(self.start.prefix, name): name for name in self.shared}

        def restored_or_initial(path, leaf):
            name = parameters.tensor_name(path)
            value = restored.get(name, leaf)
            change = _change(config, own.get(name, ""), value.shape, leaf.shape)
            if change is not None:
                # The value is on one device of this process, so it goes through the host.
                return jax.jit(change, out_shardings=leaf.sharding)(np.asarray(value))
            grows = self.vocab_size < _vocab_size(config) or value.shape != leaf.shape
            if name not in vocabulary or name not in restored or not grows:
                return value
            # Only the rows of known tokens are copied; the rows of new tokens stay as initialized.
            # A table of another shape is on one device, so it goes through the host.
            put = jax.jit(with_known_rows, out_shardings=leaf.sharding)
            return put(leaf, value if value.shape == leaf.shape else np.asarray(value))

        return jax.tree_util.tree_map_with_path(restored_or_initial, params)

    def restore(self, abstract_params) -> dict[str, jax.Array]:
        """Returns {name in the new run: tensor} for the shared tensors, sharded as in the new run.

        A tensor of another shape is on one device.
        """
        wanted = parameters.tensors_by_name(abstract_params)
        targets = {}  # by name in the checkpoint: several parameters may take the same tensor
        for name, source in self.shared.items():
            targets.setdefault(parameters.joined(self.start.part, source), []).append(name)
        one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def with_sharding(path, leaf):
            name = next(iter(targets.get(parameters.tensor_name(path), ())), "")
            like = wanted.get(parameters.joined(self.start.prefix, name)) if name else None
            is_same = like is not None and tuple(like.shape) == tuple(leaf.shape)
            # The axis of the layers is never split, so the sharding also fits another number of
            # layers.
            sharding = like.sharding if is_same or name in self.stacks else one_device
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        stored = self.checkpoints.abstract_params(self.step)
        abstract = jax.tree_util.tree_map_with_path(
            with_sharding, stored, is_leaf=parameters.is_leaf
        )
        tensors = parameters.tensors_by_name(self.checkpoints.restore_params(abstract, self.step))
        restored = {}
        for stored_name, (first, *copies) in targets.items():
            tensor = self._chosen_layers(first, tensors[stored_name])
            restored[parameters.joined(self.start.prefix, first)] = tensor
            for name in copies:
                # The training step donates the buffer of each parameter, so two of them can't
                # share one.
                restored[parameters.joined(self.start.prefix, name)] = jnp.copy(tensor)
        return restored

    def _chosen_layers(self, name: str, tensor: jax.Array) -> jax.Array:
        """Returns the chosen layers of a stack; other tensors unchanged."""
        if name not in self.stacks:
            return tensor
        layers = np.array(self.stacks[name])
        # Jitted, so that the chosen layers have the sharding of the stack.
        return jax.jit(lambda stack: stack[layers], out_shardings=tensor.sharding)(tensor)


def _unread(names: Iterable[str], start: WarmStart, parts: Iterable[Part]) -> list[str]:
    """Returns those of `names` in the checkpoint that no other part of the new run takes either."""
    others = [other.start for other in parts if other.start.run == start.run]
    taken = [other.part for other in others if other.part and other.part != start.part]
    stored = [parameters.joined(start.part, name) for name in names]
    return [name for name in stored if not any(parameters.is_below(name, part) for part in taken)]


def _chosen(start: WarmStart, num_layers: int) -> list[int]:
    layers = start.chosen(num_layers)
    if not layers or max(layers) >= num_layers:
        raise UserError(
            f"config.init_from: {start.prefix!r} takes the layers {start.layers!r} of "
            f"{start.run}, which has {num_layers}, numbered from 0"
        )
    return layers


def _check_shape(folder, name: str, stored, wanted, *, may_grow: bool) -> None:
    """Raises UserError if the shapes differ, or, if it `may_grow`, differ in more than the rows."""
    stored = tuple(stored)
    wanted = tuple(wanted)
    if stored != wanted and not (may_grow and stored[1:] == wanted[1:]):
        raise UserError(
            f"{folder}: {name} has shape {stored} there, {wanted} in this config's model; "
            "change config.model or config.init_from"
        )


def _plain(section: ConfigDict, key: str) -> str:
    """Returns a value as JSON, in which lists and tuples are equal, for comparisons."""
    return json.dumps(section.get(key))


# ------------------------------------------------- a model's rules for tensors of another shape


def _vocabulary(config) -> tuple[str, ...]:
    """Returns the names of the tensors with one row for each token of the vocabulary."""
    return _model(config).vocabulary


def _vocab_size(config) -> int:
    """Returns the vocabulary size; 0 for a model of images or audio."""
    return config.model.get("vocab_size", 0)


def _origin_of(config, name: str, stored: Mapping) -> str:
    """Returns the name of the stored tensor from which a tensor may be initialized."""
    return name if name in stored else _model(config).origin(name)


def _change(
    config, name: str, stored: tuple[int, ...], wanted: tuple[int, ...]
) -> Callable[[jax.Array], jax.Array] | None:
    """Returns the function that changes a stored tensor to the wanted shape.

    Returns None if the shapes are equal, or if the model has no rule for the tensor.
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
    """Raises UserError if the word vectors that the config names do not fit the embeddings.

    For a new run, it reads the whole file, so that a damaged file is refused before the workdir is
    created.
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
    """Returns parameters with the vectors of the file that the config names.

    A token takes the vector of the word that it represents. Tokens without one keep their rows.
    Prints the number of words found.
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
            rows.setdefault(id_of[word], vector)  # if a word is repeated, its first vector counts
    if not rows:
        raise UserError(f"config.train.init_vectors={path}: has no word of the vocabulary")
    say(f"from {path}: the vectors of {len(rows):,} of {len(ids):,} words")
    row_ids, vectors = np.array([*rows]), np.stack([*rows.values()])

    def with_vectors(key_path, leaf):
        if parameters.tensor_name(key_path) != task.model.word_table:
            return leaf
        put = jax.jit(lambda table: table.at[row_ids].set(vectors), out_shardings=leaf.sharding)
        return put(leaf)

    return jax.tree_util.tree_map_with_path(with_vectors, params)


# --------------------------------------------------------------------------------------------------
# Tasks that train only low-rank adapters (Hu et al. 2021), as `config.lora` says.
#
# The adapters are part of the tree of parameters, next to their matrices. The adapted task itself
# does not know about them: it gets a tree in which W + alpha / r A B replaces W.

Path = tuple[str, ...]


@functools.cache
def adapted(task: type[Task]) -> type[Task]:
    """Returns a subclass of a task that trains only adapters."""
    return type(f"Adapted{task.__name__}", (Adapted, task), {})


class Adapted(Task):
    """A mixin for tasks whose parameters contain adapters.

    It removes the adapters from the parameters before it calls the methods `loss`, `rollouts`,
    `experience`, `calibrated` and `evaluations` of the task itself.
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
            # The key depends on the name alone, so that the initial value of an adapter does not
            # depend on which other matrices have adapters.
            key = jax.random.fold_in(rng, zlib.crc32("/".join(path).encode()))
            pair = self._adapters.initial(key, self._lora.rank, box[name])
            tree[name + low_rank.A], tree[name + low_rank.B] = pair
        return parameters.merged(params, adapters)

    def loss(self, params: Params, batch: Batch, context: Context) -> Loss:
        # Merging is lazy, one layer of a stack at a time, so that neither the merged stack nor its
        # gradient is in memory. Sampling, below, merges once, because it reads W for every token.
        return super().loss(low_rank.joined(params, self._adapters.lazy), batch, context)

    def _with_merged(self, function, params: Params, batch: Batch, context: Context):
        return function(low_rank.joined(params, self._adapters.merged), batch, context)

    def _calibrated(self, calibrated, params: Params) -> Params:
        """Returns the parameters after calibration, which changes only parameters of heads."""
        measured = calibrated(self.merged(params))
        return params | {name: measured[name] for name in self.heads}

    def group(self, path: Path) -> str | None:
        """Returns the group of a parameter: an adapter is in the group of its matrix.

        Returns None for parameters that are not trained.
        """
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
        # During an evaluation the merged parameters are in memory beside the state.
        return {
            name: EvaluationProgram(lowered, (held, merged), remedy)
            for name, (lowered, held, remedy) in programs.items()
        }

    @functools.cached_property
    def _traits(self) -> dict[Path, parameters.Traits]:
        """The traits of the task's parameters without adapters, by path."""
        traits = parameters.traits(jax.eval_shape(super().init, jax.random.key(0)))
        leaves = jax.tree_util.tree_leaves_with_path(traits)
        return {parameters.names(path): each for path, each in leaves}

    @functools.cached_property
    def _matrices(self) -> tuple[Path, ...]:
        """The paths of the matrices that have adapters.

        They are matrices that the task would train if there were no adapters. Raises UserError if
        `config.lora` names a matrix, a layer or a parameter that the task does not have.
        """
        candidates = [
            path
            for path, traits in self._traits.items()
            if low_rank.is_matrix(traits)
            and super(Adapted, self).group(path) is not None
            and not self._is_whole(path)
        ]
        chosen = _matching("matrices", self._lora.matrices, candidates)
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
        """Returns whether a parameter itself is trained, rather than an adapter."""
        return path[0] in self.heads or path in self._trained


def checkpoints(lora) -> Callable[..., Checkpoints]:
    """Returns the class of the checkpoints of a run with this section `config.lora`.

    Checkpoints with adapters are read as if the run had none, with the adapters merged into their
    matrices.
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
    """Returns `params`, shapes with shardings, together with the stored adapters.

    The adapters are small, and are replicated on all devices.
    """
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
    """Returns the paths that match a pattern of `config.lora.<key>`, as a whole or at their end.

    Raises UserError for a pattern that matches no path.
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
