"""A row that is too long and an id that is not there are errors, not NaN."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import UserError
from transformer_jax.models.bert import BERT
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.gpt import GPT

SIZE = dict(vocab_size=20, d_model=8, d_ff=8, num_heads=2, max_length=6)
LAYERS = dict(num_encoder_layers=1, num_decoder_layers=1)
MODELS = {
    "gpt": GPT(num_layers=1, vocab_multiple=8, **SIZE),
    "bert": BERT(num_layers=1, **SIZE),
    "learned": EncoderDecoder(positions="learned", source_vocab_size=30, **LAYERS, **SIZE),
    "sinusoidal": EncoderDecoder(**LAYERS, **SIZE),
}


@pytest.fixture(scope="module", params=MODELS)
def applied(request):
    """(name, tokens -> what the model makes of them, as both source and target)"""
    model = MODELS[request.param]
    sides = 2 if isinstance(model, EncoderDecoder) else 1
    params = jax.jit(model.init)(jax.random.key(0), *[tokens(1, 2)] * sides)["params"]
    return request.param, lambda *tokens: model.apply({"params": params}, *(tokens * sides)[:sides])


def tokens(*shape):
    return jnp.arange(np.prod(shape)).reshape(shape) % SIZE["vocab_size"]


def test_a_row_is_no_longer_than_its_positions(applied):
    name, apply = applied
    assert np.isfinite(jax.tree.leaves(apply(tokens(2, 6)))[0]).all()
    if name == "sinusoidal":  # there is no table
        assert np.isfinite(apply(tokens(2, 7))).all()
        return
    for call in (apply, jax.jit(apply), partial(jax.eval_shape, apply)):
        with pytest.raises(UserError, match="a row has 7 tokens.* config.model.max_length=6"):
            call(tokens(2, 7))
    if name == "learned":
        with pytest.raises(UserError, match="a row has 7 tokens"):
            apply(tokens(2, 6), tokens(2, 7))


@pytest.mark.parametrize("wrong", [20, -1])  # 20 is a row of zeros in GPT's table
def test_ids_are_those_of_the_vocabulary(applied, wrong):
    name, apply = applied
    key = "source_vocab_size=30" if name == "learned" else "vocab_size=20"
    source = jnp.array([[1, 30 if name == "learned" and wrong > 0 else wrong]])
    with pytest.raises(UserError, match=f"the id -?[0-9]+ is not from 0 to .* .config.model.{key}"):
        apply(source)
    if name in ("learned", "sinusoidal"):
        with pytest.raises(UserError, match=f"the id {wrong} is not from 0 to 19"):
            apply(tokens(1, 2), jnp.array([[1, wrong]]))


@pytest.mark.parametrize(
    "argument, values, key",
    [("positions", (0, 6), "max_length=6"), ("token_types", (0, 2), "num_token_types=2")],
)
def test_positions_and_types_are_those_of_their_tables(argument, values, key):
    model = MODELS["bert"]
    params = jax.jit(model.init)(jax.random.key(0), tokens(1, 2))["params"]
    with pytest.raises(UserError, match=f"config.model.{key}"):
        model.apply({"params": params}, tokens(1, 2), **{argument: jnp.array([values])})


@pytest.mark.parametrize("length, slots", [(2, 7), (4, 3)])
def test_a_cache_has_a_slot_for_each_token_and_no_more_than_positions(length, slots):
    model = MODELS["gpt"]
    params = jax.jit(model.init)(jax.random.key(0), tokens(1, 2))["params"]

    def write(tokens):
        positions = jnp.arange(length)[None]
        return model.apply(
            {"params": params}, tokens, positions, decode=slots, method="hidden", mutable=["cache"]
        )

    with pytest.raises(UserError, match=f"decode={slots}.*{length}.*config.model.max_length=6"):
        jax.eval_shape(write, tokens(1, length))
