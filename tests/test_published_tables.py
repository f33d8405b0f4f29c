"""docs/published.md is what its script writes; its measured cells come from the results."""

import importlib
import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# A figure of each table, as the lectures and the papers print it.
FIGURES = {
    "Translation": ("23.75", "39.2", "39.92", "40.46", "26.03", "26.36", "41.29", "38.1", "41.8"),
    "GLUE": ("84.6/83.4", "86.7/85.9", "82.1/81.4", "87.1"),
    "What pre-training gives a GPT": ("74.7", "59.9", "75.0", "69.1"),
    "Zero-shot language modeling": ("8.63", "63.24", "93.30", "18.34", "35.76", "0.93", "42.16"),
    "Named entities from frozen layers": ("91.0", "95.6", "94.9", "95.9", "96.1", "95.5"),
    "BART": ("90.8", "88.8/94.6", "44.16", "20.72", "11.85", "30.6"),
    "Images": ("88.55", "90.72", "94.55"),
    "Dollars": ("2,500", "50,000", "10,000", "200,000", "80,000", "1,600,000"),
    "GPT-3's mixture": ("0.44", "2.9", "1.9", "0.43", "3.4"),
    "Residual attention": ("70.42", "69.74", "70.20"),
}


@pytest.fixture(scope="module")
def benchmark():
    """benchmark(name) -> the module benchmarks/NAME.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module


def test_the_page_is_what_the_script_writes(benchmark):
    page = (ROOT / "docs" / "published.md").read_text("utf-8")
    assert page == benchmark("published_tables").page()


def test_the_page_has_every_table_and_figure(benchmark):
    module = benchmark("published_tables")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", module.page(), re.M | re.S))
    assert sections.keys() == FIGURES.keys()
    for title, figures in FIGURES.items():
        cells = re.findall(r"(?<=\| )[^|\n]*(?= \|)", sections[title])
        assert set(figures) <= set(cells), title
    assert set(module.TABLES) <= set(module.TEMPLATE.read_text().splitlines())


def test_a_table_has_as_many_cells_in_each_row(benchmark):
    for table in benchmark("published_tables").TABLES.values():
        assert len({line.count("|") for line in table().splitlines()}) == 1


def test_what_nobody_measured_is_empty(benchmark, monkeypatch, tmp_path):
    """And a file of results fills its cells."""
    module = benchmark("published_tables")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    assert all(line.endswith("|  |  |") for line in module.ablation().splitlines()[2:])
    scores = {"mean": 0.75, "deviation": 0.01, "values": [0.74, 0.76]}
    rows = [{"objective": "lstm", "imdb": scores}]
    (tmp_path / "gpt_ablation_cpu.json").write_text(json.dumps({"rows": rows}))
    assert module.ablation().splitlines()[-1].endswith("| 54.6 |  | 75.0 ± 1.0 |")
    rows = [{"set": "ptb", "score": 65.0}]
    (tmp_path / "gpt2_zero_shot.json").write_text(json.dumps({"rows": rows}))
    assert "| 46.54 | 65.85 | 47.33 | 40.31 | 35.76 | 65.00 |" in module.zero_shot()


def test_the_names_of_the_rows_are_those_of_the_scripts(benchmark):
    """Otherwise a measured row would never be shown."""
    module = benchmark("published_tables")
    assert {*benchmark("gpt2_zero_shot").FILES} == {*module.ZERO_SHOT_SETS}
    assert list(benchmark("gpt_ablation").VARIANTS) == ["full", "scratch", "plain", "lstm"]
    objectives = {row[-1] for row in module.OBJECTIVES} - {""}
    assert objectives == {*benchmark("objectives").OBJECTIVES} - {"floor", "none"}


def test_the_arms_of_realformer_differ_in_their_models_alone(benchmark):
    module = benchmark("realformer")
    post, pre, residual = map(module.get_config, module.MODELS)
    for other in (pre, residual):
        assert {name for name in post if post[name] != other[name]} == {"model"}
        assert {key for key in post.model if post.model[key] != other.model[key]} == {"name"}


def test_words_are_translated_by_what_stands_beside_them(benchmark):
    """IBM Model 1 on four pairs, which the order of their words does not give away."""
    module = benchmark("word_by_word")
    pairs = [
        ("The house", "Haus das"),
        ("the book", "Buch das"),
        ("a book", "Buch ein"),
        ("a house is", "ist ein Haus"),
    ]
    dictionary = module.likeliest(module.learned(pairs, iterations=20))
    assert module.translated("The book is a house.", dictionary) == "Das Buch ist ein Haus."
    assert module.NULL not in dictionary


def test_the_ledger_is_what_its_script_writes(benchmark):
    """Every prediction is there, and every error is that of its row."""
    module = benchmark("ledger")
    rows = json.loads(module.FILE.read_text())
    page = (ROOT / "docs" / "ledger.md").read_text("utf-8")
    assert page == module.page(rows)
    assert {*module.PLANNED, *module.ON_CPU} == {*rows}
    for name, row in rows.items():
        line = next(each for each in page.splitlines() if each.startswith(f"| {name} |"))
        found = row | module._measured(name)
        if "measured_seconds" in found:
            error = found["predicted_seconds"] / found["measured_seconds"] - 1
            assert f"{error:+.0%}" in line
