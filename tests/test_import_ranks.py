"""Imports point down the ranks only, and Flax and Orbax stay where they belong (DESIGN: the house)."""
import ast
import pathlib

import transformer_jax

ROOT = pathlib.Path(transformer_jax.__file__).parent

# what each part may import of the others; whatever is not listed as a part is a binary and may import all
LOW = {"config", "run_length", "memory", "progress", "bleu", "attended", "pictures", "hardware",
       "buckets"}
BASE = LOW | {"sharding", "metrics", "losses"}
MAY_IMPORT = {
    "config": {"run_length", "meanings", "suggestions"}, "run_length": set(),
    "meanings": set(), "suggestions": {"synonyms"}, "synonyms": set(),
    "key_help": {"config"}, "memory": set(), "stop_point": set(),
    "progress": set(), "bleu": set(), "attended": set(),
    "pictures": {"config", "attended"}, "hardware": set(), "metrics": set(), "sharding": LOW, "losses": LOW | {"sharding"},
    "hosts": LOW | {"stop_point"}, "lease": LOW, "buckets": {"config"}, "xla_guard": set(),
    "layers": BASE, "models": BASE | {"layers"}, "data": BASE | {"data"},
    "decoding": BASE | {"layers", "data", "decoding"},
    "finetuning": BASE | {"layers", "models", "data", "finetuning"},
    "tasks": BASE | {"layers", "models", "data", "decoding", "finetuning", "tasks"},
    "training": BASE | {"hosts", "training", "tasks.task"} - {"losses"},
    "workdir": BASE | {"hosts", "lease", "training", "tasks"}, "prompting": BASE | {"data", "decoding"},
    "planning": BASE | {"planning", "training", "layers", "data.rows"},
    "scaling": BASE | {"scaling", "planning", "workdir", "cli"},
    "huggingface": LOW | {"data"},
}
FLAX = {"layers", "models", "training/state.py"}
ORBAX = {"training/checkpoint.py", "training/orbax_use.py"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def test_imports_point_down():
    wrong = []
    for path in ROOT.rglob("*.py"):
        allowed = MAY_IMPORT.get(part(path))
        if allowed is None or path.name == "__init__.py":
            continue
        allowed = allowed | ({part(path)} if path.parent != ROOT else set())
        for name in imports(path):
            if not name.startswith("transformer_jax."):
                continue
            parts = name.split(".")[1:]
            if parts[0] not in allowed and ".".join(parts[:2]) not in allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_flax_and_orbax_stay_in_their_places():
    for path in ROOT.rglob("*.py"):
        where = str(path.relative_to(ROOT))
        libraries = {name.split(".")[0] for name in imports(path)}
        assert "flax" not in libraries or where in FLAX or part(path) in FLAX, where
        assert "orbax" not in libraries or where in ORBAX, where
        assert not libraries & {"tensorflow", "torch", "pickle"}, where
