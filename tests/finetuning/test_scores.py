"""The scores compared with scikit-learn, seqeval and the published script, on 1,000 random cases
each, and in edge cases.
"""

import collections
import random
import re
import string

import numpy as np
import pytest
import seqeval.scheme
import sklearn.metrics
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from transformer_jax.config import UserError
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
    letters = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES"}[scheme]
    free = [f"{letter}-{kind}" for letter in letters for kind in ("PER", "LOC")] + ["O", "O"]
    if draw.random() < 0.5:
        return [draw.choice(free) for _ in range(length)]
    tags, last_kind = [], None
    while len(tags) < length:
        kind = draw.choice([None, "PER", "LOC"])
        size = draw.randint(1, min(3, length - len(tags)))
        letter = "B" if scheme != "IOB1" or last_kind == kind else "I"
        if kind is None:
            tags += ["O"] * size
        elif scheme != "BIOES":
            tags += [f"{letter}-{kind}", *[f"I-{kind}"] * (size - 1)]
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


STRICT = {"IOB1": "BI", "IOB2": "BI", "IOE1": "IE", "IOE2": "IE", "IOBES": "BIES", "BILOU": "BILU"}
# The same tags as those of IOBES, under other letters and at other positions.
WRITTEN = {
    "BMES": lambda letter, kind: f"{'BMES'['BIES'.index(letter)]}-{kind}",
    "BMEW": lambda letter, kind: f"{'BMEW'['BIES'.index(letter)]}-{kind}",
    "BILOU_": lambda letter, kind: f"{'BILU'['BIES'.index(letter)]}_{kind}",
    "-BMES": lambda letter, kind: f"{kind}-{'BMES'['BIES'.index(letter)]}",
}


def any_tags(draw, letters):
    """Returns random tags of two sentences, and tags that differ from them at some positions."""
    free = [f"{letter}-{kind}" for letter in letters for kind in ("PER", "LOC")] + ["O", "O"]
    labels = [[draw.choice(free) for _ in range(draw.randint(1, 9))] for _ in range(2)]
    predicted = [
        [draw.choice(free) if draw.random() < 0.4 else tag for tag in tags] for tags in labels
    ]
    return labels, predicted


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", STRICT)
def test_a_named_scheme_is_read_as_by_seqeval_in_its_strict_mode(scheme):
    draw, reading = random.Random(scheme), getattr(seqeval.scheme, scheme)
    for _ in range(500):
        labels, predicted = any_tags(draw, STRICT[scheme])
        found = seqeval.scheme.Tokens(labels[0], reading).entities
        assert scores.entities(labels[0], scheme) == [(e.tag, e.start, e.end) for e in found]
        expected = f1_score(labels, predicted, mode="strict", scheme=reading, zero_division=0)
        assert scores.entity_f1(labels, predicted, scheme)["f1"] == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", ["BILOU", *WRITTEN])
def test_a_scheme_is_recognised_by_its_letters(scheme):
    draw = random.Random(scheme)
    for _ in range(300):
        labels, predicted = any_tags(draw, "BILU" if scheme == "BILOU" else "BIES")
        reading = seqeval.scheme.BILOU if scheme == "BILOU" else seqeval.scheme.IOBES
        expected = f1_score(labels, predicted, mode="strict", scheme=reading, zero_division=0)
        if scheme in WRITTEN:
            labels, predicted = (
                [
                    [tag if tag == "O" else WRITTEN[scheme](*tag.split("-")) for tag in tags]
                    for tags in side
                ]
                for side in (labels, predicted)
            )
        letters = {tag.strip("-_PERLOC") for tags in labels + predicted for tag in tags}
        if letters & set("MWLU"):  # otherwise the tags could be of IOB2 or BIOES as well
            assert scores.entity_f1(labels, predicted)["f1"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "tags, scheme, expected",
    [
        ("B-PER M-PER E-PER O S-ACT", "auto", [("PER", 0, 3), ("ACT", 4, 5)]),
        ("B-PER M-PER O", "auto", []),
        ("B-PER O E-PER", "BMES", []),
        ("B-PER O E-PER", "auto", [("PER", 0, 1), ("PER", 2, 3)]),  # as conlleval does
        ("B-PER L-PER U-LOC U-LOC", "auto", [("PER", 0, 2), ("LOC", 2, 3), ("LOC", 3, 4)]),
        ("I-PER I-PER B-PER I-LOC", "auto", [("PER", 0, 2), ("PER", 2, 3), ("LOC", 3, 4)]),
        ("I-PER I-PER O", "IOB2", []),
        ("I-PER I-PER O", "IOB1", [("PER", 0, 2)]),
        ("B M E S B E", "auto", [("", 0, 3), ("", 3, 4), ("", 4, 6)]),
        ("B I O B", "auto", [("", 0, 2), ("", 3, 4)]),
        ("B_PER I_PER O", "auto", [("PER", 0, 2)]),
        ("PER-B PER-I O LOC-B", "auto", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("NN S S X", "auto", [("NN", 0, 1), ("S", 1, 3), ("X", 3, 4)]),
        ("A B B C", "auto", [("A", 0, 1), ("B", 1, 3), ("C", 3, 4)]),
        ("B-A M-A X-A", "plain", [("B-A", 0, 1), ("M-A", 1, 2), ("X-A", 2, 3)]),
        ("O O", "BILOU", []),
    ],
)
def test_entities_by_schemes(tags, scheme, expected):
    assert scores.entities(tags.split(), scheme) == expected


@pytest.mark.parametrize(
    "tags, scheme, message",
    [
        ("B-PER M-PER I-LOC", "auto", "of no scheme, or of several: B-PER, I-LOC, M-PER; the sch"),
        ("B-PER L-PER E-LOC S-LOC", "auto", "of several"),
        ("X-PER Y-PER O", "auto", "of no scheme"),
        ("b-per i-per o", "auto", "of no scheme"),
        ("B-PER I-PER LOC", "auto", "scheme='plain': each tag is a type of entities"),
        ("B-PER M-PER E-PER", "BIOES", "not all of the scheme BIOES: B-PER, E-PER, M-PER"),
        ("B-PER E-PER", "IOB2", "not all of the scheme IOB2"),
        ("PER LOC", "BILOU", "not all of the scheme BILOU: LOC, PER"),
    ],
)
def test_tags_of_no_scheme_are_refused(tags, scheme, message):
    with pytest.raises(UserError, match=re.escape(message)):
        scores.entities(tags.split(), scheme)


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
