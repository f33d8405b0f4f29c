"""Minimal pairs: accuracies with ties, parts and intervals, baselines, and wrong files."""

import json
import types

import numpy as np
import pytest
from scipy import stats

from tests.conftest import build_gpt
from tests.programs import call, refused
from tests.tasks.conftest import trained
from transformer_jax.config import UserError
from transformer_jax.inference import minimal_pairs
from transformer_jax.inference.log_probabilities import TextScore
from transformer_jax.scores import ngrams


def write(path, *pairs, **others):
    """Writes pairs (good, bad) as JSON lines."""
    lines = [{"sentence_good": good, "sentence_bad": bad, **others} for good, bad in pairs]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class Lengths:
    """A task whose log-probability of a text is minus its number of characters."""

    scoring = types.SimpleNamespace(kind="exact")
    tokenizer = types.SimpleNamespace(
        target=types.SimpleNamespace(
            encode=lambda texts: [text.split() for text in texts], unk_id=None
        )
    )

    def log_probability(self, params, texts, within_word):
        return (TextScore(-float(len(text)), text.split(), []) for text in texts)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "a.jsonl", ("abc", "abcd"), ("ab", "a"), ("ab c", "a bc"), field="f")
    write(tmp_path / "b.jsonl", ("a", "ab"), field="f", linguistics_term="t")
    return tmp_path


def test_accuracies_by_file_and_phenomenon(folder):
    pairs = minimal_pairs.read(f"{folder}/*.jsonl")
    found = minimal_pairs.accuracies(pairs, minimal_pairs.sentence_scores(Lengths(), None, pairs))
    # Right, wrong and a tie in the first file, and right in the second.
    assert found["accuracy"] == 2.5 / 4 and found["ties"] == 1 / 4 and found["pairs"] == 4
    assert found["macro"] == (0.5 + 1) / 2
    assert {name: each["accuracy"] for name, each in found["by_file"].items()} == {"a": 0.5, "b": 1}
    assert found["by_field"]["f"]["pairs"] == 4 and found["by_term"]["t"]["pairs"] == 1
    # Every sentence of a pair has as many words as the other.
    shorter = minimal_pairs.baselines(Lengths(), pairs)
    assert shorter.keys() == {"shorter"} and shorter["shorter"]["ties"] == 1
    assert shorter["shorter"]["by_file"]["a"]["accuracy"] == 0.5
    by_character = minimal_pairs.sentence_scores(Lengths(), None, pairs, normalize="characters")
    assert {*by_character} == {-1}


def test_from_when_on_parts_are_above_chance():
    def result(words, *, low):
        part = {"accuracy": 0.7, "interval": [low, 0.9]}
        other = {"accuracy": 0.5, "interval": [0.4, 0.6]}
        return {"words": words, **part, "by_file": {"a": part, "b": other, "c": part}}

    # At first, the accuracy of the part was above chance by accident.
    lows = {5: 0.51, 10: 0.5, 20: 0.51, 30: 0.6}
    results = [result(words, low=low) for words, low in lows.items()]
    shorter = result(0, low=0.5)
    shorter["accuracy"] = 0.45
    # Whoever prefers the shorter sentence is right in 55 % of the pairs of c.
    parts = {"a": 0.5, "b": 0.5, "c": 0.55}
    shorter["by_file"] = {name: {"accuracy": accuracy} for name, accuracy in parts.items()}
    assert minimal_pairs.learned(results, "words", shorter) == {
        "all": {"all pairs": 20},
        "by_file": {"a": 20, "b": None, "c": 30},
    }
    curves = minimal_pairs.curves(results, "words")
    assert curves.keys() == {"all pairs", "a", "b", "c"}
    assert curves["a"][2] == (20, 0.7, 0.51, 0.9)


def test_the_interval_is_wilsons():
    for right, count in ((0, 10), (3, 10), (10, 10), (700, 1000)):
        expected = stats.binomtest(right, count).proportion_ci(method="wilson")
        found = minimal_pairs._interval(right / count, count)
        assert found == pytest.approx((expected.low, expected.high), abs=1e-6)


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"sentence_good": "a"}', "x.jsonl:2: no text under 'sentence_bad'; --pair_keys"),
        ("[1]", "x.jsonl:2: no text under 'sentence_good'"),
        ("{", "x.jsonl:2: not JSON"),
        (
            '{"sentence_good": "a", "sentence_bad": "a"}',
            "x.jsonl:2: both sentences are 'a'; --skip_equal",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    path = write(tmp_path / "x.jsonl", ("a", "b"))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UserError, match=message):
        minimal_pairs.read(str(path))


def test_files_and_keys(tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="empty.jsonl: no pairs in it"):
        minimal_pairs.read(f"{tmp_path}/empty.jsonl")
    with pytest.raises(UserError, match="--minimal_pairs=.*none: no such file"):
        minimal_pairs.read(f"{tmp_path}/none")
    (tmp_path / "own.jsonl").write_text(
        '{"right": "a", "wrong": "b"}\n{"right": "c", "wrong": "c"}'
    )
    pairs = minimal_pairs.read(f"{tmp_path}/own.jsonl", ("right", "wrong"), skip_equal=True)
    assert [(pair.good, pair.bad) for pair in pairs] == [("a", "b")]
    assert "own.jsonl:2" in capsys.readouterr().err
    (tmp_path / "own.jsonl").write_text('{"right": "c", "wrong": "c"}')
    with pytest.raises(UserError, match="no pair of two different sentences is left"):
        minimal_pairs.read(f"{tmp_path}/own.jsonl", ("right", "wrong"), skip_equal=True)


def test_files_of_one_name_are_told_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "x.jsonl", ("a", "b"))
    pairs = minimal_pairs.read(f"{tmp_path}/*/x.jsonl")
    assert {pair.groups["file"] for pair in pairs} == {f"{tmp_path}/{x}/x.jsonl" for x in "ab"}


def test_ngrams_score_a_text_by_itself():
    """The loss over a text is that of the model which `scores` evaluates."""
    random = np.random.default_rng(0)
    # Each token is likely followed by the next one, so that contexts matter.
    steps = random.choice([1, 2, 3], size=3000, p=[0.7, 0.2, 0.1])
    counted = 1 + np.cumsum(steps) % 5
    counted[::7] = 0  # the ends of documents
    texts = [[1, 2, 3, 4], [2], [5, 1, 3, 3, 2, 1, 5, 4, 2]]
    found = ngrams.log_probabilities(counted, texts, 6, end=0)
    assert [len(each) for each in found] == [4, 1, 9]
    for text, log_probs in zip(texts, found):
        # The context (0, 0) does not occur, so the first token is predicted from the 0 before it.
        whole = ngrams.scores(counted, np.array([0, 0, *text]), 6)["trigram"]["loss"]
        start = ngrams.scores(counted, np.array([0, 0]), 6)["trigram"]["loss"]
        assert -log_probs.sum() == pytest.approx(whole * (len(text) + 1) - start, rel=1e-6)
    assert found[0].mean() > -1 > found[2].mean()  # the usual order, and another one


def test_the_programs(tmp_path_factory, tmp_path):
    folder = tmp_path_factory.mktemp("gpt")
    run = trained(build_gpt(folder), folder)
    flag = f"--workdir={run.workdir}"
    pairs = write(tmp_path / "x.jsonl", ("the cat sat", "sat cat the"), ("a dog ran", "dog a ran"))
    written = tmp_path / "scores.jsonl"
    flags = (f"--minimal_pairs={pairs}", f"--pair_scores={written}")
    results = json.loads(call("evaluate", flag, *flags).stdout)
    texts = ["the cat sat", "sat cat the", "a dog ran", "dog a ran"]
    scores = [score.log_prob for score in run.task.log_probability(run.params, texts)]
    assert results["accuracy"] == np.mean([scores[0] > scores[1], scores[2] > scores[3]])
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert np.ravel([line["scores"] for line in lines]) == pytest.approx(scores, abs=1e-5)
    assert lines[1]["sentence_bad"] == texts[3] and lines[1]["where"].endswith("x.jsonl:2")
    assert results["baselines"]["ngrams"]["pairs"] == 2

    done = call("score", flag, text="\n".join(texts) + "\n")
    assert list(map(float, done.stdout.split())) == pytest.approx(scores, abs=1e-5)
    assert "perplexity of a token" in done.stderr
    record = json.loads(call("score", flag, "--by_token", "--text=the cat sat").stdout)
    assert sum(record["log_probs"]) == pytest.approx(scores[0], abs=1e-4)
    assert len(record["tokens"]) == len(record["log_probs"])
    refused(call("score", flag, "--within_word", "--text=a"), "it is for masked language models")
    refused(
        call("evaluate", flag, f"--minimal_pairs={pairs}", "--set=test"),
        "--minimal_pairs and --set: give one of them",
    )
