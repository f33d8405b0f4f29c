"""The device mesh, the table from logical axes to mesh axes, and placement on devices."""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import UserError

# --------------------------------------------------------------------------------------------------
# The mesh, and the sharding of arrays over it by their logical axes.
#
# Layers only name the logical axes of their parameters and activations. `RULES`, the only such
# table, maps each logical axis to the mesh axes that split it. From these shardings `jax.jit`
# partitions the programs.

# Devices along the first axes may be the farthest from each other: they exchange the least.
AXES = ("pipeline", "data", "fsdp", "expert", "tensor", "sequence")

RULES = {
    # The rows of a batch. They are split over fsdp as well, because devices along it hold different
    # parts of the parameters, but should not all compute the same rows. For the same reason they
    # are split over pipeline, but not within the stages of a stack, and over expert, except where
    # experts compute.
    "batch": ("data", "pipeline", "fsdp", "expert"),
    # The rows of a batch during an embedding lookup. They are not split over fsdp, because that
    # axis splits the vectors: each device looks up its own columns of the table for all rows.
    "lookup": ("data", "pipeline", "expert"),
    # The rows of a batch where experts compute: each device has the positions of these rows that
    # its own experts read.
    "routed": ("data", "pipeline", "fsdp"),
    # The experts of a layer.
    "experts": ("expert",),
    # The positions of a row. They can be split, because attention alone needs those of other
    # devices, and ring attention exchanges them.
    "length": ("sequence",),
    # The stacked axis of a scan over layers. Each stage of a pipeline has its own layers.
    "layers": ("pipeline",),
    # d_model in parameters. Activations do not split it: they split rows over fsdp instead.
    "embed": ("fsdp",),
    # The rows of the output table. They are split, because the logits of a large vocabulary are the
    # largest array of a step.
    "vocab": ("tensor",),
    # Heads and d_ff are the output axes of the first matrices of attention and of an MLP, and the
    # input axes of the last, so that each needs a single sum over tensor.
    "heads": ("tensor",),
    "mlp": ("tensor",),
    # A split dimension would need a sum over devices for each score.
    "head_dim": (),
    # Vectors are not split, because they are so small that this would save hardly any memory.
    "norm": (),
}

# These are context variables, so that layers need no argument for the mesh, and threads may use
# different ones.
_current: contextvars.ContextVar = contextvars.ContextVar("sharding", default=None)
_group: contextvars.ContextVar = contextvars.ContextVar("group", default=None)
_microbatches: contextvars.ContextVar = contextvars.ContextVar("microbatches", default=None)


def make_mesh(config, devices=None) -> Mesh:
    """Returns a mesh of `devices`, by default all, with the axes AXES and their sizes in `config`.

    `config` is config.mesh. One size may be -1, which means all remaining devices. Raises UserError
    if the product of the sizes is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes, slices = [config[axis] for axis in AXES], config["slices"]
    keys = ", ".join(f"config.mesh.{axis}={size}" for axis, size in zip(AXES, sizes))
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise UserError(f"{keys}: each must be at least 1, one may be -1")
    known = math.prod(size for size in sizes if size != -1)
    if len(devices) % known or (-1 not in sizes and known != len(devices)):
        raise UserError(
            f"{keys}: the product is {known}, and the devices are {len(devices)}"
            f"{', which it does not divide' if -1 in sizes else ''}; "
            "XLA_FLAGS=--xla_force_host_platform_device_count=N gives N virtual CPU devices"
        )
    sizes = [len(devices) // known if size == -1 else size for size in sizes]
    # The axes are Auto, because Linen's sharding constraints fail with Explicit axes, which are the
    # default of make_mesh.
    types = (AxisType.Auto,) * len(AXES)
    devices = np.asarray(devices).flatten()
    if slices == 1:
        return jax.make_mesh(sizes, AXES, devices=devices, axis_types=types)
    # Slices exchange nothing but gradients, along the axis data. XLA reduces these within each
    # slice first, so that each of its devices sends a part of the sum to the other slices.
    axis = AXES.index("data")
    in_slice = [size // slices if number == axis else size for number, size in enumerate(sizes)]
    if sizes[axis] % slices:
        raise UserError(f"config.mesh.slices={slices} does not divide {keys}")
    parts = [
        jax.make_mesh(in_slice, AXES, devices=each, axis_types=types).devices
        for each in _slices(devices, slices)
    ]
    return Mesh(np.concatenate(parts, axis), AXES, axis_types=types)


def _slices(devices: np.ndarray, count: int) -> list[np.ndarray]:
    """Returns the devices of each slice. Those that name no slice are divided in their order."""
    numbers = np.array([getattr(device, "slice_index", 0) for device in devices])
    found = np.unique(numbers)
    if len(found) == 1:
        return np.split(devices, count)
    if len(found) != count:
        raise UserError(f"config.mesh.slices={count}: the devices are in {len(found)} slices")
    return [devices[numbers == number] for number in found]


def rules(config) -> dict[str, tuple[str, ...]]:
    """Returns RULES with the overrides of `config.rules`, where `config` is config.mesh.

    Raises UserError for a malformed rule or an unknown axis.
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
    if table["layers"] != RULES["layers"]:
        raise UserError(
            "config.mesh.rules: layers are split over pipeline alone; to split parameters, give "
            "another of their axes, such as embed"
        )
    if config.pipeline > 1 and not all("pipeline" in table[name] for name in ("batch", "lookup")):
        raise UserError(
            f"config.mesh.rules: with config.mesh.pipeline={config.pipeline}, the axes of batch "
            "and lookup must contain pipeline"
        )
    return table


def _is_rule(rule) -> bool:
    """Returns whether `rule` has the form (logical axis, (mesh axis, ...))."""
    is_pair = isinstance(rule, tuple) and len(rule) == 2
    return is_pair and isinstance(rule[0], str) and isinstance(rule[1], tuple)


def spec(logical_axes, table) -> PartitionSpec:
    """Returns the PartitionSpec of an array whose dimensions have these logical axes.

    A dimension with None is not split. If two dimensions name the same mesh axis, it splits only
    the first of them, because a PartitionSpec may contain each mesh axis once.
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
    """Returns the sharding of a batch's arrays (microbatches, rows, ...), which splits the rows.

    The stages of a pipeline split the microbatches instead. The positions are not split here: the
    model splits them where it computes with them.
    """
    return NamedSharding(mesh, spec(("layers", "batch"), table))


def check(shape, sharding: NamedSharding, name: str) -> None:
    """Raises UserError, with `name` in the message, for a shape that the mesh does not divide."""
    for size, axes in zip(shape, sharding.spec):
        axes = (axes,) if isinstance(axes, str) else axes or ()
        parts = {axis: n for axis in axes if (n := sharding.mesh.shape[axis]) > 1}
        if size % math.prod(parts.values()):
            keys = " x ".join(f"config.mesh.{axis}={n}" for axis, n in parts.items())
            raise UserError(f"{name} {tuple(shape)}: {keys} does not divide {size}")


@contextlib.contextmanager
def use(mesh: Mesh, table):
    """In the context, the functions below use this mesh and this table.

    Enter it inside the traced function. Outside of it, a trace that JAX has cached would keep the
    mesh of its first call.
    """
    token = _current.set((mesh, table))
    try:
        yield
    finally:
        _current.reset(token)


def row_groups(param_shardings) -> int:
    """Returns the number of groups into which the mesh axis "data" splits the rows of a batch.

    It is 1 if "data" is not the first axis that splits the rows, because a group is a contiguous
    block of them, or if "data" also splits parameters, because the vmap over groups takes that axis
    for itself.
    """
    mesh, table = _current.get()
    splits_params = any(
        "data" in jax.tree.leaves(tuple(s.spec)) for s in jax.tree.leaves(param_shardings)
    )
    return 1 if table["batch"][:1] != ("data",) or splits_params else mesh.shape["data"]


@contextlib.contextmanager
def within_group(group: jax.Array, groups: int):
    """In the context, a batch is one group of its rows, under a vmap over all `groups`.

    `group` is the number of the group, () int32. The vmap occupies the mesh axis "data".
    """
    token = _group.set((group, groups))
    try:
        with without("data"):
            yield
    finally:
        _group.reset(token)


@contextlib.contextmanager
def without(axis: str):
    """In the context, a mesh axis splits nothing but layers.

    A vmap whose `spmd_axis_name` is this axis puts it into the constraints by itself.
    """
    mesh, table = _current.get()
    others = {
        logical: axes if logical == "layers" else tuple(each for each in axes if each != axis)
        for logical, axes in table.items()
    }
    token = _current.set((mesh, others))
    try:
        yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def in_microbatches(count: int) -> Iterator["Microbatches"]:
    """In the context, the rows of a batch pass through a pipeline in so many microbatches."""
    current = Microbatches(count)
    token = _microbatches.set(current)
    try:
        yield current
    finally:
        _microbatches.reset(token)


@dataclasses.dataclass
class Microbatches:
    """The number of microbatches of a pipeline, and whether a pipeline has asked for it."""

    count: int
    are_used: bool = False


def microbatches() -> int:
    """Returns the number of microbatches of a pipeline, by default one for each stage."""
    if _microbatches.get() is None:
        return parts("layers")
    _microbatches.get().are_used = True
    return _microbatches.get().count


def in_group() -> bool:
    """Returns whether the code runs in the context `within_group`."""
    return _group.get() is not None


def draw_rows(
    draw: Callable[[jax.Array, tuple[int, ...]], jax.Array], key: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
    """Returns draw(key, shape), where the first axis of `shape` is the rows of a batch.

    In a group of rows, it returns the group's part of the draw for the whole batch, so that random
    numbers such as dropout do not depend on the number of groups, and thus on the mesh.
    """
    if not in_group():
        return draw(key, shape)
    group, groups = _group.get()
    batch_shape = (groups * shape[0], *shape[1:])
    return _part_of_draw(lambda key: draw(key, batch_shape), groups, axis=0)(key, group)


def _part_of_draw(draw: Callable[[jax.Array], jax.Array], groups: int, axis: int):
    """Returns the function (key, group) -> the group's part of draw(key), along an axis of rows."""

    @jax.custom_batching.custom_vmap
    def on_group(key, group):
        drawn = draw(key)
        size = drawn.shape[axis] // groups
        return jax.lax.dynamic_slice_in_dim(drawn, group * size, size, axis)

    @on_group.def_vmap
    def on_all(_, mapped, keys, group):
        if mapped[0]:  # over the stages of a pipeline, each with a key of its own
            return _part_of_draw(jax.vmap(draw), groups, axis + 1)(keys, group), True
        # Under the vmap over groups, one draw serves all of them. The default rule would draw the
        # numbers of the whole batch once for each group.
        drawn = draw(keys)
        parts = drawn.reshape(*drawn.shape[:axis], groups, -1, *drawn.shape[axis + 1 :])
        return jnp.moveaxis(parts, axis, 0), True

    return on_group


def constrain(x: jax.Array, *logical_axes: str | None) -> jax.Array:
    """Constrains `x` to the sharding of these logical axes. Without a mesh in use, returns `x`."""
    if _current.get() is None:
        return x
    mesh, table = _current.get()
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec(logical_axes, table)))


def on_each_device(f, arguments: tuple, axes: tuple, result):
    """Returns f(*arguments), which each device computes on its own shards.

    It is meant for functions that XLA can't partition, or partitions badly, such as kernels. `axes`
    are trees with the logical axes of each argument, and `result` is such a tree for the value of
    `f`.
    """
    if _current.get() is None or _current.get()[0].size == 1:
        return f(*arguments)
    mesh, table = _current.get()

    def specs(tree):
        return jax.tree.map(lambda names: spec(names, table), tree, is_leaf=_is_axes)

    # The outputs of Pallas kernels do not declare over which mesh axes they vary, so JAX could not
    # check it (check_vma).
    return jax.shard_map(
        f, mesh=mesh, in_specs=specs(axes), out_specs=specs(result), check_vma=False
    )(*arguments)


def _is_axes(node) -> bool:
    return isinstance(node, tuple) and all(isinstance(name, str | None) for name in node)


def gather_after(params, x):
    """Returns (params, x), with `params` not to be gathered before `x` has been computed.

    Without this optimization barrier, XLA gathers all parameters at once, before a loop whose
    iterations use them or before the first of several layers, so that they need as much memory on
    each device as if they were not sharded.
    """
    # A barrier is used only if parameters are split, because XLA does not optimize across it.
    return jax.lax.optimization_barrier((params, x)) if parts("embed") > 1 else (params, x)


def device() -> jax.Device:
    """Returns the first device of the mesh in use; without one, the first device of JAX."""
    return jax.devices()[0] if _current.get() is None else _current.get()[0].devices.flat[0]


def platform() -> str:
    """Returns the platform of `device`: "cpu", "gpu" or "tpu"."""
    return device().platform


def is_ampere() -> bool:
    """Returns whether `device` is an NVIDIA GPU of the Ampere architecture or a later one."""
    # The text may be no number, because the capability of an AMD GPU is a name such as gfx942.
    major = getattr(device(), "compute_capability", "").partition(".")[0]
    return major.isdecimal() and int(major) >= 8


def parts(logical_axis: str) -> int:
    """Returns into how many parts the mesh in use splits a logical axis; 1 without a mesh."""
    if _current.get() is None:
        return 1
    mesh, table = _current.get()
    return math.prod(mesh.shape[axis] for axis in table[logical_axis])


def parts_before(logical_axis: str, axis: str) -> int:
    """Returns into how many parts the axes before `axis` in the table split a logical axis."""
    if _current.get() is None:
        return 1
    mesh, table = _current.get()
    names = table[logical_axis]
    return math.prod(mesh.shape[name] for name in names[: names.index(axis)])


def mesh_axes(logical_axes: tuple[str | None, ...]) -> list[tuple[str, ...]]:
    """Returns the axes of the mesh in use that split each dimension with these logical axes.

    There are none if there is only one device, because `on_each_device` then uses no shard_map.
    """
    if _current.get() is None or _current.get()[0].size == 1:
        return [()] * len(logical_axes)
    return _mesh_axes(logical_axes, _current.get()[1])


# --------------------------------------------------------------------------------------------------
# The placement of parameters and rows on devices, for programs that use a trained model.
#
# As in training, the parameters of a run that is opened for use are on a mesh. Each traced function
# enters `Placement.use`, splits its rows over the devices, and gathers its results.


@dataclasses.dataclass(frozen=True)
class Placement:
    """A mesh and its table of logical axes, hashable as a static argument of jitted functions."""

    mesh: Mesh
    rules: tuple[tuple[str, tuple[str, ...]], ...]  # mesh axes by logical axis

    @classmethod
    def of(cls, params, config) -> "Placement":
        """Returns the mesh of `params`, with the rules of `config`, which is config.mesh.

        For parameters without a mesh, such as NumPy arrays, the mesh has one device.
        """
        current = getattr(jax.tree.leaves(params)[0], "sharding", None)
        mesh = current.mesh if isinstance(current, NamedSharding) else _one_device(current)
        return cls(mesh, tuple(rules(config).items()))

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Sets the mesh and the table, as the function `use` does. One device needs neither."""
        if self.mesh.size == 1:
            yield
            return
        with use(self.mesh, dict(self.rules)):
            yield

    def decoding(self) -> "Placement":
        """Returns the placement for decoding, which reads single positions and splits none."""
        return self.dividing(length=1)

    def dividing(self, **sizes: int) -> "Placement":
        """Returns a placement that splits a named logical axis only if the mesh divides its size.

        For instance, `dividing(batch=1, lookup=1)` does not split a stream of one row.
        """

        def divides(name, axes):
            parts = math.prod(self.mesh.shape[axis] for axis in axes)
            return sizes.get(name, 0) % parts == 0

        fitting = tuple((name, axes if divides(name, axes) else ()) for name, axes in self.rules)
        return dataclasses.replace(self, rules=fitting)

    def rows(self, count: int) -> int:
        """Returns the smallest number of rows, at least `count`, that the mesh divides."""
        with self.use():
            size = parts("batch")
        return -(-count // size) * size


def split_rows(tree):
    """In a traced function, splits the rows of arrays (rows, ...) over the devices."""
    return jax.tree.map(lambda x: constrain(x, "batch", *[None] * (x.ndim - 1)), tree)


def gathered(tree):
    """In a traced function, replicates arrays on all devices of all processes.

    `jax.device_get` can then fetch the values, the same ones on every process.
    """
    return jax.tree.map(lambda x: constrain(x, *[None] * x.ndim), tree)


def _one_device(current: jax.sharding.Sharding | None) -> Mesh:
    # The set has no order, and the mesh must be the same each time, or functions would be compiled
    # again.
    device = min(current.device_set, key=lambda x: x.id) if current else jax.local_devices()[0]
    return Mesh(np.full((1,) * len(AXES), device), AXES, axis_types=(AxisType.Auto,) * len(AXES))
