"""The device mesh, and the only table from logical axes to mesh axes.

Layers name the logical axes of their parameters and activations; `RULES` says which mesh axes each
is split over. `jax.jit` with `NamedSharding` does the rest (what `pjit` became).
"""

import contextlib
import contextvars
import math
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import UserError

AXES = ("data", "fsdp", "tensor", "sequence")

RULES = {
    "batch": ("data", "fsdp"),  # rows of a batch
    # rows of a batch whose vectors are looked up, where those are split over fsdp
    "lookup": ("data",),
    "length": ("sequence",),  # positions of a row
    "layers": (),  # the stacked axis of nn.scan
    "embed": ("fsdp",),  # d_model, of parameters; activations keep it whole
    "vocab": ("tensor",),
    "heads": ("tensor",),
    "mlp": ("tensor",),  # d_ff
    "head_dim": (),
    "norm": (),  # vectors: too small to split
}

_current: contextvars.ContextVar = contextvars.ContextVar("sharding", default=None)
_group: contextvars.ContextVar = contextvars.ContextVar("group", default=None)


def make_mesh(config, devices=None) -> Mesh:
    """A mesh of all devices (or `devices`) with axes AXES, from `config.mesh`; one axis may be -1.

    Raises UserError where the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [config[a] for a in AXES]
    shown = ", ".join(f"config.mesh.{a}={s}" for a, s in zip(AXES, sizes))
    if sizes.count(-1) > 1 or any(s < 1 and s != -1 for s in sizes):
        raise UserError(f"{shown}: each must be at least 1, one may be -1")
    known = math.prod(s for s in sizes if s != -1)
    if len(devices) % known or (-1 not in sizes and known != len(devices)):
        raise UserError(f"{shown}: {known} does not fit the {len(devices)} devices there are")
    sizes = [len(devices) // known if s == -1 else s for s in sizes]
    # Auto: Linen and GSPMD propagate shardings; make_mesh's default (Explicit) would refuse
    # constraints
    return jax.make_mesh(
        sizes, AXES, devices=np.asarray(devices).flatten(), axis_types=(AxisType.Auto,) * len(AXES)
    )


def rules(config) -> dict[str, tuple[str, ...]]:
    """RULES with the overrides of `config.mesh.rules`."""
    table = dict(RULES)
    for rule in config.rules:
        if (
            not isinstance(rule, tuple)
            or len(rule) != 2
            or not isinstance(rule[0], str)
            or not isinstance(rule[1], tuple)
        ):
            raise UserError(f"config.mesh.rules: {rule!r} is not (logical axis, (mesh axis, ...))")
        logical, axes = rule
        if logical not in table:
            raise UserError(
                f"config.mesh.rules: no logical axis {logical!r}; there are: {', '.join(table)}"
            )
        if unknown := set(axes) - set(AXES):
            raise UserError(
                f"config.mesh.rules: no mesh axis {sorted(unknown)[0]!r}; there are: {', '.join(AXES)}"
            )
        table[logical] = tuple(axes)
    return table


def spec(logical_axes, table) -> PartitionSpec:
    """PartitionSpec of an array whose dimensions have these logical axes (None: whole); a mesh axis
    splits the first dimension that wants it.
    """
    used, dimensions = set(), []
    for logical in logical_axes:
        axes = tuple(a for a in (table[logical] if logical else ()) if a not in used)
        used.update(axes)
        dimensions.append(axes or None)
    return PartitionSpec(*dimensions)


def batch_sharding(mesh: Mesh, table) -> NamedSharding:
    """Of a batch's arrays (microbatches, rows, ...): the rows are split, the rest is whole."""
    return NamedSharding(mesh, spec((None, "batch"), table))


def check(shape, sharding: NamedSharding, what: str) -> None:
    """Refuses a shape that the mesh does not divide, before anything is compiled."""
    for size, axes in zip(shape, sharding.spec):
        axes = (axes,) if isinstance(axes, str) else axes or ()
        parts = math.prod(sharding.mesh.shape[a] for a in axes)
        if size % parts:
            keys = " x ".join(f"config.mesh.{a}={sharding.mesh.shape[a]}" for a in axes)
            raise UserError(f"{what} {tuple(shape)}: {keys} does not divide {size}")


@contextlib.contextmanager
def use(mesh: Mesh, table):
    """Within it, `constrain` means this mesh. Entered inside the traced function, so that no cache
    outlives it.
    """
    token = _current.set((mesh, table))
    try:
        yield
    finally:
        _current.reset(token)


def row_groups(param_shardings) -> int:
    """The number of groups into which the mesh axis "data" splits the rows of a batch.

    It is 1 where that axis does not split the rows first, or splits parameters too.
    """
    mesh, table = _current.get()
    splits_params = any(
        "data" in jax.tree.leaves(tuple(s.spec)) for s in jax.tree.leaves(param_shardings)
    )
    return 1 if table["batch"][:1] != ("data",) or splits_params else mesh.shape["data"]


@contextlib.contextmanager
def within_group(group: jax.Array, groups: int):
    """Within it, a batch is one group of its rows: number `group` () int32 of `groups`, under a
    vmap over all of them.

    The vmap has the mesh axis "data", so the table names it no more.
    """
    mesh, table = _current.get()
    without = {
        logical: tuple(axis for axis in axes if axis != "data") for logical, axes in table.items()
    }
    tokens = _current.set((mesh, without)), _group.set((group, groups))
    try:
        yield
    finally:
        _current.reset(tokens[0])
        _group.reset(tokens[1])


def in_group() -> bool:
    """Whether a batch is one group of its rows, under a vmap over the groups."""
    return _group.get() is not None


def draw_rows(
    draw: Callable[[jax.Array, tuple[int, ...]], jax.Array], key: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
    """draw(key, shape), whose first axis is the rows of a batch; within a group of rows, the
    group's part of the whole batch's draw.
    """
    if not in_group():
        return draw(key, shape)
    group, groups = _group.get()
    whole = (groups * shape[0], *shape[1:])

    @jax.custom_batching.custom_vmap
    def part(key, group):
        return jax.lax.dynamic_slice_in_dim(draw(key, whole), group * shape[0], shape[0])

    @part.def_vmap
    def parts(_, batched, key, group):
        return draw(key, whole).reshape(groups, *shape), True

    return part(key, group)


def constrain(x: jax.Array, *logical_axes: str | None) -> jax.Array:
    """`x` with its activations laid out by the table; without a mesh in use, `x` as it is."""
    if _current.get() is None:
        return x
    mesh, table = _current.get()
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec(logical_axes, table)))


def on_each_device(f, arguments: tuple, axes: tuple, result: tuple) -> jax.Array:
    """f(*arguments), computed by each device on its own part: for kernels that the partitioner
    can't split.

    `axes`: the logical axes of each argument, `result`: those of f's value.
    """
    if _current.get() is None or _current.get()[0].size == 1:
        return f(*arguments)
    mesh, table = _current.get()
    specs = tuple(
        PartitionSpec() if argument is None else spec(names, table)
        for argument, names in zip(arguments, axes)
    )
    return jax.shard_map(
        f, mesh=mesh, in_specs=specs, out_specs=spec(result, table), check_vma=False
    )(*arguments)


def device() -> jax.Device:
    """The first device of the mesh in use; without a mesh in use, what this machine computes on."""
    return jax.devices()[0] if _current.get() is None else _current.get()[0].devices.flat[0]


def platform() -> str:
    """What `device` is: "cpu", "gpu" or "tpu"."""
    return device().platform


def parts(logical_axis: str) -> int:
    """Over how many parts the mesh in use splits this axis."""
    if _current.get() is None:
        return 1
    mesh, table = _current.get()
    return math.prod(mesh.shape[a] for a in table[logical_axis])
