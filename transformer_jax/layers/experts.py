"""A layer of experts: several MLPs, of which each position is sent to a few.

A router chooses the experts of each position (Shazeer et al. 2017). A layer then has the parameters
of all its MLPs, and computes only a few of them at each position. Experts are on different devices
along the mesh axis "expert": before they compute, the devices exchange the positions, and after it
the outputs (Lepikhin et al. 2021).
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.distributed import sharding
from transformer_jax.layers import activations
from transformer_jax.layers.parameters import PRODUCTS, declared


def capacity(length: int, num_experts: int, per_token: int, factor: float | None) -> int:
    """Returns how many positions of a row of `length` an expert computes, at most.

    It is `factor` times the number that each expert would have if all had the same. None: there is
    no limit, and so room for the whole row.
    """
    if factor is None:
        return length
    return min(length, math.ceil(factor * length * per_token / num_experts))


class Experts(nn.Module):
    """Gated MLPs, of which each position is sent to `per_token`: (B, L, M) -> (B, L, M).

    The output is the sum of the chosen experts' outputs, weighted by the router's softmax over them
    (Jiang et al. 2024, section 2.1). With one expert for each position, the weight is its
    probability among all experts (Fedus et al. 2022, equation 2).

    A training with the loss of balance collects "losses". The layer then sows the loss "balance",
    the sum over rows of num_experts * sum_i f_i P_i, where f_i is the share of the row's choices
    that are expert i, and P_i the mean of its probability. It is 1 if both are uniform. In Fedus et
    al. 2022 (equation 4), f and P are those of the whole batch; those of a row do not depend on the
    mesh, nor on the microbatches. Padding counts like other positions.

    In such a training, an expert computes at most `capacity` positions of a row, the first ones
    that are sent to it. The output of a position lacks the experts that had no room for it.
    Otherwise, nothing is left out, so that, up to rounding, outputs depend neither on other
    positions nor on how many are computed at once. The arrays have room for the capacity whether it
    is used or not: without a limit, the products have num_experts / per_token times the FLOPs of
    the chosen experts alone.
    """

    d_ff: int
    num_experts: int
    per_token: int
    capacity_factor: float | None
    activation: Callable[[jax.Array], jax.Array]
    kernel_init: nn.initializers.Initializer
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "B L M"], *, train: bool = False) -> Float[Array, "B L M"]:
        batch, length, width = x.shape
        # A row is routed as a whole, so that the devices along the axis "sequence" gather it.
        x = sharding.constrain(x, "batch", None, None)
        probabilities = activations.named(self, "probabilities", self._routed(x))  # (B, L, E)
        weights, chosen = _largest(probabilities, self.per_token)  # (B, L, K)
        if self.per_token > 1:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        is_balanced = train and self.is_mutable_collection("losses")
        if is_balanced:
            self.sow("losses", "balance", _imbalance(probabilities, chosen).sum())

        factor = self.capacity_factor if is_balanced else None
        room = capacity(length, self.num_experts, self.per_token, factor)
        slots, is_kept = _slots(chosen.reshape(batch, -1), self.num_experts, room)
        positions = jnp.repeat(jnp.arange(length), self.per_token)

        # The position that each slot holds. Empty slots hold position 0, and no output has theirs.
        # What is left out is written behind the last slot and cut off.
        def held(slots):
            return jnp.zeros(self.num_experts * room + 1, int).at[slots].set(positions)[:-1]

        sent = jnp.take_along_axis(x, jax.vmap(held)(slots)[..., None], axis=1).astype(self.dtype)
        # So that the gradient is exchanged in this form, too, and not summed over all devices.
        sent = sharding.constrain(sent, "batch", None, None)
        outputs = self._computed(sent.reshape(batch, self.num_experts, room, width))
        outputs = outputs.reshape(batch, self.num_experts * room, width)
        # Rows are split over the axis "expert" again.
        outputs = sharding.constrain(outputs, "batch", None, None)
        received = jnp.take_along_axis(outputs, slots[..., None], axis=1, mode="clip")
        weights = weights.reshape(batch, -1, 1).astype(self.dtype)
        received = jnp.where(is_kept[..., None], received * weights, 0)
        y = received.reshape(batch, length, self.per_token, width).sum(axis=2)
        return sharding.constrain(y, "batch", "length", None)

    def _routed(self, x: Float[Array, "B L M"]) -> Float[Array, "B L E"]:
        """Returns the probabilities of the experts.

        They are computed in float32, also in decoding: in bfloat16, training is less stable (Fedus
        et al. 2022, section 2.4), and nearly equal experts would be chosen by rounding.
        """
        init = declared(self.kernel_init, ("embed", None), decays=True, inputs=1)
        router = self.param("router", init, (x.shape[-1], self.num_experts))
        router = sharding.constrain(router, None, None)
        logits = jnp.einsum(
            "blm,me->ble", x.astype(jnp.float32), router, precision=jax.lax.Precision.HIGHEST
        )
        return jax.nn.softmax(logits)

    def _computed(self, x: Float[Array, "B E C M"]) -> Float[Array, "B E C M"]:
        """Returns the outputs of each expert for the positions that it has received."""
        inner, outer = (x.shape[-1], self.d_ff), (self.d_ff, x.shape[-1])
        # The slots of an expert are split over the axis "sequence", if it divides them.
        slots = "length" if x.shape[2] % sharding.parts("length") == 0 else None
        x = sharding.constrain(x, "routed", "experts", slots, None)
        hidden = self.activation(self._product("wi", x, inner)) * self._product("wv", x, inner)
        hidden = sharding.constrain(hidden, "routed", "experts", slots, "mlp")
        # (B, E, C, F), by slot: an empty slot has what position 0 would give.
        hidden = activations.named(self, "hidden", hidden)
        return sharding.constrain(
            self._product("wo", hidden, outer), "routed", "experts", slots, None
        )

    def _product(self, name: str, x: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Multiplies the rows of each expert (B, E, C, N) by its own matrix."""
        axes = ("embed", "mlp") if name != "wo" else ("mlp", "embed")
        matrix = Matrices(self.num_experts, shape, axes, self.kernel_init, self.dtype, name=name)
        return checkpoint_name(jnp.einsum("becn,enm->becm", x, matrix.gathered()), PRODUCTS)


class Matrices(nn.Module):
    """A matrix of each expert, (E, inputs, outputs), with the parameter "kernel"."""

    num_experts: int
    shape: tuple[int, int]
    axes: tuple[str, str]
    kernel_init: nn.initializers.Initializer
    dtype: jnp.dtype

    def setup(self):
        def init(key, shape):
            keys = jax.random.split(key, self.num_experts)
            return jax.vmap(lambda key: self.kernel_init(key, shape[1:], jnp.float32))(keys)

        boxed = declared(init, ("experts", *self.axes), decays=True, inputs=1)
        self.kernel = self.param("kernel", boxed, (self.num_experts, *self.shape))

    def gathered(self) -> Float[Array, "E N M"]:
        """Returns the matrices in `dtype`, gathered over the mesh axis fsdp."""
        axes = [None if axis == "embed" else axis for axis in self.axes]
        return sharding.constrain(self.kernel.astype(self.dtype), "experts", *axes)


def _largest(
    probabilities: Float[Array, "B L E"], count: int
) -> tuple[Float[Array, "B L K"], Int[Array, "B L K"]]:
    """Returns the largest probabilities and their experts, like `jax.lax.top_k`.

    XLA gathers the argument of that function from all devices.
    """
    rest, chosen = probabilities, []
    for _ in range(count):
        chosen.append(jnp.argmax(rest, axis=-1))
        rest = jnp.where(jax.nn.one_hot(chosen[-1], rest.shape[-1], dtype=bool), -1.0, rest)
    experts = jnp.stack(chosen, axis=-1)
    return jnp.take_along_axis(probabilities, experts, axis=-1), experts


def _imbalance(
    probabilities: Float[Array, "B L E"], chosen: Int[Array, "B L K"]
) -> Float[Array, " B"]:
    """Returns num_experts * sum_i f_i P_i of each row."""
    num_experts = probabilities.shape[-1]
    shares = jax.nn.one_hot(chosen, num_experts).mean(axis=(1, 2))  # (B, E)
    return num_experts * (shares * probabilities.mean(axis=1)).sum(axis=-1)


def _slots(
    chosen: Int[Array, "B N"], num_experts: int, room: int
) -> tuple[Int[Array, "B N"], Bool[Array, "B N"]]:
    """Returns the slot of each choice, and whether its expert had room for it.

    Expert i has the slots i * room and following, which the choices take in their order. The slot
    of a choice without room is num_experts * room.
    """
    is_expert = jax.nn.one_hot(chosen, num_experts, dtype=jnp.int32)  # (B, N, E)
    earlier = jnp.cumsum(is_expert, axis=1) - is_expert
    rank = (earlier * is_expert).sum(axis=-1)
    is_kept = rank < room
    return jnp.where(is_kept, chosen * room + rank, num_experts * room), is_kept
