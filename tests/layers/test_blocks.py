"""Stacks: patterns of blocks, shared parameters, decoding, state and losses of each layer."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.layers import parameters
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import MLP, Block, LayerNorm, Stack, for_decoding
from transformer_jax.layers.masks import Mask

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2, 5, 8))
CAUSAL = Mask(causal=True)


def block(d_ff=12, num_heads=2):
    return partial(
        Block,
        attention=partial(Attention, num_heads=num_heads, head_dim=4),
        mlp=partial(MLP, d_ff=d_ff),
        norm=LayerNorm,
    )


ONE = (block(),)
TWO = (block(), block(d_ff=20, num_heads=1))


class Decoder(nn.Module):
    """A stack under the name of a model's stack."""

    blocks: tuple
    options: tuple = ()

    @nn.compact
    def __call__(self, x, **kwargs):
        return Stack(self.blocks, name="decoder", **dict(self.options))(x, **kwargs)


def build(blocks, num_layers=4, **options):
    model = Decoder(blocks, (("num_layers", num_layers), *options.items()))

    @jax.jit
    def init():
        params = nn.unbox(model.init(KEY, X, mask=CAUSAL))["params"]
        return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(KEY, x.shape), params)

    return model, init()


def by_hand(blocks, params, shared, num_layers=4):
    """Applies the blocks one by one, and returns the outputs of all layers."""
    x, outputs = X, []
    tree = params["decoder"]["layer" if shared else "layers"]
    for number in range(num_layers):
        repeat, index = divmod(number, len(blocks))
        part = tree if len(blocks) == 1 else tree[f"block_{index}"]
        part = part if shared else jax.tree.map(lambda leaf, i=repeat: leaf[i], part)
        x = blocks[index]().apply({"params": part}, x, mask=CAUSAL)
        outputs.append(x)
    return jnp.stack(outputs)


@pytest.mark.sample("one-True")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("blocks", [ONE, TWO], ids=["one", "two"])
def test_a_stack_equals_its_blocks_one_by_one_and_so_does_its_decoding(blocks, shared):
    model, params = build(blocks, shared=shared)
    expected = np.asarray(jax.jit(lambda params: by_hand(blocks, params, shared))(params))
    every = jax.jit(partial(model.apply, mask=CAUSAL, every_layer=True))({"params": params}, X)
    np.testing.assert_allclose(every, expected, rtol=1e-4, atol=1e-5)

    prepare = jax.jit(lambda params: for_decoding(params, jnp.float32, ("decoder",)))
    prepared = {"params": prepare(params)}
    slots = np.broadcast_to(np.arange(5), (2, 5))
    decode = jax.jit(partial(model.apply, decode=8, mutable=["cache"]))
    y, cache = decode(prepared, X[:, :3], mask=CAUSAL.replace(query_slots=slots[:, :3]))
    np.testing.assert_allclose(y, expected[-1, :, :3], rtol=1e-4, atol=1e-5)
    for slot in (3, 4):
        mask = CAUSAL.replace(query_slots=slots[:, slot : slot + 1])
        y, cache = decode(prepared | cache, X[:, slot : slot + 1], mask=mask)
        np.testing.assert_allclose(np.asarray(y)[:, 0], expected[-1, :, slot], rtol=1e-4, atol=1e-5)


@pytest.mark.sample("8")
@pytest.mark.parametrize("num_layers", [2, 8])
def test_shared_parameters_and_their_program_do_not_grow_with_depth(num_layers):
    model, params = build(ONE, num_layers, shared=True)
    assert params["decoder"]["layer"]["mlp"]["wi"]["kernel"].shape == (8, 12)
    program = str(jax.make_jaxpr(partial(model.apply, mask=CAUSAL))({"params": params}, X))
    _, deep = build(ONE, 32, shared=True)
    other = Decoder(ONE, (("num_layers", 32), ("shared", True)))
    assert jax.tree.map(jnp.shape, deep) == jax.tree.map(jnp.shape, params)
    deeper = str(jax.make_jaxpr(partial(other.apply, mask=CAUSAL))({"params": params}, X))
    assert len(program.splitlines()) == len(deeper.splitlines())


def test_only_stacked_parameters_have_the_axis_of_layers():
    for shared, axes in ((False, ("layers", "embed", "mlp")), (True, ("embed", "mlp"))):
        model = Decoder(ONE, (("num_layers", 2), ("shared", shared)))
        boxed = jax.eval_shape(partial(model.init, mask=CAUSAL), KEY, X)
        traits = parameters.traits(boxed)["params"]["decoder"]
        (tree,) = traits.values()
        assert tree["mlp"]["wi"]["kernel"].axes == axes


def test_the_gradient_of_shared_parameters_is_the_sum_over_layers():
    model, params = build(ONE, shared=True)
    unshared = {"decoder": {"layers": jax.tree.map(lambda x: np.stack([x] * 4), params)}}
    unshared["decoder"]["layers"] = unshared["decoder"]["layers"]["decoder"]["layer"]

    def loss(params, model):
        return (model.apply({"params": params}, X, mask=CAUSAL)[:, :, 0] ** 2).sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    shared = gradient(params, model)["decoder"]["layer"]
    stacked = jax.device_get(gradient(unshared, build(ONE)[0])["decoder"]["layers"])
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y.sum(0), rtol=1e-3, atol=1e-3),
        shared,
        stacked,
    )


@pytest.mark.full
def test_windows_take_turns_over_the_layers_of_a_pattern():
    """With a window of 1 in all layers no position sees another one."""
    first = np.array(X)
    first[:, 0] += 1.0
    for windows, reach in (((1,), 1), ((1, 1, 1, None), 5)):
        model, params = build(TWO, windows=windows)
        apply = jax.jit(partial(model.apply, mask=CAUSAL))
        outputs = [np.asarray(apply({"params": params}, x)) for x in (X, first)]
        differs = np.abs(outputs[0] - outputs[1]).max(axis=(0, 2)) > 0
        assert differs.sum() == reach


class Counting(nn.Module):
    """A block with a running mean of its input as state, and a loss."""

    @nn.compact
    def __call__(self, x, *, mask, train=False):
        total = self.variable("state", "total", jnp.zeros, ())
        total.value = total.value + x.mean()
        self.sow("losses", "size", jnp.square(x).mean())
        return x + 1


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("shared", [False, True])
def test_layers_keep_states_and_sow_losses(shared, remat):
    model = Decoder((Counting,), (("num_layers", 3), ("shared", shared), ("remat", remat)))
    name = "layer" if shared else "layers"
    variables = jax.jit(partial(model.init, mask=Mask()))(KEY, X)
    state = {"state": jax.tree.map(np.zeros_like, jax.device_get(variables["state"]))}
    apply = jax.jit(partial(model.apply, mask=Mask(), mutable=["state", "losses"]))
    for turn in (1, 2):
        _, out = apply(state, X)
        state = {"state": out["state"]}
        means = X.mean() + np.arange(3)
        np.testing.assert_allclose(
            state["state"]["decoder"][name]["total"], turn * means, rtol=1e-5
        )
    squares = [np.square(X + layer).mean() for layer in range(3)]
    np.testing.assert_allclose(out["losses"]["decoder"][name]["size"][0], squares, rtol=1e-5)
    assert float(parameters.sown_losses(out)["size"]) == pytest.approx(sum(squares), rel=1e-5)
