"""Linformer: its projections of the length, and what they share."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import jitted
from transformer_jax.config import UserError, build_model, experiment
from transformer_jax.families.linformer import Linformer
from transformer_jax.families.roberta import RoBERTa

LENGTH = 24
TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, LENGTH), 0, 37))
SIZES = dict(
    vocab_size=37, d_model=16, num_layers=2, num_heads=2, max_length=LENGTH, init_std=0.3
) | dict(dropout=0.0, attention_dropout=0.0)
CLOSE = dict(rtol=0, atol=1e-5)
apply = jitted(nn.Module.apply)


@functools.cache
def build(sharing, rank=4):
    model = Linformer(**SIZES, sharing=sharing, rank=rank)
    return model, nn.unbox(jax.jit(model.init)(jax.random.key(0), TOKENS))["params"]


def hidden(model, params, tokens=TOKENS, **options):
    return np.asarray(apply(model, {"params": params}, tokens, **options, method="hidden"))


@pytest.mark.sample("heads-4")
@pytest.mark.parametrize("sharing, matrices", [("heads", 4), ("keys_and_values", 2), ("layers", 1)])
def test_projections_of_one_position_each_are_full_attention(sharing, matrices):
    model, params = build(sharing, rank=LENGTH)

    def identity(path, x):
        is_projection = x.shape[-2:] == (LENGTH, LENGTH)
        return np.broadcast_to(np.eye(LENGTH, dtype=x.dtype), x.shape) if is_projection else x

    params = jax.tree_util.tree_map_with_path(identity, params)
    expected = hidden(RoBERTa(**SIZES), params)
    np.testing.assert_allclose(hidden(model, params), expected, **CLOSE)

    def size(model):
        shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS)
        return sum(x.size for x in jax.tree.leaves(shapes))

    assert size(model) - size(RoBERTa(**SIZES)) == matrices * LENGTH**2


@pytest.mark.sample("layers")
@pytest.mark.parametrize("sharing", ["heads", "layers"])
def test_padding_and_the_columns_of_longer_rows_change_nothing(sharing):
    model, params = build(sharing)
    filled = (np.arange(LENGTH) < 15) * np.ones((2, 1), np.int32)
    expected = hidden(model, params, TOKENS[:, :15])
    other = np.where(filled > 0, TOKENS, 0)
    for tokens in (TOKENS, other):
        states = hidden(model, params, tokens, segment_ids=filled)
        np.testing.assert_allclose(states[:, :15], expected, **CLOSE)


def test_memory_grows_linearly_with_the_length():
    def temporaries(length):
        model = Linformer(**SIZES | dict(max_length=length), rank=32)
        tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
        params = jax.eval_shape(model.init, jax.random.key(0), tokens)
        program = jax.jit(lambda *arrays: model.apply(*arrays, method="hidden"))
        return program.lower(params, tokens).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(8192) < 4.2 * temporaries(2048)


def test_rows_of_several_examples_and_wrong_ranks_are_refused():
    model, params = build("heads")
    packed = np.where(np.arange(LENGTH) < 9, 1, 2) * np.ones((2, 1), np.int32)
    with pytest.raises(UserError, match="one example a row"):
        model.apply({"params": params}, TOKENS, segment_ids=packed, method="hidden")
    with pytest.raises(UserError, match="hides no token from another: key_ranks"):
        ranks = np.broadcast_to(np.arange(LENGTH), TOKENS.shape)
        hidden(model, params, ranks=ranks)
    for rank in (0, LENGTH + 1):
        config = experiment(
            model=dict(name="linformer", **SIZES, rank=rank),
            task=dict(name="masked_lm", phases=((1.0, LENGTH, 4),), next_sentence=0.0),
        )
        with pytest.raises(UserError, match="config.model.rank"):
            build_model(config)
