"""The built-in summaries: functions without docstrings, split by module, no near duplicates."""

import re

import pytest

from transformer_jax.corpora import python_library
from transformer_jax.corpora.python_library import PythonFunctions

SPLITS = ("train", "valid", "test")
MODULE = '''
"""Of the module."""


class Reader:
    """Of the class."""

    @property
    def {name}LineCount(self, maxLines: dict[str, int] = {{}}, *, HTTP_header=(1, 2), **options):
        """Count the {name} lines, é.g. all.

        And more.
        """

        def inner_{name}():
            """Of the function inside {name}."""
            return "ü{name}", {name}.one({name}.two)

        # a comment
        return [inner_{name}() for _ in range(maxLines)]

    def empty_{name}(self):
        """Is left out because nothing is behind it."""

    def short_{name}(self):
        """Two words."""
        return 1

    def signature_{name}(self):
        """{name}(a, b) -> the value of a and b"""
        return 1
'''


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Writes modules of the list, and returns the function that reads their splits."""
    modules = python_library._MODULES.split()
    by_split = {
        split: [m for m in modules if python_library.split_of(f"{m}.py") == split]
        for split in SPLITS
    }

    def read(texts):
        for split, contents in texts.items():
            for module, content in zip(by_split[split], contents):
                path = tmp_path / f"{module}.py"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8")
        (tmp_path / "antigravity.py").write_text("def f(:")
        monkeypatch.setattr(python_library.sysconfig, "get_path", lambda _: str(tmp_path))
        python_library._splits.cache_clear()
        pairs = {split: list(PythonFunctions(split)) for split in SPLITS}
        python_library._splits.cache_clear()
        return pairs

    return read


def test_a_function_is_one_line_without_docstrings_and_its_first_sentence(library):
    names = ("alpha", "beta", "gamma")
    read = library({split: [MODULE.format(name=n)] for split, n in zip(SPLITS, names)})
    for split, name in zip(SPLITS, names):
        outer, inner = read[split]
        assert inner == (
            f'def inner_{name}(): return "ü{name}", {name}.one({name}.two)',
            f"Of the function inside {name}.",
        )
        source, summary = outer
        assert summary == f"Count the {name} lines, é.g. all."
        assert source.startswith(f"@property def {name}LineCount(self, maxLines: dict[str, int] =")
        assert inner[0] in source and source.endswith(
            "# a comment return [inner_" + name + "() for _ in range(maxLines)]"
        )
        assert not re.search(r'"""|\n|  |Of the', source)
        lead = PythonFunctions(split).lead(source)
        assert lead == f"{name} line count max lines http header options"


def test_near_duplicates_of_earlier_splits_are_left_out(library):
    body = "    total = first + second * third\n    return total / (first - second)\n"
    function = 'def {name}(first, second, third):\n    """{summary}"""\n' + body
    train = function.format(name="ratio", summary="Return the ratio of sums.")
    same_source = function.format(name="ratio_of", summary="Something quite different here.")
    other = (
        'def other(path):\n    """{summary}"""\n    with open(path) as file:\n        read(file)'
    )
    same_summary = other.format(summary="return THE ratio of sums")
    new = other.format(summary="Read the file at this path.")
    read = library(
        {"train": [train], "valid": [same_source + same_summary], "test": [same_summary + "\n\n"]}
    )
    assert len(read["train"]) == 1 and not read["valid"] and not read["test"]
    read = library({"valid": [new], "test": [new.replace("other(path)", "second(path)")]})
    assert [summary for _, summary in read["valid"]] == ["Read the file at this path."]
    assert not read["test"]


@pytest.mark.full
def test_the_functions_that_are_held_out_are_not_in_the_corpora():
    """No source stands in a file that the corpus "python" trains on."""
    pairs = {split: list(PythonFunctions(split)) for split in SPLITS}
    assert len(pairs["train"]) > 3000 and len(pairs["valid"]) > 150 and len(pairs["test"]) > 90
    corpus = "\n".join(" ".join(text.split()) for text in python_library.PythonSources("train"))
    held_out = [source for split in ("valid", "test") for source, _ in pairs[split]]
    assert not [source for source in held_out if source in corpus]
    summaries = {split: {summary for _, summary in pairs[split]} for split in SPLITS}
    assert not summaries["train"] & (summaries["valid"] | summaries["test"])
    assert all(3 <= len(re.findall(r"\w+", s)) <= 30 for s in summaries["test"])
    fingerprint = PythonFunctions("test").fingerprint()
    assert fingerprint["python"].startswith("3.") and len(fingerprint["functions"]) == 64
