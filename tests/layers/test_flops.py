"""The formulas of FLOPs against the products that are traced."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.families.albert import ALBERT
from transformer_jax.families.bert import BERT
from transformer_jax.families.decoder import Decoder
from transformer_jax.families.distilbert import DistilBERT
from transformer_jax.families.electra import ELECTRA
from transformer_jax.families.encoder_decoder import EncoderDecoder
from transformer_jax.families.longformer import Longformer
from transformer_jax.families.roberta import RoBERTa
from transformer_jax.layers import parameters
from transformer_jax.planning import estimate

SIZES = dict(d_model=32, num_heads=4, d_ff=48, vocab_size=128)
LENGTH = 8
ZEROS = jnp.zeros((1, LENGTH), jnp.int32)


def traced_flops(model, *inputs):
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    return estimate.flops(model.apply, params, *inputs)


def tokens(length):
    return jax.ShapeDtypeStruct((1, length), jnp.int32)


@pytest.mark.parametrize("family", [BERT, DistilBERT])
def test_bert(family):
    model = family(num_layers=3, **SIZES)
    assert traced_flops(model, tokens(LENGTH)) == model.flops(LENGTH, LENGTH)


def test_encoder_decoder():
    """The trace has whole squares of causal attention; the formula counts half of each."""
    model = EncoderDecoder(num_encoder_layers=2, num_decoder_layers=3, **SIZES)
    hidden_pairs = 3 * 4 * model.d_model * LENGTH**2 / 2
    num_flops = traced_flops(model, tokens(5), tokens(LENGTH))
    assert num_flops == model.flops(5, LENGTH) + hidden_pairs


@pytest.mark.parametrize("family, sizes", [(ALBERT, dict(d_embed=16)), (RoBERTa, {})])
def test_relatives_of_bert(family, sizes):
    model = family(num_layers=3, **sizes, **SIZES)
    assert traced_flops(model, tokens(LENGTH)) == model.flops(LENGTH, LENGTH)


def test_a_dilated_window_has_the_keys_within_the_row():
    """A head has 5 keys a token, or 2 of the 8 in the row where each fourth is one."""
    sizes = dict(num_layers=2, attention_window=(4,), **SIZES)
    model = Longformer(attention_dilation=(1, 4), dilated_heads=1, **sizes)
    without = Longformer(**sizes)
    per_key = 4 * 8 * LENGTH  # scores and weighted sum of a head of 8
    assert without.flops(LENGTH, 0) - model.flops(LENGTH, 0) == per_key * (5 - 2)


def test_electra():
    model = ELECTRA(num_layers=3, d_embed=16, generator_size=0.5, **SIZES)

    def both(model, tokens):
        states = model.generated(tokens)
        table, _ = model.generator_output()
        logits = model.generator_transformed(states) @ table.T
        return logits, model.detected(model.hidden(tokens))

    params = jax.eval_shape(lambda: model.init(jax.random.key(0), ZEROS, method=both))
    forward = partial(model.apply, method=both)
    expected = model.detection_flops(LENGTH, LENGTH)
    assert estimate.flops(forward, params, tokens(LENGTH)) == expected


def test_decoder():
    model = Decoder(num_layers=3, num_kv_heads=2, **SIZES)
    hidden_pairs = 3 * 4 * model.d_model * LENGTH**2 / 2
    assert traced_flops(model, tokens(LENGTH)) == model.flops(LENGTH) + hidden_pairs


@pytest.mark.parametrize("factor", [None, 1.0])
def test_experts_have_room_for_their_capacity(factor):
    model = Decoder(num_layers=2, num_experts=4, capacity_factor=factor, **SIZES)
    hidden_pairs = 2 * 4 * model.d_model * LENGTH**2 / 2
    apply = partial(model.apply, train=True, mutable=["losses"])
    params = jax.eval_shape(model.init, jax.random.key(0), tokens(LENGTH))
    traced = estimate.flops(apply, params, tokens(LENGTH))
    assert traced == model.flops(LENGTH) + hidden_pairs


@pytest.mark.parametrize("window, pairs", [(None, 32), (8, 32), (100, 32), (2, 14)])
def test_causal_pairs(window, pairs):
    assert parameters.causal_pairs(LENGTH, window) == pairs
