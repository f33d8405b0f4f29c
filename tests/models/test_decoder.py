"""The decoder of Llama, Qwen2 and Mixtral: published sizes, masks, decoding, limits of its keys."""

import functools
import math

import flax.linen as nn
import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.examples import CONFIGS
from tests.jitted import Jitted
from transformer_jax import config as configs
from transformer_jax.config import UserError, build_model
from transformer_jax.contracts.model import Inputs
from transformer_jax.families.decoder import Decoder

TINY = dict(
    vocab_size=37,
    d_model=16,
    d_ff=24,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    max_length=128,
    dtype="float32",
)
TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, 12), 0, 37))
VARIANTS = pytest.mark.parametrize(
    "options",
    [
        {},
        dict(tie_output=True, qkv_bias=True, rotary_factor=8.0, rotary_length=16),
        dict(local_window=4, num_kv_heads=1),
        dict(num_experts=4),
    ],
    ids=["llama", "qwen2", "sliding_window", "experts"],
)


@functools.cache
def build(**options):
    """Returns a tiny model and parameters far from their small initial values."""
    model = Jitted(Decoder(**{**TINY, **options}))
    params = nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]

    def perturb(x):
        return x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape)

    return model, jax.jit(lambda params: jax.tree.map(perturb, params))(params)


def changed_at(position):
    """Returns the tokens with another one at this position of each row."""
    tokens = TOKENS.copy()
    tokens[:, position] = (tokens[:, position] + 1) % 37
    return tokens


@pytest.mark.parametrize(
    "config, count",
    [
        ("llama2.py:7b", 6_738_415_616),
        ("llama2.py:13b", 13_015_864_320),
        ("llama2.py:70b", 68_976_648_192),
        ("mixtral.py", 46_702_792_704),
    ],
)
def test_published_parameter_counts(config, count):
    model = build_model(configs.load(f"{CONFIGS}/decoder/{config}"))
    params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), TOKENS))
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(params)) == count


@pytest.mark.sample("sliding_window")
@VARIANTS
def test_a_token_changes_its_own_and_later_positions_alone(options):
    model, params = build(**options)
    states, changed = (
        np.asarray(model.apply({"params": params}, tokens)) for tokens in (TOKENS, changed_at(5))
    )
    differs = np.abs(states - changed).max(axis=(0, 2))
    assert not differs[:5].any() and (differs[5:] > 0).all()


@pytest.mark.full
def test_a_window_reaches_as_far_as_its_layers():
    model, params = build(local_window=3)
    states, changed = (
        np.asarray(model.apply({"params": params}, tokens)) for tokens in (TOKENS, changed_at(0))
    )
    differs = np.abs(states - changed).max(axis=(0, 2))
    assert (differs[:7] > 0).all() and not differs[7:].any()


def test_documents_of_a_row_do_not_attend_to_each_other_and_only_distances_count():
    model, params = build()
    segments = np.array([[1] * 5 + [2] * 7] * 2)
    positions = np.array([[*range(5), *range(7)]] * 2)
    alone = model.apply({"params": params}, TOKENS[:, 5:])
    for offset in (0, 50):
        inputs = Inputs(TOKENS, positions=positions + offset, segment_ids=segments)
        packed = model.apply({"params": params}, inputs)
        np.testing.assert_allclose(np.asarray(packed)[:, 5:], alone, rtol=1e-4, atol=1e-4)


@VARIANTS
def test_cached_decoding_equals_the_whole_prefix(options):
    model, params = build(**options)
    expected = np.asarray(model.apply({"params": params}, TOKENS))
    lengths = np.array([5, 8])
    prompts = np.where(np.arange(8) < lengths[:, None], TOKENS[:, :8], 9)
    rows = np.arange(2)
    params = model.for_decoding(params)
    logits, state = model.begin(params, prompts, lengths, slots=16)
    keys = state.cache["cache"]["decoder"]["layers"]["attention"]["keys"]
    assert [x.shape for x in keys] == [(2, model.num_kv_heads, 4, 16)] * 3
    np.testing.assert_allclose(logits, expected[rows, lengths - 1], rtol=1e-4, atol=1e-4)
    for _ in range(4):
        logits, state = model.step(params, state, TOKENS[rows, lengths][:, None])
        logits = np.asarray(logits)
        np.testing.assert_allclose(logits[:, 0], expected[rows, lengths], rtol=1e-4, atol=1e-4)
        lengths = lengths + 1


@pytest.mark.parametrize(
    "options, key",
    [
        (dict(num_kv_heads=3), "num_kv_heads=3: must divide config.model.num_heads=4"),
        (dict(head_dim=5), "head_dim=5: must be even"),
        (dict(rotary_factor=0.5), "rotary_factor=0.5: must be at least 1"),
        (dict(capacity_factor=0.0), "capacity_factor=0.0: must be above 0"),
    ],
)
def test_keys_have_limits(options, key):
    with pytest.raises(UserError, match=f"config.model.{key}"):
        build_model(ConfigDict({"model": {"name": "decoder", **TINY, **options}}))


def test_a_row_longer_than_the_model_is_refused():
    with pytest.raises(UserError, match="a row has 12 tokens: must be at most"):
        Decoder(**{**TINY, "max_length": 8}).init(jax.random.key(0), TOKENS)
