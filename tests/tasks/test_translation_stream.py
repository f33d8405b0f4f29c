"""Beam search over a stream of inputs: no input changes the output of another."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.inference import stream
from transformer_jax.runs.open import open_run


@pytest.fixture
def endless(translation):
    """endless(beam, batch) -> (task, params) whose outputs have no end, but reach their limits."""

    def opened(beam, batch):
        overrides = {"decode.beam": beam, "decode.batch": batch}
        task, params = open_run(translation.workdir, overrides=overrides)
        target = types.SimpleNamespace(
            start_id=task.tokenizer.target.start_id,
            eos_id=-1,
            framed=lambda ids: [*ids, -1],
            never=(),
            vocab_size=task.model.vocab_size,
        )
        task.tokenizer = types.SimpleNamespace(target=target)
        return task, task.model.for_decoding(params)

    return opened


def sources(*lengths):
    return [list(range(4, 4 + length)) for length in lengths]


@pytest.mark.full
@pytest.mark.parametrize("beam", [1, 3])
def test_a_row_that_is_used_again_and_a_cache_that_grows_change_nothing(endless, beam, monkeypatch):
    """Seven inputs share two rows. Each is compared with itself alone, with a large cache."""
    task, params = endless(beam, 2)
    inputs, limits = sources(20, 17, 14, 11, 9, 6, 5), [9, 30, 14, 3, 21, 1, 6]
    padded_lengths = {-(-len(ids) // stream._SOURCE_MULTIPLE) for ids in inputs}
    assert len(padded_lengths) > 1
    monkeypatch.setattr(stream, "_EXTRA_SLOTS", 40)
    alone = [
        next(task.stream(params, 1)(params, [ids], [limit]))[1]
        for ids, limit in zip(inputs, limits)
    ]
    monkeypatch.setattr(stream, "_EXTRA_SLOTS", -14)
    together = dict(task.stream(params, 1)(params, inputs, limits))
    assert sorted(together) == list(range(7))
    for number, (expected, limit) in enumerate(zip(alone, limits)):
        assert together[number].tokens(-1) == expected.tokens(-1)
        assert expected.lengths.tolist() == [limit]
        np.testing.assert_allclose(together[number].scores, expected.scores, rtol=1e-5)


def test_sources_of_one_row_do_not_see_each_other(endless, monkeypatch):
    """Three inputs share two packed rows of 16 tokens.

    The third source has no room beside the first two, and is read with the following ones.
    """
    task, params = endless(2, 3)
    inputs = sources(9, 9, 9, 6, 6)
    alone = [next(task.stream(params, 1)(params, [ids], [6]))[1] for ids in inputs]
    monkeypatch.setattr(stream, "_ROW_LENGTH", 16)
    begin, starts = stream.Stream.begin, []

    def recorded(self, params, source, where, limits):
        if isinstance(where, np.ndarray):  # not while it is traced
            starts.append(where[:, 0].tolist())
        return begin(self, params, source, where, limits)

    monkeypatch.setattr(stream.Stream, "begin", recorded)
    # With two hypotheses, nothing compiled for other rows is used.
    for number, beams in task.stream(params, 2)(params, inputs, [6] * 5):
        np.testing.assert_array_equal(beams.ids[0], alone[number].ids[0])
        np.testing.assert_allclose(beams.scores[0], alone[number].scores[0], rtol=1e-5)
    # Position 32 is padding.
    assert starts == [[0, 16, 32], [0, 9, 16]]


@pytest.mark.full
@pytest.mark.parametrize("lengths", [(20, 20, 20, 5), (5, 5, 5, 40)])
def test_an_input_may_remain_alone_after_it_was_read_with_a_longer_one(endless, lengths):
    """The second and third inputs end together. The fourth was padded to the third's length."""
    task, params = endless(2, 2)
    limits = [3, 6, 4, 5]
    outputs = dict(task.stream(params, 1)(params, sources(*lengths), limits))
    assert [int(outputs[number].lengths[0]) for number in range(4)] == limits


@pytest.mark.full
def test_a_cache_that_grew_for_one_long_output_shrinks_again(endless, monkeypatch):
    task, params = endless(2, 1)
    resize, slots = stream.Stream.resize, []

    def recorded(self, search, length, count):
        slots.append(count)
        return resize(self, search, length, count)

    monkeypatch.setattr(stream.Stream, "resize", recorded)
    assert len(list(task.stream(params, 1)(params, [[4, 5, 6]] * 2, [30, 5]))) == 2
    normal = stream._SOURCE_MULTIPLE + stream._EXTRA_SLOTS
    assert slots == [2 * normal, normal]


def test_values_that_are_not_finite_stay_with_their_input(endless, monkeypatch):
    """The states of token 7 are NaN. The next input in the same row is not affected."""
    task, params = endless(2, 1)
    begin = stream.Stream.begin

    def with_nan(self, params, source, where, limits):
        search = begin(self, params, source, where, limits)
        has_token = (source[0] == 7).any()

        def spoil(x):
            return jnp.where(has_token, jnp.nan, x) if x.dtype == jnp.float32 else x

        return search._replace(state=jax.tree.map(spoil, search.state))

    expected = dict(task.stream(params, 1)(params, [[4, 5, 6]], [5]))[0]
    monkeypatch.setattr(stream.Stream, "begin", with_nan)
    spoilt = dict(task.stream(params, 1)(params, [[4, 7, 5, 6], [4, 5, 6]], [5, 5]))
    assert np.isnan(spoilt[0].scores).all()
    np.testing.assert_array_equal(spoilt[1].ids, expected.ids)
    np.testing.assert_allclose(spoilt[1].scores, expected.scores, rtol=1e-5)


@pytest.mark.full
def test_a_cache_is_no_longer_than_the_longest_output(endless):
    """As in summaries: each token reads all slots."""
    task, params = endless(2, 2)
    search = task.stream(params, 1)
    assert search.slots(1024, 142) == 144 and search.slots(16, 142) == 24 * 8
    outputs = dict(search(params, sources(60, 50, 58), [5, 5, 5]))
    assert {int(each.lengths[0]) for each in outputs.values()} == {5}
    assert outputs[0].ids.shape == (1, stream._SOURCE_MULTIPLE)
