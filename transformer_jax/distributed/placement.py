"""The placement of parameters and rows on devices, for programs that use a trained model.

The parameters of a use are on a mesh, as in training. A program of the use enters `Placement.use`
in the traced function. Its rows are then split over the devices, and its results are gathered.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator

import jax
from jax.sharding import Mesh, NamedSharding

from transformer_jax.distributed import sharding


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
        return cls(mesh, tuple(sharding.rules(config).items()))

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Sets the mesh and the table, as `sharding.use`. One device needs neither."""
        if self.mesh.size == 1:
            yield
            return
        with sharding.use(self.mesh, dict(self.rules)):
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
            parts = sharding.parts("batch")
        return -(-count // parts) * parts


def split_rows(tree):
    """Returns the arrays (rows, ...) of a traced function, split over the devices by rows."""
    return jax.tree.map(lambda x: sharding.constrain(x, "batch", *[None] * (x.ndim - 1)), tree)


def gathered(tree):
    """Returns the arrays of a traced function, complete on each device of each process.

    `jax.device_get` then has the same values on all processes.
    """
    return jax.tree.map(lambda x: sharding.constrain(x, *[None] * x.ndim), tree)


def _one_device(placed) -> Mesh:
    device = min(placed.device_set, key=lambda x: x.id) if placed else jax.local_devices()[0]
    return sharding.make_mesh(dict.fromkeys(sharding.AXES, 1), [device])
