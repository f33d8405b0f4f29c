"""The maximal update parametrization, muP (Yang et al. 2022, "Tensor Programs V").

A learning rate that is best for a narrow model is too high for a wide one. In muP it stays best,
because activations change by an amount that doesn't depend on the width. The parameters of a model
are compared with those of a `base` of other widths. An axis that differs grows with the width, and
all others are finite. At the base's own widths, muP changes nothing.

In the notation of the paper, a parameter is used as m W. Table 8 gives the variance and the rate of
W, and m, where n is the factor by which the inputs have grown, and k that of the outputs:

                              m     variance of W    rate: Adam    SGD
    inputs finite             1           1               1         k
    both grow                 1          1/n             1/n       k/n
    outputs finite           1/n          1               1         n

The product m W is stored, so that no forward pass and no file needs to know m. Its gradient is
multiplied by m, and so is the update that results. The variance and the rates of the product are
therefore those of table 3.

Queries have another factor in m if the dimension of heads has grown by d: 1 / sqrt(d), or 1 / d if
the family has no factor of 1 / sqrt(d) in its scores. The scores then have a scale of 1 / d in all,
relative to the base's. Only the table that predicts tokens is used with a multiplier in the forward
pass (`Model.scaled_output`), because the same table may embed the inputs.

Muon follows the spectral condition (Yang, Simon & Bernstein 2023, condition 1): the spectral norm
of an update grows by sqrt(k / n).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import UserError
from transformer_jax.layers.parameters import Path, Traits, names, traits


@dataclasses.dataclass(frozen=True)
class Growth:
    """The factors by which the sides of a parameter are larger than in the base.

    `inputs` are the axes that a matrix contracts, and `outputs` all others. A table or a vector has
    only outputs. `base_sizes` are the sizes of both sides in the base.
    """

    inputs: float
    outputs: float
    base_sizes: tuple[int, int]
    queries: float = 1.0  # the divisor of queries, see `Traits.query_power`

    @property
    def grows(self) -> bool:
        """Whether a side is larger or smaller than in the base."""
        return self.inputs != 1 or self.outputs != 1

    @property
    def _is_hidden(self) -> bool:
        return self.inputs != 1 and self.outputs != 1

    @property
    def multiplier(self) -> float:
        """m of the table above."""
        own = 1 / self.inputs if self.outputs == 1 else 1.0
        return own / self.queries

    @property
    def deviation(self) -> float:
        """The factor of the initial standard deviation of m W."""
        return self.multiplier * (self.inputs**-0.5 if self._is_hidden else 1.0)

    @property
    def gradient(self) -> float:
        """The factor of the gradients of W that makes them as large as the base's.

        Adam's epsilon is relative to it.
        """
        return self.inputs if self.outputs == 1 else self.outputs

    def rate(self, optimizer: str) -> float:
        """The factor of the learning rate of m W."""
        if optimizer == "sgd":
            own = self.outputs / self.inputs if self._is_hidden else self.gradient
        else:
            own = 1 / self.inputs if self._is_hidden else 1.0
        return self.multiplier * own

    @property
    def spectral_rate(self) -> float:
        """The factor of Muon's learning rate, whose updates have a spectral norm of max(sizes)^0.5.

        See `optimizer._muon`.
        """
        grown = max(self.base_sizes[0] * self.inputs, self.base_sizes[1] * self.outputs)
        own = (self.outputs / self.inputs) ** 0.5
        return own * (max(self.base_sizes) / grown) ** 0.5 / self.queries


def check_output(model: Any, base: Any) -> None:
    """Raises UserError if the logits of a model can't have the multiplier of muP.

    `Model.scaled_output` divides the logits by the growth of `d_model`, and the base has the same
    model with other widths.
    """
    if not model.vocab_size:
        return

    def width(model) -> int | None:
        key = jax.random.key(0)
        output, _ = jax.eval_shape(lambda: model.init_with_output(key, method="output"))
        return output.table.shape[-1] if hasattr(output, "table") else None

    family = type(model).__name__
    own, others = width(model), width(base)
    if own is None:
        raise UserError(f"config.optimizer.base: muP does not know the output layer of {family}")
    divisor = model.d_model / base.d_model if own == model.d_model else 1
    if own / others != divisor:
        raise UserError(
            f"config.optimizer.base: the output table of {family} is {own} wide and that of the "
            f"base {others}, whereas d_model is {model.d_model} and {base.d_model}; muP needs a "
            "table that has the width d_model or does not grow, so name its width in the base, too"
        )


def growths(shapes, base_shapes) -> dict[Path, Growth]:
    """Returns the growth of each parameter of a tree of boxed shapes, beside the base's tree.

    Raises UserError if the trees differ in more than the sizes of axes.
    """
    sizes, base_sizes = _sizes(shapes), _sizes(base_shapes)
    if different := sorted(sizes.keys() ^ base_sizes.keys()):
        raise UserError(
            f"config.optimizer.base: only one of the model and its base has the parameter "
            f"{'/'.join(different[0])}; name widths, and no keys that change the layers"
        )
    found = {}
    for path, (size, leaf) in sizes.items():
        base_size, _ = base_sizes[path]
        first = leaf.num_stacked
        if len(size) != len(base_size) or size[:first] != base_size[:first]:
            raise UserError(
                f"config.optimizer.base: {'/'.join(path)} is {size} in the model and {base_size} "
                "in its base; name widths, and no keys that change the layers"
            )
        between = first + leaf.inputs
        inputs, base_inputs = (math.prod(x[first:between]) for x in (size, base_size))
        outputs, base_outputs = (math.prod(x[between:]) for x in (size, base_size))
        found[path] = Growth(
            inputs / base_inputs,
            outputs / base_outputs,
            (base_inputs, base_outputs),
            (size[-1] / base_size[-1]) ** leaf.query_power if size else 1.0,
        )
    return found


def _sizes(boxed) -> dict[Path, tuple[tuple[int, ...], Traits]]:
    leaves = jax.tree_util.tree_leaves_with_path(traits(boxed))
    shapes = jax.tree.leaves(nn.unbox(boxed))
    return {names(path): (shape.shape, leaf) for (path, leaf), shape in zip(leaves, shapes)}


def initialized(
    init: Callable[[jax.Array], dict], base_init: Callable[[jax.Array], dict], rng: jax.Array
):
    """Returns the parameters of `init`, boxed, with the variances of muP.

    The model's own initializers follow many rules. So the root mean square of each parameter is set
    to the one that the base's has with the same key, times `Growth.deviation`.
    """
    params, base = init(rng), base_init(rng)
    found = growths(params, base)

    def scaled(path, x, other):
        size, base_size = _root_mean_square(x), _root_mean_square(other)
        factor = found[names(path)].deviation * base_size / jnp.where(size > 0, size, 1.0)
        return x * jnp.where(size > 0, factor, 1.0).astype(x.dtype)

    values = jax.tree_util.tree_map_with_path(scaled, nn.unbox(params), nn.unbox(base))
    return nn.meta.replace_boxed(params, values)


def _root_mean_square(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))
