"""The scores compared with scikit-learn, seqeval and the published script, on 1,000 random cases
each, and in edge cases.
"""

import collections
import random
import re
import string

import numpy as np
import pytest
import sklearn.metrics
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from transformer_jax.scores import predictions as scores


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_classification():
    draw = np.random.default_rng(0)
    for case in range(300):
        num_labels = (2, 3, 5)[case % 3]
        size = draw.integers(1, 30)
        classes = range(num_labels)
        labels = draw.integers(0, num_labels, size)
        is_right = draw.random(size) < draw.random()
        predicted = np.where(is_right, labels, draw.integers(0, num_labels, size))
        both = labels, predicted

        accuracy = sklearn.metrics.accuracy_score(*both)
        assert scores.accuracy(*both) == pytest.approx(accuracy)
        matthews = sklearn.metrics.matthews_corrcoef(*both)
        assert scores.matthews(*both) == pytest.approx(matthews, abs=1e-12)
        f1 = sklearn.metrics.f1_score(*both, zero_division=0, average=None, labels=classes)
        assert [scores.f1_of_class(*both, label) for label in classes] == pytest.approx(f1)
        assert scores.macro_f1(*both, classes) == pytest.approx(f1.mean())
        # With two labels, F1 is that of the second label.
        assert scores.f1(*both, num_labels) == pytest.approx(
            f1[1] if num_labels == 2 else f1.mean()
        )
        matrix = sklearn.metrics.confusion_matrix(*both, labels=classes)
        np.testing.assert_array_equal(scores.confusion(*both, num_labels), matrix)


@pytest.mark.parametrize(
    "labels, predicted, expected",
    [([1, 1], [1, 1], 0.0), ([0, 1], [1, 1], 0.0), ([0, 1], [0, 1], 1.0), ([0, 1], [1, 0], -1.0)],
)
def test_matthews_in_edge_cases(labels, predicted, expected):
    assert scores.matthews(np.array(labels), np.array(predicted)) == pytest.approx(expected)


def drawn_tags(draw, scheme, length):
    """Returns random tags: half of the time well-formed, else any tags as a model predicts them."""
    marks = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES"}[scheme]
    free = [f"{mark}-{kind}" for mark in marks for kind in ("PER", "LOC")] + ["O", "O"]
    if draw.random() < 0.5:
        return [draw.choice(free) for _ in range(length)]
    tags, last_kind = [], None
    while len(tags) < length:
        kind = draw.choice([None, "PER", "LOC"])
        size = draw.randint(1, min(3, length - len(tags)))
        mark = "B" if scheme != "IOB1" or last_kind == kind else "I"
        if kind is None:
            tags += ["O"] * size
        elif scheme != "BIOES":
            tags += [f"{mark}-{kind}", *[f"I-{kind}"] * (size - 1)]
        elif size == 1:
            tags.append(f"S-{kind}")
        else:
            tags += [f"B-{kind}", *[f"I-{kind}"] * (size - 2), f"E-{kind}"]
        last_kind = kind
    return tags


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
def test_entities(scheme):
    draw = random.Random(scheme)
    for _ in range(1000):
        lengths = [draw.randint(1, 12) for _ in range(draw.randint(1, 4))]
        labels = [drawn_tags(draw, scheme, length) for length in lengths]
        predicted = [
            tags if draw.random() < 0.3 else drawn_tags(draw, scheme, len(tags)) for tags in labels
        ]
        for tags in labels:
            assert scores.entities(tags) == [
                (kind, first, last + 1) for kind, first, last in get_entities(tags)
            ]
        actual = scores.entity_f1(labels, predicted)
        expected_scores = dict(
            precision=precision_score(labels, predicted, zero_division=0),
            recall=recall_score(labels, predicted, zero_division=0),
            f1=f1_score(labels, predicted, zero_division=0),
        )
        assert actual == pytest.approx(expected_scores)


@pytest.mark.parametrize(
    "tags, expected",
    [
        ([], []),
        (["O", "O"], []),
        (["NN", "VB", "VB", "O"], [("NN", 0, 1), ("VB", 1, 3)]),
        (["I-X"], [("X", 0, 1)]),
        (["B-X", "B-X"], [("X", 0, 1), ("X", 1, 2)]),
        (["B-X", "I-Y"], [("X", 0, 1), ("Y", 1, 2)]),
        (["S-X", "S-X"], [("X", 0, 1), ("X", 1, 2)]),
        (["B-X", "E-X", "I-X"], [("X", 0, 2), ("X", 2, 3)]),
        (["B-A-B", "I-A-B"], [("A-B", 0, 2)]),
    ],
)
def test_entities_in_edge_cases(tags, expected):
    assert scores.entities(tags) == expected


def squad_script(answers, predicted):
    """Returns (exact match, F1) by the rules of the published script for SQuAD 2.0."""

    def normalize(text):
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return " ".join(re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text).split())

    def f1(gold, guess):
        gold, guess = normalize(gold).split(), normalize(guess).split()
        same = sum((collections.Counter(gold) & collections.Counter(guess)).values())
        if not gold or not guess:
            return int(gold == guess)
        if same == 0:
            return 0
        precision, recall = same / len(guess), same / len(gold)
        return 2 * precision * recall / (precision + recall)

    gold = [answer for answer in answers if normalize(answer)] or [""]
    exact = max(int(normalize(answer) == normalize(predicted)) for answer in gold)
    return exact, max(f1(answer, predicted) for answer in gold)


def test_answers():
    draw = random.Random(0)
    words = "the The a an Denver Broncos broncos 2,000 2000 -- U.S. anthem é won't wont \u2013"
    words = [*words.split(), ""]

    def drawn():
        return " ".join(draw.choice(words) for _ in range(draw.randint(0, 4)))

    for _ in range(1000):
        answers = [drawn() for _ in range(draw.randint(0, 3))]
        predicted = drawn()
        if answers and draw.random() < 0.3:
            predicted = answers[0]
        exact, f1 = squad_script(answers, predicted)
        assert scores.exact_match(answers, predicted) == exact, (answers, predicted)
        assert scores.overlap_f1(answers, predicted) == pytest.approx(f1), (answers, predicted)


@pytest.mark.parametrize(
    "answers, predicted, exact, f1",
    [
        ([], "", 1, 1),
        ([], "x", 0, 0),
        (["x"], "", 0, 0),
        (["the"], "", 1, 1),
        (["the", "x"], "", 0, 0),
        (["The Denver Broncos"], "denver broncos.", 1, 1),
        (["a b", "c"], "b c", 0, 2 / 3),
    ],
)
def test_answers_in_edge_cases(answers, predicted, exact, f1):
    assert scores.exact_match(answers, predicted) == exact
    assert scores.overlap_f1(answers, predicted) == pytest.approx(f1)
    assert squad_script(answers, predicted) == (exact, pytest.approx(f1))


def test_best_threshold():
    """It is compared with all thresholds. Some of the margins are equal."""
    generator = np.random.default_rng(0)
    for _ in range(1000):
        count = generator.integers(1, 12)
        margins = generator.integers(-3, 4, count).astype(float)
        margins[generator.random(count) < 0.1] = np.inf  # no span at all
        answered, refused = generator.choice([0, 0.5, 1], count), generator.choice([0, 0, 1], count)
        answered = np.where(np.isinf(margins), refused, answered)
        best, threshold = scores.best_threshold(margins, answered, refused)
        assert np.isfinite(threshold)
        *others, score = (
            np.where(margins > t, refused, answered).mean() for t in (-10.5, *margins, threshold)
        )
        assert best == pytest.approx(max(others)) == pytest.approx(score)
