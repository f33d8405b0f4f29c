"""Recurrent cells and layers: torch's outputs and gradients, padding, restarts and states."""

import importlib.util

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures import make_torch_recurrent as fixture
from tests.jitted import jitted
from transformer_jax.layers import parameters
from transformer_jax.layers.recurrent import GRU, LSTM, Stack, Unidirectional, Vanilla, make
from transformer_jax.planning import estimate

KEY = jax.random.key(0)
CLOSE = dict(rtol=1e-5, atol=1e-5)
CELLS = {
    "tanh": Vanilla(fixture.WIDTH),
    "relu": Vanilla(fixture.WIDTH, "relu"),
    "gru": GRU(fixture.WIDTH),
    "lstm": LSTM(fixture.WIDTH),
    "projected": LSTM(fixture.WIDTH, projection=2),
}
FILLED = np.arange(fixture.LENGTH) < np.array(fixture.LENGTHS)[:, None]


def from_torch(arrays, prefix, cell, layers, both, gradient):
    """Returns the parameters of a `Stack`, or their gradients, from arrays named as torch does."""

    def direction(layer, ending):
        def of(name):
            return arrays[f"{prefix}{name}_l{layer}{ending}"]

        kernel = of("weight_ih").T.reshape(-1, cell.gates, cell.width)
        bias = of("bias_ih").reshape(cell.gates, cell.width).copy()
        other = of("bias_hh").reshape(cell.gates, cell.width)
        params = {"input": {"kernel": kernel, "bias": bias}, "recurrent": of("weight_hh").T}
        if cell.candidate_bias:
            params["candidate_bias"] = other[-1]
            other = np.concatenate([other[:-1], np.zeros_like(other[-1:])])
        if not gradient:
            bias += other
            if isinstance(cell, LSTM):
                bias[1] -= 1  # the forget gate adds 1
        if "projection" in cell.matrices:
            params["projection"] = of("weight_hr").T
        return params

    if not both:
        return {f"layer_{layer}": direction(layer, "") for layer in range(layers)}
    return {
        f"layer_{layer}": {
            "forward": direction(layer, ""),
            "backward": direction(layer, "_reverse"),
        }
        for layer in range(layers)
    }


def stacked(arrays, prefix, layers, both, parts):
    """Returns the states of a `Stack` from torch's arrays (layers * directions, B, width)."""

    def at(index):
        return tuple(arrays[f"{prefix}{part}"][index] for part in range(parts))

    if not both:
        return tuple(at(layer) for layer in range(layers))
    return tuple((at(2 * layer), at(2 * layer + 1)) for layer in range(layers))


def check_against(arrays, cell_name, shape):
    cell = CELLS[cell_name]
    layers, both = fixture.SHAPES[shape]
    parts = len(cell.state_widths)
    stack = Stack(cell, layers, bidirectional=both)
    params = from_torch(arrays, "", cell, layers, both, gradient=False)
    states = stacked(arrays, "state ", layers, both, parts)
    factors = stacked(arrays, "of_last ", layers, both, parts)

    def weighted(params, x, states):
        outputs, last = stack.apply({"params": params}, x, FILLED, states)
        products = jax.tree.map(lambda y, factor: (y * factor).sum(), last, factors)
        of_outputs = (jnp.where(FILLED[..., None], outputs, 0) * arrays["of_outputs"]).sum()
        return of_outputs + sum(jax.tree.leaves(products)), (outputs, last)

    gradients, (outputs, last) = jax.jit(jax.grad(weighted, argnums=(0, 1, 2), has_aux=True))(
        params, arrays["x"], states
    )
    np.testing.assert_allclose(outputs[FILLED], arrays["outputs"][FILLED], **CLOSE)
    expected = (
        from_torch(arrays, "d ", cell, layers, both, gradient=True),
        arrays["d x"],
        stacked(arrays, "d state ", layers, both, parts),
    )
    expected_last = stacked(arrays, "last ", layers, both, parts)

    def close(x, y):
        np.testing.assert_allclose(x, y, **CLOSE)

    jax.tree.map(close, last, expected_last)
    jax.tree.map(close, gradients, expected)


@pytest.mark.sample("gru-one", "lstm-one", "projected-stack_both", "tanh-stack_both")
@pytest.mark.parametrize("shape", fixture.FIXED)
@pytest.mark.parametrize("cell", CELLS)
def test_equals_torch(cell, shape):
    prefix = f"{cell} {shape} "
    with np.load(fixture.PATH) as file:
        names = [name for name in file.files if name.startswith(prefix)]
        check_against({name.removeprefix(prefix): file[name] for name in names}, cell, shape)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("shape", fixture.SHAPES)
@pytest.mark.parametrize("cell", CELLS)
def test_equals_the_installed_torch(cell, shape):
    check_against(fixture.case(cell, shape, seed=1), cell, shape)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_gru_that_resets_before_equals_its_formula(reverse):
    """The formula of Cho et al. 2014, section 2.3, row by row without padding."""
    x = np.asarray(jax.random.normal(KEY, (3, 6, 4)))
    filled = np.arange(6) < np.array((6, 3, 1))[:, None]
    layer = Unidirectional(GRU(5, reset_after=False), reverse)

    @jax.jit
    def compute(x, filled):
        variables = nn.unbox(layer.init(KEY, x, filled))
        variables = jax.tree.map(lambda p: p + 0.1, variables)  # so that no bias is zero
        return variables["params"], layer.apply(variables, x, filled)[0]

    p, outputs = jax.device_get(compute(x, filled))
    for row, length in enumerate(filled.sum(axis=1)):
        h = np.zeros(5)
        for t in reversed(range(length)) if reverse else range(length):
            z = np.einsum("m,mgf->gf", x[row, t], p["input"]["kernel"]) + p["input"]["bias"]
            reset, update = sigmoid(z[:2] + (h @ p["recurrent"]).reshape(2, 5))
            candidate = np.tanh(z[2] + (reset * h) @ p["candidate"])
            h = (1 - update) * candidate + update * h
            np.testing.assert_allclose(outputs[row, t], h, **CLOSE)


@pytest.mark.parametrize("cell", ["rnn", "gru", "gru_reset_before", "lstm"])
def test_the_state_passes_on_and_padding_and_restarts_end_it(cell):
    x = jax.random.normal(KEY, (2, 8, 3))
    layer = Unidirectional(make(cell, 4))
    filled = np.ones((2, 8), bool)
    variables = nn.unbox(jax.jit(layer.init)(KEY, x, filled))
    apply = jax.jit(layer.apply)

    def read(*arguments):
        return jax.device_get(apply(variables, *arguments))

    none = np.zeros((2, 8), bool)
    _, shapes = jax.eval_shape(layer.apply, variables, x, filled)
    zero = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    whole, last = read(x, filled, zero, none)
    # The first four positions, then the others after as much padding.
    first, state = read(x, filled & (np.arange(8) < 4), zero, none)
    second, end = read(x, filled & (np.arange(8) >= 4), state, none)
    np.testing.assert_allclose(first[:, :4], whole[:, :4], **CLOSE)
    np.testing.assert_allclose(second[:, 4:], whole[:, 4:], **CLOSE)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), end, last)
    # A restart: the positions from it on are those of a row of their own.
    restarted, _ = read(x, filled, last, none | (np.arange(8) == 3))
    alone, _ = read(x, filled & (np.arange(8) >= 3), zero, none)
    np.testing.assert_allclose(restarted[:, 3:], alone[:, 3:], **CLOSE)
    assert np.abs(restarted[:, :3] - whole[:, :3]).max() > 1e-3  # the state passed is in use


def test_clipping_bounds_cell_and_projection():
    cell = LSTM(4, projection=3, clip=0.05)
    x = 5 * jax.random.normal(KEY, (2, 9, 3))
    layer = Unidirectional(cell)
    filled = np.ones((2, 9), bool)
    (outputs, (_, cells)), _ = jax.jit(layer.init_with_output)(KEY, x, filled)
    assert np.abs(outputs).max() == np.abs(cells).max() == np.float32(0.05)


def test_dropped_recurrent_weights_are_those_of_all_positions():
    """A matrix with all entries but the is_kept ones zero gives the same outputs."""
    x = jax.random.normal(KEY, (2, 6, 3))
    filled = np.ones((2, 6), bool)
    layer = Unidirectional(Vanilla(4), weight_dropout=0.5)
    variables = jax.device_get(nn.unbox(jax.jit(layer.init)(KEY, x, filled)))

    @jitted
    def outputs(variables, train):
        rngs = {"dropout": KEY}
        return layer.apply(variables, x, filled, train=train, rngs=rngs)[0]

    recurrent = variables["params"]["recurrent"]
    gradient = jax.jit(jax.grad(lambda v: outputs(v, True).sum()))(variables)
    is_kept = np.asarray(gradient["params"]["recurrent"]) != 0
    assert 0 < is_kept.sum() < is_kept.size
    dropped = {"params": {**variables["params"], "recurrent": 2 * recurrent * is_kept}}
    np.testing.assert_allclose(outputs(dropped, False), outputs(variables, True), **CLOSE)


@pytest.mark.parametrize("cell", [*CELLS.values(), GRU(4, reset_after=False)])
def test_flops(cell):
    layer = Unidirectional(cell)
    x = jax.ShapeDtypeStruct((1, 7, 3), jnp.float32)
    filled = jax.ShapeDtypeStruct((1, 7), bool)
    params = jax.eval_shape(layer.init, KEY, x, filled)
    assert estimate.flops(layer.apply, params, x, filled) == parameters.recurrent(7, 3, cell)
