"""launch/webtext.py on small pages: each step drops what its rule says, and nothing else."""

import importlib
import json
import pathlib
import random
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
VOCABULARY = [f"word{number}" for number in range(500)]


@pytest.fixture(scope="module")
def webtext():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "launch")
        yield importlib.import_module("webtext")


def text(seed, length=200, vocabulary=VOCABULARY):
    return " ".join(random.Random(seed).choices(vocabulary, k=length))


def run(webtext, monkeypatch, tmp_path, pages, *flags):
    """Returns the texts that the program leaves."""
    (tmp_path / "pages.jsonl").write_text("\n".join(map(json.dumps, pages)))
    output = tmp_path / "webtext.jsonl"
    arguments = [f"--pages={tmp_path}/*.jsonl", f"--output={output}", *flags]
    monkeypatch.setattr(sys, "argv", ["webtext.py", *arguments])
    webtext.main()
    return [json.loads(line)["text"] for line in output.read_text().splitlines()]


def test_every_step_drops_what_its_rule_says(webtext, monkeypatch, tmp_path, capsys):
    pages = [
        dict(text=text(0), url="https://a.org/one", karma=3),
        dict(text=text(1), url="https://a.org/two", karma=2),  # too few votes
        dict(text=text(2), url="https://en.wikipedia.org/wiki/One", karma=9),
        dict(text=text(3), url="https://www.A.org/one/#part", karma=9),  # the first one's address
        dict(text=text(4, length=127), url="https://a.org/short", karma=9),
        dict(text=text(0) + " and more", url="https://b.org/copy", karma=9),
        dict(text=text(5), url="https://b.org/five", karma=4),
    ]
    assert run(webtext, monkeypatch, tmp_path, pages) == [text(0), text(5)]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["6", "5", "4", "3", "2"]


def test_pages_without_votes_and_addresses_are_kept(webtext, monkeypatch, tmp_path, capsys):
    pages = [dict(text=text(0)), dict(text=text(1))]
    assert run(webtext, monkeypatch, tmp_path, pages) == [text(0), text(1)]
    assert "no page has karma" in capsys.readouterr().err


@pytest.mark.parametrize("shared, is_copy", [(190, True), (20, False)])
def test_copies_are_found_by_their_words(webtext, shared, is_copy):
    """A page is a copy if most of its sequences of five words are those of another page."""
    first, other = text(0).split(), text(1).split()
    pages = [dict(text=" ".join(first)), dict(text=" ".join(first[:shared] + other[shared:]))]
    assert len(webtext.without_copies(pages)) == (1 if is_copy else 2)


def test_quality_is_what_the_reference_texts_have(webtext, monkeypatch, tmp_path):
    """A quarter of the pages has the words of the reference."""
    pytest.importorskip("sklearn")
    good, poor = VOCABULARY[:250], VOCABULARY[250:]
    reference = [text(1000 + number, vocabulary=good) for number in range(10)]
    texts = [text(n, vocabulary=good if n % 4 == 0 else poor) for n in range(20)]
    scores = webtext.quality(texts, reference)
    assert min(scores[::4]) > max(scores[n] for n in range(20) if n % 4)
    monkeypatch.setattr(webtext, "quality", lambda texts, reference: [1.0, 0.0] * 10)
    kept = webtext.good([dict(text=each) for each in texts], reference, seed=0)
    # A draw is above 1 once in 2^9.
    assert [page["text"] for page in kept] == texts[::2]


@pytest.mark.parametrize("line, message", [("{", "not JSON"), ('{"body": ""}', "with a text")])
def test_mistakes_are_one_line(webtext, monkeypatch, tmp_path, capsys, line, message):
    (tmp_path / "a.jsonl").write_text(line)
    flags = [f"--pages={tmp_path}/a.jsonl", f"--output={tmp_path}/out"]
    monkeypatch.setattr(sys, "argv", ["webtext.py", *flags])
    with pytest.raises(SystemExit) as end:
        webtext.main()
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and "a.jsonl:1" in lines[0] and message in lines[0]
