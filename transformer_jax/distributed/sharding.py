"""The device mesh, the only table from logical axes to mesh axes, and placement on devices."""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import UserError

# --------------------------------------------------------------------------------------------------
# The mesh, and the sharding of arrays over it by their logical axes.
#
# Layers name the logical axes of their parameters and activations. `RULES` maps each to the mesh
# axes that split it. `jax.jit` with `NamedSharding`, once called `pjit`, partitions the programs.

AXES = ("data", "fsdp", "tensor", "sequence")

RULES = {
    # The rows of a batch.
    "batch": ("data", "fsdp"),
    # The rows of a batch of embedding look-ups, whose vectors are split over fsdp.
    "lookup": ("data",),
    # The positions of a row.
    "length": ("sequence",),
    # The stacked axis of nn.scan.
    "layers": (),
    # d_model in parameters; activations do not split it.
    "embed": ("fsdp",),
    "vocab": ("tensor",),
    "heads": ("tensor",),
    # d_ff.
    "mlp": ("tensor",),
    "head_dim": (),
    # Vectors, which are too small to split.
    "norm": (),
}

_current: contextvars.ContextVar = contextvars.ContextVar("sharding", default=None)
_group: contextvars.ContextVar = contextvars.ContextVar("group", default=None)


def make_mesh(config, devices=None) -> Mesh:
    """A mesh of `devices`, by default all, with the axes AXES and their sizes in `config`.

    `config` is config.mesh; one size may be -1, for all remaining devices. Raises UserError where
    the product of the sizes is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [config[axis] for axis in AXES]
    keys = ", ".join(f"config.mesh.{axis}={size}" for axis, size in zip(AXES, sizes))
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise UserError(f"{keys}: each must be at least 1, one may be -1")
    known = math.prod(size for size in sizes if size != -1)
    if len(devices) % known or (-1 not in sizes and known != len(devices)):
        raise UserError(f"{keys}: the product {known} does not fit the {len(devices)} devices")
    sizes = [len(devices) // known if size == -1 else size for size in sizes]
    # Linen's constraints fail with Explicit axes, the default of make_mesh.
    return jax.make_mesh(
        sizes, AXES, devices=np.asarray(devices).flatten(), axis_types=(AxisType.Auto,) * len(AXES)
    )


def rules(config) -> dict[str, tuple[str, ...]]:
    """RULES with the overrides of `config.rules`, where `config` is config.mesh.

    Raises UserError for a rule of another form, or of an unknown axis.
    """
    table = dict(RULES)
    for rule in config.rules:
        if not _is_rule(rule):
            raise UserError(f"config.mesh.rules: {rule!r} is not (logical axis, (mesh axis, ...))")
        logical, axes = rule
        if logical not in table:
            raise UserError(
                f"config.mesh.rules: no logical axis {logical!r}; there are: {', '.join(table)}"
            )
        unknown = set(axes) - set(AXES)
        if unknown:
            raise UserError(
                f"config.mesh.rules: no mesh axis {min(unknown)!r}; there are: {', '.join(AXES)}"
            )
        table[logical] = tuple(axes)
    return table


def _is_rule(rule) -> bool:
    """Whether it has the form (logical axis, (mesh axis, ...))."""
    is_pair = isinstance(rule, tuple) and len(rule) == 2
    return is_pair and isinstance(rule[0], str) and isinstance(rule[1], tuple)


def spec(logical_axes, table) -> PartitionSpec:
    """The PartitionSpec of an array whose dimensions have these logical axes.

    A dimension with None is not split. A mesh axis splits only the first dimension that names it.
    """
    return PartitionSpec(*(axes or None for axes in _mesh_axes(logical_axes, table)))


def _mesh_axes(logical_axes, table) -> list[tuple[str, ...]]:
    used = set()
    dimensions = []
    for logical in logical_axes:
        named = table[logical] if logical else ()
        axes = tuple(axis for axis in named if axis not in used)
        used.update(axes)
        dimensions.append(axes)
    return dimensions


def batch_sharding(mesh: Mesh, table) -> NamedSharding:
    """The sharding of a batch's arrays (microbatches, rows, ...): only the rows are split."""
    return NamedSharding(mesh, spec((None, "batch"), table))


def check(shape, sharding: NamedSharding, name: str) -> None:
    """Raises UserError for a shape that the mesh does not divide. `name` stands in the message."""
    for size, axes in zip(shape, sharding.spec):
        axes = (axes,) if isinstance(axes, str) else axes or ()
        num_parts = math.prod(sharding.mesh.shape[axis] for axis in axes)
        if size % num_parts:
            keys = " x ".join(f"config.mesh.{axis}={sharding.mesh.shape[axis]}" for axis in axes)
            raise UserError(f"{name} {tuple(shape)}: {keys} does not divide {size}")


@contextlib.contextmanager
def use(mesh: Mesh, table):
    """Sets the mesh and the table that the functions below use in the context.

    Enter it in the traced function, so that no cached trace refers to another mesh.
    """
    token = _current.set((mesh, table))
    try:
        yield
    finally:
        _current.reset(token)


def row_groups(param_shardings) -> int:
    """The number of groups into which the mesh axis "data" splits the rows of a batch.

    It is 1 where that axis does not split the rows first, or where it also splits parameters.
    """
    mesh, table = _current.get()
    splits_params = any(
        "data" in jax.tree.leaves(tuple(s.spec)) for s in jax.tree.leaves(param_shardings)
    )
    return 1 if table["batch"][:1] != ("data",) or splits_params else mesh.shape["data"]


@contextlib.contextmanager
def within_group(group: jax.Array, groups: int):
    """In the context, a batch is one group of its rows, under a vmap over all `groups`.

    `group` is the number of the group, () int32. The vmap has the mesh axis "data", so the table
    in the context is without it.
    """
    mesh, table = _current.get()
    without_data = {
        logical: tuple(axis for axis in axes if axis != "data") for logical, axes in table.items()
    }
    current_token = _current.set((mesh, without_data))
    group_token = _group.set((group, groups))
    try:
        yield
    finally:
        _current.reset(current_token)
        _group.reset(group_token)


def in_group() -> bool:
    """Whether the code runs in the context `within_group`."""
    return _group.get() is not None


def draw_rows(
    draw: Callable[[jax.Array, tuple[int, ...]], jax.Array], key: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
    """Returns draw(key, shape); the first axis of `shape` is the rows of a batch.

    In a group of rows, it returns the group's part of the draw for all rows of the batch.
    """
    if not in_group():
        return draw(key, shape)
    group, groups = _group.get()
    batch_shape = (groups * shape[0], *shape[1:])

    @jax.custom_batching.custom_vmap
    def on_group(key, group):
        return jax.lax.dynamic_slice_in_dim(draw(key, batch_shape), group * shape[0], shape[0])

    @on_group.def_vmap
    def on_all_groups(_, batched, key, group):
        return draw(key, batch_shape).reshape(groups, *shape), True

    return on_group(key, group)


def constrain(x: jax.Array, *logical_axes: str | None) -> jax.Array:
    """Returns `x` with the sharding of its logical axes; without a mesh in use, returns `x`."""
    if _current.get() is None:
        return x
    mesh, table = _current.get()
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec(logical_axes, table)))


def on_each_device(f, arguments: tuple, axes: tuple, result):
    """Returns f(*arguments), which each device computes on its own part.

    It is for functions that XLA can't partition, or not well. `axes` are trees with the logical
    axes of each array, and `result` is that of the value of `f`.
    """
    if _current.get() is None or _current.get()[0].size == 1:
        return f(*arguments)
    mesh, table = _current.get()

    def specs(tree):
        return jax.tree.map(lambda names: spec(names, table), tree, is_leaf=_is_axes)

    return jax.shard_map(
        f, mesh=mesh, in_specs=specs(axes), out_specs=specs(result), check_vma=False
    )(*arguments)


def _is_axes(node) -> bool:
    return isinstance(node, tuple) and all(isinstance(name, str | None) for name in node)


def gather_after(params, x):
    """Returns (params, x), where the devices gather `params` only after they have computed `x`.

    XLA would gather all parameters at once: before a loop whose iterations use them, or before the
    first of several layers.
    """
    return jax.lax.optimization_barrier((params, x)) if parts("embed") > 1 else (params, x)


def device() -> jax.Device:
    """The first device of the mesh in use; without a mesh in use, JAX's default device."""
    return jax.devices()[0] if _current.get() is None else _current.get()[0].devices.flat[0]


def platform() -> str:
    """The platform of `device`: "cpu", "gpu" or "tpu"."""
    return device().platform


def is_ampere() -> bool:
    """Whether `device` is an NVIDIA GPU of the Ampere architecture or a later one."""
    # The capability of an AMD GPU is a name such as gfx942.
    major = getattr(device(), "compute_capability", "").partition(".")[0]
    return major.isdecimal() and int(major) >= 8


def parts(logical_axis: str) -> int:
    """The number of parts into which the mesh in use splits this axis; 1 without a mesh."""
    if _current.get() is None:
        return 1
    mesh, table = _current.get()
    return math.prod(mesh.shape[axis] for axis in table[logical_axis])


def mesh_axes(logical_axes: tuple[str | None, ...]) -> list[tuple[str, ...]]:
    """The axes of the mesh in use that split each dimension with these logical axes.

    There are none where `on_each_device` has one device.
    """
    if _current.get() is None or _current.get()[0].size == 1:
        return [()] * len(logical_axes)
    return _mesh_axes(logical_axes, _current.get()[1])


# --------------------------------------------------------------------------------------------------
# The placement of parameters and rows on devices, for programs that use a trained model.
#
# The parameters of a use are on a mesh, as in training. A program of the use enters `Placement.use`
# in the traced function. Its rows are then split over the devices, and its results are gathered.


@dataclasses.dataclass(frozen=True)
class Placement:
    """A mesh and its table of logical axes. It can be a static argument of a jitted function."""

    mesh: Mesh
    rules: tuple[tuple[str, tuple[str, ...]], ...]  # mesh axes by logical axis

    @classmethod
    def of(cls, params, config) -> "Placement":
        """Returns the mesh that `params` stand on, with the rules of `config`, config.mesh.

        Parameters without a mesh, such as NumPy arrays, are on one device.
        """
        placed = getattr(jax.tree.leaves(params)[0], "sharding", None)
        mesh = placed.mesh if isinstance(placed, NamedSharding) else _one_device(placed)
        return cls(mesh, tuple(rules(config).items()))

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Sets the mesh and the table, as `use`. One device needs neither."""
        if self.mesh.size == 1:
            yield
            return
        with use(self.mesh, dict(self.rules)):
            yield

    def decoding(self) -> "Placement":
        """Returns the placement of a decoder: it reads one position at a time and splits none."""
        return self.dividing(length=1)

    def dividing(self, **sizes: int) -> "Placement":
        """Returns the placement that splits these logical axes only where it divides their sizes.

        A stream of one row, for instance, is not split: `dividing(batch=1, lookup=1)`.
        """

        def divides(name, axes):
            parts = math.prod(self.mesh.shape[axis] for axis in axes)
            return sizes.get(name, 0) % parts == 0

        fitting = tuple((name, axes if divides(name, axes) else ()) for name, axes in self.rules)
        return dataclasses.replace(self, rules=fitting)

    def rows(self, count: int) -> int:
        """Returns the least number of rows, `count` or more, that the mesh divides."""
        with self.use():
            size = parts("batch")
        return -(-count // size) * size


def split_rows(tree):
    """Returns the arrays (rows, ...) of a traced function, split over the devices by rows."""
    return jax.tree.map(lambda x: constrain(x, "batch", *[None] * (x.ndim - 1)), tree)


def gathered(tree):
    """Returns the arrays of a traced function, complete on each device of each process.

    `jax.device_get` then has the same values on all processes.
    """
    return jax.tree.map(lambda x: constrain(x, *[None] * x.ndim), tree)


def _one_device(placed) -> Mesh:
    device = min(placed.device_set, key=lambda x: x.id) if placed else jax.local_devices()[0]
    return make_mesh(dict.fromkeys(AXES, 1), [device])
