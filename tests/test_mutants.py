"""The faults that benchmarks/mutants.py draws, the tests that it chooses, and its verdicts."""

import ast
import importlib
import json
import pathlib
import textwrap

import pytest

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def mutants():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("mutants")


def changes(mutants, body: str) -> list[tuple[str, str]]:
    """Returns (kind, changed line) of each mutant of a function with this body of one line."""
    source = f"def f(x, y, key):\n    {body}\n"
    found = []
    for mutant in mutants.mutants(source):
        changed = mutant.applied(source)
        ast.parse(changed)
        found.append((mutant.kind, changed.splitlines()[1].strip()))
    return found


@pytest.mark.parametrize(
    "body, expected",
    [
        ("return x + y", [("term", "return x"), ("operator", "return x - y")]),
        (
            "return (x)  * (y - 1)",
            [
                ("term", "return x"),
                ("operator", "return (x)  / (y - 1)"),
                ("operator", "return (x)  * (y + 1)"),
                ("term", "return (x)  * (y)"),
            ],
        ),
        ("x += y", [("operator", "x -= y")]),
        ("return x <= y", [("operator", "return x < y")]),
        (
            "return x and not y",
            [("operator", "return x or not y"), ("operator", "return x and y")],
        ),
        ("return -x", [("sign", "return x")]),
        ("return -(x ** 2)", [("sign", "return (x ** 2)"), ("operator", "return -(x * 2)")]),
        ("return x.sum(axis=-1)", [("axis", "return x.sum(axis=-2)")]),
        ("return jnp.sum(x, 0)", [("axis", "return jnp.sum(x, 1)")]),
        ("return x.shape[1]", [("axis", "return x.shape[0]")]),
        ("return x & ~y", [("mask", "return x | ~y"), ("mask", "return x & y")]),
        ("return jnp.where(key, x, y)", [("mask", "return jnp.where(key, y, x)")]),
        ("return jax.random.fold_in(key, x)", [("key", "return key")]),
        ("return jax.random.split(key)", [("key", "return [key] * (2)")]),
        ("return x['query_mask']", [("key", "return x['key_mask']")]),
        ("return {'layer.weight': x}", [("key", "return {'layer.bias': x}")]),
    ],
)
def test_faults(mutants, body, expected):
    assert sorted(changes(mutants, body)) == sorted(expected)


@pytest.mark.parametrize(
    "body",
    [
        '"""x + y"""',
        "raise UserError('x' if x < y else 'y')",
        "say(f'{x + y}', x - y)",
        "return f'{x + y}'",
        "return 'x' + y",
        "return x + [y]",
        "z: int | None = x",
        "return x['other']",
        "return x[-1]",
        "return jnp.where(x)",
        "return min(x, 1)",
        "return jnp.minimum(x, 1), jnp.repeat(x, 384)",
        "return jnp.where(key, x, x)",
        "return lambda z=1 + 2: z",
    ],
)
def test_no_faults(mutants, body):
    assert changes(mutants, body) == []


def test_what_runs_at_import_and_refusals_are_left_out(mutants):
    source = textwrap.dedent(
        '''
        """1 + 1"""
        SIZE = 1 + 2
        table = made(3)

        def made(n):
            return n + 1

        class C:
            size: int = -SIZE

            @decorated(1 + 1)
            def f(self, x: int | None = 1 + 1) -> int | None:
                """The sum 1 + 1."""
                if x < 0:
                    raise ValueError("x" + "y")
                if x > 1:
                    return g(
                        x  # a + comment
                        + 2
                    )
        '''
    )
    found = mutants.mutants(source)
    assert [(m.function, m.before, m.after) for m in found] == [
        ("C.f", ">", ">="),
        ("C.f", "x  # a + comment\n                + 2", "x"),
        ("C.f", "+", "-"),
    ]
    # The rest of the source stays as it is, byte for byte, behind letters of several bytes, too.
    changed = found[2].applied(source)
    assert changed == source.replace("                + 2", "                - 2")
    letters = "def f(ä, b):\n    return 'ä', ä + b, 'ü'\n"
    assert [m.applied(letters) for m in mutants.mutants(letters)] == [
        "def f(ä, b):\n    return 'ä', ä, 'ü'\n",
        "def f(ä, b):\n    return 'ä', ä - b, 'ü'\n",
    ]


def test_names_tell_equal_faults_apart(mutants):
    source = "def f(x):\n    a = x - 1\n    return x - 1\n"
    names = [mutant.name("m.py") for mutant in mutants.mutants(source)]
    assert len({*names}) == len(names) == 4 and names[-1] == "m.py f operator - -> + #1"
    moved = mutants.mutants("import os\n\n" + source)
    assert [mutant.name("m.py") for mutant in moved] == names


def test_the_package_has_enough_and_the_seed_draws(mutants, monkeypatch):
    small = {area: mutants.AREAS[area] for area in ("step", "losses", "conversion")}
    monkeypatch.setattr(mutants, "AREAS", small)
    cells = mutants.candidates(mutants.ROOT)
    assert sum(map(len, cells.values())) >= 300
    assert {kind for (_, kind), cell in cells.items() if cell} == {*mutants.KINDS}
    first = [*mutants.drawn(cells, 0)]
    assert first == [*mutants.drawn(cells, 0)] != [*mutants.drawn(cells, 1)]
    assert len(first) == sum(map(len, cells.values()))
    of_cell = {id(entry): cell for cell, entries in cells.items() for entry in entries}
    filled = {cell for cell, entries in cells.items() if entries}
    assert {of_cell[id(entry)] for entry in first[: len(filled)]} == filled


def test_the_tests_that_reach_the_line_come_first(mutants):
    source = "def f(x):\n    return (\n        x - 1)\n"
    term, operator = mutants.mutants(source)
    reached = {
        "m.py": {
            2: {"tests/a.py::one", "tests/b.py::two[x]", "tests/c.py"},
            3: {"tests/b.py::two[x]", "tests/a.py::one"},
        }
    }
    seconds = {
        "tests/a.py::other": 1.0,
        "tests/a.py::one": 9.0,
        "tests/b.py::two[x]": 3.0,
        "tests/b.py::two[y]": 4.0,
        "tests/c.py::three": 5.0,
        "tests/d.py::four": 6.0,
    }
    tests = mutants.Tests(reached, seconds)
    assert tests.judging("m.py", operator) == [
        "tests/b.py::two[x]",
        "tests/a.py::one",
        "tests/b.py::two[y]",
        "tests/a.py::other",
    ]
    del reached["m.py"][3]  # the line of the statement instead
    assert "tests/c.py::three" in tests.judging("m.py", operator)
    assert tests.judging("other.py", operator) == []


OUTPUT = """
collecting ... collected 3 items

tests/a.py::one[x y] PASSED                                             [ 33%]
tests/a.py::two SKIPPED (why)                                           [ 66%]
"""


@pytest.mark.parametrize(
    "code, last, verdict, test",
    [
        (0, "tests/a.py::three PASSED  [100%]", "survived", None),
        (1, "tests/a.py::three[x - y] FAILED  [100%]", "killed", "tests/a.py::three[x - y]"),
        (1, "tests/a.py::three ERROR  [100%]", "killed", "tests/a.py::three"),
        (None, "tests/a.py::three ", "timed out", "tests/a.py::three"),
        (2, "ERROR tests/a.py - ImportError", "not collected", None),
        (5, "", "not reached", None),
    ],
)
def test_verdicts(mutants, code, last, verdict, test):
    result = mutants._result(code, OUTPUT + last + "\n", 1.26)
    assert result == {"verdict": verdict, "test": test, "seconds": 1.3}
    with pytest.raises(SystemExit, match="pytest ended with 4"):
        mutants._result(4, "usage", 0.0)


def test_a_mutant_is_made_in_a_copy_and_taken_back(mutants, tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / ".git").mkdir(parents=True)
    source = "def f(x):\n    return x < 1\n"
    (root / "m.py").write_text(source)
    copy = mutants.Copy(root, str(tmp_path / "copy"), [])
    (mutant,) = mutants.mutants(source)
    # The first test fails in any case, so that it kills nothing.
    calls = []

    def run(tests, limit):
        calls.append(((copy.folder / "m.py").read_text() != source, [*tests]))
        failing = next((test for test in tests if test == "one" or calls[-1][0]), None)
        return {"verdict": "killed" if failing else "survived", "test": failing, "seconds": 1.0}

    monkeypatch.setattr(copy, "_run", run)
    assert copy.judge("m.py", mutant, ["one", "two"], 9.0)["test"] == "two"
    assert calls == [(True, ["one", "two"]), (False, ["one"]), (True, ["two"]), (False, ["two"])]
    assert (copy.folder / "m.py").read_text() == source == (root / "m.py").read_text()
    assert not (copy.folder / ".git").exists()
    assert copy.judge("m.py", mutant, [], 9.0)["verdict"] == "not reached"


def test_sums_of_a_profile(mutants, tmp_path):
    suite = mutants.suite

    def profile(name, **seconds):
        (tmp_path / name).mkdir()
        rest = dict(wall=2.0, children=1.0, programs=3, compile=0.5, miss=0)
        with open(tmp_path / name / "gw0.jsonl", "w") as file:
            print(json.dumps({"file": "(collection)", "cpu": 4.0, **rest}), file=file)
            for test, cpu in seconds.items():
                row = {"file": f"tests/{test}.py", "test": f"tests/{test}.py::x", "cpu": cpu}
                print(json.dumps(row | rest), file=file)
        return tmp_path / name

    folders = [profile("before", a=1.0, b=7.0), profile("after", a=2.0, c=3.0)]
    lines = suite.table(folders[:1]).splitlines()
    assert lines[0] == "`before`: coverage not measured"
    assert lines[2] == (
        "| file | tests | wall s | CPU s | children's CPU s | programs | compile s |"
    )
    assert lines[4] == "| all | 2 | 6 | 12 | 3 | 9 | 2 |"
    assert [line.split("`")[1] for line in lines[5:]] == [
        "tests/b.py",
        "(collection)",
        "tests/a.py",
    ]
    beside = suite.table(folders).splitlines()
    assert beside[4].startswith("| file | tests, before | tests, after | wall s, before |")
    assert "| `tests/c.py` |  | 1 |  | 2 |  | 3 |  | 1 |  | 3 |  | 0 |" in beside
    with pytest.raises(SystemExit, match="no profile"):
        suite.sums(tmp_path)
