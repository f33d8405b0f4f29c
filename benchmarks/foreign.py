"""Measures oneDNN's matrix products and LSTM layer, called by XLA, beside XLA's own and torch's.

python benchmarks/foreign.py [--json=FILE] [--case=products] [--case=lstm] [--tiny]

- `products`: the three products of a linear layer in training, in the shapes of products.py.
- `lstm`: the outputs of a layer from zero states, the sum of their squares and its gradients, in
  the shapes of recurrent.py.

Both sides in JAX are compared first. oneDNN's side is in foreign.cc, which a C++ compiler links
with the library of `pip install onednn-devel-cpu-gomp==2023.2.0`. benchmarks/peers.py says how to
install torch.
"""

import ctypes
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import meta
from harness import beside, main, sides
from products import SHAPES

from transformer_jax.layers.recurrent import LSTM, Unidirectional

SOURCE = pathlib.Path(__file__).with_suffix(".cc")
WIDTHS = (256, 512)
ROWS, LENGTH = 64, 64
# Whether the factors are stored transposed.
PRODUCTS = {"x W": (False, False), "dy W^T": (False, True), "x^T dy": (True, False)}


def multiply(tiny: bool):
    for tokens, width, outputs in ((32, 16, 64),) if tiny else SHAPES:
        stored = {
            "x W": ((tokens, width), (width, outputs)),
            "dy W^T": ((tokens, outputs), (width, outputs)),
            "x^T dy": ((tokens, width), (tokens, outputs)),
        }
        for name, shapes in stored.items():
            arguments = (shapes, PRODUCTS[name])
            makers = {
                "ours": ("jax", functools.partial(our_product, *arguments)),
                "oneDNN by jax.ffi": (
                    "jax with oneDNN",
                    functools.partial(foreign_product, *arguments),
                ),
                "torch": ("torch", functools.partial(peer_product, *arguments)),
            }
            spent = sides(makers, 2 if tiny else 15)
            flop = 2 * tokens * width * outputs
            case = f"{name}, {tokens} tokens, {width} inputs, {outputs} outputs"
            yield from beside(
                case, spent, "GFLOP/s", lambda seconds, flop=flop: flop / seconds / 1e9
            )


def factors(shapes) -> list[np.ndarray]:
    numbers = np.random.default_rng(0)
    return [numbers.standard_normal(shape, np.float32) for shape in shapes]


def multiplied(x, w, transposed):
    x_transposed, w_transposed = transposed
    return (x.T if x_transposed else x) @ (w.T if w_transposed else w)


def our_product(shapes, transposed) -> Callable[[], None]:
    x, w = map(jnp.asarray, factors(shapes))
    call = jax.jit(functools.partial(multiplied, transposed=transposed))
    return lambda: jax.block_until_ready(call(x, w))


def foreign_product(shapes, transposed) -> Callable[[], None]:
    compiled()
    x, w = map(jnp.asarray, factors(shapes))
    expected = multiplied(x, w, transposed)
    options = dict(zip(("x_transposed", "w_transposed"), transposed, strict=True))

    @jax.jit
    def call(x, w):
        result = jax.ShapeDtypeStruct(expected.shape, expected.dtype)
        return jax.ffi.ffi_call("OneDnnProduct", result)(x, w, **options)

    np.testing.assert_allclose(call(x, w), expected, rtol=1e-3, atol=1e-3)
    return lambda: jax.block_until_ready(call(x, w))


def peer_product(shapes, transposed) -> Callable[[], None]:
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    x, w = map(torch.from_numpy, factors(shapes))
    return lambda: multiplied(x, w, transposed)


def lstm(tiny: bool):
    for width in (16,) if tiny else WIDTHS:
        makers = {
            "ours": ("jax", functools.partial(our_layer, width)),
            "oneDNN by jax.ffi": ("jax with oneDNN", functools.partial(foreign_layer, width)),
            "torch.nn.LSTM": ("torch", functools.partial(peer_layer, width)),
        }
        spent = sides(makers, 2 if tiny else 15)
        case = f"forward and backward, LSTM layer of {width}, {ROWS} rows of {LENGTH}"
        yield from beside(case, spent, "ms", lambda seconds: 1000 * seconds)


def inputs(width: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, LENGTH, width), np.float32)


def our_layer(width: int) -> Callable[[], None]:
    params, gradients = our_gradients(width)
    x = jnp.asarray(inputs(width))
    return lambda: jax.block_until_ready(gradients(params, x))


def our_gradients(width: int):
    """Returns the parameters of the package's layer, and the function of its gradients."""
    module = Unidirectional(LSTM(width))
    filled = np.ones((ROWS, LENGTH), bool)
    params = meta.unbox(module.init(jax.random.key(0), jnp.asarray(inputs(width)), filled))

    def loss(params, x):
        return jnp.square(module.apply(params, x, filled)[0]).sum()

    return params, jax.jit(jax.grad(loss, argnums=(0, 1)))


def foreign_layer(width: int) -> Callable[[], None]:
    library = compiled()
    params, our = our_gradients(width)
    x = jnp.asarray(inputs(width))
    zeros = jnp.zeros((ROWS, width))

    def loss(params, x):
        names = params["params"]
        # The package's layer adds 1 to the forget gate, which is the second one in both.
        bias = names["input"]["bias"].reshape(4, width).at[1].add(1)
        matrices = names["input"]["kernel"], names["recurrent"]
        y, _ = foreign(library, jnp.moveaxis(x, 1, 0), (zeros, zeros), (*matrices, bias))
        return jnp.square(y).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))
    for mine, theirs in zip(
        jax.tree.leaves(our(params, x)), jax.tree.leaves(gradients(params, x)), strict=True
    ):
        np.testing.assert_allclose(theirs, mine, rtol=1e-3, atol=1e-3 * float(abs(mine).max()))
    return lambda: jax.block_until_ready(gradients(params, x))


@functools.cache
def compiled() -> ctypes.CDLL:
    """Compiles foreign.cc, and registers its functions with XLA."""
    prefix = pathlib.Path(sys.prefix)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *("g++", "-std=c++17", "-O2", "-shared", "-fPIC", str(SOURCE)),
                *("-isystem", str(prefix / "include"), "-isystem", jax.ffi.include_dir()),
                *("-L", str(prefix / "lib"), f"-Wl,-rpath,{prefix}/lib", "-ldnnl"),
                *("-o", f"{folder}/foreign.so"),
            ],
            check=True,
        )
        library = ctypes.CDLL(f"{folder}/foreign.so")
    library.WorkspaceBytes.argtypes = [ctypes.c_int64] * 4
    library.WorkspaceBytes.restype = ctypes.c_int64
    for name in ("OneDnnProduct", "LstmForward", "LstmBackward"):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return library


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def foreign(library, x, state, weights):
    """x (L, B, M) -> outputs (L, B, F) and the last state.

    A state is two arrays (B, F), output and cell. The weights are matrices (M, 4, F) and (F, 4 F),
    and a bias (4, F). The gates are input, forget, candidate and output.
    """
    return _forward(library, x, state, weights)[0]


def _forward(library, x, state, weights):
    shape = jax.ShapeDtypeStruct
    width = state[0].shape[1]
    results = [
        shape((*x.shape[:2], width), x.dtype),
        *(shape(part.shape, part.dtype) for part in state),
        shape((library.WorkspaceBytes(*x.shape, width),), jnp.uint8),
    ]
    y, h, c, workspace = jax.ffi.ffi_call("LstmForward", results)(x, *state, *weights)
    return (y, (h, c)), ((x, *state, *weights), (y, h, c), workspace)


def _backward(library, residuals, gradients):
    arguments, outputs, workspace = residuals
    d_y, d_state = gradients
    results = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in arguments]
    call = jax.ffi.ffi_call("LstmBackward", results)
    d_x, d_h, d_c, *d_weights = call(*arguments, *outputs, workspace, d_y, *d_state)
    return d_x, (d_h, d_c), tuple(d_weights)


foreign.defvjp(_forward, _backward)


def peer_layer(width: int) -> Callable[[], None]:
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    module = torch.nn.LSTM(width, width, batch_first=True).train()
    x = torch.tensor(inputs(width), requires_grad=True)

    def step():
        module.zero_grad(set_to_none=True)
        x.grad = None
        module(x)[0].square().sum().backward()

    return step


if __name__ == "__main__":
    main(__doc__, {"products": multiply, "lstm": lstm}, ("jax", "jaxlib"))
