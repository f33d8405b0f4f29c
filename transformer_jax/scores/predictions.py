"""The measures of the fine-tuning tasks, by their published definitions. Pure Python and NumPy."""

import collections
import re
import string
from collections.abc import Sequence

import numpy as np


def accuracy(labels: np.ndarray, found: np.ndarray) -> float:
    return float(np.mean(np.asarray(labels) == np.asarray(found)))


def f1(labels: np.ndarray, found: np.ndarray, num_labels: int) -> float:
    """Of label 1 where there are two, as GLUE has it; else of all (macro)."""
    return macro_f1(labels, found, [1] if num_labels == 2 else range(num_labels))


def macro_f1(labels: np.ndarray, found: np.ndarray, chosen: Sequence[int]) -> float:
    """The mean F1 of the chosen labels; 0 where a label is neither there nor found."""
    return float(np.mean([f1_of_class(labels, found, label) for label in chosen]))


def f1_of_class(labels: np.ndarray, found: np.ndarray, label: int) -> float:
    labels, found = np.asarray(labels) == label, np.asarray(found) == label
    total = np.sum(labels) + np.sum(found)
    return float(2 * np.sum(labels & found) / total) if total else 0.0


def confusion(labels: np.ndarray, found: np.ndarray, num_labels: int) -> np.ndarray:
    """How often each label (row) was predicted as each (column)."""
    counts = np.zeros((num_labels, num_labels), int)
    np.add.at(counts, (np.asarray(labels), np.asarray(found)), 1)
    return counts


def matthews(labels: np.ndarray, found: np.ndarray) -> float:
    """The correlation of two labellings (Matthews 1975; for several labels Gorodkin 2004); 0 where
    one of them is constant.
    """
    classes, index = np.unique(np.concatenate([labels, found]), return_inverse=True)
    one_hot = np.eye(len(classes))[index]
    x, y = (part - part.mean(axis=0) for part in np.split(one_hot, 2))
    spread = np.sum(x * x) * np.sum(y * y)
    return float(np.sum(x * y) / np.sqrt(spread)) if spread > 0 else 0.0


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first word, behind the last) of the entities, in any of IOB1, IOB2 and BIOES, as
    conlleval finds them; equal neighbours among other tags are one.
    """
    found, start, before = [], None, ("O", "")
    for place, tag in enumerate([*tags, "O"]):
        mark, _, kind = (
            tag.partition("-")
            if re.match(r"[BIES](-|$)", tag)
            else ("O" if tag == "O" else "I", "", tag)
        )
        continues = mark in ("I", "E") and before[0] in ("B", "I") and kind == before[1]
        if start is not None and not continues:
            found.append((before[1], start, place))
            start = None
        if mark != "O" and start is None:
            start = place
        before = (mark, kind)
    return found


def entity_f1(labels: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 over all entities; one is right if its type and both its ends are
    (Tjong Kim Sang & De Meulder 2003).
    """
    gold, guess = (
        {(number, *entity) for number, tags in enumerate(side) for entity in entities(tags)}
        for side in (labels, found)
    )
    right = len(gold & guess)
    precision, recall = right / len(guess) if guess else 0.0, right / len(gold) if gold else 0.0
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall) if right else 0.0,
    }


def normalised(answer: str) -> str:
    """As SQuAD's script compares answers: lower case, without punctuation, articles and extra
    spaces.
    """
    answer = "".join(
        character for character in answer.lower() if character not in string.punctuation
    )
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", answer).split())


def exact_match(answers: Sequence[str], found: str) -> float:
    """1 if the answer is one of the given ones; no answers: if nothing is found."""
    return float(normalised(found) in _asked(answers))


def overlap_f1(answers: Sequence[str], found: str) -> float:
    """F1 of the words shared with an answer, of the best one (Rajpurkar et al. 2016, section 6.1);
    of an empty one: whether both are empty (2018).
    """
    return max(_overlap(answer.split(), normalised(found).split()) for answer in _asked(answers))


def best_threshold(
    margins: Sequence[float], answered: Sequence[float], refused: Sequence[float]
) -> tuple[float, float]:
    """(the highest mean score, the threshold that gives it) when questions with a margin above the
    threshold are refused (Rajpurkar et al. 2018).

    `answered`, `refused`: each question's score either way.
    """
    order = np.argsort(margins, kind="stable")
    margins, gains = np.asarray(margins)[order], (np.asarray(answered) - np.asarray(refused))[order]
    last = np.append(margins[1:] > margins[:-1], True)  # equal margins go together
    totals = np.sum(refused) + np.append(0.0, np.cumsum(gains)[last])
    thresholds = np.append(np.nextafter(margins[0], -np.inf), margins[last])
    best = int(np.argmax(totals))
    return float(totals[best] / len(margins)), float(
        min(thresholds[best], np.finfo(np.float32).max)
    )


def _asked(answers: Sequence[str]) -> list[str]:
    """What is left of the given answers; nothing, if nothing is."""
    return [answer for answer in map(normalised, answers) if answer] or [""]


def _overlap(answer: list[str], found: list[str]) -> float:
    if not answer or not found:
        return float(answer == found)
    shared = sum((collections.Counter(answer) & collections.Counter(found)).values())
    return 2 * shared / (len(answer) + len(found)) if shared else 0.0
