"""Each layer against its formula in NumPy."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import jitted
from transformer_jax.layers.attention import Attention, causal_blocks, dot_product
from transformer_jax.layers.blocks import MLP, LayerNorm, RMSNorm
from transformer_jax.layers.embeddings import Head, sinusoids
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, Linear

KEY = jax.random.key(0)


def test_linear_contracts_and_splits_axes():
    x = jax.random.normal(KEY, (2, 3, 4, 5))
    linear = Linear((4, 5), (6, 7), ("heads", "head_dim", "embed", "mlp"))
    variables = nn.unbox(jax.jit(linear.init)(KEY, x))
    kernel, bias = variables["params"]["kernel"], variables["params"]["bias"]
    assert kernel.shape == (4, 5, 6, 7) and bias.shape == (6, 7)
    np.testing.assert_allclose(
        linear.apply(variables, x),
        np.einsum("blhd,hdmf->blmf", x, kernel) + bias,
        rtol=1e-5,
        atol=1e-5,
    )
    bound = np.sqrt(6 / (20 + 42))  # Xavier initialization of the matrix (20, 42)
    assert 0.9 * bound < np.abs(kernel).max() <= bound


def test_the_scores_of_a_head_are_not_rounded_to_bfloat16():
    """Near 4 two bfloat16 numbers differ by at least 1/64."""
    head = Head(1)
    states = jax.random.normal(KEY, (500, 8), jnp.bfloat16)
    variables = nn.unbox(head.init(KEY, states))
    variables["params"]["out"]["bias"] += 4.5
    scores = head.apply(variables, states)
    assert scores.dtype == jnp.float32 and len(np.unique(scores)) > 450


def test_layer_norm():
    x = np.asarray(jax.random.normal(KEY, (2, 3, 8))) * 5 + 3
    norm = LayerNorm()
    apply = jax.jit(norm.apply)
    variables = {"params": {"scale": jnp.arange(8.0), "bias": jnp.ones(8)}}
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(
        x.var(-1, keepdims=True) + 1e-6
    ) * np.arange(8) + 1
    np.testing.assert_allclose(apply(variables, jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)
    assert apply(variables, jnp.asarray(x, jnp.bfloat16)).dtype == jnp.bfloat16


def test_sinusoids():
    table = np.asarray(sinusoids(jnp.arange(50)[None], 6))[0]
    for position in (0, 1, 49):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            np.testing.assert_allclose(
                table[position, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)], atol=1e-5
            )


def naive_attention(q, k, v, visible):
    out = np.zeros_like(q)
    for b, i, h in np.ndindex(*q.shape[:3]):
        scores = k[b, :, h] @ q[b, i, h] / np.sqrt(q.shape[-1])
        scores[~visible[b, i]] = -np.inf
        weights = np.exp(scores - scores.max())
        out[b, i, h] = (weights / weights.sum()) @ v[b, :, h]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_attention_follows_the_mask(causal, packed):
    q, k, v = (np.asarray(jax.random.normal(jax.random.key(i), (2, 6, 2, 4))) for i in range(3))
    segments = np.array([[1, 1, 1, 2, 2, 2], [1, 2, 2, 2, 3, 3]])
    visible = np.ones((2, 6, 6), bool)
    if causal:
        visible &= np.tril(np.ones((6, 6), bool))
    if packed:
        visible &= segments[:, :, None] == segments[:, None, :]
    mask = Mask(
        causal=causal,
        query_segments=segments if packed else None,
        key_segments=segments if packed else None,
    )
    y = jax.jit(dot_product)(q, k, v, mask)
    np.testing.assert_allclose(y, naive_attention(q, k, v, visible), rtol=1e-4, atol=1e-5)


def test_padding_is_hidden_and_a_query_without_keys_stays_finite():
    mask = Mask(query_segments=jnp.array([[1, 0]]), key_segments=jnp.array([[1, 0, 0]]))
    visible = np.asarray(mask.dense(2, 3))
    np.testing.assert_array_equal(visible[0, 0], [[True, False, False], [False, False, False]])
    q = np.ones((1, 2, 1, 4))
    k = np.ones((1, 3, 1, 4))
    all_padding = Mask(key_segments=np.zeros((1, 3), int))
    assert np.isfinite(jax.jit(dot_product)(q, k, k, all_padding)).all()


def test_dropout_keeps_the_mean_and_is_off_outside_training():
    x = jnp.ones((200, 200))
    dropped = Dropout(0.3).apply({}, x, train=True, rngs={"dropout": KEY})
    assert abs(float((dropped == 0).mean()) - 0.3) < 0.01 and abs(float(dropped.mean()) - 1) < 0.02
    assert (Dropout(0.3).apply({}, x, train=False) == x).all()


def test_attention_cache_holds_rows_at_different_positions():
    """Rows of a batch may fill different slots. A row attends by its own position only."""
    attention = Attention(num_heads=2, head_dim=4)
    x = np.asarray(jax.random.normal(KEY, (2, 5, 8)))
    apply = jitted(attention.apply)
    variables = nn.unbox(jitted(attention.init)(KEY, x, mask=Mask()))
    whole = np.asarray(apply(variables, x, mask=Mask(causal=True)))
    slots = np.broadcast_to(np.arange(5), (2, 5))
    _, cache = apply(
        variables,
        x[:, :3],
        mask=Mask(causal=True, query_slots=slots[:, :3]),
        decode=8,
        mutable=["cache"],
    )
    # Row 0 continues with slot 3. Row 1 writes slot 2 again.
    tokens = np.stack([x[0, 3], x[1, 2]])[:, None]
    y, _ = apply(
        {**variables, **cache},
        tokens,
        mask=Mask(causal=True, query_slots=np.array([[3], [2]])),
        decode=8,
        mutable=["cache"],
    )
    expected = np.stack([whole[0, 3], whole[1, 2]])
    np.testing.assert_allclose(np.asarray(y)[:, 0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.sample("False-None-65", "True-None-100")
@pytest.mark.parametrize("length", [1, 64, 65, 100, 600])
@pytest.mark.parametrize("segments, window", [(False, None), (True, None), (True, 20)])
def test_causal_blocks_equal_the_plain_kernel_and_its_gradients(length, segments, window):
    arrays = jax.random.normal(jax.random.key(0), (3, 2, length, 2, 4))
    mask = Mask(causal=True)
    if segments:
        ids = np.sort(jax.random.randint(jax.random.key(1), (2, length), 1, 4), axis=1)
        mask = mask.replace(query_segments=ids, key_segments=ids)
    if window:
        mask = mask.replace(window=jnp.int32(window))

    def value_and_gradient(kernel, mask):
        return jax.value_and_grad(lambda x: (kernel(*x, mask) ** 2).sum())(arrays)

    value, gradient = jitted(value_and_gradient)(causal_blocks, mask)
    expected_value, expected_gradient = jitted(value_and_gradient)(dot_product, mask)
    np.testing.assert_allclose(value, expected_value, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", [LayerNorm(), RMSNorm()])
def test_a_norm_keeps_its_input_alone_for_the_backward_pass(layer):
    arrays = residuals(layer, jax.random.normal(KEY, (2, 8, 64), jnp.bfloat16))
    assert [x.dtype for x in arrays if x.size >= 1024] == [jnp.bfloat16]


def test_an_mlp_keeps_its_hidden_layer_before_and_after_the_activation():
    layer = MLP(256, activation=jax.nn.gelu, dtype=jnp.bfloat16)
    arrays = residuals(layer, jax.random.normal(KEY, (2, 8, 64), jnp.bfloat16))
    # Before the activation and, with its positions in one axis, after it.
    hidden = [x.shape for x in arrays if x.size == 2 * 8 * 256]
    assert hidden == [(2, 8, 256), (16, 256)]


def residuals(layer, x):
    """Returns the arrays that the forward pass keeps."""
    variables = jax.jit(layer.init)(KEY, x)
    kept = jax.jit(lambda *inputs: jax.tree.leaves(jax.vjp(layer.apply, *inputs)[1]))
    return kept(variables, x)


@pytest.mark.parametrize("layer", [LayerNorm(), MLP(32, activation=jax.nn.gelu)])
def test_gradients_do_not_depend_on_what_is_kept(layer, monkeypatch):
    x = jax.random.normal(KEY, (2, 8, 16))
    variables = jax.jit(layer.init)(KEY, x)

    def gradients():
        return jax.jit(jax.grad(lambda v: jnp.sum(layer.apply(v, x) ** 2)))(variables)

    expected = gradients()
    monkeypatch.setattr("transformer_jax.layers.blocks.recomputed", lambda f, x: jax.checkpoint(f))
    same = partial(np.testing.assert_allclose, rtol=1e-5)
    jax.tree.map(same, gradients(), expected)
