"""Beam search with the options of transformers writes the outputs of transformers."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures import make_beam_search as make
from transformer_jax.config import Decode
from transformer_jax.huggingface import encoder_decoder
from transformer_jax.inference.beam_search import BeamSearch
from transformer_jax.layers.decoding import Rows

TABLE = make.table()


def step(state, tokens):
    """Reads a token of each hypothesis. The memory is the codes of the prefixes."""
    codes = make.next_code(state.cache, tokens.reshape(-1))
    new = state.replace(cache=codes, lengths=state.lengths + 1)
    return jnp.asarray(TABLE)[codes].reshape(*tokens.shape, -1), new


def outputs(options):
    """Returns the outputs of all starts."""
    decode = Decode(**encoder_decoder.decode_keys(options))
    settings = dict(
        never=tuple(i for (i,) in options.get("bad_words_ids", ())),
        first=tuple(options[key] for key in ("forced_bos_token_id",) if key in options),
    )
    n_best = options["num_return_sequences"]
    search = BeamSearch.of(decode, options["eos_token_id"], n_best, **settings)
    starts = jnp.array(make.STARTS)[:, None]
    empty = Rows(jnp.zeros(len(starts), jnp.int32), jnp.zeros(starts.shape, jnp.int32))
    limits = jnp.full(len(starts), decode.max_length)

    @jax.jit
    def best():
        logits, state = step(empty, starts)
        started = search.begin(limits, logits[:, 0], state, starts)
        ended = search.advance(search.resized(started, decode.max_length), step, len(starts))
        return search.best(ended)

    return jax.device_get(best())


@functools.cache
def expected():
    return json.loads(make.FILE.read_text())


@pytest.mark.sample("estimate", "first", "never", "long", "3-grams", "forced")
@pytest.mark.parametrize("case", make.CASES)
def test_outputs_and_scores_equal(case):
    options = make.options(case)
    ids, lengths, scores = outputs(options)
    for row, hypotheses in enumerate(expected()[case]):
        rows = [each[:length].tolist() for each, length in zip(ids[row], lengths[row])]
        assert rows == [hypothesis for hypothesis, _ in hypotheses]
        if options["num_beams"] > 1:
            np.testing.assert_allclose(scores[row], [score for _, score in hypotheses], atol=1e-4)


def test_the_ways_of_stopping_differ():
    """Else the cases above would not tell them apart."""
    first = [expected()[case] for case in ("estimate", "first", "never")]
    assert first[0] != first[1] != first[2] != first[0]


def test_live():
    pytest.importorskip("transformers")
    model = make.transformers_model()
    for case in make.CASES:
        for rows, others in zip(make.outputs(model, case), expected()[case], strict=True):
            assert [ids for ids, _ in rows] == [ids for ids, _ in others]
