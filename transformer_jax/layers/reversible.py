"""Layers whose inputs follow from their outputs (Kitaev et al. 2020, section 3).

The backward pass computes them again, from the last layer to the first: it needs the outputs of the
last layer alone, and the memory of activations does not depend on the number of layers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.distributed import sharding
from transformer_jax.layers.blocks import Stack
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout

Pair = tuple[Float[Array, "B L M"], Float[Array, "B L M"]]


class ReversibleBlock(nn.Module):
    """Attention f and MLP g on two halves: y1 = x1 + f(x2), y2 = x2 + g(y1).

    The halves are float32, so that the inverse x2 = y2 - g(y1), x1 = y1 - f(x2) loses little. Each
    sublayer begins with a norm. Attention returns its output and its buckets, or None. With the
    buckets of a call, it computes the output of that call.
    """

    # Constructors. The model binds their options.
    new_attention: Callable[..., nn.Module]
    new_mlp: Callable[..., nn.Module]
    new_norm: Callable[..., nn.Module]
    dropout: float = 0.0
    mlp_chunk: int | None = None  # positions that the MLP reads at a time; None: all

    def setup(self):
        self.attention_norm = self.new_norm()
        self.attention = self.new_attention()
        self.attention_dropout = Dropout(self.dropout)
        self.mlp_norm = self.new_norm()
        self.mlp = self.new_mlp()
        self.mlp_dropout = Dropout(self.dropout)

    def __call__(self, x: Pair, *, mask: Mask, train: bool = False, **options) -> Pair:
        x1, x2 = x
        y1 = constrained(x1 + self.attended(x2, mask=mask, train=train, **options)[0])
        return y1, constrained(x2 + self.fed(y1, train=train))

    def attended(
        self, x: Float[Array, "B L M"], *, train: bool = False, **options
    ) -> tuple[Float[Array, "B L M"], Any]:
        """Returns f(x), float32, and the buckets of attention."""
        y, buckets = self.attention(self.attention_norm(x), train=train, **options)
        return self.attention_dropout(y.astype(x.dtype), train=train), buckets

    def fed(self, x: Float[Array, "B L M"], *, train: bool = False) -> Float[Array, "B L M"]:
        """Returns g(x), float32."""
        normed = self.mlp_norm(x)
        size = self.mlp_chunk
        y = self._in_chunks(normed, size, train) if size else self.mlp(normed, train=train)
        return self.mlp_dropout(y.astype(x.dtype), train=train)

    def _in_chunks(self, x: Float[Array, "B L M"], size: int, train: bool):
        """Returns the output of the MLP, whose hidden layer is in memory for one chunk alone."""
        batch, length, features = x.shape
        if length <= size:
            return self.mlp(x, train=train)
        chunks = jnp.pad(x, ((0, 0), (0, -length % size), (0, 0)))
        chunks = chunks.reshape(batch, -1, size, features)

        def on_chunk(mlp, carry, x):
            return carry, mlp(x, train=train)

        scan = nn.scan(
            nn.remat(on_chunk, prevent_cse=False),
            variable_broadcast="params",
            split_rngs={"params": False, "dropout": True},
            in_axes=1,
            out_axes=1,
        )
        _, y = scan(self.mlp, None, chunks)
        return y.reshape(batch, -1, features)[:, :length]


def constrained(x: Float[Array, "B L M"]) -> Float[Array, "B L M"]:
    return sharding.constrain(x, "batch", "length", None)


class ReversibleStack(Stack):
    """Reversible blocks in sequence: two halves (B, L, M) -> two halves.

    Where it is `reversed`, the backward pass of training computes the activations of each layer
    again. Otherwise it is a stack as any other.
    """

    reversed: bool = True

    @nn.compact
    def __call__(
        self, x: Pair, *, mask: Mask, train: bool = False, decode: int = 0, **options
    ) -> Pair:
        if not (train and self.reversed):
            return super().__call__(x, mask=mask, train=train, decode=decode, **options)
        params = self.variables["params"][self._name]
        places = [f"block_{place}" for place in range(len(self.blocks))]
        by_place = [params] if len(places) == 1 else [params[place] for place in places]
        keys = jax.random.split(self.make_rng("dropout"), (self._repeats, len(places)))
        layers = _Layers([block(parent=None) for block in self.blocks], self.unroll)
        return layers.outputs(by_place, x, keys, (mask, options))


@dataclasses.dataclass(frozen=True)
class _Layers:
    """The layers of a reversible stack in training, as functions of stacked parameters."""

    blocks: Sequence[ReversibleBlock]
    unroll: int

    def outputs(self, params, x: Pair, keys: jax.Array, context: tuple[Mask, dict]) -> Pair:
        """Returns the halves behind the last layer.

        `params` and `keys` have a leading axis of repeats of the pattern of blocks; `params` are
        those of each block, and `keys` (repeats, blocks) are those of its dropout.
        """

        @jax.custom_vjp
        def outputs(params, x, keys, context):
            return self.forward(params, x, keys, context)[0]

        def forward(params, x, keys, context):
            y, buckets = self.forward(params, x, keys, context)
            return y, (params, y, keys, context, buckets)

        outputs.defvjp(forward, self.backward)
        return outputs(params, x, keys, context)

    def forward(self, params, x: Pair, keys, context):
        """Returns the outputs, and the buckets of each layer."""

        def pattern(x, scanned):
            params, keys = scanned
            buckets = []
            for place, block in enumerate(self.blocks):
                attended, fed = _sublayers(block, keys[place], context)
                y, one = attended(params[place], x[1], None)
                y1 = constrained(x[0] + y)
                x = (y1, constrained(x[1] + fed(params[place], y1)))
                buckets.append(one)
            return x, buckets

        return jax.lax.scan(pattern, x, (params, keys), unroll=self._scanned)

    def backward(self, residuals, gradients: Pair):
        """Returns the gradients of `outputs`. Residuals are those of its forward pass."""
        params, outputs, keys, context, buckets = residuals

        def pattern(carried, scanned):
            params, keys, buckets = scanned
            of_params = []
            for place, block in reversed(list(enumerate(self.blocks))):
                sublayers = _sublayers(block, keys[place], context)
                carried, of_one = _inverted(sublayers, params[place], carried, buckets[place])
                of_params.insert(0, of_one)
            return carried, of_params

        (_, of_inputs), of_params = jax.lax.scan(
            pattern,
            (outputs, gradients),
            (params, keys, buckets),
            reverse=True,
            unroll=self._scanned,
        )
        return of_params, of_inputs, None, None

    @property
    def _scanned(self) -> int:
        return -(-self.unroll // len(self.blocks))


def _sublayers(block: ReversibleBlock, key, context) -> tuple[Callable, Callable]:
    """Returns f(params, x, buckets) -> (y, buckets), and g(params, x) -> y."""
    mask, options = context
    apply = partial(block.apply, rngs={"dropout": key}, train=True)

    def attended(params, x, buckets):
        call = partial(apply, method="attended", mask=mask, buckets=buckets)
        return call({"params": params}, x, **options)

    def fed(params, x):
        return apply({"params": params}, x, method="fed")

    return attended, fed


def _inverted(sublayers: tuple[Callable, Callable], params, carried: tuple[Pair, Pair], buckets):
    """Returns the inputs of a block with their gradients, and the gradients of its parameters.

    `carried` are its outputs with their gradients.
    """
    attended, fed = sublayers
    (y1, y2), (of_y1, of_y2) = carried
    y, of_fed = jax.vjp(fed, params, y1)
    x2 = y2 - y
    of_mlp, of_input = of_fed(of_y2)
    of_y1 = of_y1 + of_input
    y, of_attended = jax.vjp(lambda params, x: attended(params, x, buckets)[0], params, x2)
    x1 = y1 - y
    of_attention, of_input = of_attended(of_y1)
    of_params = jax.tree.map(jnp.add, of_mlp, of_attention)
    return ((x1, x2), (of_y1, of_y2 + of_input)), of_params
