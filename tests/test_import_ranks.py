"""Imports point down the ranks only, and Flax and Orbax are imported in few places."""

import ast
import functools
import graphlib
import pathlib
import re

import pytest

import transformer_jax

ROOT = pathlib.Path(transformer_jax.__file__).parent

# From the lowest rank up. A part, which is a module or a folder, imports itself, the parts beside
# it, and those of lower ranks. Programs and old names of modules are not listed and may import
# everything.
RANKS = [
    {"hardware"},
    {"xla_guard"},
    {"config"},
    {"storage"},
    {"pictures"},
    {"distributed"},
    {"losses"},
    {"scores"},
    {"layers"},
    {"data", "corpora", "contracts.source"},
    {"contracts"},
    {"records"},
    {"inference"},
    {"finetuning"},
    {"huggingface"},
    {"objectives"},
    {"tasks"},
    {"families"},
    {"training"},
    {"runs"},
    {"planning"},
    {"scaling", "laboratory"},
    {"cli"},
]
RANK = {part: rank for rank, parts in enumerate(RANKS) for part in parts}
FLAX = {"layers", "contracts", "families", "training/step.py"}
ORBAX = {"training/checkpoint.py"}


@functools.cache
def nodes(path):
    return [*ast.walk(ast.parse(path.read_text()))]


def imports(path):
    """Yields the modules that a file imports, those that it imports by their names included."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif is_dynamic(node) and isinstance(node.args[0], ast.Constant):
            yield node.args[0].value


def is_dynamic(node) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")


def part(name: str) -> str:
    """Returns the part to which a module or one of its names, such as "data.rows.Row", belongs."""
    words = name.split(".")
    parts = (".".join(words[:size]) for size in range(len(words), 0, -1))
    return next((each for each in parts if each in RANK), words[0])


def module_name(path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def may_import(importer: str, imported: str) -> bool:
    """Returns whether a module may import "part.module.name"."""
    importer, imported = part(importer), part(imported)
    return imported == importer or RANK.get(imported, len(RANKS)) <= RANK[importer]


def test_imports_point_down():
    wrong = []
    for path in ROOT.rglob("*.py"):
        if part(module_name(path)) not in RANK or path.name == "__main__.py":
            continue
        for name in imports(path):
            of_ours = name.removeprefix("transformer_jax.")
            if of_ours != name and not may_import(module_name(path), of_ours):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_by_way_of_others():
    """Parts beside each other import each other, but their modules do not."""
    known = {module_name(path).removesuffix(".__init__"): path for path in ROOT.rglob("*.py")}
    graph = {}
    for module, path in known.items():
        names = [name.removeprefix("transformer_jax.") for name in imports(path)]
        graph[module] = {
            name if name in known else name.rpartition(".")[0] for name in names
        } & known.keys() - {module}
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_few_modules_import_others_by_computed_names():
    """What stands below a model, a task or a source reaches it by the name that a config has."""
    computed = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in nodes(path)
        if is_dynamic(node) and not isinstance(node.args[0], ast.Constant)
    }
    assert computed == {
        "__init__.py",  # what the package exports, which is imported when it is used
        "config.py",  # the classes that a config names, and their contracts
        "data/tokenizers/training.py",  # the tokenizers of its own folder
        "old_paths/__init__.py",
    }


def test_modules_at_the_top_are_programs_except_five():
    libraries = {"__init__", "config", "losses", "hardware", "xla_guard"}
    for path in ROOT.glob("*.py"):
        program = 'if __name__ == "__main__":' in path.read_text()
        assert program or path.stem in libraries, path.name


TORCH = {"huggingface/tensors.py": {"torch"}}


def test_few_modules_import_flax_and_orbax():
    for path in ROOT.rglob("*.py"):
        where = str(path.relative_to(ROOT))
        libraries = {name.split(".")[0] for name in imports(path)}
        assert "flax" not in libraries or {where, where.partition("/")[0]} & FLAX, where
        assert "orbax" not in libraries or where in ORBAX, where
        # tensors.py reads weights in the format of torch, where it is installed.
        refused = {"tensorflow", "torch", "pickle"} - TORCH.get(where, set())
        assert not libraries & refused, where


# Capabilities are declared: transformer_jax/contracts/model.py.
GUESSES = re.compile(
    r"(?:has|get)attr\((?:\w+\.)*model\b|inspect\.signature\([^)]*\b(?:model|hidden)\b"
)


def test_no_module_guesses_what_a_model_can_do():
    guesses = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in ROOT.rglob("*.py")
        for match in GUESSES.finditer(path.read_text())
    ]
    assert not guesses, "\n".join(guesses)
    assert GUESSES.search('hasattr(self.model, "pooled")')
