"""Measures the three matrix products of a linear layer in training, on a CPU, in float32.

    XLA_FLAGS=... python benchmarks/products.py

It needs jax alone, of any release. Prints one JSON object a line: FLOP/s, and the library that
computes the product, as the compiled program names it. The products of y = x W are y itself, the
gradient of x from dy and W, and the gradient of W from x and dy.
"""

import importlib.util
import json
import os
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import jaxlib

# (tokens, inputs, outputs)
SHAPES = ((2048, 512, 2048), (2048, 2048, 512), (2048, 512, 8192))
REPEATS = 9
LIBRARIES = {"ynn": "YNNPACK", "onednn": "oneDNN"}


def products(tokens: int, inputs: int, outputs: int):
    """Yields (name, function, its arguments)."""
    key = jax.random.key(0)
    x = jax.random.normal(key, (tokens, inputs))
    weights = jax.random.normal(key, (inputs, outputs))
    gradient = jax.random.normal(key, (tokens, outputs))
    yield "x W", lambda x, w: x @ w, (x, weights)
    yield "dy W^T", lambda dy, w: jnp.einsum("to,io->ti", dy, w), (gradient, weights)
    yield "x^T dy", lambda x, dy: jnp.einsum("ti,to->io", x, dy), (x, gradient)


def of_jax():
    for shape in SHAPES:
        for name, function, arguments in products(*shape):
            compiled = jax.jit(function).lower(*arguments).compile()
            text = compiled.as_text().lower()
            library = next((LIBRARIES[key] for key in LIBRARIES if key in text), "Eigen")
            yield shape, name, library, lambda c=compiled, a=arguments: jax.block_until_ready(c(*a))


def of_torch():
    import torch

    for shape in SHAPES:
        tokens, inputs, outputs = shape
        x, weights = torch.randn(tokens, inputs), torch.randn(inputs, outputs)
        gradient = torch.randn(tokens, outputs)
        yield shape, "x W", "torch", lambda x=x, w=weights: x @ w
        yield shape, "dy W^T", "torch", lambda dy=gradient, w=weights: dy @ w.T
        yield shape, "x^T dy", "torch", lambda x=x, dy=gradient: x.T @ dy


def seconds(call) -> float:
    call()
    spent = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def main() -> None:
    header = {"jaxlib": jaxlib.__version__, "flags": os.environ.get("XLA_FLAGS", "")}
    measured = [*of_jax(), *(of_torch() if importlib.util.find_spec("torch") else ())]
    for shape, name, library, call in measured:
        rate = 2 * shape[0] * shape[1] * shape[2] / seconds(call)
        row = {"tokens, inputs, outputs": shape, "product": name, "library": library}
        print(json.dumps(header | row | {"GFLOP/s": round(rate / 1e9, 1)}), flush=True)


if __name__ == "__main__":
    main()
