"""Rows of noised texts tile the text, fit both sides, and depend on their number and epoch."""

import types

import numpy as np
import pytest

from transformer_jax.config import UserError
from transformer_jax.data import sentences
from transformer_jax.data.noises import Composition, Frame, NoisedTexts, Pieces, Room

START, PAD, END, MASK = 0, 1, 2, 3
PIECES = Pieces(np.ones(30_000, bool), MASK, 100, 30_100)
FRAME = Frame(np.array([START]), np.array([END]), END)
PLAIN = Frame(np.zeros(0, int), np.array([END]), PAD)
NOISES = {
    "bart": (("permutation",), ("infilling", 0.5)),
    "none": (),
    "span_corruption": (("span_corruption",),),
    "mass": (("mass",),),
    "prefix": (("prefix", 0.4),),
}


def stored(most_sentences=12):
    """Returns a store of 60 documents; token n of the text is 4 + n."""
    random = np.random.default_rng(0)
    counts = random.integers(1, most_sentences, 60)
    lengths = random.integers(1, 20, counts.sum())
    lengths[5] = 100  # longer than a row
    tokens = np.arange(4, 4 + lengths.sum()).astype(np.uint16)
    arrays = {"sentences": lengths, "documents": counts}
    return types.SimpleNamespace(
        array=arrays.get, read=lambda spans: [tokens[a:b] for a, b in spans], size=len(tokens)
    )


def texts_of(store, noises, lengths=(48, 40), *, frame=FRAME, by_document=False, key=(0, 0, 0)):
    noise = Composition.of(noises)
    room = Room(lengths, noise, frame)
    return NoisedTexts(store, room, noise, PIECES, frame, key=key, by_document=by_document)


def all_rows(component, epoch=0):
    rows = component.rows([(number, epoch) for number in range(len(component))])
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("by_document", [False, True])
@pytest.mark.parametrize("frame", [FRAME, PLAIN], ids=["bart", "t5"])
@pytest.mark.parametrize("name", NOISES)
def test_rows_tile_the_text_and_fit(name, frame, by_document):
    store = stored()
    rows = all_rows(texts_of(store, NOISES[name], frame=frame, by_document=by_document))
    assert {array.shape[1] for array in rows.values()} == {48, 40}
    filled = rows["target_segment_ids"] > 0
    labels, source = rows["labels"][filled], rows["source"][rows["source_segment_ids"] > 0]
    if name in ("bart", "none"):  # the targets are the text
        np.testing.assert_array_equal(labels[labels > 3], np.arange(4, 4 + store.size))
    else:
        tokens = np.concatenate([labels, source])
        tokens = tokens[(tokens > 3) & (tokens < 30_000)]
        np.testing.assert_array_equal(np.sort(tokens), np.arange(4, 4 + store.size))
    # The decoder reads the label before; a text begins with the start.
    begins = np.diff(rows["target_segment_ids"], prepend=0, axis=1) > 0
    expected = np.where(begins, frame.start_id, np.roll(rows["labels"], 1, axis=1))
    np.testing.assert_array_equal(rows["target"][filled], expected[filled])
    num_texts = rows["source_segment_ids"].max(axis=1)
    np.testing.assert_array_equal(num_texts, rows["target_segment_ids"].max(axis=1))
    assert (num_texts.max() > 1) == by_document
    assert (source == END).sum() == num_texts.sum()
    if not by_document and name == "none":
        assert filled[:-1].all()


def test_documents_are_texts_of_their_own():
    store = stored()
    rows = all_rows(texts_of(store, NOISES["bart"], by_document=True))
    documents = np.repeat(
        range(60),
        [
            part.sum()
            for part in np.split(store.array("sentences"), np.cumsum(store.array("documents"))[:-1])
        ],
    )
    for labels, segments in zip(rows["labels"], rows["target_segment_ids"]):
        for segment in range(1, segments.max() + 1):
            text = labels[segments == segment]
            assert text[0] == START and text[-1] == END
            assert len(set(documents[text[1:-1] - 4])) == 1


def test_permuted_rows_hold_whole_sentences():
    store = stored()
    starts = {*np.cumsum(store.array("sentences")).tolist()}
    component = texts_of(store, NOISES["bart"])
    first = component._rows[1:-1].tolist()
    assert len(set(first) - starts) == 2  # the parts of the sentence that is longer than a row
    infilled = texts_of(store, (("infilling", 0.5),))
    assert set(np.diff(infilled._rows)[:-1]) == {38}


def test_rows_are_a_function_of_number_and_epoch():
    component = texts_of(stored(), NOISES["bart"])
    (one,), (other,) = component.rows([(3, 1)]), component.rows([(3, 2)])
    for name, values in component.rows([(7, 0), (3, 1)])[1].items():
        np.testing.assert_array_equal(values, one[name])
    np.testing.assert_array_equal(one["labels"], other["labels"])
    assert (one["source"] != other["source"]).any()
    (elsewhere,) = texts_of(stored(), NOISES["bart"], key=(0, 1, 0)).rows([(3, 1)])
    assert (one["source"] != elsewhere["source"]).any()


def test_the_span_of_mass_has_its_positions_in_the_text():
    rows = all_rows(texts_of(stored(), NOISES["mass"]))
    for row in range(len(rows["source"])):
        filled = rows["target_segment_ids"][row] > 0
        masked = np.flatnonzero(rows["source"][row] == MASK)
        np.testing.assert_array_equal(rows["target_positions"][row][filled], masked)


def test_the_rows_of_t5():
    """568 tokens give 512 inputs and 114 targets (Raffel et al. 2020, section 3.1.4)."""
    noise = Composition.of(NOISES["span_corruption"])
    room = Room((512, 114), noise, PLAIN)
    assert room.most(512, 114) == 568 and room.left(512, 114, 568) == (0, 0)
    with pytest.raises(UserError, match="config.task.source_length=2 and target_length=2: no room"):
        Room((2, 2), noise, FRAME)


def test_exact_sentences_are_the_document():
    text = "\n One.  Two!\n\tThree goes on\nhere? “Four.” \n\n\n five \n"
    for manner in ("line", "punctuation"):
        exact = sentences.split(text, manner, exact=True)
        assert "".join(exact) == text.strip()
        joined = [" ".join(sentence.split()) for sentence in exact]
        assert joined == sentences.split(text.replace("  ", " "), manner)
    assert sentences.split(" \n", "line", exact=True) == []
