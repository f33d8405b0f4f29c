"""Imports point down the ranks only, and Flax and Orbax are imported in few places."""

import ast
import pathlib
import re

import transformer_jax

ROOT = pathlib.Path(transformer_jax.__file__).parent

# From the lowest rank up: a part imports itself and parts of lower ranks. Programs and old names of
# modules are not listed and may import everything.
RANKS = [
    {"config", "hardware", "xla_guard"},
    {"storage"},
    {"pictures"},
    {"distributed"},
    {"losses", "scores"},
    {"layers"},
    {"data"},
    {"contracts"},
    {"records", "inference"},
    {"finetuning", "huggingface"},
    {"objectives"},
    {"families"},
    {"tasks"},
    {"training"},
    {"runs"},
    {"planning"},
    {"scaling"},
    {"cli"},
]
RANK = {part: rank for rank, parts in enumerate(RANKS) for part in parts}
FLAX = {"layers", "contracts", "families", "training/step.py"}
ORBAX = {"training/checkpoint.py"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def may_import(importer: str, imported: str) -> bool:
    """Returns whether a part may import "part.module.name"."""
    other = imported.partition(".")[0]
    if other == importer or other not in RANK:
        return other == importer
    return RANK[other] < RANK[importer]


def test_imports_point_down():
    wrong = []
    for path in ROOT.rglob("*.py"):
        if part(path) not in RANK or path.name == "__main__.py":
            continue
        for name in imports(path):
            of_ours = name.removeprefix("transformer_jax.")
            if of_ours != name and not may_import(part(path), of_ours):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_modules_at_the_top_are_programs_except_five():
    libraries = {"__init__", "config", "losses", "hardware", "xla_guard"}
    for path in ROOT.glob("*.py"):
        program = 'if __name__ == "__main__":' in path.read_text()
        assert program or path.stem in libraries, path.name


def test_few_modules_import_flax_and_orbax():
    for path in ROOT.rglob("*.py"):
        where = str(path.relative_to(ROOT))
        libraries = {name.split(".")[0] for name in imports(path)}
        assert "flax" not in libraries or where in FLAX or part(path) in FLAX, where
        assert "orbax" not in libraries or where in ORBAX, where
        assert not libraries & {"tensorflow", "torch", "pickle"}, where


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
