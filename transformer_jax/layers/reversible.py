"""Reversible layers, whose inputs can be computed from their outputs (Kitaev et al. 2020, sec. 3).

The backward pass recomputes the inputs from the last layer to the first. It needs only the outputs
of the last layer, so that the memory for activations does not depend on the number of layers.
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

    The halves are float32, so that the inverse x2 = y2 - g(y1), x1 = y1 - f(x2) loses little
    precision. Each sublayer starts with a norm. Attention returns its output and its buckets, or
    None instead of buckets. If it is given the buckets of an earlier call, it reproduces the output
    of that call.
    """

    # Constructors, to which the model has bound all options but the name.
    new_attention: Callable[..., nn.Module]
    new_mlp: Callable[..., nn.Module]
    new_norm: Callable[..., nn.Module]
    dropout: float = 0.0
    mlp_chunk: int | None = None  # positions that the MLP processes at a time; None: all

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
        """Returns f(x) float32, and the buckets of attention."""
        y, buckets = self.attention(self.attention_norm(x), train=train, **options)
        return self.attention_dropout(y.astype(x.dtype), train=train), buckets

    def fed(self, x: Float[Array, "B L M"], *, train: bool = False) -> Float[Array, "B L M"]:
        """Returns g(x) float32."""
        normed = self.mlp_norm(x)
        size = self.mlp_chunk
        y = self._in_chunks(normed, size, train) if size else self.mlp(normed, train=train)
        return self.mlp_dropout(y.astype(x.dtype), train=train)

    def _in_chunks(self, x: Float[Array, "B L M"], size: int, train: bool):
        """Applies the MLP in chunks, so that its hidden layer is in memory for one chunk only."""
        batch, length, features = x.shape
        if length <= size:
            return self.mlp(x, train=train)
        # The MLP treats positions one by one, so the padding needs no mask.
        chunks = jnp.pad(x, ((0, 0), (0, -length % size), (0, 0)))
        chunks = chunks.reshape(batch, -1, size, features)

        def on_chunk(mlp, carry, x):
            return carry, mlp(x, train=train)

        scan = nn.scan(
            # In a loop, XLA cannot merge the recomputation with the forward pass, so nothing must
            # prevent it.
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

    With `reversed`, the backward pass of training recomputes the activations of each layer from its
    outputs. Otherwise this is an ordinary stack.
    """

    reversed: bool = True

    @nn.compact
    def __call__(
        self, x: Pair, *, mask: Mask, train: bool = False, decode: int = 0, **options
    ) -> Pair:
        if not (train and self.reversed):
            return super().__call__(x, mask=mask, train=train, decode=decode, **options)
        # The custom gradient is a function of arrays, so it takes the parameters out of Linen.
        params = self.variables["params"][self._name]
        names = [f"block_{index}" for index in range(len(self.blocks))]
        by_block = [params] if len(names) == 1 else [params[name] for name in names]
        # The keys are split here, not by Linen, so that the backward pass can draw each layer's
        # dropout again.
        keys = jax.random.split(self.make_rng("dropout"), (self._repeats, len(names)))
        # Without a parent, a block can be applied to the parameters of any layer.
        layers = _Layers([block(parent=None) for block in self.blocks], self.unroll)
        return layers.outputs(by_block, x, keys, (mask, options))


@dataclasses.dataclass(frozen=True)
class _Layers:
    """The layers of a reversible stack in training, as functions of stacked parameters."""

    blocks: Sequence[ReversibleBlock]
    unroll: int

    def outputs(self, params, x: Pair, keys: jax.Array, context: tuple[Mask, dict]) -> Pair:
        """Returns the two halves after the last layer.

        `params` holds a tree for each block of the pattern, with a leading axis of repeats. `keys`
        (repeats, blocks) are the PRNG keys of the dropout of each layer.
        """

        # All traced values are arguments, because a custom gradient must not close over any.
        @jax.custom_vjp
        def outputs(params, x, keys, context):
            return self.forward(params, x, keys, context)[0]

        def forward(params, x, keys, context):
            y, buckets = self.forward(params, x, keys, context)
            return y, (params, y, keys, context, buckets)

        outputs.defvjp(forward, self.backward)
        return outputs(params, x, keys, context)

    def forward(self, params, x: Pair, keys, context):
        """Returns the outputs, and the buckets of each layer.

        The buckets are saved for the backward pass, because hashing a recomputed input, which
        differs in the last bits, could assign a query to another bucket.
        """

        def pattern(x, scanned):
            params, keys = scanned
            buckets = []
            for index, block in enumerate(self.blocks):
                attended, fed = _sublayers(block, keys[index], context)
                y, one = attended(params[index], x[1], None)
                y1 = constrained(x[0] + y)
                x = (y1, constrained(x[1] + fed(params[index], y1)))
                buckets.append(one)
            return x, buckets

        return jax.lax.scan(pattern, x, (params, keys), unroll=self._scanned)

    def backward(self, residuals, gradients: Pair):
        """Returns the gradients of `outputs`, given the residuals of its forward pass."""
        params, outputs, keys, context, buckets = residuals

        def pattern(carried, scanned):
            params, keys, buckets = scanned
            d_params = []
            for index, block in reversed(list(enumerate(self.blocks))):
                sublayers = _sublayers(block, keys[index], context)
                carried, d_block = _inverted(sublayers, params[index], carried, buckets[index])
                d_params.insert(0, d_block)
            return carried, d_params

        (_, d_inputs), d_params = jax.lax.scan(
            pattern,
            (outputs, gradients),
            (params, keys, buckets),
            reverse=True,
            unroll=self._scanned,
        )
        # The last two gradients are None, because PRNG keys have none and nothing of the context is
        # learned.
        return d_params, d_inputs, None, None

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
    """Returns (inputs, their gradients) of a block, and the gradients of its parameters.

    `carried` is (outputs, their gradients).
    """
    attended, fed = sublayers
    (y1, y2), (d_y1, d_y2) = carried
    # The forward pass of each vjp also yields the value that the inverse subtracts, so that every
    # sublayer is recomputed only once.
    y, pull_back_mlp = jax.vjp(fed, params, y1)
    x2 = y2 - y
    d_mlp, d_input = pull_back_mlp(d_y2)
    # The gradient has two terms, because y1 is an output of the block and the input of g.
    d_y1 = d_y1 + d_input
    y, pull_back_attention = jax.vjp(lambda params, x: attended(params, x, buckets)[0], params, x2)
    x1 = y1 - y
    d_attention, d_input = pull_back_attention(d_y1)
    d_params = jax.tree.map(jnp.add, d_mlp, d_attention)
    return ((x1, x2), (d_y1, d_y2 + d_input)), d_params
