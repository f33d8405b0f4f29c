"""Adapters of our matrices as PEFT's adapters of modules, lora_A (r, inputs), lora_B (outputs, r).

GPT-2's module for queries, keys and values is three matrices here. Its adapter of rank r is three
adapters with the same A. Three adapters of their own are one of rank 3 r, whose lora_B is block
diagonal. There, a matrix without an adapter has zeros.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from scipy.linalg import block_diag

from transformer_jax.config import UserError
from transformer_jax.huggingface import tensors
from transformer_jax.huggingface.tensors import Table
from transformer_jax.layers import low_rank
from transformer_jax.layers.low_rank import Adapters

# The layouts of torch.nn.Linear and of OpenAI's Conv1D.
_LAYOUTS = ("linear", "linear_merge", "same", "conv1d", "conv1d_merge")

Tree = dict  # of dicts of arrays
Pair = tuple[Float[np.ndarray, "r I"], Float[np.ndarray, "O r"]]


@dataclasses.dataclass(frozen=True)
class Part:
    """One of our matrices in a module, with views of its adapter in one layer, if it has one."""

    outputs: int
    a: np.ndarray | None = None  # (*inputs, r)
    b: np.ndarray | None = None  # (r, *outputs)

    @property
    def pair(self) -> Pair | None:
        """The adapter as PEFT has it."""
        if self.a is None:
            return None
        rank = len(self.b)
        return self.a.reshape(-1, rank).T, self.b.reshape(rank, -1).T

    def fill(self, pair: Pair) -> None:
        """Fills the views with an adapter as PEFT has it."""
        a, b = pair
        self.a[...] = a.T.reshape(self.a.shape)
        self.b[...] = b.T.reshape(self.b.shape)


@dataclasses.dataclass(frozen=True)
class Module:
    """A module with adapters. `end` is the part of its name that all layers of a stack share."""

    name: str
    end: str
    parts: tuple[Part, ...]

    def joined(self) -> Pair:
        """Returns the adapter of the module."""
        pairs = [part.pair for part in self.parts]
        first, _ = next(pair for pair in pairs if pair is not None)
        if all(pair is not None and np.array_equal(pair[0], first) for pair in pairs):
            return first, np.concatenate([b for _, b in pairs])
        pairs = [
            pair or (np.zeros_like(first), np.zeros((part.outputs, len(first)), np.float32))
            for pair, part in zip(pairs, self.parts)
        ]
        return np.concatenate([a for a, _ in pairs]), block_diag(*(b for _, b in pairs))

    def fill(self, a: Float[np.ndarray, "R I"], b: Float[np.ndarray, "O R"]) -> None:
        """Fills the parts with the adapter of the module.

        Raises UserError where it is not the `joined` one of any parts.
        """
        rank = next(len(part.b) for part in self.parts if part.a is not None)
        inputs = next(part.a.size // rank for part in self.parts if part.a is not None)
        outputs = [part.outputs for part in self.parts]
        if a.shape[1] != inputs or len(b) != sum(outputs):
            raise UserError(
                f"{self.name}: has {a.shape[1]} inputs and {len(b)} outputs in the adapter, "
                f"{inputs} and {sum(outputs)} in the model"
            )
        rows = np.split(b, np.cumsum(outputs)[:-1])
        pairs = [(a, row) for row in rows]
        if len(a) != rank:
            count = len(rows)
            own = [np.split(row, count, axis=1)[place] for place, row in enumerate(rows)]
            if not np.array_equal(block_diag(*own), b):
                raise UserError(f"{self.name}: its adapter is none of each matrix by itself")
            pairs = [*zip(np.split(a, count), own)]
        for part, pair in zip(self.parts, pairs):
            if part.a is not None:
                part.fill(pair)


def modules(params: Tree, table: Table, adapters: Adapters) -> Iterator[Module]:
    """Yields the modules of the adapters in a tree of NumPy arrays; their parts are views.

    Raises UserError for an adapter of what is no module.
    """
    left = {path for path in paths(params) if path.endswith(low_rank.A)}
    for name, (layout, *of_name) in table.items():
        adapted = {path + low_rank.A for path in of_name if path.endswith("/kernel")} & left
        if adapted and layout in _LAYOUTS and name.endswith(".weight"):
            left -= adapted
            yield from _of_entry(params, name.removesuffix(".weight"), of_name, adapters)
    if left:
        names = tensors.listed(map(low_rank.matrix_of, left))
        raise UserError(f"config.lora.matrices: PEFT has no adapter of {names}; merge it instead")


def _of_entry(params: Tree, name: str, of_name: list[str], adapters: Adapters) -> Iterator[Module]:
    """Yields the modules of an entry of a table: one, or one for each layer with adapters."""
    matrices = [at(params, path) for path in of_name]
    pairs = [
        [at(params, path + end) for end in (low_rank.A, low_rank.B)]
        if path + low_rank.A in set(paths(params))
        else None
        for path in of_name
    ]
    if not tensors.is_stack(name):
        yield Module(name, name, _parts(matrices, pairs))
        return
    for place, layer in enumerate(adapters.chosen(len(matrices[0]))):
        of_layer = [pair and [x[place] for x in pair] for pair in pairs]
        parts = _parts([matrix[layer] for matrix in matrices], of_layer)
        yield Module(tensors.of_layer(name, layer), name.rpartition("}.")[2], parts)


def _parts(matrices: list[np.ndarray], pairs: list[list[np.ndarray] | None]) -> tuple[Part, ...]:
    inputs = math.prod(next(pair[0].shape[:-1] for pair in pairs if pair))
    return tuple(Part(matrix.size // inputs, *pair or ()) for matrix, pair in zip(matrices, pairs))


def paths(params: Tree, prefix: str = "") -> Iterator[str]:
    """Yields the names of the leaves, such as "norm/scale"."""
    for name, value in params.items():
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{name}/")
        else:
            yield prefix + name


def at(params: Tree, path: str) -> np.ndarray:
    """Returns the leaf of a name."""
    return functools.reduce(operator.getitem, path.split("/"), params)
