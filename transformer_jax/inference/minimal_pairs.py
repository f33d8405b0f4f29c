"""Minimal pairs: does a model find a grammatical sentence likelier than its ungrammatical twin?

A file has a pair in each line, as JSON with the keys "sentence_good" and "sentence_bad", as BLiMP
has them (Warstadt et al. 2020). Its optional keys "field" and "linguistics_term" name what a pair
tests. A pair counts 1 if the good sentence has the higher score, 1/2 if both have the same, and
else 0. Chance is one half, but a sum over tokens also prefers the shorter sentence of a pair.
"""

import collections
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import (
    Location,
    Span,
    from_json,
    matching_files,
    text_lines,
)
from transformer_jax.inference.log_probabilities import is_unknown
from transformer_jax.pictures.progress import say, track
from transformer_jax.scores import ngrams

KEYS = ("sentence_good", "sentence_bad")
_GROUPS = {"by_field": "field", "by_term": "linguistics_term"}
_CHANCE = 0.5
_QUANTILE = 1.959964  # of the normal law, for intervals of 95 %
_COUNTED = 2**24  # bytes of the training text that the n-gram model counts


class Pair(NamedTuple):
    good: str
    bad: str
    where: Location
    groups: Mapping[str, str]  # "file", and if the pair has them "field" and "linguistics_term"


def read(patterns: str, keys: tuple[str, str] = KEYS, *, skip_equal: bool = False) -> list[Pair]:
    """Returns the pairs of the files that `patterns` lists, separated by commas.

    `keys` are those of the good and the bad sentence. Pairs of equal sentences, of which BLiMP has
    a few, are left out with `skip_equal`. Raises UserError for them without it, for a missing or
    empty file, and for a line that is no object with these keys.
    """
    pairs = []
    files = matching_files("--minimal_pairs", patterns)
    stems = [os.path.basename(file).partition(".")[0] for file in files]
    # Files of equal names in different folders keep their paths, so that none is added to another.
    names = stems if len({*stems}) == len(files) else files
    for file, name in zip(files, names):
        found = [
            _pair(from_json(line, where), where, keys, name)
            for index, line in enumerate(text_lines(file))
            if line.strip()
            for where in [Location(Span(file), index)]
        ]
        if not found:
            raise UserError(f"--minimal_pairs={file}: no pairs in it")
        pairs += found
    equal = [pair for pair in pairs if pair.good == pair.bad]
    if equal and not skip_equal:
        raise UserError(
            f"{equal[0].where}: both sentences are {equal[0].good!r}; --skip_equal leaves such "
            "pairs out"
        )
    if equal:
        say(f"left out, because both sentences are equal: {', '.join(str(x.where) for x in equal)}")
    pairs = [pair for pair in pairs if pair.good != pair.bad]
    if not pairs:
        raise UserError(f"--minimal_pairs={patterns}: no pair of two different sentences is left")
    return pairs


def _pair(record: Any, where: Location, keys: tuple[str, str], file: str) -> Pair:
    sentences = []
    for key in keys:
        sentence = record.get(key) if isinstance(record, dict) else None
        if not isinstance(sentence, str) or not sentence.strip():
            raise UserError(
                f"{where}: no text under {key!r}; --pair_keys names the keys of the right and the "
                "wrong sentence"
            )
        sentences.append(sentence)
    named = {key: record[key] for key in _GROUPS.values() if isinstance(record.get(key), str)}
    return Pair(*sentences, where, {"file": file, **named})


# --------------------------------------------------------------------------------------------------
# Scores of sentences, and accuracies of pairs.

Normalization = Literal["sum", "tokens", "characters"]


def sentence_scores(
    task,
    params,
    pairs: Sequence[Pair],
    *,
    normalize: Normalization = "sum",
    within_word: bool = False,
) -> list[float]:
    """Returns the scores of both sentences of each pair by a task's model, the good one first.

    `normalize` divides each log-probability by the number of tokens or characters of the sentence,
    and `within_word` is that of `log_probability`. Raises UserError for a sentence of unknown
    pieces only.
    """
    sentences, encoded = _encoded(task, pairs)
    unknown = task.tokenizer.target.unk_id
    if count := sum(unknown in ids for ids in encoded):
        say(f"{count:,} of {len(encoded):,} sentences have words that the tokenizer does not know")
    scored = task.log_probability(params, sentences, within_word=within_word)
    log_probs = [each.log_prob for each in track(scored, "sentences", len(sentences))]
    sizes = {
        "sum": [1] * len(sentences),
        "tokens": list(map(len, encoded)),
        "characters": list(map(len, sentences)),
    }[normalize]
    return np.divide(log_probs, sizes).tolist()


def baselines(task, pairs: Sequence[Pair]) -> dict[str, dict]:
    """Returns the accuracies of two baselines.

    "shorter" prefers the sentence of fewer tokens, and "ngrams" is the interpolated trigram model
    of the training text, if it can still be read.
    """
    _, encoded = _encoded(task, pairs)
    found = {"shorter": accuracies(pairs, [-len(ids) for ids in encoded])}
    counted = _ngram_scores(task, encoded)
    if counted is not None:
        found["ngrams"] = accuracies(pairs, counted)
    return found


def learned(
    checkpoints: Sequence[Mapping], against: str, shorter: Mapping
) -> dict[str, dict[str, float | None]]:
    """Returns from when on each part of the pairs was above chance, from results of checkpoints.

    Each of them is a result of `accuracies` with a further entry `against`, such as "words". That
    of the first one is returned from which on all intervals lie above one half and above the
    accuracy of preferring the shorter sentence, whose result is `shorter`; None if there is none.
    """
    parts = [(result[against], _parts(result)) for result in checkpoints]
    floor = _parts(shorter)

    def first(by: str, name: str) -> float | None:
        chance = max(_CHANCE, floor[by][name]["accuracy"])
        above = [each[by][name]["interval"][0] > chance for _, each in parts]
        start = len(above) - above[::-1].index(False) if False in above else 0
        return parts[start][0] if start < len(parts) else None

    return {by: {name: first(by, name) for name in names} for by, names in parts[-1][1].items()}


def curves(checkpoints: Sequence[Mapping], against: str) -> dict[str, list[tuple]]:
    """Returns rows (`against`, accuracy, low, high) of all pairs, and of each field or file."""
    parts = [(result[against], _parts(result)) for result in checkpoints]
    last = parts[-1][1]
    by = "by_field" if "by_field" in last else "by_file"
    return {
        name: [
            (when, each[by][name]["accuracy"], *each[by][name]["interval"]) for when, each in parts
        ]
        for by in ("all", by)
        for name in last[by]
    }


def _parts(result: Mapping) -> dict[str, dict]:
    by_part = {key: value for key, value in result.items() if key.startswith("by_")}
    return {"all": {"all pairs": result}} | by_part


def _encoded(task, pairs: Sequence[Pair]) -> tuple[list[str], list[list[int]]]:
    """Returns both sentences of each pair, the good one first, and their ids."""
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    tokenizer = task.tokenizer.target
    encoded = tokenizer.encode(sentences)
    for pair, ids in zip((pair for pair in pairs for _ in range(2)), encoded):
        if not ids or is_unknown(ids, tokenizer):
            raise UserError(f"{pair.where}: the tokenizer knows no piece of a sentence")
    return sentences, encoded


def _ngram_scores(task, encoded: list[list[int]]) -> list[float] | None:
    """Returns the log-probabilities of an n-gram model of the training text; None without one."""
    count = getattr(getattr(task, "texts", None), "counted", None)
    if count is None:
        say("no n-gram model: the run was not trained on running text")
        return None
    tokenizer = task.tokenizer.target
    try:
        counted = count(tokenizer, _COUNTED)
    except UserError as error:
        # A run can still be evaluated where its training text has been deleted.
        say(f"no n-gram model: {error}")
        return None
    scored = ngrams.log_probabilities(counted, encoded, tokenizer.vocab_size, tokenizer.eos_id)
    return [float(each.sum()) for each in scored]


def accuracies(pairs: Sequence[Pair], scores: Sequence[float]) -> dict:
    """Returns the accuracies of pairs, given the scores that `sentence_scores` returns.

    "accuracy" is over all pairs, "macro" is the mean over the files, and both have intervals of
    95 %. "ties" is the share of pairs with equal scores. The entries "by_file", "by_field" and
    "by_term" have the same for their parts.
    """
    good, bad = np.reshape(scores, (-1, 2)).T
    points = (good > bad) + 0.5 * (good == bad)
    named = {"by_file": "file"} | _GROUPS
    parts = {key: grouped for key, by in named.items() if (grouped := _grouped(pairs, points, by))}
    files = parts["by_file"].values()
    macro = statistics.fmean(each["accuracy"] for each in files)
    # The files are those of the benchmark and no sample, so only their pairs vary.
    variances = (_variance(each["accuracy"], each["ties"]) / each["pairs"] for each in files)
    reach = _QUANTILE * math.sqrt(sum(variances)) / len(files)
    return {
        **_summary(points),
        "macro": macro,
        "macro_interval": [max(macro - reach, 0.0), min(macro + reach, 1.0)],
        **parts,
    }


def _grouped(pairs: Sequence[Pair], points: np.ndarray, by: str) -> dict[str, dict]:
    groups = collections.defaultdict(list)
    for pair, point in zip(pairs, points):
        if by in pair.groups:
            groups[pair.groups[by]].append(point)
    return {name: _summary(np.array(groups[name])) for name in sorted(groups)}


def _summary(points: np.ndarray) -> dict:
    accuracy, ties = float(points.mean()), float((points == 0.5).mean())
    # Ties vary less, so that the interval is that of a share of more pairs.
    variance = _variance(accuracy, ties)
    count = len(points) * accuracy * (1 - accuracy) / variance if variance else len(points)
    return {
        "accuracy": accuracy,
        "interval": list(_interval(accuracy, count)),
        "ties": ties,
        "pairs": len(points),
    }


def _variance(accuracy: float, ties: float) -> float:
    """Returns the variance of the points of a pair, of which a tie has one half."""
    return max(accuracy * (1 - accuracy) - ties / 4, 0.0)


def _interval(share: float, count: float) -> tuple[float, float]:
    """Returns the interval of a share by Wilson (1927), which is also right near 0 and 1."""
    squared = _QUANTILE**2 / count
    middle = (share + squared / 2) / (1 + squared)
    reach = math.sqrt(share * (1 - share) * squared + squared**2 / 4) / (1 + squared)
    return max(middle - reach, 0.0), min(middle + reach, 1.0)
