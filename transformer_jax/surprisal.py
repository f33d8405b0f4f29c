"""Writes the surprisal of each word of a table: python -m transformer_jax.surprisal --workdir=DIR
--table=words.csv > with_surprisal.csv

The table is a CSV file with a row for each word. --context_column and --word_column name the text
before a word in its sentence, and the word. The surprisal of the word, -log2 P(word | context) in
bits, is added as the last column. For a masked model, it is pseudo-surprisal; see `score`.

--times=RTfirstpass,self_paced_reading_time asks how well surprisal explains how long people read a
word (Smith & Levy 2013). The output is then a JSON object. For each of these columns, it has R^2 of
a linear regression of the times on --predictors, such as the length, the frequency and the position
of the word, R^2 with the surprisal added, the gain in R^2 with its interval, the milliseconds per
bit, and the p-value of an F test. The interval is from 1,000 bootstrap samples of the sentences,
which --sentence_column names. Rows with missing values are left out. It needs the extra "reading".
"""

import csv
import json
import math
import sys

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError

_SAMPLES = 1000  # of the bootstrap
_COLUMN = "surprisal"


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_string("table", None, "CSV file with a row for each word.")
    flags.DEFINE_string("context_column", "item", "Column of the text before the word.")
    flags.DEFINE_string("word_column", "word", "Column of the word.")
    flags.DEFINE_string("sentence_column", "sentence", "Column that tells sentences apart.")
    flags.DEFINE_list("times", [], "Columns of reading times to explain.")
    flags.DEFINE_list(
        "predictors", [], "Columns that explain the times beside surprisal, with --times."
    )


def main() -> None:
    options = cli.FLAGS
    if options.table is None:
        raise UserError("--table=FILE.csv is missing: a table with a row for each word")
    if options["predictors"].present and not options.times:
        raise UserError("--predictors needs --times, the columns that they explain")
    names = (options.context_column, options.word_column)
    needed = [*names, *options.times, *options.predictors]
    rows = _read(options.table, [*needed, *([options.sentence_column] if options.times else [])])
    if options.times:
        _statsmodels()  # raises the error for a missing library before anything is computed
    task, params = cli.open_run("log_likelihoods", "has log-probabilities of texts")
    bits = surprisals(task, params, [(row[names[0]], row[names[1]]) for row in rows])
    if not options.times:
        writer = csv.writer(sys.stdout)
        writer.writerow([*rows[0], _COLUMN])
        writer.writerows([*row.values(), f"{value:.4f}"] for row, value in zip(rows, bits))
        return
    report = {"table": options.table, "kind": task.scoring.kind, "words": len(rows)}
    sentences = [row[options.sentence_column] for row in rows]
    predictors = [[_number(row[name]) for name in options.predictors] for row in rows]
    report["times"] = {
        name: explained([_number(row[name]) for row in rows], predictors, bits, sentences)
        for name in options.times
    }
    print(json.dumps(report))


def surprisals(task, params, words: list[tuple[str, str]]) -> list[float]:
    """Returns -log2 P(word | context) of each (context, word)."""
    from transformer_jax.pictures.progress import track

    # The space belongs to the word. A word without a context starts a sentence.
    pairs = [(context, f" {word}" if context else word) for context, word in words]
    likelihoods = task.log_likelihoods(params, pairs, from_start=True)
    return [-each.log_prob / math.log(2) for each in track(likelihoods, "words", len(pairs))]


def explained(
    times: list[float],
    predictors: list[list[float]],
    bits: list[float],
    sentences: list[str],
) -> dict:
    """Returns what the surprisals explain of reading times beyond the predictors.

    Values that are missing are NaN. `sentences` tells which words belong together.
    """
    import numpy as np

    statsmodels = _statsmodels()
    values = np.column_stack([times, np.reshape(predictors, (len(times), -1)), bits])
    complete = np.isfinite(values).all(axis=1)
    values = values[complete]
    if len(values) <= values.shape[1] + 1:
        raise UserError(
            f"--times: {len(values)} rows have all values, too few for {values.shape[1]} columns"
        )
    _, groups = np.unique(np.array(sentences)[complete], return_inverse=True)
    ones = np.ones((len(values), 1))

    def fitted(rows):
        outcome, base = values[rows, 0], np.hstack([ones[rows], values[rows, 1:-1]])
        both = np.hstack([base, values[rows, -1:]])
        return statsmodels.OLS(outcome, base).fit(), statsmodels.OLS(outcome, both).fit()

    def gain(rows):
        base, both = fitted(rows)
        return both.rsquared - base.rsquared

    base, both = fitted(np.arange(len(values)))
    # Words of a sentence are drawn together, because their times are not independent.
    members = np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))[:-1])
    random = np.random.default_rng(0)
    gains = [
        gain(np.concatenate([members[i] for i in random.integers(len(members), size=len(members))]))
        for _ in range(_SAMPLES)
    ]
    _, p_value, _ = both.compare_f_test(base)
    return {
        "words": len(values),
        "r2": float(base.rsquared),
        "r2_with_surprisal": float(both.rsquared),
        "gain": float(both.rsquared - base.rsquared),
        "gain_interval": np.percentile(gains, [2.5, 97.5]).tolist(),
        "milliseconds_per_bit": float(both.params[-1]),
        "p_value": float(p_value),
    }


def _read(path: str, columns: list[str]) -> list[dict[str, str]]:
    """Returns the rows of a CSV file. Raises UserError if it has no rows or lacks a column."""
    from transformer_jax.data.sources.text_files import check_not_empty, text_lines

    check_not_empty("--table", path)
    rows = list(csv.DictReader(text_lines(path, keep_ends=True)))
    if not rows:
        raise UserError(f"--table={path}: it has a header and no rows")
    for name in columns:
        if name not in rows[0]:
            known = ", ".join(filter(None, rows[0]))
            raise UserError(f"--table={path}: no column {name!r}; there are {known}")
    return rows


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _statsmodels():
    try:
        from statsmodels import api
    except ImportError:
        raise UserError("--times needs statsmodels: pip install -e '.[reading]'") from None
    return api


if __name__ == "__main__":
    cli.run(main, define_flags)
