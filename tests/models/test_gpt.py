"""The GPT models: published sizes, nothing seen that may not be, one result however it is computed."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.gpt import GPT

TINY = dict(
    vocab_size=37,
    d_model=16,
    num_layers=4,
    num_heads=2,
    max_length=24,
    dropout=0.0,
    attention_dropout=0.0,
    dtype="float32",
)
TOKENS = jax.random.randint(jax.random.key(1), (2, 12), 0, 37)


def built(**options):
    """A tiny model with parameters far from their small initial values, so that mistakes show."""
    model = GPT(**{**TINY, **options})
    params = nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]
    return model, jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), params
    )


@pytest.mark.parametrize(
    "options, count",
    [
        (dict(vocab_size=40_478, max_length=512, norm_position="post"), 116_534_784),
        (dict(), 124_439_808),
        (dict(d_model=1024, num_layers=24, num_heads=16), 354_823_168),
        (dict(d_model=1280, num_layers=36, num_heads=20), 774_030_080),
        (dict(d_model=1600, num_layers=48, num_heads=25, vocab_multiple=128), 1_557_611_200),
    ],
    ids=["GPT-1", "124M", "355M", "774M", "1558M"],
)
def test_published_parameter_counts(options, count):
    model = GPT(**options)
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), TOKENS))
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) - model.num_padding() == count


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(norm_position="post", scaled_init=False),
        dict(local_window=3),
        dict(head_dim=5),
        dict(unroll=4),
    ],
)
def test_a_future_token_changes_nothing_before_it(options):
    model, params = built(**options)
    changed = TOKENS.at[:, 7].add(1) % 37
    before, after = (model.apply({"params": params}, tokens) for tokens in (TOKENS, changed))
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    # the dense layers carry it to every later position
    assert (before[:, 7:] != after[:, 7:]).any(axis=-1).all()


def test_every_second_layer_sees_a_local_window():
    """With attention to the window alone in both layers, what is further back than both windows
    together is not seen.
    """
    model, params = built(num_layers=2, local_window=3)
    changed = TOKENS.at[:, 0].add(1) % 37
    weights = model.apply({"params": params}, TOKENS, mutable=["intermediates"])[1][
        "intermediates"
    ]["decoder"]["layers"]["attention"]["weights"][0]
    back = np.arange(12)[:, None] - np.arange(12)
    dense, local = np.asarray(weights)
    assert (dense[..., back >= 0] > 0).all() and (dense[..., back < 0] == 0).all()
    assert (local[..., (back >= 0) & (back < 3)] > 0).all() and (
        local[..., (back < 0) | (back >= 3)] == 0
    ).all()
    assert (
        model.apply({"params": params}, TOKENS) != model.apply({"params": params}, changed)
    ).any()


def test_documents_of_a_row_do_not_see_each_other():
    model, params = built()
    segments = jnp.array([[1] * 5 + [2] * 7] * 2)
    positions = jnp.array([[*range(5), *range(7)]] * 2)
    packed = model.apply({"params": params}, TOKENS, positions, segments)
    alone = model.apply({"params": params}, TOKENS[:, 5:])
    np.testing.assert_allclose(packed[:, 5:], alone, rtol=1e-5, atol=1e-5)


def test_a_padded_vocabulary_changes_neither_parameters_nor_results():
    (plain, params), (padded, more) = (
        (model, nn.unbox(model.init(jax.random.key(0), TOKENS))["params"])
        for model in (GPT(**TINY), GPT(**TINY, vocab_multiple=32))
    )
    assert more["token_embed"]["embedding"].shape == (64, 16) and padded.num_padding() == 27 * 16
    np.testing.assert_array_equal(
        more["token_embed"]["embedding"][:37], params["token_embed"]["embedding"]
    )
    np.testing.assert_array_equal(more["token_embed"]["embedding"][37:], 0)
    np.testing.assert_array_equal(
        plain.apply({"params": params}, TOKENS), padded.apply({"params": more}, TOKENS)
    )


def test_what_adds_to_the_residual_stream_begins_smaller():
    model = GPT(**{**TINY, "d_model": 64, "num_layers": 8})
    layers = nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]["decoder"]["layers"]
    assert layers["mlp"]["wi"]["kernel"].std() == pytest.approx(0.02, rel=0.05)
    for kernel in (layers["mlp"]["wo"]["kernel"], layers["attention"]["out"]["kernel"]):
        assert kernel.std() == pytest.approx(0.02 / 4, rel=0.05)


@pytest.mark.parametrize("options", [{}, dict(norm_position="post"), dict(local_window=4)])
def test_cached_decoding_equals_the_whole_prefix(options):
    """Prompts of unequal length in one batch; what stands behind the shorter one is overwritten
    before it is seen.
    """
    model, params = built(**options)
    whole = model.apply({"params": params}, TOKENS)
    lengths = jnp.array([5, 8])
    prompts = jnp.where(jnp.arange(8) < lengths[:, None], TOKENS[:, :8], 9)
    run = lambda cache, tokens, positions: model.apply(
        {"params": params, **cache},
        tokens,
        positions,
        decode=16,
        method="hidden",
        mutable=["cache"],
    )
    hidden, cache = run({}, prompts, jnp.broadcast_to(jnp.arange(8), (2, 8)))
    rows = jnp.arange(2)
    np.testing.assert_allclose(
        model.apply({"params": params}, hidden[rows, lengths - 1], method="logits"),
        whole[rows, lengths - 1],
        rtol=1e-4,
        atol=1e-4,
    )
    for _ in range(4):
        hidden, cache = run(cache, TOKENS[rows, lengths][:, None], lengths[:, None])
        np.testing.assert_allclose(
            model.apply({"params": params}, hidden[:, 0], method="logits"),
            whole[rows, lengths],
            rtol=1e-4,
            atol=1e-4,
        )
        lengths = lengths + 1


def test_flops_count_the_matrix_products():
    """Against a count by hand, of GPT-2's published shape at length 1024."""
    model, length, width = GPT(), 1024, 768
    layer = 2 * length * (4 * width**2 + 8 * width**2) + 2 * 2 * width * length**2 / 2
    assert model.flops(length) == 12 * layer + 2 * length * width * 50_257
    assert GPT(local_window=256).flops(length) < model.flops(length)
    assert GPT(local_window=4096).flops(length) == model.flops(length)
