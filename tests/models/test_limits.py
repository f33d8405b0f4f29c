"""A row that is too long and an id outside the vocabulary are errors, not NaN."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import UserError
from transformer_jax.contracts.model import CachedSequenceToSequence
from transformer_jax.families.bart import BART
from transformer_jax.families.bert import BERT
from transformer_jax.families.encoder_decoder import EncoderDecoder
from transformer_jax.families.gpt import GPT

SIZE = dict(vocab_size=20, d_model=8, d_ff=8, num_heads=2, max_length=6)
LAYERS = dict(num_encoder_layers=1, num_decoder_layers=1)
MODELS = {
    "gpt": GPT(num_layers=1, vocab_multiple=8, **SIZE),
    "bert": BERT(num_layers=1, **SIZE),
    "learned": EncoderDecoder(positions="learned", source_vocab_size=30, **LAYERS, **SIZE),
    "binary": EncoderDecoder(
        positions="binary", position_width=3, tie_output=False, **LAYERS, **SIZE
    ),
    "normalized": EncoderDecoder(positions="normalized", **LAYERS, **SIZE),
    "bart": BART(**LAYERS, **SIZE),
    "sinusoidal": EncoderDecoder(**LAYERS, **SIZE),
}


@pytest.fixture(scope="module", params=MODELS)
def applied(request):
    """Returns the name of a model, and a function from tokens to its outputs.

    The function takes source and target. One argument is used for both.
    """
    model = MODELS[request.param]
    num_inputs = 2 if isinstance(model, CachedSequenceToSequence) else 1
    params = jax.jit(model.init)(jax.random.key(0), *[tokens(1, 2)] * num_inputs)["params"]

    def apply(*inputs, **options):
        inputs = (inputs * num_inputs)[:num_inputs]
        return model.apply({"params": params}, *inputs, **options)

    return request.param, apply


def tokens(*shape):
    return jnp.asarray(np.arange(np.prod(shape)).reshape(shape) % SIZE["vocab_size"])


@pytest.mark.sample("gpt")
def test_a_row_is_at_most_as_long_as_the_table_of_positions(applied):
    name, apply = applied
    compiled = jax.jit(apply)
    assert np.isfinite(jax.tree.leaves(compiled(tokens(2, 6)))[0]).all()
    if name == "sinusoidal":
        # Sinusoids have no table.
        assert np.isfinite(compiled(tokens(2, 7))).all()
        return
    for call in (apply, compiled, partial(jax.eval_shape, apply)):
        with pytest.raises(UserError, match="a row has 7 tokens.* config.model.max_length=6"):
            call(tokens(2, 7))
    if name in ("learned", "binary", "normalized", "bart"):
        with pytest.raises(UserError, match="a row has 7 tokens"):
            compiled(tokens(2, 6), tokens(2, 7))


@pytest.mark.sample("gpt-20", "gpt--1", "bart-20", "binary-20")
@pytest.mark.parametrize("invalid", [20, -1])  # GPT's table has a row of zeros at 20
def test_ids_are_in_the_vocabulary(applied, invalid):
    name, apply = applied
    key = "source_vocab_size=30" if name == "learned" else "vocab_size=20"
    source = jnp.array([[1, 30 if name == "learned" and invalid > 0 else invalid]])
    with pytest.raises(UserError, match=f"the id -?[0-9]+ is not from 0 to .* .config.model.{key}"):
        apply(source)
    if name in ("learned", "bart", "sinusoidal"):
        with pytest.raises(UserError, match=f"the id {invalid} is not from 0 to 19"):
            apply(jnp.array([[1, invalid]]), jnp.zeros((1, 2, 8)), method="decode")


@pytest.mark.sample("positions-values0-max_length=6")
@pytest.mark.parametrize(
    "argument, values, key",
    [("positions", (0, 6), "max_length=6"), ("token_types", (0, 2), "num_token_types=2")],
)
def test_positions_and_types_are_in_their_tables(argument, values, key):
    model = MODELS["bert"]
    params = jax.jit(model.init)(jax.random.key(0), tokens(1, 2))["params"]
    with pytest.raises(UserError, match=f"config.model.{key}"):
        model.apply({"params": params}, tokens(1, 2), **{argument: jnp.array([values])})


@pytest.mark.parametrize("length, slots", [(2, 7), (4, 3)])
def test_a_cache_has_a_slot_for_each_token_and_at_most_max_length(length, slots):
    model = MODELS["gpt"]
    params = jax.jit(model.init)(jax.random.key(0), tokens(1, 2))["params"]

    def write(tokens):
        return model.begin(params, tokens, jnp.array([length]), slots=slots)

    with pytest.raises(UserError, match=f"slots={slots}.*{length}.*config.model.max_length=6"):
        jax.eval_shape(write, tokens(1, length))
