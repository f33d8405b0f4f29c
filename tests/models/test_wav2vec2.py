"""wav2vec 2.0: published sizes, padding, masks, and dropped layers."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import Jitted
from transformer_jax.config import UserError
from transformer_jax.families.wav2vec2 import Wav2Vec2

TINY = dict(
    d_model=16,
    num_layers=2,
    num_heads=2,
    convolution_widths=(8, 8, 8),
    convolution_kernels=(10, 3, 2),
    convolution_strides=(5, 2, 2),
    convolution_norm="layer",
    position_kernel=6,
    position_groups=2,
    codes=4,
    d_code=8,
    d_projection=8,
    dropout=0.0,
    attention_dropout=0.0,
    hidden_dropout=0.0,
)
LARGE = dict(
    d_model=1024,
    num_layers=24,
    num_heads=16,
    convolution_norm="layer",
    convolution_bias=True,
    norm_position="pre",
    d_code=768,
    d_projection=768,
)
SOUND = np.asarray(jax.random.normal(jax.random.key(1), (2, 400)))
MASKED_POSITIONS = np.array([[0, 3], [5, 1]])
CLOSE = dict(rtol=1e-4, atol=1e-5)


@functools.cache
def build(**options):
    model = Jitted(Wav2Vec2(**TINY | options))
    params = nn.unbox(model.init(jax.random.key(0), SOUND, MASKED_POSITIONS, method="predictions"))
    return model, params["params"]


@pytest.mark.sample("large")
@pytest.mark.parametrize(
    "options, encoder, heads",
    [
        # Those of transformers' Wav2Vec2Model and Wav2Vec2ForPreTraining.
        ({}, 94_371_712, 95_044_608 - 94_371_712),
        (LARGE, 315_438_720, 317_390_592 - 315_438_720),
    ],
    ids=["base", "large"],
)
def test_published_parameter_counts(options, encoder, heads):
    model = Wav2Vec2(**options)
    init = jax.eval_shape(
        lambda: model.init(
            jax.random.key(0), jnp.zeros((1, 800)), jnp.zeros((1, 1), int), method="predictions"
        )
    )
    shapes = nn.unbox(init)["params"]

    def size(tree):
        return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))

    of_heads = sum(size(shapes[name]) for name in model.heads)
    assert (size(shapes) - of_heads, of_heads) == (encoder, heads)
    assert model.num_frames(16_000) == 49 and model.num_frames(399) == 0


@pytest.mark.sample("post")
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_padding_changes_no_state(norm_position):
    model, params = build(norm_position=norm_position)
    lengths = np.array([400, 260])
    num_frames = model.model.num_frames
    filled = np.arange(num_frames(400)) < num_frames(lengths)[:, None]

    def states(sound, lengths):
        return np.asarray(model.apply({"params": params}, sound, lengths=lengths, method="hidden"))

    original = states(SOUND, lengths)
    other = SOUND.copy()
    other[1, 260:] += 5.0
    np.testing.assert_array_equal(original[filled], states(other, lengths)[filled])
    alone = states(SOUND[1:, :260], np.array([260]))
    np.testing.assert_allclose(original[1, : alone.shape[1]], alone[0], **CLOSE)
    every = np.asarray(model.apply({"params": params}, SOUND, lengths=lengths, method="layers"))
    assert every.shape == (3, *original.shape)
    np.testing.assert_allclose(every[-1], original, **CLOSE)


@pytest.mark.sample("260")
@pytest.mark.parametrize("kept", [260, 13])
def test_a_norm_over_time_can_leave_padding_out(kept):
    """The states of a short row equal those that it has alone, down to a single frame."""
    model, params = build(convolution_norm="group", convolution_kernels=(10, 1, 1))
    sound = SOUND * (np.arange(400) < np.array([[400], [kept]]))

    def states(sound, **options):
        options = dict(lengths=np.array([len(row) for row in sound])) | options
        return np.asarray(model.apply({"params": params}, sound, method="hidden", **options))

    lengths = np.array([400, kept])
    ignored = states(sound, lengths=lengths, ignore_padding=True)
    alone = states(SOUND[1:, :kept])
    np.testing.assert_allclose(ignored[1, : alone.shape[1]], alone[0], **CLOSE)
    np.testing.assert_allclose(ignored[0], states(SOUND[:1])[0], **CLOSE)
    # By default, padding counts, as in the published code.
    padded = states(sound, lengths=lengths)
    assert np.abs(padded[1, : alone.shape[1]] - alone[0]).max() > 1e-3


@pytest.mark.parametrize("ignore_padding", [False, True])
def test_a_row_without_sound_is_finite(ignore_padding):
    model, params = build(convolution_norm="group")
    options = dict(lengths=np.array([0, 400]), ignore_padding=ignore_padding)
    states = model.apply({"params": params}, np.zeros((2, 400)), method="hidden", **options)
    assert np.isfinite(states).all()


@pytest.mark.full
def test_a_masked_frame_is_read_by_no_state():
    model, params = build()
    frames = model.model.num_frames(400)

    def states(sound, masked, channels=None):
        options = dict(masked=masked, feature_mask=channels, method="hidden")
        return np.asarray(model.apply({"params": params}, sound, **options))

    everything = np.ones((2, frames), bool)
    np.testing.assert_array_equal(states(SOUND, everything), states(-SOUND, everything))
    assert (states(SOUND, ~everything) != states(SOUND, everything)).any()
    channels = np.arange(16) < np.array([[0], [4]])
    changed = states(SOUND, None, channels) != states(SOUND, None)
    assert not changed[0].any() and changed[1].any()


@pytest.mark.full
def test_the_gradient_of_the_features_is_scaled():
    _, params = build()

    def gradient(scale):
        model = Wav2Vec2(**TINY | dict(feature_gradient=scale))

        def loss(params):
            return jnp.square(model.apply({"params": params}, SOUND, method="hidden")).sum()

        return jax.device_get(jax.jit(jax.grad(loss))(params))

    whole, scaled = gradient(1.0), gradient(0.25)
    for name in ("convolution_0", "convolution_norms_1"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(0.25 * a, b, rtol=1e-4, atol=1e-6),
            whole[name],
            scaled[name],
        )
    np.testing.assert_allclose(
        whole["projection"]["kernel"], scaled["projection"]["kernel"], rtol=1e-4, atol=1e-6
    )


def test_an_update_leaves_layers_out():
    _, params = build()
    model = Jitted(Wav2Vec2(**TINY | dict(layer_drop=1.0)))
    options = dict(train=True, rngs={"dropout": jax.random.key(0)}, method="hidden")
    dropped = model.apply({"params": params}, SOUND, **options)
    inputs = np.asarray(model.apply({"params": params}, SOUND, method="layers"))[0]
    np.testing.assert_allclose(dropped, inputs, **CLOSE)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(convolution_strides=(5, 2)), r"convolution_strides=\(5, 2\): must be a whole number"),
        (dict(position_groups=3), "position_groups=3 does not divide config.model.d_model=16"),
        (dict(codebooks=3), "codebooks=3 does not divide config.model.d_code=8"),
    ],
)
def test_wrong_keys(options, message):
    with pytest.raises(UserError, match=message):
        Wav2Vec2(**TINY | options).check()
    with pytest.raises(UserError, match="a model of sound predicts no tokens"):
        Wav2Vec2(**TINY).output()
