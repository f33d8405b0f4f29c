"""Scores of predictions by their published definitions, with bootstrap intervals."""

import collections
import dataclasses
import itertools
import re
import string
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Float64
from scipy import special

from transformer_jax.config import UserError

# --------------------------------------------------------------------------------------------------
# Scores of labels, tags and answers, as reported by the fine-tuning tasks.


def accuracy(labels: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.mean(np.asarray(labels) == np.asarray(predicted)))


def f1(labels: np.ndarray, predicted: np.ndarray, num_labels: int) -> float:
    """Returns the F1 of label 1 if there are two labels, as GLUE does; otherwise the macro F1."""
    return macro_f1(labels, predicted, [1] if num_labels == 2 else range(num_labels))


def macro_f1(labels: np.ndarray, predicted: np.ndarray, classes: Sequence[int]) -> float:
    """Returns the mean F1 of `classes`. A class that never occurs has 0."""
    return float(np.mean([f1_of_class(labels, predicted, label) for label in classes]))


def f1_of_class(labels: np.ndarray, predicted: np.ndarray, label: int) -> float:
    is_label = np.asarray(labels) == label
    is_predicted = np.asarray(predicted) == label
    total = np.sum(is_label) + np.sum(is_predicted)
    return float(2 * np.sum(is_label & is_predicted) / total) if total else 0.0


def confusion(labels: np.ndarray, predicted: np.ndarray, num_labels: int) -> np.ndarray:
    """Returns how often each label (row) was predicted as each label (column)."""
    counts = np.zeros((num_labels, num_labels), int)
    np.add.at(counts, (np.asarray(labels), np.asarray(predicted)), 1)
    return counts


def matthews(labels: np.ndarray, predicted: np.ndarray) -> float:
    """Returns the Matthews correlation of two labelings (1975; for several labels Gorodkin 2004).

    It is 0 if one of the labelings is constant.
    """
    classes, index = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    one_hot = np.eye(len(classes))[index]
    x, y = (part - part.mean(axis=0) for part in np.split(one_hot, 2))
    spread = np.sum(x * x) * np.sum(y * y)
    return float(np.sum(x * y) / np.sqrt(spread)) if spread > 0 else 0.0


# Several forms, because data sets write a tag as B-PER, B_PER, PER-B or PER_B. The type may be
# missing.
_FORMS = tuple(
    re.compile(form)
    for form in (
        "(?P<letter>[A-Za-z])(-(?P<type>.+))?",
        "(?P<letter>[BIESLUMW])(_(?P<type>.+))?",
        "((?P<type>.+)-)?(?P<letter>[BIESLUMW])",
        "((?P<type>.+)_)?(?P<letter>[BIESLUMW])",
    )
)
# Schemes with other letters are read as BIOES: {letter: the letter that BIOES has for it}.
_BIOES = dict(zip("BIES", "BIES"))
_BILOU = dict(zip("BILU", "BIES"))
_BMES = dict(zip("BMESW", "BIESS"))
# The strict reading of each scheme, as the classes of seqeval.scheme have it (Nakayama 2018): the
# letters, and the pairs of neighbors between which an entity starts, continues, and is complete.
# "BI=" is B before I of the same type; "!" stands for another type, and "." for anything.
_CHUNKS = (".B. .S.", "BI= BE= II= IE=", "S.. E..")
_STRICT = {
    "IOB1": (_BIOES, "OI. II! BI. IB= BB=", "BI= II=", "II! IO. IB. BO. BI! BB="),
    "IOB2": (_BIOES, ".B.", "BI= II=", "IO. II! IB. BO. BI! BB."),
    "IOE1": (_BIOES, "OI. II! EI. EE=", "II= IE=", "II! IO. IE! EI= EE="),
    "IOE2": (_BIOES, "OI. OE. EI. EE. II! IE!", "IE= II=", "E.."),
    "BIOES": (_BIOES, *_CHUNKS),
    "IOBES": (_BIOES, *_CHUNKS),
    "BILOU": (_BILOU, *_CHUNKS),
    "BMES": (_BMES, *_CHUNKS),
}
SCHEMES = tuple(_STRICT)
_ONLY = {"IOB1": "BI", "IOB2": "BI", "IOE1": "IE", "IOE2": "IE"}  # of the letters of BIOES

_Tag = tuple[str, str]  # the letter of a tag, as in BIOES, and its type


@dataclasses.dataclass(frozen=True)
class TagScheme:
    """How the tags of words denote entities. See `tag_scheme`."""

    name: str  # of the strict scheme, one of SCHEMES; "": conlleval's
    form: re.Pattern | None = None  # of the tags; None: they have no letters

    def entities(self, tags: Sequence[str]) -> list[tuple[str, int, int]]:
        """Returns (type, first word, end) of the entities of a sentence."""
        parsed = [*map(self._parsed, tags), ("O", "")]
        return _strict_entities(parsed, self.name) if self.name else _conlleval_entities(parsed)

    def _parsed(self, tag: str) -> _Tag:
        if tag == "O":
            return "O", ""
        if self.form is None:
            return "I", tag
        letter, kind = self.form.fullmatch(tag).group("letter", "type")
        return _STRICT[self.name or "BIOES"][0][letter], kind or ""


def tag_scheme(tags: Iterable[str], name: str = "auto") -> TagScheme:
    """Returns the scheme of a set of tags.

    If `name` is "auto", the letters of the tags tell the scheme. Tags of B, I, E and S, which are
    those of IOB1, IOB2, BIOES and others, are read as by conlleval, the script of CoNLL-2000 and
    2003, which counts entities with a wrong start or end as well. BILOU, BMES and BMEW are read
    strictly. Tags without letters are types of entities, and neighbors with equal tags are one
    entity, as if `name` were "plain". One of SCHEMES is read as by seqeval in its strict mode.

    Raises UserError for tags of no scheme, of several, or of another than `name`.
    """
    tags = sorted(set(tags) - {"O"})
    form = None if name == "plain" else _form(tags)
    if name == "plain" or (name == "auto" and form is None):
        return TagScheme("")
    letters = {form.fullmatch(tag)["letter"] for tag in tags} if form else set()
    if name == "auto":
        for scheme in ("BIOES", "BILOU", "BMES"):
            if letters <= _STRICT[scheme][0].keys():
                return TagScheme("" if scheme == "BIOES" else scheme, form)
        raise _no_scheme(tags)
    if (tags and not form) or not letters <= set(_ONLY.get(name, _STRICT[name][0])):
        raise UserError(f"tags that are not all of the scheme {name}: {', '.join(tags[:12])}")
    return TagScheme(name, form)


def _form(tags: Sequence[str]) -> re.Pattern | None:
    """Returns the form of the tags, or None if they have no letters."""
    for form in _FORMS:
        matches = [form.fullmatch(tag) for tag in tags]
        if all(matches) and any(match["type"] for match in matches):
            return form
        known = (match and match["type"] and match["letter"] in "BIESLUMW" for match in matches)
        if form in _FORMS[:2] and any(known):
            raise _no_scheme(tags)
    # Single letters are a scheme in the segmentation of words, and plain tags otherwise.
    schemes = (_BIOES, _BILOU, _BMES)
    return _FORMS[0] if tags and any(set(tags) <= letters.keys() for letters in schemes) else None


def _no_scheme(tags: Sequence[str]) -> UserError:
    return UserError(
        f"tags of no scheme, or of several: {', '.join(tags[:12])}; the schemes are "
        f"{', '.join(SCHEMES)} (config.task.scheme='plain': each tag is a type of entities)"
    )


def _conlleval_entities(tags: Sequence[_Tag]) -> list[tuple[str, int, int]]:
    spans = []
    start = None
    previous_letter, previous_kind = "O", ""
    for index, (letter, kind) in enumerate(tags):
        continues = letter in ("I", "E") and previous_letter in ("B", "I") and kind == previous_kind
        if start is not None and not continues:
            spans.append((previous_kind, start, index))
            start = None
        if letter != "O" and start is None:
            start = index
        previous_letter, previous_kind = letter, kind
    return spans


def _strict_entities(tags: Sequence[_Tag], scheme: str) -> list[tuple[str, int, int]]:
    _, starts, inside, ends = _STRICT[scheme]
    spans = []
    previous, index = ("O", ""), 0
    while index < len(tags) - 1:  # the last tag is an O behind the sentence
        start, index = index, index + 1
        if _fits(starts, previous, tags[start]):
            while _fits(inside, tags[index - 1], tags[index]):
                index += 1
            if _fits(ends, tags[index - 1], tags[index]):
                spans.append((tags[start][1], start, index))
        previous = tags[index - 1]
    return spans


def _fits(pairs: str, previous: _Tag, tag: _Tag) -> bool:
    types = "=" if previous[1] == tag[1] else "!"
    return any(
        first in (".", previous[0]) and second in (".", tag[0]) and condition in (".", types)
        for first, second, condition in pairs.split()
    )


def entities(tags: Sequence[str], scheme: str = "auto") -> list[tuple[str, int, int]]:
    """Returns (type, first word, end) of the entities of a sentence. See `tag_scheme`."""
    return tag_scheme(tags, scheme).entities(tags)


def entity_f1(
    labels: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    scheme: str | TagScheme = "auto",
) -> dict[str, float]:
    """Returns precision, recall and F1 over all entities.

    An entity is right if its type and both of its ends are (Tjong Kim Sang & De Meulder 2003).
    `scheme` is the tags' scheme, or a name for `tag_scheme`, which may raise UserError.
    """
    if isinstance(scheme, str):
        scheme = tag_scheme(itertools.chain(*labels, *predicted), scheme)
    true_entities = _numbered_entities(labels, scheme)
    predicted_entities = _numbered_entities(predicted, scheme)
    right = len(true_entities & predicted_entities)
    precision = right / len(predicted_entities) if predicted_entities else 0.0
    recall = right / len(true_entities) if true_entities else 0.0
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall) if right else 0.0,
    }


def _numbered_entities(
    sentences: Sequence[Sequence[str]], scheme: TagScheme
) -> set[tuple[int, str, int, int]]:
    return {
        (number, *entity)
        for number, tags in enumerate(sentences)
        for entity in scheme.entities(tags)
    }


def normalized(answer: str) -> str:
    """Returns the answer in lower case, without punctuation, articles and extra spaces.

    The evaluation script of SQuAD compares answers in this form.
    """
    answer = "".join(
        character for character in answer.lower() if character not in string.punctuation
    )
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", answer).split())


def exact_match(answers: Sequence[str], predicted: str) -> float:
    """Returns 1 if the prediction is one of the answers, otherwise 0.

    If there are no answers, the empty prediction is right.
    """
    return float(normalized(predicted) in _normalized_answers(answers))


def overlap_f1(answers: Sequence[str], predicted: str) -> float:
    """Returns the F1 of the words shared with the best of the answers.

    See Rajpurkar et al. 2016, section 6.1. If one of the texts is empty, the score is 1 if both are
    and otherwise 0 (Rajpurkar et al. 2018).
    """
    words = normalized(predicted).split()
    return max(_overlap(answer.split(), words) for answer in _normalized_answers(answers))


def best_threshold(
    margins: Sequence[float], answered: Sequence[float], refused: Sequence[float]
) -> tuple[float, float]:
    """Returns the highest mean score and the threshold for it (Rajpurkar et al. 2018).

    Questions with a margin above the threshold are predicted to have no answer. `answered` and
    `refused` are the scores of each question in the two cases.
    """
    order = np.argsort(margins, kind="stable")
    margins = np.asarray(margins)[order]
    gains = (np.asarray(answered) - np.asarray(refused))[order]
    # Questions with equal margins are on the same side of any threshold, so only the last of them
    # is a candidate.
    is_last = np.append(margins[1:] > margins[:-1], True)
    # All thresholds at once: from everything refused, each step answers more questions.
    totals = np.sum(refused) + np.append(0.0, np.cumsum(gains)[is_last])
    # The first candidate is just below all margins, so that it refuses every question.
    thresholds = np.append(np.nextafter(margins[0], -np.inf), margins[is_last])
    best = int(np.argmax(totals))
    # A question without a span has an infinite margin, but JSON has no infinite threshold.
    threshold = min(thresholds[best], np.finfo(np.float32).max)
    return float(totals[best] / len(margins)), float(threshold)


def _normalized_answers(answers: Sequence[str]) -> list[str]:
    """Returns the normalized answers that are not empty, or [""] if all are empty."""
    return [answer for answer in map(normalized, answers) if answer] or [""]


def _overlap(answer: list[str], predicted: list[str]) -> float:
    if not answer or not predicted:
        return float(answer == predicted)
    shared = sum((collections.Counter(answer) & collections.Counter(predicted)).values())
    return 2 * shared / (len(answer) + len(predicted)) if shared else 0.0


# --------------------------------------------------------------------------------------------------
# The bootstrap (Efron 1979): intervals of a score, and of the difference between two systems.
#
# Examples are drawn with replacement, as many as there are. The draws are the same as in sacreBLEU.

_SAMPLES = 1000
_SEED = 12345
_LEVEL = 0.95


class Measure(Protocol):
    """Scores of a corpus that are functions of sums over its examples.

    So a bootstrap sample only needs a matrix product with the statistics, and no text is scored
    again.
    """

    def statistics(self, outputs: Sequence[str], references: Sequence[str]) -> np.ndarray:
        """Returns float64 (N, S): the S statistics of each of the N examples."""

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        """Returns the scores of `count` examples, from the sums (S,) of their statistics."""


def scores(measure: Measure, statistics: Float64[np.ndarray, "N S"]) -> dict[str, float]:
    """Returns the scores over all examples, of which there must be at least one."""
    return measure.scores(statistics.sum(axis=0), len(statistics))


def intervals(
    measure: Measure, statistics: Float64[np.ndarray, "N S"]
) -> dict[str, tuple[float, float]]:
    """Returns the 95% confidence interval of each score, by the percentile method."""
    return {name: _interval(sample) for name, sample in samples(measure, statistics).items()}


def comparison(
    measure: Measure, first: Float64[np.ndarray, "N S"], second: Float64[np.ndarray, "N S"]
) -> dict[str, dict]:
    """Compares each score of two systems on the same examples by the paired bootstrap.

    Each result has the first system's `score`, the second system's as `against`, their `difference`
    with its 95% `interval`, and a two-sided `p_value`. The latter is the share of samples whose
    difference is at least as far from the mean of the sampled differences as the measured
    difference is from 0 (Koehn 2004; Efron & Tibshirani 1993, chapter 16).
    """
    # Both use the same draws, which makes the comparison a paired one.
    first_samples, second_samples = samples(measure, first), samples(measure, second)
    ours, theirs = scores(measure, first), scores(measure, second)
    results = {}
    for name in ours:
        sampled = first_samples[name] - second_samples[name]
        difference = ours[name] - theirs[name]
        # The tolerance is for rounding: equal systems must have a p-value of 1.
        is_as_far = np.abs(sampled - sampled.mean()) >= abs(difference) - 1e-9
        results[name] = {
            "score": ours[name],
            "against": theirs[name],
            "difference": difference,
            "interval": _interval(sampled),
            # The corpus itself counts as one more sample (Davison & Hinkley 1997, section 4.2.5),
            # so that a p-value is never 0.
            "p_value": float((is_as_far.sum() + 1) / (_SAMPLES + 1)),
        }
    return results


def comparison_over_seeds(
    measure: Measure,
    first: Sequence[Float64[np.ndarray, "N S"]],
    second: Sequence[Float64[np.ndarray, "N S"]],
) -> dict[str, dict]:
    """Compares each score of two systems, of which each was trained with several seeds.

    `first` and `second` are the statistics of the same examples, pair by pair of seeds. A bootstrap
    sample draws pairs and examples, both with replacement, so that the standard error has the
    variation of trainings and of texts. Each result has the mean `difference` second - first, its
    95% `interval` and a two-sided `p_value`, by Student's t with one degree of freedom less than
    there are pairs. With a single pair, they are those of `comparison`, over examples alone.
    """
    if len(first) == 1:
        alone = comparison(measure, second[0], first[0])
        names = ("difference", "interval", "p_value")
        return {score: {name: row[name] for name in names} for score, row in alone.items()}
    count, pairs = len(first[0]), len(first)
    rng = np.random.default_rng(_SEED)

    def differences(times: np.ndarray) -> dict[str, np.ndarray]:
        by_pair = [
            (measure.scores(times @ own, count), measure.scores(times @ other, count))
            for own, other in zip(first, second)
        ]
        names = by_pair[0][0]
        return {
            name: np.array([other[name] - own[name] for own, other in by_pair]) for name in names
        }

    measured = differences(np.ones(count))
    sampled = {name: np.empty(_SAMPLES) for name in measured}
    for number in range(_SAMPLES):
        times = np.bincount(rng.choice(count, count), minlength=count)
        drawn = rng.choice(pairs, pairs)
        for name, values in differences(times).items():
            sampled[name][number] = values[drawn].mean()
    results = {}
    for name, values in measured.items():
        difference = float(values.mean())
        # The percentiles of a bootstrap over few pairs are far too narrow: with three pairs, they
        # exclude a true difference of 0 in a quarter of all experiments.
        error = float(sampled[name].std(ddof=1)) * (pairs / (pairs - 1)) ** 0.5
        # The quantile and the distribution of Student's t. scipy.stats has them, too, but its
        # import would take half a second of every start.
        radius = float(special.stdtrit(pairs - 1, (1 + _LEVEL) / 2)) * error
        interval = (difference - radius, difference + radius)
        t = abs(difference) / error if error else (np.inf if difference else 0.0)
        p_value = float(2 * special.stdtr(pairs - 1, -t))
        results[name] = {"difference": difference, "interval": interval, "p_value": p_value}
    return results


@dataclasses.dataclass(frozen=True)
class Share:
    """The share of examples that are right: a measure whose statistics are 0 or 1."""

    name: str

    def scores(self, sums: np.ndarray, count: int) -> dict[str, float]:
        return {self.name: float(sums[0] / count)}


def samples(
    measure: Measure, statistics: Float64[np.ndarray, "N S"]
) -> dict[str, Float64[np.ndarray, " R"]]:
    """Returns each score for R samples of the examples.

    The draws only depend on the number of examples N.
    """
    count = len(statistics)
    rng = np.random.default_rng(_SEED)
    sampled = []
    # One sample at a time, which takes less memory than sacreBLEU's table of all draws. The numbers
    # come in the same order.
    for drawn in (rng.choice(count, count) for _ in range(_SAMPLES)):
        # Scores depend on sums alone, so how often an example was drawn is enough.
        times = np.bincount(drawn, minlength=count)
        sampled.append(measure.scores(times @ statistics, count))
    return {name: np.array([sample[name] for sample in sampled]) for name in sampled[0]}


def _interval(sample: Float64[np.ndarray, " R"]) -> tuple[float, float]:
    tail = 100 * (1 - _LEVEL) / 2
    low, high = np.percentile(sample, [tail, 100 - tail])
    return float(low), float(high)
