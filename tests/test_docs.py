"""The documentation builds; its commands, keys, configs and drawings are up to date."""

import functools
import importlib.util
import itertools
import json
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys

import pytest

import transformer_jax
from tests.programs import call
from transformer_jax import config as configs

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_LINES = 150  # of the README
PLACEHOLDERS = {"FILE", "TASK"}  # names in commands that a user replaces

bash_blocks = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
folders = "|".join(path.name for path in (ROOT / "configs").iterdir() if path.is_dir())
config_files = re.compile(rf"`((?:{folders})/\w+\.py(?::[\w.,=-]+)?)`")
config_keys = re.compile(r"`(?:--)?config\.(\w+\.\w+)")
of_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocstrings_handlers") is None, reason="needs the extra docs"
)
def test_the_pages_build(tmp_path):
    site = f"--site-dir={tmp_path / 'site'}"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", site]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    output = {"capture_output": True, "text": True}
    done = subprocess.run(command, check=False, cwd=ROOT, env=env, timeout=300, **output)
    assert done.returncode == 0, done.stderr
    keys = (tmp_path / "site" / "configuration" / "index.html").read_text()
    assert all(f"<code>{key}</code>" in keys for key in all_keys())
    assert not list((tmp_path / "site").rglob("*.py"))
    reference = (tmp_path / "site" / "reference" / "index.html").read_text()
    for module, name in transformer_jax._EXPORTS.values():
        if name != "run":  # what `train` does with a config that is resolved
            assert f'id="transformer_jax.{module}.{name}"' in reference, name


@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs-material is not installed"
)
def test_the_tables_of_keys_need_no_other_package():
    script = """
import sys
import hooks  # docs/hooks.py
before = set(sys.modules)
print(hooks.key_tables())
assert set(sys.modules) == before and not before & {"jax", "flax", "numpy", "ml_collections"}
"""
    command, output = [sys.executable, "-c", script], {"capture_output": True, "text": True}
    done = subprocess.run(command, check=False, cwd=ROOT / "docs", timeout=300, **output)
    assert done.returncode == 0, done.stderr
    assert done.stdout == runpy.run_path(str(ROOT / "docs" / "hooks.py"))["tables"]() + "\n"


def test_the_drawings_are_up_to_date(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["drawings.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "docs" / "drawings.py"), run_name="__main__")
    drawn = sorted(tmp_path.iterdir())
    assert [path.name for path in drawn] == ["life_of_a_batch.svg", "life_of_an_update.svg"]
    for path in drawn:
        assert words_of(path) == words_of(ROOT / "docs" / "images" / path.name)


def words_of(svg: pathlib.Path) -> list[str]:
    """Returns the texts of a drawing. Lines and colours depend on matplotlib's version."""
    return re.findall(r"<text[^>]*>(.*?)</text>", svg.read_text())


@of_page
def test_commands_have_flags_and_keys_that_exist(page):
    for block in bash_blocks.findall(page.read_text()):
        for command in block.replace("\\\n", " ").splitlines():
            words = shlex.split(command, comments=True)
            scripts = [word for word in words if word.startswith("launch/")]
            assert all((ROOT / script).is_file() for script in scripts), command
            program = next((word for word in words if word.startswith("transformer_jax.")), None)
            if program:
                check(program.removeprefix("transformer_jax."), words[words.index(program) + 1 :])


def check(program: str, words: list[str]) -> None:
    """Asserts that the program has the flags and its config the keys."""
    flags = [word[2:].partition("=") for word in words if word.startswith("--")]
    values = {name: value for name, _, value in flags}
    for name in values:
        assert name.startswith("config.") or name in flags_of(program), f"{program} has no --{name}"
    keys = {
        name.removeprefix("config."): values[name] for name in values if name.startswith("config.")
    }
    file = values.get("config", "FILE")
    if file in PLACEHOLDERS:
        assert set(keys) <= set(all_keys()), keys
    else:
        path = ROOT / file.partition(":")[0]
        configs.load(str(ROOT / file) if path.exists() else file, keys)


@functools.cache
def flags_of(program: str) -> set[str]:
    names = re.findall(r"^  --(?:\[no\])?(\w+)", call(program, "--help").stdout, re.MULTILINE)
    return {*names} | {f"no{name}" for name in names}


@functools.cache
def all_keys() -> list[str]:
    """Returns the keys of every model, task and source."""
    models, tasks = configs.class_names("model"), configs.class_names("task")
    triples = [*itertools.product(models, tasks, [""])]
    triples += [(models[0], tasks[0], source) for source in configs.class_names("source")]
    return sorted({key for triple in triples for key in configs.schema(*triple)})


@of_page
def test_configs_and_keys_of_the_text_exist(page):
    text = page.read_text()
    for name in config_files.findall(text):
        if name.rpartition(":")[2] not in PLACEHOLDERS:
            configs.load(str(ROOT / "configs" / name))
    assert set(config_keys.findall(text)) <= set(all_keys())


def test_the_readme_is_one_page():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= MAX_LINES
    links = re.findall(r"\]\(([\w/.]+)\)", "\n".join(lines))
    assert links and all((ROOT / link).is_file() for link in links)


def test_the_home_of_the_site_lists_the_families_of_the_readme():
    readme, home = (
        [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| [")]
        for page in ("README.md", "docs/index.md")
    )
    families = [line.replace("](docs/", "](") for line in readme if line.count("|") == 4]
    assert len(families) >= 15 and [line for line in home if line in families] == families


def test_recurrence_against_attention_is_as_measured():
    """On two cores the LSTM wins at every length, and on a GPU attention does."""

    def by_length(milliseconds: dict[str, float]) -> dict[int, list[float]]:
        found = {}
        for case, spent in milliseconds.items():
            found.setdefault(int(case.rpartition(" ")[2]), []).append(spent)
        return found

    results = ROOT / "benchmarks/results"
    rows = json.loads((results / "distance_cpu.json").read_text())["rows"]
    cpu = by_length({row["case"]: row["ours"] for row in rows if "length" in row})
    part = json.loads((results / "accelerator/recurrence_nvidia_h200.json").read_text())
    gpu = by_length(part["cases"]["LSTM and attention"]["milliseconds_of"])
    page = (ROOT / "docs/history.md").read_text().partition("## Seconds by length")[2]
    table = {}
    for line in re.findall(r"^\| [\d,]+ \|.*", page.partition("## ")[0], re.MULTILINE):
        length, *cells = (cell.strip().replace(",", "") for cell in line.strip("|").split("|"))
        table[int(length)] = cells
    assert {length: cells[:2] for length, cells in table.items()} == {
        length: [f"{ms:.0f}" for ms in both] for length, both in cpu.items()
    }
    assert {length: cells[4:] for length, cells in table.items()} == {
        length: [f"{ms:.3g}" for ms in both] for length, both in gpu.items()
    }
    assert all(lstm < attention for lstm, attention in cpu.values())
    assert all(lstm > attention for lstm, attention in gpu.values())
    assert all(float(bound) < 1 for cells in table.values() for bound in cells[2:4])


def test_the_slopes_of_the_coordinate_check_are_as_measured():
    result = json.loads((ROOT / "benchmarks/results/coordinates_cpu.json").read_text())
    slopes = {row["case"]: (row["ours"], row["outputs"]) for row in result["rows"]}
    page = (ROOT / "docs/mup.md").read_text()
    for family in ("GPT", "BERT", "Transformer", "T5", "LSTM"):
        inner, outputs = slopes[f"{family.lower()}, muP"]
        standard, _ = slopes[f"{family.lower()}, standard"]
        assert f"| {family} | {inner:+.2f} | {outputs:+.2f} | {standard:+.2f} |" in page
        assert abs(inner) < 0.11 and standard > 0.7
