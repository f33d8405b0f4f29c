"""Rows of full sentences (Liu et al. 2019, section 4.2) hold all text, cut at sentences alone."""

import types

import numpy as np

from transformer_jax.data import masking

CLS, SEP, MASK = 0, 1, 2
LENGTH = 32
MOST = LENGTH - 2  # tokens of a row between [CLS] and the last [SEP]


def texts():
    """Returns (tokens, the first token of each sentence and document, the component).

    Token n of the text is 3 + n. Two sentences are longer than a row.
    """
    random = np.random.default_rng(0)
    counts = random.integers(1, 6, 200)
    lengths = random.integers(1, 15, counts.sum())
    lengths[[5, 40]] = 2 * MOST + 7, 3 * MOST
    tokens = np.arange(3, 3 + lengths.sum()).astype(np.uint16)
    stored = types.SimpleNamespace(
        array={"sentences": lengths, "documents": counts}.get,
        read=lambda spans: [tokens[a:b] for a, b in spans],
    )
    mask = masking.Masking(MASK, np.arange(3 + len(tokens)) < 3, np.zeros(3 + len(tokens)), 5)
    component = masking.FullSentences(stored, LENGTH, mask, (0, 0, 0), (CLS, SEP))
    sentences = np.cumsum(lengths) - lengths
    documents = sentences[np.cumsum(counts) - counts]
    return tokens, sentences + 3, documents + 3, component


def restored(row):
    """Returns the tokens of a row before masking, without padding."""
    tokens, filled = row["tokens"].copy(), row["segment_ids"] > 0
    is_masked = row["masked_weights"] > 0
    tokens[row["masked_positions"][is_masked]] = row["masked_labels"][is_masked]
    assert not tokens[~filled].any()
    assert filled[: filled.sum()].all() and row["segment_ids"].max() == 1  # padding comes last
    return tokens[filled]


def test_rows_hold_all_text_and_whole_sentences():
    tokens, sentences, documents, component = texts()
    rows = [restored(row) for row in component.rows([(n, 0) for n in range(len(component))])]
    assert all(row[0] == CLS and row[-1] == SEP and len(row) <= LENGTH for row in rows)
    inner = [row[1:-1] for row in rows]
    text = np.concatenate(inner)
    np.testing.assert_array_equal(text[text != SEP], tokens)
    for row in inner:
        # A separator stands in front of each document but that which begins the row.
        begins = np.isin(row, documents)
        begins[0] = False
        np.testing.assert_array_equal(np.flatnonzero(begins) - 1, np.flatnonzero(row == SEP))

    # A row begins with a sentence, or with the rest of one that is longer than a row.
    first = np.array([row[0] for row in inner])
    is_cut = ~np.isin(first, sentences)
    long = sentences[[5, 40]]
    np.testing.assert_array_equal(
        first[is_cut], [*(long[0] + MOST * np.arange(1, 3)), *(long[1] + MOST * np.arange(1, 3))]
    )


def test_no_row_has_room_for_the_next_sentence():
    tokens, sentences, documents, component = texts()
    rows = [restored(row) for row in component.rows([(n, 0) for n in range(len(component))])]
    ends = np.append(sentences[1:], 3 + len(tokens))
    for row, after in zip(rows, rows[1:]):
        start = after[1]
        next_size = min(ends[np.searchsorted(sentences, start, "right") - 1] - start, MOST)
        assert len(row) + next_size + (start in documents) > LENGTH
    assert max(map(len, rows)) == LENGTH


def test_masks_differ_by_epoch_and_rows_do_not():
    _, _, _, component = texts()
    (one,), (again,), (other,) = (component.rows([(7, epoch)]) for epoch in (1, 1, 2))
    for name, values in one.items():
        np.testing.assert_array_equal(values, again[name])
    np.testing.assert_array_equal(restored(one), restored(other))
    assert (one["masked_positions"] != other["masked_positions"]).any()
