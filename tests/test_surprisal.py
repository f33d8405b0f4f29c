"""Surprisals of a table's words, and what they explain of reading times."""

import csv
import json
import math
import pathlib

import numpy as np
import pytest

from tests.conftest import build_gpt
from tests.programs import call, refused
from tests.tasks.conftest import trained
from transformer_jax import surprisal
from transformer_jax.config import UserError
from transformer_jax.surprisal import explained

WORDS = [("", "the"), ("the", "cat"), ("the cat", "sat"), ("a", "dog"), ("a dog", "ran")]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    return trained(build_gpt(folder), folder)


@pytest.fixture
def table(tmp_path):
    lines = ["item,word,sentence,length,time"]
    lines += [f"{item},{word},{i},{len(word)},{200 + i}" for i, (item, word) in enumerate(WORDS)]
    (tmp_path / "words.csv").write_text("\n".join(lines) + "\n")
    return f"--table={tmp_path / 'words.csv'}"


def test_each_word_gets_its_bits(gpt, table):
    done = call("surprisal", f"--workdir={gpt.workdir}", table)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [(row["item"], row["word"]) for row in rows] == WORDS
    bits = [float(row["surprisal"]) for row in rows]
    likelihoods = gpt.task.log_likelihoods(
        gpt.params,
        [(item, f" {word}" if item else word) for item, word in WORDS],
        from_start=True,
    )
    expected = [-likelihood.log_prob / math.log(2) for likelihood in likelihoods]
    assert bits == pytest.approx(expected, abs=1e-3)
    # The surprisals of a sentence add up to that of the whole.
    whole = next(gpt.task.log_probability(gpt.params, ["the cat sat"]))
    assert sum(bits[:3]) == pytest.approx(-whole.log_prob / math.log(2), abs=1e-3)


def r_squared(outcome, *columns):
    design = np.column_stack([np.ones(len(outcome)), *columns])
    rest = outcome - design @ np.linalg.lstsq(design, outcome, rcond=None)[0]
    return 1 - rest @ rest / ((outcome - outcome.mean()) ** 2).sum()


def test_what_surprisal_explains():
    pytest.importorskip("statsmodels")
    random = np.random.default_rng(0)
    length, bits = random.normal(size=(2, 400))
    times = 200 + 10 * length + 5 * bits + random.normal(0, 10, 400)
    sentences = [str(i // 8) for i in range(400)]
    times[3] = math.nan
    found = explained(times.tolist(), length[:, None].tolist(), bits.tolist(), sentences)
    kept = np.isfinite(times)
    base = r_squared(times[kept], length[kept])
    both = r_squared(times[kept], length[kept], bits[kept])
    assert found["words"] == 399
    assert found["r2"] == pytest.approx(base) and found["r2_with_surprisal"] == pytest.approx(both)
    assert found["gain"] == pytest.approx(both - base)
    assert found["share_of_unexplained"] == pytest.approx((both - base) / (1 - base))
    assert 0 < found["held_out_gain"] < 2 * found["gain"]
    low, high = found["interval"]
    assert low < found["milliseconds_per_bit"] < high
    assert low < 5 < high and found["p_value"] < 1e-6
    noise = explained(times.tolist(), length[:, None].tolist(), random.normal(size=400), sentences)
    assert noise["held_out_gain"] < 0.005 and noise["p_value"] > 0.01
    with pytest.raises(UserError, match="2 of 2 rows have all values, too few for 3 columns"):
        explained([1.0, 2.0], [[1.0], [3.0]], [1.0, 2.0], ["a", "b"])


def test_words_of_a_sentence_are_not_independent():
    """Without surprisal's help, p-values below 0.05 are as rare as they should be."""
    pytest.importorskip("statsmodels")
    random = np.random.default_rng(1)
    sentences = [str(i // 8) for i in range(400)]
    p_values = []
    for _ in range(60):
        by_sentence = np.repeat(random.normal(size=(2, 50)), 8, axis=1)
        times, bits = by_sentence + 0.3 * random.normal(size=(2, 400))
        found = explained(times.tolist(), [[] for _ in times], bits.tolist(), sentences)
        p_values.append(found["p_value"])
    # A test that takes all words as independent finds more than half of these.
    assert np.mean(np.array(p_values) < 0.05) < 0.2


def test_a_report_and_mistakes(gpt, table):
    pytest.importorskip("statsmodels")
    flag = f"--workdir={gpt.workdir}"
    refused(call("surprisal", flag, table, "--times=time"), "5 sentences, and it takes 10")
    path = pathlib.Path(table.partition("=")[2])
    lines = path.read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    many = [
        f"{item},{word},{i},{length},{200 + 7 * i % 5}"
        for i, (item, word, _, length, _) in enumerate(rows * 5)
    ]
    path.write_text("\n".join([lines[0], *many]) + "\n")
    flags = "--times=time", "--predictors=length"
    report = json.loads(call("surprisal", flag, table, *flags).stdout)
    assert report["kind"] == "exact" and report["times"]["time"]["words"] == 25
    # The first word of a sentence has no word before it.
    report = json.loads(call("surprisal", flag, table, *flags, "--spillover").stdout)
    assert report["times"]["time"]["words"] == 20
    refused(call("surprisal", flag, table, "--column=word"), "--column=word: the table has")
    assert all(math.isfinite(x) for x in report["times"]["time"]["interval"])
    refused(call("surprisal", flag, table, "--times=word"), "column 'word' has no numbers")
    path.write_text(lines[0] + "\nthe,cat\n")
    refused(call("surprisal", flag, table), "row 1 has not as many values as the header")
    path.write_text(lines[0] + "\nthe,,1,3,200\n")
    refused(call("surprisal", flag, table), "row 1 has no word in column 'word'")
    refused(call("surprisal", flag, table, "--times=x"), "no column 'x'; there are item, word")
    refused(call("surprisal", flag, table, "--predictors=length"), "--predictors needs --times")
    refused(call("surprisal", flag, table, "--spillover"), "--spillover needs --times")
    refused(call("surprisal", flag, table, *flags, "--column=x"), "--column and --times")
    refused(call("surprisal", flag), "--table=FILE.csv is missing")


def test_a_table_without_contexts(gpt, tmp_path):
    """A number of the item is no text, and the words before a word are its context."""
    lines = ["item,word,sentence"]
    lines += [
        f"7,{word},{sentence}" for sentence, word in zip("aaabb", "the cat sat a dog".split())
    ]
    (tmp_path / "words.csv").write_text("\n".join(lines) + "\n")
    flags = (f"--workdir={gpt.workdir}", f"--table={tmp_path / 'words.csv'}")
    refused(call("surprisal", *flags), "--context_column=item: its values are numbers")
    done = call("surprisal", *flags, "--context_column=", "--column=bits")
    bits = [float(row["bits"]) for row in csv.DictReader(done.stdout.splitlines())]
    texts = gpt.task.log_probability(gpt.params, ["the cat sat", "a dog"])
    expected = [-each.log_prob / math.log(2) for each in texts]
    assert [sum(bits[:3]), sum(bits[3:])] == pytest.approx(expected, abs=1e-3)


def test_spillover_is_the_surprisal_of_the_word_before(gpt):
    """The rows of the table may be in any order, and some words may be missing."""
    contexts = ["the cat", "", "a", "the cat"]
    found = surprisal._before(gpt.task, gpt.params, contexts, within_word=False)
    words = [("the", "cat"), ("", "a")]
    cat, a = surprisal.surprisals(gpt.task, gpt.params, words)
    assert found == pytest.approx([cat, math.nan, a, cat], nan_ok=True)
