"""Prints the tests that a change touches, the closest first: `launch/test.sh --quick`, `--changed`.

These are a fixed core, the changed test files, and the test files that belong to a changed file:
they have its name and folder, import it, or test its folder as a whole. A change is what differs
from the commit where the branch left origin/main; without such a commit, from the last one that is
a day older than HEAD, or from HEAD~1. Files that are not committed belong to it.
"""

import ast
import pathlib
import subprocess
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).parent.parent
CORE = (
    "tests/test_import_ranks.py",
    "tests/test_style.py",
    "tests/test_config.py",
    "tests/training/test_step.py::test_golden_first_losses",
    "tests/tasks/test_causal_lm.py::test_golden_first_losses",
)
DAY = 24 * 60 * 60  # seconds
# The tests of files that are no modules.
OF_FOLDER = {
    "README.md": ["tests/test_docs.py"],
    "docs": ["tests/test_docs.py"],
    "configs": ["tests/test_configs.py", "tests/test_published_values.py"],
    "launch": ["tests/test_launch.py"],
    "notebooks": ["tests/test_notebooks.py"],
}


def changed_files(root: pathlib.Path = ROOT) -> list[str]:
    """Returns the changed files, relative to the root."""

    def git(*arguments):
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.stdout.splitlines()

    base = git("merge-base", "HEAD", "origin/main")
    if not base or base == git("rev-parse", "HEAD"):
        [time] = git("log", "-1", "--format=%ct")
        base = git("rev-list", "-1", f"--before={int(time) - DAY}", "HEAD") or ["HEAD~1"]
    changed = git("diff", "--name-only", "--no-renames", *base, "--")
    return [*changed, *git("ls-files", "--others", "--exclude-standard")]


def select(changed: Iterable[str], root: pathlib.Path = ROOT) -> list[str]:
    """Returns the test files (or node ids) to run for the changed files, in order."""
    changed = sorted(changed)
    test_files = sorted(str(path.relative_to(root)) for path in root.glob("tests/**/test_*.py"))
    imported = {file: set(imports(root / file)) for file in test_files}
    files = [file for file in changed if file in imported]
    for file in changed:
        files += [mirror for mirror in mirrors(file) if mirror in imported]
        files += OF_FOLDER.get(pathlib.PurePath(file).parts[0], [])
    modules = {module_name(file) for file in changed if file.endswith(".py")}
    importing = [file for file in test_files if imported[file] & modules]
    # A file that imports little says more about the change than one that imports everything.
    files += sorted(importing, key=lambda file: len(imported[file]))
    core = [node for node in CORE if node.partition("::")[0] not in files]
    return list(dict.fromkeys([*core, *files]))


def mirrors(file: str) -> Iterator[str]:
    """Yields the test files with the name of the module, or of a folder that it is in."""
    path = pathlib.PurePath(file)
    if path.parts[0] != "transformer_jax" or path.suffix != ".py":
        return
    parts = [part for part in path.with_suffix("").parts[1:] if part != "__init__"]
    for end in range(len(parts), 0, -1):
        for start in range(end - 1, -1, -1):
            # The tasks of a family, in families/NAME/tasks/, are tested where other tasks are.
            for first in range(max(start, 1)):
                yield "/".join(["tests", *parts[first:start], f"test_{parts[end - 1]}.py"])


def imports(path: pathlib.Path) -> Iterator[str]:
    """Yields the modules that a file imports, and the names that it imports from them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(file: str) -> str:
    parts = pathlib.PurePath(file).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


if __name__ == "__main__":
    print(*select(changed_files()), sep="\n")
