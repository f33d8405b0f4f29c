"""A short module that only its neighbor imports is a part of that module."""

import importlib
import json
import pathlib
import subprocess
import sys
from importlib import metadata

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="module")
def structure():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("structure")


def test_a_short_module_of_one_neighbor_is_a_part_of_it(structure):
    assert not structure.parts_of_neighbors(ROOT)


def test_no_name_at_the_top_is_that_of_another_package():
    """`python transformer_jax/train.py` looks for every import in this folder first."""
    paths = (path for path in (ROOT / "transformer_jax").iterdir() if path.suffix in ("", ".py"))
    own = {path.stem for path in paths if not path.stem.startswith("__")}
    others = {*sys.stdlib_module_names, *metadata.packages_distributions()}
    assert not own & others


FILES = {
    "__init__.py": "from transformer_jax import face\n",
    "face.py": '"""The public part."""\n',
    "long.py": "from transformer_jax import helper\n\n\ndef f():\n    # why\n    return helper\n",
    "helper.py": '"""Help."""\n\n\ndef f(x):\n    """Returns x."""\n    return x  # as it is\n',
    "family/model.py": "from transformer_jax import helper_of_two, long\n",
    "family/other.py": "def g():\n    from transformer_jax import helper_of_two\n",
    "helper_of_two.py": "",
}


@pytest.fixture
def package(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "transformer_jax" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_counts(structure, package):
    assert structure.parts_of_neighbors(package) == ["transformer_jax.helper"]
    assert structure.importers(package)["modules with one importer"] == 3
    counts = structure.files(package)
    assert (counts["files"], counts["functions"]) == (7, 3)
    assert counts["median lines of a function"] == 3
    higher = structure.floors(package)
    names = ("helper.py", "long.py", "family/model.py", "family/other.py")
    assert [higher[str(package / "transformer_jax" / name)] for name in names] == [0, 1, 2, 1]


def test_kinds_of_lines(structure):
    kinds = structure.kinds_of_lines(FILES["helper.py"])
    assert kinds == {1: "docstring", 4: "signature", 5: "docstring", 6: "algorithm"}
    assert structure.kinds_of_lines(FILES["long.py"]) == {
        1: "import",
        4: "signature",
        5: "comment",
        6: "algorithm",
    }


def test_a_trace_sees_the_files_that_are_entered(structure, package):
    """Not those that are only imported, nor what runs before and after."""
    (package / "transformer_jax/face.py").write_text(
        "import transformer_jax.long\ndef one(config):\n    return transformer_jax.long.f()\n"
        "def at_import():\n    pass\nat_import()\n"
    )
    output = package / "seen.json"
    program = (
        f"import sys, pathlib; sys.path[:0] = ['{ROOT}/benchmarks', '{package}']\n"
        "import structure\n"
        f"trace = structure.Trace(pathlib.Path('{package}'), pathlib.Path('{output}'))\n"
        "trace.follow(until='first')\n"
        "from transformer_jax import face\n"
        "face.one(1)\n"
        "print('the first', file=sys.stderr)\n"
        "raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    seen = json.loads(output.read_text())
    names = ("face.py", "long.py")
    assert seen["files"] == [str(package / "transformer_jax" / name) for name in names]
