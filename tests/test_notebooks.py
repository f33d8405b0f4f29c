"""Every notebook runs with tiny values, in a clean kernel and a new folder.

A notebook holds the values that its committed outputs were made with. TINY has the smaller ones
that are put in their place here. The committed outputs come from an execution in order and without
an error.
"""

import ast
import importlib.util
import json
import os
import pathlib
import re
import shutil

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

ROOT = pathlib.Path(__file__).parent.parent


def _number(path: pathlib.Path) -> int:
    return int(path.name.partition("_")[0])


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"), key=_number)

# The small texts that the tests train on.
FILES = {
    "functions.txt": "\n\n".join(f"def add_{i}(x):\n    return x + {i}" for i in range(300)),
    "sentences.txt": "\n\n".join(
        f"Return the {a} of the {b}.\nRaise an error if the {b} is {c}."
        for a in ("list", "name", "size")
        for b in ("file", "module")
        for c in ("old", "new")
    ),
    "summaries.tsv": "".join(
        f"def get ( self ) : return self . {a}\tReturn the {a}.\n"
        for a in ("list", "name", "size") * 8
    ),
}
FUNCTIONS, SENTENCES, SUMMARIES = (f'train_files="{name}", valid_files="{name}"' for name in FILES)

# By notebook: what its code says, and what the tests say in its place. See `shrink`.
TRANSLATION = {
    "vocab_size=2000": "vocab_size=200",
    "d_model=128": "d_model=16",
    "d_ff=256": "d_ff=32",
    "corpus_size=60_000": "corpus_size=500",
    "num_steps=1200": "num_steps=4",
}
TINY = {
    "1_translate": TRANSLATION,
    "2_gpt": {
        "vocab_size=2048": "vocab_size=300",
        "d_model=192": "d_model=32",
        "num_heads=6": "num_heads=1",
        " length=256": " length=64",
        'corpus="python"': FUNCTIONS,
        "num_steps=300": "num_steps=4",
    },
    "3_bert": {
        "vocab_size=4096": "vocab_size=100",
        "d_model=128": "d_model=32",
        'corpus="pydoc"': SENTENCES,
        "num_steps=2500": "num_steps=4",
        "num_steps=1000": "num_steps=5",
        "eval_every=200": "eval_every=1",
    },
    "4_attention": TRANSLATION,
    "5_scaling": {
        'corpus="python"': FUNCTIONS,
        "max_length=64": "max_length=16",
        " length=64": " length=16",
        "in (16, 24, 32, 48)": "in (16, 32, 48)",
        "tokens=(1e6, 2e6)": "tokens=(6.4e3, 1e4, 1.3e4)",
        "(largest, 2e6)": "(largest, 1.3e4)",
        "samples=50": "samples=5",
    },
    "6_sharding": {
        "corpus_size=5000": "corpus_size=500",
        "num_steps=60": "num_steps=4",
        "num_steps = 90": "num_steps = 6",
        # Each mesh needs a compilation.
        "in programs.items():\n    compiled": "in [*programs.items()][1:2]:\n    compiled",
        "curves = {}\nfor name, mesh in meshes.items()": (
            "curves = {}\nfor name, mesh in [*meshes.items()][:2]"
        ),
    },
    "7_denoising": {
        "vocab_size=3000": "vocab_size=120",
        "d_model=128": "d_model=32",
        "d_ff=512": "d_ff=128",
        "coder_layers=2": "coder_layers=1",
        "unroll=2": "unroll=1",
        "source_length=64": "source_length=32",
        "target_length=64": "target_length=32",
        'corpus="python"': SENTENCES,
        'corpus="functions"': SUMMARIES,
        "num_steps=600": "num_steps=4",
        "num_steps=400": "num_steps=4",
    },
    "8_history": TRANSLATION
    | {
        '"train", 20_000': '"train", 500',
        '"valid", 1000': '"valid", 50',
        '"test", 400': '"test", 20',
        "vocab_size=20_000, d_model=100": "vocab_size=200, d_model=16",
        "length=8192": "length=32, block=8, shared_noise=8",
        'min_count=5, corpus="pydoc"': f"min_count=1, {SENTENCES}",
        "num_steps=400, batch=1,": "num_steps=4, batch=8,",
        '("file", "returns", "bytes", "two")': '("file", "name", "list")',
        "batch=32": "batch=8",
        "(8, 64), 0, 50": "(8, 16), 0, 50",
        "range(400)": "range(10)",
        "num_steps=600": "num_steps=4",
        '["the old"] * 40': '["the old"] * 4',
    },
    "9_preferences": {
        '"train", 30_000': '"train", 200',
        '"valid", 500': '"valid", 20',
        '"train", 1500': '"train", 16',
        '"test", 200': '"test", 8',
        "vocab_size=1000": "vocab_size=300",
        "d_model=128": "d_model=32",
        "num_heads=4": "num_heads=1",
        "num_steps=500": "num_steps=4",
        "num_steps=200, batch=32": "num_steps=4, batch=4",
        "num_steps=60, batch=64": "num_steps=2, batch=4",
        "dict(batch=8)": "dict(batch=4)",
        "group_size=8": "group_size=2",
        "n in (1, 4, 16)": "n in (1, 2)",
        # A model that has hardly been trained names nobody.
        "people[better] > people[worse]": (
            "better < worse and completions[better] != completions[worse]"
        ),
    },
    "10_images": {"num_steps=1500": "num_steps=4", "num_steps=500": "num_steps=2"},
    "11_speech": {
        "d_model=96": "d_model=16",
        "num_layers=3": "num_layers=1",
        "num_heads=4": "num_heads=2",
        "(48, 64, 96)": "(8, 8, 8)",
        " codes=64": " codes=8",
        "d_code=64": "d_code=16",
        "d_projection=64": "d_projection=16",
        "distractors=50": "distractors=20",
        "unlabelled_minutes=20.0": "unlabelled_minutes=0.3",
        "held_out_minutes=2.0": "held_out_minutes=0.2",
        " minutes=10.0": " minutes=0.3",
        "scored_utterances=100": "scored_utterances=8",
        "num_steps=500, batch=16": "num_steps=2, batch=4",
        "num_steps=800, batch=8": "num_steps=2, batch=4",
    },
    "12_proteins": {
        "families=4, members=1000": "families=2, members=8",
        "d_model=64": "d_model=16",
        "num_layers=3": "num_layers=2",
        "num_heads=8": "num_heads=4",
        "num_steps=2000, batch=32": "num_steps=4, batch=8",
        "members=20": "members=5",
        "valid_families=(1, 2, 3)": "valid_families=(1,)",
        "num_steps=200, batch=20": "num_steps=4, batch=5",
    },
    "13_image_tokens": {
        "d_model=32": "d_model=8",
        "num_layers=2": "num_layers=1",
        "num_steps=2000": "num_steps=4",
        "d_model=64": "d_model=16",
        "num_layers=3": "num_layers=1",
        "num_steps=1200": "num_steps=4",
        "np.arange(500)": "np.arange(20)",
    },
    "14_comparisons": {
        'corpus="python"': FUNCTIONS,
        "max_length=64": "max_length=16",
        " length=64": " length=16",
        "num_steps=300": "num_steps=4",
        "pairs=6": "pairs=2",
        "(32, 64, 128), seeds=2, updates=3": "(32, 64), seeds=1, updates=1",
        "(4e-3, 8e-3, 1.6e-2, 3.2e-2)": "(4e-3, 8e-3)",
    },
}


def shrink(cells: list, replacements: dict[str, str]) -> None:
    """Puts the tiny values in the code. Each text that one replaces must occur in it."""
    wanted = re.compile("|".join(re.escape(text) for text in replacements))
    found = set()
    for cell in cells:
        if cell.cell_type == "code":
            found.update(wanted.findall(cell.source))
            cell.source = wanted.sub(lambda match: replacements[match[0]], cell.source)
    assert not (replacements.keys() - found), "no such text in the code of the notebook"


def test_they_are_numbered_from_1():
    assert [_number(path) for path in NOTEBOOKS] == [*range(1, len(NOTEBOOKS) + 1)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_the_tests_make_smaller_is_in_it(path):
    shrink(nbformat.read(path, as_version=4).cells, TINY[path.stem])


def test_a_replacement_of_nothing_is_refused():
    cells = [nbformat.v4.new_code_cell("train = dict(num_steps=3)")]
    with pytest.raises(AssertionError, match="no such text"):
        shrink(cells, {"num_steps=3": "num_steps=1", "num_steps=4": "num_steps=1"})


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    shrink(notebook.cells, TINY[path.stem])
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute(env=env)  # raises if a cell raises
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert pictures
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


@pytest.fixture(scope="module")
def shell():
    """Yields an IPython shell whose `%pip` only records its arguments."""
    shell = InteractiveShell.instance()
    shell.pip = []
    shell.register_magic_function(shell.pip.append, magic_name="pip")
    yield shell
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    "repository, installed, source",
    [
        ("https://host/us.git", (), "[] @ git+https://host/us.git"),
        ("https://host/us.git", ("jax", "libtpu"), " @ git+https://host/us.git"),
        ("https://host/us.git", ("libtpu",), "[tpu] @ git+https://host/us.git"),
        (None, (), f"[] @ file://{ROOT}"),  # inside a checkout
    ],
)
def test_the_first_cell_installs_a_missing_package(
    repository, installed, source, shell, tmp_path, monkeypatch
):
    """It installs from the address, or the checkout, and leaves a JAX that is there."""
    first, *others = [nbformat.read(path, as_version=4).cells[1].source for path in NOTEBOOKS]
    assert all(other == first for other in others) and "input(" not in first
    monkeypatch.chdir(ROOT / "notebooks" if repository is None else tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in installed or None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    shell.pip.clear()
    cell = re.sub(r'REPOSITORY = ".*"', f'REPOSITORY = "{repository or ""}"', first)
    shell.run_cell(cell).raise_error()
    assert shell.pip == [f'install --quiet "transformer_jax{source}"']


def test_without_an_address_the_first_cell_says_what_to_do(shell, tmp_path, monkeypatch):
    first = nbformat.read(NOTEBOOKS[0], as_version=4).cells[1].source
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shell.pip.clear()
    result = shell.run_cell(re.sub(r'REPOSITORY = ".*"', 'REPOSITORY = ""', first))
    assert isinstance(result.error_in_exec, SystemExit) and "Set REPOSITORY" in str(
        result.error_in_exec
    )
    assert not shell.pip


def test_one_command_writes_the_address_everywhere(tmp_path):
    spec = importlib.util.spec_from_file_location("address", ROOT / "docs" / "address.py")
    address = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(address)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    committed = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    address.write(address.address(), tmp_path)
    assert all(path.read_bytes() == content for path, content in committed.items())
    address.write("https://github.com/us/ours.git", tmp_path)
    assert address.address(tmp_path) == "https://github.com/us/ours.git"
    for path in (tmp_path / "notebooks").glob("*.ipynb"):
        title, install, *_ = nbformat.read(path, as_version=4).cells
        badge = f"https://colab.research.google.com/github/us/ours/blob/main/notebooks/{path.name}"
        assert title.source.splitlines()[1].endswith(f"({badge})")
        assert 'REPOSITORY = "https://github.com/us/ours.git"' in install.source
    address.write(address.address(), tmp_path)
    assert all(path.read_bytes() == content for path, content in committed.items())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_committed_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert outputs and not any(output.output_type == "error" for output in outputs)
    assert path.stat().st_size < 450_000
    assert "%pip install" in code[0].source
    # How long it takes, as measured or as not measured.
    assert re.search(r"^Minutes.*(measured)", notebook.cells[0].source, re.MULTILINE)
    # No path of the machine that executed it.
    for folder in ("/work/", "/tmp/", "/root/", "/home/"):
        assert not any(folder in json.dumps(output) for output in outputs)
    # It reads as text: lines fit the page, and no branch is there for the tests alone.
    for cell in code:
        assert all(len(line) <= 100 for line in cell.source.splitlines()), cell.source
        assert not re.search(r"NOTEBOOK_SETTING|\btiny\b|os\.environ", cell.source), cell.source
    # Functions and classes belong in the package.
    for cell in code[1:]:
        plain = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
        assert not any(
            isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in ast.walk(ast.parse(plain))
        ), cell.source
