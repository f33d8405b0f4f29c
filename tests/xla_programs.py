"""Programs that some releases of jaxlib compile wrongly on a CPU, each against its value in NumPy.

python tests/xla_programs.py [--crashing]

Needs jax and NumPy alone, so that it runs with any release. Prints a line of JSON for each program:
its name, its relative error and the limit. `--crashing` adds programs with which some releases
end the process.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

CALLS = 200  # of one compiled program: two threads disagree in one call of a hundred
LIMITS = {"float32": 2e-5, "float64": 1e-12}
# each on both sides of the 128 KiB from which XLA divides a reduction among threads
SHAPES = {
    "float32": ((64, 512), (65, 512), (40_000, 3)),
    "float64": ((32, 512), (33, 512), (20_000, 3)),
}


def matrix_vector(dtype: str):
    """The squared length of M @ r for each row r."""
    numbers = np.random.default_rng(0)
    matrix = numbers.normal(size=(3, 3)).astype(dtype)
    program = jax.jit(jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2)))
    for count in {"float32": (32_768, 32_769, 40_000), "float64": (16_384, 16_385, 40_000)}[dtype]:
        rows = numbers.normal(size=(count, 3)).astype(dtype)
        expected = np.sum((rows.astype("float64") @ matrix.T.astype("float64")) ** 2, axis=1)
        yield f"{count} rows", program, (rows,), expected


def constant_operand(dtype: str):
    """A product with a constant matrix, as the derivative of a sum has it, inside another sum."""
    program = jax.jit(lambda x, c: jnp.sum((x @ jnp.full_like(x, c)) * x, axis=-1))
    for batch, width in ((4, 16), (5, 60), (8, 128)):
        x = np.random.default_rng(0).uniform(0.5, 1.5, (batch, width, width)).astype(dtype)
        wide = x.astype("float64")
        expected = np.sum((wide @ np.full_like(wide, 0.375)) * wide, axis=-1)
        yield f"{batch} of {width}", program, (x, np.asarray(0.375, dtype)), expected


def gram_gradient(dtype: str):
    """The gradient of a weighted sum over x.T @ diag(scale) @ x by the scale.

    This is JAX's form of the program above: the derivative of the sum is a constant matrix, and the
    gradient sums a product with it.
    """
    for batch, width in ((4, 16), (5, 60), (8, 128)):
        x = np.random.default_rng(0).uniform(0.5, 1.5, (batch, width, width)).astype(dtype)

        def loss(scale, x, weight):
            return weight * jnp.sum(jnp.swapaxes(x, 1, 2) @ (x * scale[..., None]))

        arguments = np.ones((batch, width), dtype), x, np.asarray(0.375, dtype)
        expected = 0.375 * np.sum(x.astype("float64"), axis=-1) ** 2
        yield f"{batch} of {width}", jax.jit(jax.grad(loss)), arguments, expected


def broadcast_sum(dtype: str):
    """A sum of ones, which any order of additions gives exactly."""
    for shape in ((2, 16, 16), (2, 256, 256), (4, 64, 512), (2, 1024, 1024)):
        program = jax.jit(lambda x, shape=shape: jnp.sum(jnp.broadcast_to(x, shape)))
        yield f"{shape}", program, (np.ones((shape[1], 1), dtype),), np.prod(shape, dtype="float64")


def partial_broadcast_sum(dtype: str):
    """A sum of whole numbers over some axes of a broadcast, which any order gives exactly."""
    for shape, axes in (((2, 256, 256), (0, 2)), ((4, 64, 512), (0, 2)), ((64, 128, 64), (2,))):
        x = (np.arange(shape[1]) % 7).astype(dtype)[:, None]
        program = jax.jit(
            lambda x, shape=shape, axes=axes: jnp.sum(jnp.broadcast_to(x, shape), axis=axes)
        )
        yield f"{shape} over {axes}", program, (x,), np.sum(np.broadcast_to(x, shape), axis=axes)


def feed_forward(dtype: str):
    """The gradients of a mean squared error by two matrices, their biases and the input."""
    for rows, width in ((256, 64), (1000, 96)):
        numbers = np.random.default_rng(0)
        x, targets = numbers.normal(size=(2, rows, width)).astype(dtype)
        w1, w2 = (numbers.normal(size=(2, width, width)) / width**0.5).astype(dtype)
        b1, b2 = numbers.normal(size=(2, width)).astype(dtype)

        def loss(x, w1, b1, w2, b2, targets):
            return jnp.mean((jnp.tanh(x @ w1 + b1) @ w2 + b2 - targets) ** 2)

        parts = x, w1, b1, w2, b2, targets
        wide_x, wide_1, bias_1, wide_2, bias_2, wide_t = (a.astype("float64") for a in parts)
        hidden = np.tanh(wide_x @ wide_1 + bias_1)
        by_output = 2 * (hidden @ wide_2 + bias_2 - wide_t) / x.size
        by_inner = (by_output @ wide_2.T) * (1 - hidden**2)
        expected = (
            by_inner @ wide_1.T,
            wide_x.T @ by_inner,
            by_inner.sum(0),
            hidden.T @ by_output,
            by_output.sum(0),
        )
        program = jax.jit(jax.grad(loss, argnums=tuple(range(5))))
        yield f"({rows}, {width})", program, parts, expected


def layer_norm(dtype: str):
    """The gradients of a layer norm by its input, scale and bias."""
    for shape in SHAPES[dtype]:
        numbers = np.random.default_rng(0)
        x, weights = numbers.normal(size=(2, *shape)).astype(dtype)
        scale, bias = numbers.normal(size=(2, shape[1])).astype(dtype)

        def loss(x, scale, bias, weights):
            centred = x - x.mean(-1, keepdims=True)
            spread = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-2)
            return jnp.sum((centred * spread * scale + bias) * weights)

        wide, cotangent = x.astype("float64"), weights.astype("float64")
        centred = wide - wide.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-2)
        normal, inner = centred / deviation, cotangent * scale
        by_x = inner - inner.mean(-1, keepdims=True)
        by_x = (by_x - normal * (inner * normal).mean(-1, keepdims=True)) / deviation
        expected = by_x, (cotangent * normal).sum(0), cotangent.sum(0)
        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        yield f"{shape}", program, (x, scale, bias, weights), expected


def softmax(dtype: str):
    """The gradients of a weighted softmax and of a mean cross-entropy by the logits."""
    for shape in SHAPES[dtype]:
        numbers = np.random.default_rng(0)
        x, weights = numbers.normal(size=(2, *shape)).astype(dtype)
        labels = numbers.integers(shape[1], size=shape[0])

        def weighted(x, weights):
            return jnp.sum(jax.nn.softmax(x) * weights)

        def entropy(x, labels):
            chosen = jnp.take_along_axis(x, labels[:, None], axis=1)[:, 0]
            return jnp.mean(jax.nn.logsumexp(x, axis=-1) - chosen)

        shares = np.exp(x.astype("float64"))
        shares /= shares.sum(-1, keepdims=True)
        products = shares * weights
        expected = products - shares * products.sum(-1, keepdims=True)
        yield f"{shape}", jax.jit(jax.grad(weighted)), (x, weights), expected
        expected = (shares - np.eye(shape[1])[labels]) / shape[0]
        yield f"{shape} entropy", jax.jit(jax.grad(entropy)), (x, labels), expected


def many_axes(dtype: str):
    """Sums of products over an axis of an array of seven or eight axes."""
    numbers = np.random.default_rng(0)
    for left, right, axis in (
        ((3, 1, 2, 2, 8, 8, 8), (3, 1, 2, 2, 8, 8, 8), 3),
        ((10, 4, 6, 1, 1, 1, 1, 1), (10, 4, 6, 9, 9, 9, 9, 9), 2),
    ):
        x, y = numbers.uniform(size=left).astype(dtype), numbers.uniform(size=right).astype(dtype)
        program = jax.jit(lambda x, y, axis=axis: jnp.sum(x * y, axis=axis))
        yield f"{right}", program, (x, y), np.sum(x.astype("float64") * y, axis=axis)


def error(program, arguments: tuple, expected) -> float:
    """The largest relative error of CALLS calls; infinite where two calls differ in a bit."""
    arguments = jax.device_put(arguments)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(program(*arguments))]
    for _ in range(CALLS - 1):
        again = [np.asarray(leaf) for leaf in jax.tree.leaves(program(*arguments))]
        if any(one.tobytes() != other.tobytes() for one, other in zip(leaves, again, strict=True)):
            return float("inf")
    errors = [
        np.max(np.abs(leaf - right)) / np.max(np.abs(right))
        for leaf, right in zip(leaves, jax.tree.leaves(expected), strict=True)
    ]
    return float(max(errors, key=lambda value: (np.isnan(value), value)))


def main(programs) -> None:
    jax.config.update("jax_enable_x64", True)
    for family in programs:
        for dtype, limit in LIMITS.items():
            for name, program, arguments, expected in family(dtype):
                row = {"program": f"{family.__name__} {dtype} {name}"}
                row |= {"error": error(program, arguments, expected), "limit": limit}
                print(json.dumps(row | {"right": row["error"] <= limit}), flush=True)


if __name__ == "__main__":
    crashing = [many_axes] if "--crashing" in sys.argv else []
    main(
        [
            matrix_vector,
            constant_operand,
            gram_gradient,
            broadcast_sum,
            partial_broadcast_sum,
            feed_forward,
            layer_norm,
            softmax,
            *crashing,
        ]
    )
