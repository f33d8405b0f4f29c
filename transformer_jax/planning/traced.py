"""Operations of a function as they are traced: what a formula must agree with."""

import math

import jax
import jax.extend.core


def flops(function, *arguments) -> float:
    """Two for each multiply-add of the matrix products and convolutions in `function(*arguments)`;
    the arguments may be shapes. A scan counts each of its rounds.
    """
    return _of(jax.make_jaxpr(function)(*arguments).jaxpr)


def _of(jaxpr) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        out = equation.outvars[0].aval
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += (
                2
                * math.prod(out.shape)
                * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            )
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            out_features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
            total += 2 * math.prod(out.shape) * math.prod(kernel) / out_features
        rounds = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += rounds * sum(
            _of(inner) for inner in jax.extend.core.jaxprs_in_params(equation.params)
        )
    return total
