"""What people script against is as the snapshot has it: imports, signatures, commands, mistakes.

tests/snapshots/public.json holds them. After a change on purpose, this writes it again:
python -m tests.test_public
"""

import functools
import importlib
import inspect
import json
import pathlib
import re
import shlex
import tempfile

import pytest

import transformer_jax
from tests.test_docs import check, flags_of
from transformer_jax import config as configs

ROOT = pathlib.Path(__file__).parent.parent
SNAPSHOT = ROOT / "tests/snapshots/public.json"
PAGES = ["README.md", "docs/*.md", "configs/**/*.py", "notebooks/*.ipynb", "launch/*.sh"]
_IMPORT = re.compile(
    r"\bfrom (transformer_jax[\w.]*) import ([\w, ]+)|\bimport (transformer_jax[\w.]*)"
)
_COMMAND = re.compile(r"(?:python3? -m )transformer_jax\.((?:[^`\n\\\"]|\\\n|\"[^\"\n]*\")+)")

RUN = "--config=configs/gpt/quickstart.py --workdir=run"
TRAIN = f"train {RUN} --config.train.num_steps=1"
# They need no run.
MISTAKES = [
    "train --workdir=run",
    "train --config=configs/gpt/quickstart.py",
    "train --config=configs/gpt/none.py --workdir=run",
    "train --config=configs/gpt/quickstart.py:big --workdir=run",
    f"{TRAIN} --config.train.btach=4",
    f"{TRAIN} --config.train.batch=four",
    f"{TRAIN} --config.train.batch=0",
    f"{TRAIN} --config.model.num_heads=5",
    f"{TRAIN} --config.model.name=bert",
    f"{TRAIN} --config.optimizer.name=adamm",
    f"{TRAIN} --config.optimizer.schedule=cos",
    f"{TRAIN} --config.optimizer.momentum=0.5",
    f"{TRAIN} --config.data.tokenizer=bpee",
    f"{TRAIN} --config.data.train_files=none.txt",
    f"{TRAIN} --config.data.corpus=pythn",
    f"{TRAIN} --config.task.length=512",
    f"{TRAIN} --config.mesh.data=-3",
    f"{TRAIN} --config.init_from=nowhere",
    f"{TRAIN} --config.train.accumulation=3",
    f"train {RUN} --profile=9:3",
    f"train {RUN} --workdr=there",
    f"train_bert {RUN}",
    f"train_wmt {RUN}",
    "finetune --config=configs/finetune/glue.py:none --workdir=run",
    "generate --workdir=none --prompt=a",
    "generate --prompt=a",
    "translate --workdir=none",
    "fill_mask --workdir=none",
    "evaluate --workdir=none",
    "predict --workdir=none",
    "features --workdir=none",
    "dry_run --config=configs/gpt/quickstart.py --topology=h1000:1",
    "dry_run --config=configs/gpt/quickstart.py --topology=h100",
    "convert --workdir=none --out=there",
]


def signature(function) -> str:
    """Returns the names, kinds and defaults of the arguments. Annotations may change."""
    found = inspect.signature(function)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return str(inspect.Signature(bare))


def texts() -> list[str]:
    return [path.read_text() for pattern in PAGES for path in sorted(ROOT.glob(pattern))]


def imports() -> list[str]:
    """Returns the names that the pages import from the package, each as module:name."""
    found = set()
    for text in texts():
        for module, names, alone in _IMPORT.findall(text):
            if alone:
                found.add(f"{alone}:")
            names = [name.split(" as ")[0].strip() for name in names.split(",")]
            found |= {f"{module}:{name}" for name in names if name and _resolves(module, name)}
    found |= {f"transformer_jax.config:{name}" for name in configs.__all__}
    return sorted(found)


def _resolves(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
        return hasattr(found, name) or bool(importlib.import_module(f"{module}.{name}"))
    except ImportError:
        return False


def functions() -> dict[str, str]:
    """Returns the signatures of the package's functions that users call."""
    # Not by getattr: a program of the same name may have been imported.
    found = {
        name: transformer_jax.__getattr__(name) for name in ("train", "open_run", "load", "run")
    }
    found |= {f"config.{name}": getattr(configs, name) for name in configs.__all__}
    return {
        name: signature(each) for name, each in sorted(found.items()) if inspect.isfunction(each)
    }


def methods() -> dict[str, dict[str, str]]:
    """Returns the signatures of the public methods of each task."""
    return {
        name: {
            method: signature(each)
            for method, each in inspect.getmembers(configs.named_class("task", name))
            if inspect.isfunction(each) and not method.startswith("_")
        }
        for name in configs.class_names("task")
    }


def programs() -> list[str]:
    found = (path.stem for path in (ROOT / "transformer_jax").glob("*.py"))
    is_program = re.compile(r'if __name__ == "__main__":\n    (?:process|cli)').search
    return sorted(
        name for name in found if is_program((ROOT / f"transformer_jax/{name}.py").read_text())
    )


def commands() -> list[str]:
    """Returns the command lines of the pages that need no file but a config of ours."""
    found = set()
    for text in texts():
        for command in _COMMAND.findall(text):
            joined = " ".join(command.replace("\\\\\n", "").replace("\\\n", "").split())
            found.add(re.split(r" [|>&<;#]|[`)]|\\n", joined)[0].strip().rstrip(".,"))
    return sorted(command for command in found if "--" in command and _parses(command))


def _parses(command: str) -> bool:
    try:
        program, *words = shlex.split(command)
        check(program, words)
    except (ValueError, AssertionError, configs.UserError, OSError):
        return False
    return True


def outcome(command: str, folder: pathlib.Path) -> dict[str, str | int]:
    """Returns the exit code of a command in an empty folder, and its last line."""
    from tests.programs import fork

    program, *words = shlex.split(command.replace("=configs/", f"={ROOT}/configs/"))
    done = fork(program, *words, current_folder=folder)
    lines = done.stderr.replace(str(ROOT), "ROOT").strip().splitlines()
    return {"code": done.returncode, "line": lines[-1] if lines else ""}


@functools.cache
def snapshot() -> dict:
    return json.loads(SNAPSHOT.read_text())


def test_the_imports_of_the_pages_still_resolve():
    for each in snapshot()["imports"]:
        module, _, name = each.partition(":")
        found = importlib.import_module(module)
        assert not name or hasattr(found, name) or importlib.import_module(f"{module}.{name}"), each


def test_functions_have_their_arguments():
    assert functions() == snapshot()["functions"]


def test_tasks_have_their_methods():
    """A method may be new, and may take more arguments."""
    found = methods()
    for task, expected in snapshot()["methods"].items():
        lacking = {name: found[task].get(name) for name in expected}
        assert lacking == expected, task


@pytest.mark.full
def test_programs_have_their_flags():
    expected = snapshot()["flags"]
    assert {name: sorted(flags_of(name)) for name in expected} == expected


def test_commands_are_understood():
    assert len(snapshot()["commands"]) >= 60
    for command in snapshot()["commands"]:
        program, *words = shlex.split(command)
        check(program, words)


@pytest.mark.full
@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_has_its_message(command, tmp_path):
    expected = snapshot()["mistakes"][command]
    assert expected["code"] == 2
    assert outcome(command, tmp_path) == expected
    assert not [*tmp_path.iterdir()]


def mistakes() -> dict[str, dict[str, str | int]]:
    found = {}
    for command in MISTAKES:
        with tempfile.TemporaryDirectory() as folder:
            found[command] = outcome(command, pathlib.Path(folder))
            print(command, found[command], flush=True)
    return found


def write_snapshot():
    content = {
        # Files of users import what the pages of earlier versions named.
        "imports": sorted({*snapshot()["imports"], *imports()}),
        "functions": functions(),
        "methods": methods(),
        "flags": {name: sorted(flags_of(name)) for name in programs()},
        "commands": commands(),
        "mistakes": mistakes(),
    }
    SNAPSHOT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    write_snapshot()
