"""BLEU as the paper counted it, and the languages of its rules."""

import re

import pytest
import sacrebleu

from transformer_jax.data.sources.pairs import GrammarPairs, TextPairs, TfdsPairs
from transformer_jax.runs.open import open_run
from transformer_jax.scores import texts


def test_bleu_as_the_paper_counted_it():
    """Moses tokenisation, compounds split at hyphens, BLEU of the tokens."""
    outputs = ["das ist ein Test-Satz .", "ganz gleich und auch lang genug ."]
    references = ["das ist ein Probe-Satz .", "ganz gleich und auch lang genug ."]
    score = texts.signatures(outputs, references, "de")["bleu_tokenized_compound_split"]
    sides = [
        [re.sub("-", " ##AT##-##AT## ", line) for line in side] for side in (outputs, references)
    ]
    expected = sacrebleu.corpus_bleu(sides[0], [sides[1]], tokenize="none", force=True).score
    assert score == pytest.approx(expected) and 50 < score < 100
    split = texts._compound_split(["Ein Test-Satz, ja!"], "de")
    assert split == ["Ein Test ##AT##-##AT## Satz , ja !"]
    assert texts.scores(references, references)["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    "name, label",
    [
        ("test.fr", "(fr)"),
        ("test.FR.txt", "(fr)"),
        ("v1.test.de", "(de)"),
        ("test.txt", "(en, the default: the target's language is unknown)"),
        ("test.hr", "(en, the default: no rules for 'hr')"),
    ],
)
def test_the_names_of_files_hold_their_languages(name, label):
    language = TextPairs("test.en", f"/data.de/{name}").target_language
    signatures = texts.signatures(["ein Satz"], ["ein Satz"], language)
    assert f"|moses tokenizer {label}|" in signatures["bleu_tokenized_compound_split_signature"]


def test_the_languages_of_sets_and_of_the_grammar():
    assert TfdsPairs("set", "test", ("en", "fr")).target_language == "fr"
    assert GrammarPairs("test", 3).target_language == "de"


@pytest.mark.full
def test_an_evaluation_names_the_language_of_its_files(translation, tmp_path):
    for name in ("test.en", "test.fr"):
        (tmp_path / name).write_text("a dog runs\n")
    files = {"data.test_source": f"{tmp_path}/test.en", "data.test_target": f"{tmp_path}/test.fr"}
    task, params = open_run(translation.workdir, overrides={**files, "decode.beam": 1})
    signature = task.evaluate(params, "test")["bleu_tokenized_compound_split_signature"]
    assert "moses tokenizer (fr)" in signature
