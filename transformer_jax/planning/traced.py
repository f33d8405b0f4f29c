"""FLOPs of a function as JAX traces it. Formulas of FLOPs must agree with it."""

import math

import jax
import jax.extend.core


def flops(function, *arguments) -> float:
    """Returns the FLOPs of the matrix products and convolutions in `function(*arguments)`.

    A multiply-add counts as two. The arguments may be shapes. A scan counts each iteration.
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr)


def _of_jaxpr(jaxpr) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            summed = math.prod(left[axis] for axis in contracted)
            total += 2 * math.prod(equation.outvars[0].aval.shape) * summed
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
            output = equation.outvars[0].aval.shape
            total += 2 * math.prod(output) * math.prod(kernel) / features
        iterations = equation.params.get("length", 1) if name == "scan" else 1
        inner = jax.extend.core.jaxprs_in_params(equation.params)
        total += iterations * sum(map(_of_jaxpr, inner))
    return total
