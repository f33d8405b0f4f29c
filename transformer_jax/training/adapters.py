"""Tasks of which only low-rank adapters are trained (Hu et al. 2021), as `config.lora` says.

The adapters stand in the tree of the parameters, beside their matrices. The task that is adapted
gets the tree that it knows, with W + alpha / r A B in the place of W.
"""

import fnmatch
import functools
import zlib
from collections.abc import Callable, Iterable

import jax

from transformer_jax.config import UserError
from transformer_jax.distributed import hosts
from transformer_jax.layers import low_rank, parameters
from transformer_jax.layers.low_rank import Adapters
from transformer_jax.tasks.task import Batch, Context, EvaluationProgram, Loss, Params, Task
from transformer_jax.training import frozen, optimizer
from transformer_jax.training.checkpoint import Checkpoints

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
        return frozen.merged(params, adapters)

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
        def of_merged(evaluation):
            return lambda params: evaluation(self.merged(params))

        return {name: of_merged(each) for name, each in super().evaluations().items()}

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
        return {optimizer.names(path): each for path, each in leaves}

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
