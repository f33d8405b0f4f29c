"""The statistics of BERT's rows (Devlin et al. 2018, section 3.1 and appendix A)."""

import types

import numpy as np
import pytest

from transformer_jax.config import UserError
from transformer_jax.data import masking

V, PAD, UNK, CLS, SEP, MASK = 1000, 0, 1, 2, 3, 4
SPECIAL = np.arange(V) < 5
CONTINUES = (np.arange(V) >= 5) & (np.arange(V) % 4 == 0)
DOCUMENTS = 60


def mask(max_predictions=20, **options):
    return masking.Masking(MASK, SPECIAL, CONTINUES, max_predictions, **options)


def fake():
    """Returns a store in which the tokens of document d are from 10 d + 5 to 10 d + 14."""
    random = np.random.default_rng(0)
    counts = random.integers(1, 20, DOCUMENTS)
    lengths = random.integers(1, 40, counts.sum())
    owner = np.repeat(np.repeat(np.arange(DOCUMENTS), counts), lengths)
    tokens = (10 * owner + 5 + random.integers(10, size=len(owner))).astype(np.uint16)
    arrays = {"sentences": lengths, "documents": counts}
    return types.SimpleNamespace(
        meta={"cls_id": CLS, "sep_id": SEP},
        array=arrays.get,
        read=lambda spans: [tokens[a:b] for a, b in spans],
    )


@pytest.fixture(scope="module")
def drawn():
    return draw(100_000)


def draw(count):
    """Returns `count` rows of 128 tokens, as arrays."""
    source = masking.SentencePairs(fake(), 128, mask(), (0, 0, 0))
    epochs = count // len(source) + 1
    numbers = [(number, epoch) for epoch in range(epochs) for number in range(len(source))]
    rows = source.rows(numbers[:count])
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def restored(rows):
    """Returns the tokens before masking."""
    tokens = rows["tokens"].copy()
    for row, (positions, labels, weights) in enumerate(
        zip(rows["masked_positions"], rows["masked_labels"], rows["masked_weights"])
    ):
        tokens[row, positions[weights > 0]] = labels[weights > 0]
    return tokens


@pytest.mark.full
def test_masks_come_in_the_published_shares(drawn):
    is_predicted, filled = drawn["masked_weights"] > 0, drawn["segment_ids"] > 0
    inputs = np.take_along_axis(drawn["tokens"], drawn["masked_positions"], axis=1)[is_predicted]
    labels = drawn["masked_labels"][is_predicted]
    assert is_predicted.sum() / filled.sum() == pytest.approx(0.15, abs=0.002)
    masks, same = (inputs == MASK).mean(), (inputs == labels).mean()
    assert (
        masks == pytest.approx(0.8, abs=0.003)
        and same == pytest.approx(0.1, abs=0.003)
        and 1 - masks - same == pytest.approx(0.1, abs=0.003)
    )
    assert not SPECIAL[labels].any() and not SPECIAL[inputs[inputs != MASK]].any()
    assert is_predicted.sum(axis=1).max() == 19 and is_predicted.sum(axis=1).min() >= 1
    for positions, weights in zip(drawn["masked_positions"][:1000], drawn["masked_weights"][:1000]):
        assert len(set(positions[weights > 0])) == weights.sum()


@pytest.mark.full
def test_half_of_the_second_texts_follow_and_the_others_are_from_another_document(drawn):
    tokens, types_, filled = restored(drawn), drawn["token_types"], drawn["segment_ids"] > 0
    assert drawn["follows"].mean() == pytest.approx(0.5, abs=0.005)
    ordinary = tokens >= 5
    document = (tokens - 5) // 10
    first = np.where(ordinary & (types_ == 0), document, -1).max(axis=1)
    second = np.where(ordinary & (types_ == 1), document, -1).max(axis=1)
    assert (first >= 0).all() and (second >= 0).all()
    assert (np.where(ordinary & (types_ == 0), document, first[:, None]) == first[:, None]).all()
    assert (np.where(ordinary & (types_ == 1), document, second[:, None]) == second[:, None]).all()
    np.testing.assert_array_equal(first == second, drawn["follows"] == 1)
    assert (tokens[:, 0] == CLS).all() and ((tokens == SEP).sum(axis=1) == 2).all()
    ends = filled.sum(axis=1)
    assert (tokens[np.arange(len(tokens)), ends - 1] == SEP).all() and (
        tokens[~filled] == PAD
    ).all()


def test_rows_are_full_but_for_one_in_ten():
    lengths = (draw(1000)["segment_ids"] > 0).sum(axis=1)
    assert lengths.max() == 128 and lengths.min() >= 5
    assert np.quantile(lengths, 0.05) < 80  # the short ones are of any length


def test_rows_are_a_function_of_number_and_epoch():
    source = masking.SentencePairs(fake(), 64, mask(10), (0, 0, 0))
    (one,), (other,) = source.rows([(3, 1)]), source.rows([(3, 2)])
    for name, values in source.rows([(7, 0), (3, 1)])[1].items():
        np.testing.assert_array_equal(values, one[name])
    assert (one["tokens"] != other["tokens"]).any()
    (elsewhere,) = masking.SentencePairs(fake(), 64, mask(10), (0, 1, 0)).rows([(3, 1)])
    assert (one["tokens"] != elsewhere["tokens"]).any()


def test_spans_tile_every_document_of_two_sentences_or_more():
    stored = fake()
    source = masking.SentencePairs(stored, 64, mask(), (0, 0, 0))
    bounds = np.concatenate([[0], np.cumsum(stored.array("documents"))])
    for document in range(DOCUMENTS):
        spans = [span for span in source._spans.tolist() if span[2] == document]
        if bounds[document + 1] - bounds[document] == 1:
            assert not spans
            continue
        assert spans[0][0] == bounds[document] and spans[-1][1] == bounds[document + 1]
        assert all(a[1] == b[0] for a, b in zip(spans, spans[1:])) and all(
            span[1] - span[0] >= 2 for span in spans
        )


def test_what_is_cut_leaves_the_longer_text_no_shorter_than_the_other():
    random = np.random.default_rng(0)
    fronts = []
    for first, second, max_tokens in random.integers(1, 60, (3000, 3)) + [0, 0, 1]:
        a, b = masking.truncated_pair(first, second, max_tokens, random)
        lengths = len(range(first)[a]), len(range(second)[b])
        assert sum(lengths) == min(first + second, max_tokens) and min(lengths) >= 1
        assert lengths[0] == first or lengths[1] == second or abs(lengths[0] - lengths[1]) <= 1
        if first - lengths[0] >= 10:
            fronts.append(a.start / (first - lengths[0]))
    assert np.mean(fronts) == pytest.approx(0.5, abs=0.05)


def test_whole_words_are_masked_whole():
    random, masked = np.random.default_rng(0), []
    for _ in range(500):
        tokens = np.concatenate([[CLS], random.integers(5, V, 60), [SEP]])
        row = mask(whole_words=True)(tokens, random)
        chosen = set(row["masked_positions"][row["masked_weights"] > 0].tolist())
        masked.append(len(chosen))
        for position in range(2, 61):
            if CONTINUES[tokens[position]]:
                assert (position in chosen) == (position - 1 in chosen)
    assert max(masked) <= 9 and np.mean(masked) > 8


@pytest.mark.sample("ngrams0")
@pytest.mark.parametrize("ngrams", [(1.0,), (1.0, 0.0)])
def test_masks_fall_on_tokens_in_proportion_to_their_weights(ngrams):
    """The second token of the vocabulary is three times as likely as the first one."""
    random, weights = np.random.default_rng(0), np.array([1.0, 3.0])
    options = dict(weights=np.tile(weights, V // 2), ngrams=ngrams)
    tokens = np.concatenate([[CLS], 6 + np.arange(60) % 2, [SEP]])

    def labels(max_predictions):
        rows = [mask(max_predictions, **options)(tokens, random) for _ in range(2000)]
        return np.concatenate([row["masked_labels"][row["masked_weights"] > 0] for row in rows])

    assert np.mean(labels(1) == 7) == pytest.approx(0.75, abs=0.03)
    masked_labels = labels(20)
    # The share of masked tokens does not depend on the weights.
    assert len(masked_labels) == 2000 * round(0.15 * len(tokens))
    assert 0.65 < np.mean(masked_labels == 7) < 0.75


@pytest.mark.parametrize("whole_words", [False, True])
def test_spans_have_the_lengths_of_the_weights(whole_words):
    random, lengths = np.random.default_rng(0), []
    spans_of_three = mask(40, whole_words=whole_words, ngrams=(0.0, 0.0, 1.0))
    tokens = np.concatenate([[CLS], 5 + np.arange(200), [SEP]])
    units = np.cumsum(~CONTINUES[tokens]) if whole_words else np.arange(len(tokens))
    for _ in range(200):
        row = spans_of_three(tokens, random)
        chosen = row["masked_positions"][row["masked_weights"] > 0]
        assert len(chosen) <= 30 and len({*chosen.tolist()}) == len(chosen)
        spans = np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1)
        lengths.extend(len(np.unique(units[span])) for span in spans)
    # Neighbouring spans join, and some are cut.
    assert np.mean(np.array(lengths) == 3) > 0.6 and np.mean(lengths) > 2.5
    row = spans_of_three(np.array([CLS, SEP]), random)
    assert not row["masked_weights"].any()


def test_swapped_pairs_are_of_one_document():
    tokens = np.arange(5, 905, dtype=np.uint16)
    arrays = {"sentences": np.full(90, 10), "documents": np.array([90])}
    stored = types.SimpleNamespace(
        meta={"cls_id": CLS, "sep_id": SEP},
        array=arrays.get,
        read=lambda spans: [tokens[a:b] for a, b in spans],
    )
    source = masking.SentencePairs(stored, 64, mask(10), (0, 0, 0), swaps=True)
    rows = source.rows([(number, epoch) for epoch in range(20) for number in range(len(source))])
    follows = np.array([row["follows"] for row in rows])
    assert follows.mean() == pytest.approx(0.5, abs=0.1)
    rows = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    tokens, filled = restored(rows), rows["segment_ids"] > 0
    first = np.where(rows["token_types"] == 0, tokens, 0).max(axis=1)
    second = np.where((rows["token_types"] == 1) & filled, tokens, 0).max(axis=1)
    np.testing.assert_array_equal(first < second, follows == 1)


def test_too_little_text_is_refused():
    stored = types.SimpleNamespace(
        meta={}, array={"sentences": np.array([5, 5]), "documents": np.array([2])}.get
    )
    with pytest.raises(UserError, match="two documents"):
        masking.SentencePairs(stored, 64, mask(), (0, 0, 0))
