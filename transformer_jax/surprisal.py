"""Writes the surprisal of each word of a table: python -m transformer_jax.surprisal --workdir=DIR
--table=words.csv > with_surprisal.csv

The table is a CSV file with a row for each word. --context_column and --word_column name the text
before a word in its sentence, and the word. A table without such texts has its words in order:
--context_column= joins those before a word that have the same value in --sentence_column. The
surprisal of the word, -log2 P(word | context) in bits, is added as the last column. A masked model
reads a text that ends with the word, and a discriminator gives -log2 of the probability that the
word was not replaced; see `score`. --column names the new column.

--times=RTfirstpass,self_paced_reading_time asks how well surprisal explains how long people read a
word (Smith & Levy 2013). The output is then a JSON object. For each of these columns, it has R^2 of
a linear regression of the times on --predictors, such as the length, the frequency and the position
of the word, R^2 with the surprisal added, the gain, its share of what the predictors leave
unexplained, the gain for sentences that the regressions were not fitted to, and the milliseconds
per bit with their 95 % interval and p-value. --spillover adds the surprisal of the word before to
the predictors. Words of a sentence, which --sentence_column names, count as dependent. Rows with
missing values and words that the tokenizer does not know are left out. It needs the extra
"reading".
"""

import csv
import json
import math
import sys

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError

_FOLDS = 10  # of the cross-validation


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_string("table", None, "CSV file with a row for each word.")
    flags.DEFINE_string(
        "context_column", "item", "Column of the text before the word; empty: the words before it."
    )
    flags.DEFINE_string("word_column", "word", "Column of the word.")
    flags.DEFINE_string("sentence_column", "sentence", "Column that tells sentences apart.")
    flags.DEFINE_string("column", "surprisal", "Name of the new column.")
    flags.DEFINE_bool(
        "within_word",
        False,
        "With a masked model: also mask the tokens that follow in the same word.",
    )
    flags.DEFINE_bool(
        "spillover", False, "With --times: the surprisal of the word before is a predictor."
    )
    flags.DEFINE_list("times", [], "Columns of reading times to explain.")
    flags.DEFINE_list(
        "predictors", [], "Columns that explain the times beside surprisal, with --times."
    )


def main() -> None:
    from transformer_jax.pictures.progress import say

    options = cli.FLAGS
    if options.table is None:
        raise UserError("--table=FILE.csv is missing: a table with a row for each word")
    for name in ("predictors", "spillover"):
        if options[name].present and not options.times:
            raise UserError(f"--{name} needs --times, the columns to explain")
    if options["column"].present and options.times:
        raise UserError("--column and --times: give one of them, because --times adds no column")
    context, by_sentence = options.context_column, options.times or not options.context_column
    needed = [*filter(None, [context]), options.word_column, *options.times, *options.predictors]
    needed += [options.sentence_column] if by_sentence else []
    rows = _read(options.table, needed, options.word_column)
    words = [row[options.word_column] for row in rows]
    sentences = [row[options.sentence_column] for row in rows] if by_sentence else []
    contexts = [row[context] for row in rows] if context else words_before(words, sentences)
    if context and _are_numbers(contexts):
        raise UserError(
            f"--context_column={context}: its values are numbers instead of texts; "
            "--context_column= joins the words before each word"
        )
    if options.column in rows[0] and not options.times:
        raise UserError(
            f"--column={options.column}: the table has a column of this name; give another one"
        )
    times = {name: _numbers(rows, name) for name in options.times}
    columns = [_numbers(rows, name) for name in options.predictors]
    if options.times:
        _statsmodels()  # raises the error for a missing library before anything is computed
    task, params = cli.open_run("log_likelihoods", "has log-probabilities of texts")
    pairs = [*zip(contexts, words)]
    bits = surprisals(task, params, pairs, within_word=options.within_word)
    if (kind := task.scoring.kind) != "exact":
        say(f"kind of the scores: {kind}, which are no probabilities of a word given its context")
    if not options.times:
        writer = csv.writer(sys.stdout)
        writer.writerow([*rows[0], options.column])
        writer.writerows([*row.values(), f"{value:.4f}"] for row, value in zip(rows, bits))
        return
    report = {"table": options.table, "kind": kind, "words": len(rows)}
    if options.spillover:
        columns.append(_before(task, params, contexts, within_word=options.within_word))
    predictors = [list(values) for values in zip(*columns)] or [[] for _ in rows]
    report["times"] = {
        name: explained(values, predictors, bits, sentences) for name, values in times.items()
    }
    print(json.dumps(report))


def words_before(words: list[str], sentences: list[str]) -> list[str]:
    """Returns the words before each word in its sentence, which `sentences` tell apart."""
    contexts, read = [], {}
    for word, sentence in zip(words, sentences):
        before = read.setdefault(sentence, [])
        contexts.append(" ".join(before))
        before.append(word)
    return contexts


def _before(task, params, contexts: list[str], *, within_word: bool) -> list[float]:
    """Returns the surprisal of the last word of each context; NaN where there is none.

    It is not looked up in the table, whose rows may be in any order, and may lack some words.
    """
    pairs = {}
    for text in filter(str.strip, contexts):
        before, _, word = text.rstrip().rpartition(" ")
        pairs[text] = (before, word)
    bits = surprisals(task, params, [*pairs.values()], within_word=within_word)
    found = dict(zip(pairs, bits))
    return [found.get(text, math.nan) for text in contexts]


def _are_numbers(texts: list[str]) -> bool:
    given = [text for text in texts if text.strip()]
    return bool(given) and not any(math.isnan(_number(text)) for text in given)


def surprisals(
    task, params, words: list[tuple[str, str]], *, within_word: bool = False
) -> list[float]:
    """Returns -log2 P(word | context) of each (context, word); NaN for an unknown word.

    `within_word` is that of `log_probability`, and raises UserError as it does.
    """
    from transformer_jax.pictures.progress import say, track

    # The space belongs to the word. A word without a context starts a sentence.
    pairs = [(context, f" {word}" if context else word) for context, word in words]
    likelihoods = task.log_likelihoods(params, pairs, from_start=True, within_word=within_word)
    bits = [-each.log_prob / math.log(2) for each in track(likelihoods, "words", len(pairs))]
    # The probability of an unknown word is that of all of them together.
    tokenizer = task.tokenizer.target
    is_known = [
        tokenizer.unk_id not in ids for ids in tokenizer.encode([word for _, word in words])
    ]
    if count := is_known.count(False):
        say(f"{count} words are unknown to the tokenizer: they have no surprisal (nan)")
    return [each if known else math.nan for each, known in zip(bits, is_known)]


def explained(
    times: list[float],
    predictors: list[list[float]],
    bits: list[float],
    sentences: list[str],
) -> dict:
    """Returns what the surprisals explain of reading times beyond the predictors.

    Values that are missing are NaN. `sentences` tells which words belong together. Raises UserError
    if there are too few complete rows or sentences.
    """
    import numpy as np

    statsmodels = _statsmodels()
    values = np.column_stack([times, np.reshape(predictors, (len(times), -1)), bits])
    complete = np.isfinite(values).all(axis=1)
    values = values[complete]
    _, groups = np.unique(np.array(sentences)[complete], return_inverse=True)
    if len(values) <= 2 * values.shape[1]:
        raise UserError(
            f"--times: {len(values)} of {len(times)} rows have all values, too few for "
            f"{values.shape[1]} columns"
        )
    if groups.max() + 1 < _FOLDS:
        raise UserError(
            f"--times: {groups.max() + 1} sentences, and it takes {_FOLDS}; --sentence_column "
            "tells sentences apart"
        )
    outcome, both = values[:, 0], np.hstack([np.ones((len(values), 1)), values[:, 1:]])
    base = both[:, :-1]
    # Words of a sentence are not independent, so the errors are those of clusters.
    fit = statsmodels.OLS(outcome, both).fit(cov_type="cluster", cov_kwds={"groups": groups})
    r2 = statsmodels.OLS(outcome, base).fit().rsquared
    held_out = [_held_out_r2(outcome, design, groups) for design in (base, both)]
    return {
        "words": len(values),
        "r2": float(r2),
        "r2_with_surprisal": float(fit.rsquared),
        "gain": float(fit.rsquared - r2),
        "share_of_unexplained": float((fit.rsquared - r2) / (1 - r2)),
        "held_out_gain": held_out[1] - held_out[0],
        "milliseconds_per_bit": float(fit.params[-1]),
        "interval": fit.conf_int()[-1].tolist(),
        "p_value": float(fit.pvalues[-1]),
    }


def _held_out_r2(outcome, design, groups) -> float:
    """Returns R^2 of sentences that the regression was not fitted to, by cross-validation."""
    import numpy as np

    rest = np.zeros(len(outcome))
    for fold in range(_FOLDS):
        held_out = groups % _FOLDS == fold
        weights, *_ = np.linalg.lstsq(design[~held_out], outcome[~held_out], rcond=None)
        rest[held_out] = outcome[held_out] - design[held_out] @ weights
    return float(1 - (rest**2).sum() / ((outcome - outcome.mean()) ** 2).sum())


def _read(path: str, columns: list[str], word: str) -> list[dict[str, str]]:
    """Returns the rows of a CSV file.

    Raises UserError if it has no rows, lacks a column, or has a row of another length or without a
    word in the column `word`.
    """
    from transformer_jax.data.sources.text_files import check_not_empty, text_lines

    check_not_empty("--table", path)
    rows = list(csv.DictReader(text_lines(path, keep_ends=True)))
    if not rows:
        raise UserError(f"--table={path}: it has a header and no rows")
    for name in columns:
        if name not in rows[0]:
            known = ", ".join(filter(None, rows[0]))
            raise UserError(f"--table={path}: no column {name!r}; there are {known}")
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise UserError(f"--table={path}: row {number} has not as many values as the header")
        if not row[word].strip():
            raise UserError(f"--table={path}: row {number} has no word in column {word!r}")
    return rows


def _numbers(rows: list[dict[str, str]], name: str) -> list[float]:
    """Returns the numbers of a column, NaN where there is none. Raises UserError if all are."""
    numbers = [_number(row[name]) for row in rows]
    if all(map(math.isnan, numbers)):
        raise UserError(f"--table: column {name!r} has no numbers")
    return numbers


def _number(text: str) -> float:
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
