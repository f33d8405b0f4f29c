"""Measures the grain of the package: how it is cut into files, and how many of them a run enters.

python benchmarks/structure.py [--root=CHECKOUT] [--json=FILE] [MEASURE ...]

The measures, all of them where none is named:

- `files`: the modules of transformer_jax, their lines, and their functions. The length of a
  function is that of its `def` statement, with the docstring and without decorators.
- `lines`: what the lines hold that are not blank. Each line counts once, as the first of these that
  it is a part of: a docstring, a comment alone on its line, an import, a signature (decorators and
  the lines from `def` or `class` to its colon), a field (an assignment in the body of a class), and
  algorithm, which is everything else inside functions. `comments` also counts the comments that end
  a line of code, as a share of all lines.
- `importers`: modules that a single module imports, at its top or within a function, and how many
  of these are in the folder of that module; and of those, how many have fewer than 100 lines.
- `train`: the quickstart of GPT, with a tiny model, up to its first update. `closure` counts the
  modules of the package that are imported then. `entered` counts the files of which a function was
  called, other than while a module was imported, and their lines.
- `loss`: the same for a text file to a loss: a config, its data, parameters, one batch, its loss.
- `text`: the same for a prompt to text: a trained run is opened and continues a prompt.
- `walk`: the way of the config through the run of `train`. The config, or what it was resolved to,
  stays in a file while functions of that file are called with it as an argument. `rooms` counts the
  files, `returns` the stays in a file where it was before, and `climbs` the moves to a file that
  stands higher: a file stands above all files that it imports.
"""

import argparse
import ast
import collections
import functools
import inspect
import io
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import tokenize

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = "transformer_jax"
SHORT = 100  # lines of a module that a single importer may take in


# ------------------------------------------------------------------------------------- the sources


def modules(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns {"transformer_jax.layers.masks": its file} for all modules below `root`."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def functions(tree: ast.AST) -> list[ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def files(root: pathlib.Path) -> dict[str, float]:
    texts = [path.read_text() for path in modules(root).values()]
    lengths = [
        node.end_lineno - node.lineno + 1 for text in texts for node in functions(ast.parse(text))
    ]
    lines = sum(len(text.splitlines()) for text in texts)
    return {
        "files": len(texts),
        "lines": lines,
        "lines a file": lines / len(texts),
        "functions": len(lengths),
        "median lines of a function": statistics.median(lengths),
    }


def lines(root: pathlib.Path) -> dict[str, float]:
    counts, comments, total = collections.Counter(), 0, 0
    for path in modules(root).values():
        text = path.read_text()
        total += len(text.splitlines())
        comments += len(_comments(text))
        counts.update(kinds_of_lines(text).values())
    known = sum(counts.values())
    shares = {f"{kind} %": 100 * count / known for kind, count in counts.most_common()}
    return {"lines": known} | shares | {"comments % of all lines": 100 * comments / total}


def _comments(text: str) -> dict[int, bool]:
    """Returns {line: whether the comment stands alone}."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {
        token.start[0]: token.line.lstrip().startswith("#")
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def kinds_of_lines(text: str) -> dict[int, str]:
    """Returns {line that is not blank: what it holds}, as the docstring of this file says."""
    tree = ast.parse(text)
    kinds = {}

    def assign(first: int, last: int, kind: str) -> None:
        for line in range(first, last + 1):
            kinds.setdefault(line, kind)

    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, holders)]
    for node in nodes:
        if ast.get_docstring(node, clean=False) is not None:
            assign(node.body[0].lineno, node.body[0].end_lineno, "docstring")
    for line, alone in _comments(text).items():
        if alone:
            assign(line, line, "comment")
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            assign(node.lineno, node.end_lineno, "import")
    for node in nodes:
        if not isinstance(node, ast.Module):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            assign(first, max(node.lineno, node.body[0].lineno - 1), "signature")
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, (ast.Assign, ast.AnnAssign)):
                    assign(each.lineno, each.end_lineno, "field")
    for node in functions(tree):
        assign(node.lineno, node.end_lineno, "algorithm")
    numbered = enumerate(text.splitlines(), 1)
    return {number: kinds.get(number, "module") for number, line in numbered if line.strip()}


def imported(root: pathlib.Path) -> dict[str, set[str]]:
    """Returns {module: modules of the package that it imports}, those within functions too."""
    known = modules(root)
    graph = {}
    for name, path in known.items():
        graph[name] = found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found.add(whole if whole in known else node.module)
        found &= known.keys() - {name}
    return graph


def importers(root: pathlib.Path) -> dict[str, int]:
    known, single = modules(root), _single_importers(root)
    beside = [x for x, importer in single.items() if known[x].parent == known[importer].parent]
    return {
        "modules with one importer": len(single),
        "in the folder of the importer": len(beside),
        f"and shorter than {SHORT} lines": len(parts_of_neighbors(root)),
    }


def _single_importers(root: pathlib.Path) -> dict[str, str]:
    found = collections.defaultdict(set)
    for importer, names in imported(root).items():
        for name in names:
            found[name].add(importer)
    return {name: min(importers) for name, importers in found.items() if len(importers) == 1}


def parts_of_neighbors(root: pathlib.Path) -> list[str]:
    """Returns the short modules that a single other one imports, which is in the same folder.

    An `__init__.py` does not count as importer, because it only hands names on.
    """
    known = modules(root)
    return sorted(
        name
        for name, importer in _single_importers(root).items()
        if known[name].parent == known[importer].parent
        and known[importer].name != "__init__.py"
        and len(known[name].read_text().splitlines()) < SHORT
    )


def floors(root: pathlib.Path) -> dict[str, int]:
    """Returns {file: how high it stands}. Modules that import each other stand equally high."""
    graph = imported(root)
    floor = dict.fromkeys(graph, 0)
    for _ in graph:  # a chain without a circle is not longer
        higher = {
            name: max([0, *(floor[each] + 1 for each in others if not _reaches(graph, each, name))])
            for name, others in graph.items()
        }
        if higher == floor:
            break
        floor = higher
    return {str(path): floor[name] for name, path in modules(root).items()}


_reached: dict[str, set[str]] = {}


def _reaches(graph: dict[str, set[str]], start: str, end: str) -> bool:
    if start not in _reached:
        todo, seen = [start], set()
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        _reached[start] = seen
    return end in _reached[start]


# --------------------------------------------------------------------------------------- the runs

OVERRIDES = {
    "model.d_model": 16,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.max_length": 32,
    "model.vocab_size": 300,
    "task.length": 16,
    "task.sample_tokens": 8,
    "train.batch": 8,
    "train.num_steps": 2,
}
FIRST_UPDATE = "first step after"  # on stderr, by every trainer
CONFIG = "configs/gpt/quickstart.py"

# What a child process runs, with ROOT, WORKDIR and OVERRIDES. Only what follows `follow` counts.
PROGRAMS = {
    "train": """
flags = [f"--config.{key}={value}" for key, value in OVERRIDES.items()]
sys.argv = ["train_gpt", f"--config={ROOT}/{CONFIG}", f"--workdir={WORKDIR}", *flags]
trace.follow(until=FIRST_UPDATE)
runpy.run_module("transformer_jax.train_gpt", run_name="__main__", alter_sys=True)
""",
    "loss": """
import jax
trace.follow()
from transformer_jax import config as configs
from transformer_jax.runs.spec import make_task
from transformer_jax.contracts.task import Context
task = make_task(configs.load(f"{ROOT}/{CONFIG}", OVERRIDES))
batch = task.rows().train.batch(0, range(8))
task.loss(nn.unbox(task.init(jax.random.key(0))), batch, Context())
trace.finish()
""",
    "text": """
import jax
trace.follow()
import transformer_jax
task, params = transformer_jax.open_run(WORKDIR)
print(next(iter(task.generate(params, ["def "], max_tokens=8))).text)
trace.finish()
""",
}


class Trace:
    """Follows the calls of the package's functions in all threads, until `finish`."""

    def __init__(self, root: pathlib.Path, output: pathlib.Path):
        self.folder, self.output = f"{root / PACKAGE}/", output
        self.files: set[str] = set()
        self.stays: list[str] = []  # the files whose functions get the config, in turn
        self._imports = threading.local()

    def follow(self, until: str | None = None) -> None:
        """Begins, and finishes as soon as a text is written to stderr."""
        if until:
            sys.stderr = _Watched(sys.stderr, until, self.finish)
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame, event, _) -> None:
        code = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or of a class
            is_import = code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__"
            if is_import and event in ("call", "return"):
                depth = getattr(self._imports, "depth", 0)
                self._imports.depth = depth + (1 if event == "call" else -1)
        elif event == "call" and code.co_filename.startswith(self.folder):
            if not getattr(self._imports, "depth", 0):
                self.files.add(code.co_filename)
                self._look_for_config(frame)

    def _look_for_config(self, frame) -> None:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = frame.f_locals
        if self.stays[-1:] != [code.co_filename] and any(map(_is_config, map(values.get, names))):
            self.stays.append(code.co_filename)

    def finish(self) -> None:
        """Writes what was seen, and ends the process."""
        sys.setprofile(None)
        threading.setprofile(None)
        imported = [name for name in sys.modules if f"{name}.".startswith(f"{PACKAGE}.")]
        seen = {"files": sorted(self.files), "closure": len(imported), "stays": self.stays}
        self.output.write_text(json.dumps(seen))
        os._exit(0)


def _is_config(value) -> bool:
    """Whether a value is a whole config, or what it was resolved to."""
    name = type(value).__name__
    if name in ("ConfigDict", "FrozenConfigDict"):
        return "train" in value and "model" in value
    return name in ("Run", "RunSpec")


class _Watched(io.TextIOBase):
    """A stream that calls a function when a text is written to it."""

    def __init__(self, stream, text: str, function):
        self._stream, self._text, self._function = stream, text, function

    def write(self, text: str) -> int:
        count = self._stream.write(text)
        if self._text in text:
            self._function()
        return count

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False


def child(name: str, root: pathlib.Path, folder: pathlib.Path) -> None:
    """Runs one of PROGRAMS in this process; the package is imported from `root`."""
    import runpy

    import flax.linen as nn

    sys.path[0] = str(root)
    names = dict(
        sys=sys,
        runpy=runpy,
        nn=nn,
        ROOT=root,
        WORKDIR=folder / "run",
        OVERRIDES=OVERRIDES | {"data.cache": str(folder / "cache")},
        CONFIG=CONFIG,
        FIRST_UPDATE=FIRST_UPDATE,
        trace=Trace(root, folder / f"{name}.json"),
    )
    exec(compile(PROGRAMS[name], name, "exec"), names)


def seen(name: str, root: pathlib.Path, folder: pathlib.Path) -> dict:
    """Returns what a child process has seen. The caches of earlier ones stay in `folder`."""
    output = folder / f"{name}.json"
    if not output.exists():
        if name == "text":
            _call(["-m", f"{PACKAGE}.train_gpt", *_flags(root, folder)], root)
        _call([__file__, "--child", name, "--root", str(root), "--folder", str(folder)], root)
    return json.loads(output.read_text())


def _flags(root: pathlib.Path, folder: pathlib.Path) -> list[str]:
    overrides = OVERRIDES | {"data.cache": f"{folder}/cache"}
    keys = [f"--config.{key}={value}" for key, value in overrides.items()]
    return [f"--config={root}/{CONFIG}", f"--workdir={folder}/run", *keys]


def _call(arguments: list[str], root: pathlib.Path) -> None:
    # GLIBC_TUNABLES is set, so that a program does not start itself again to set it.
    env = {"JAX_PLATFORMS": "cpu", **os.environ, "PYTHONPATH": str(root), "GLIBC_TUNABLES": ""}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")


def entered(name: str, root: pathlib.Path, folder: pathlib.Path) -> dict[str, int]:
    found = seen(name, root, folder)
    count = sum(len(pathlib.Path(path).read_text().splitlines()) for path in found["files"])
    return {"closure": found["closure"], "entered": len(found["files"]), "their lines": count}


def walk(root: pathlib.Path, folder: pathlib.Path) -> dict[str, int]:
    stays = seen("train", root, folder)["stays"]
    rooms, higher = set(stays), floors(root)
    climbs = sum(higher[after] > higher[before] for before, after in itertools.pairwise(stays))
    return {
        "stays": len(stays),
        "rooms": len(rooms),
        "climbs": climbs,
        "returns": len(stays) - len(rooms),
    }


# {measure: function of a checkout and the folder of the runs}
MEASURES = {
    "files": lambda root, folder: files(root),
    "lines": lambda root, folder: lines(root),
    "importers": lambda root, folder: importers(root),
    **{name: functools.partial(entered, name) for name in PROGRAMS},
    "walk": walk,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=", ".join(MEASURES))
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="a checkout to measure")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
    parser.add_argument("--child", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    root = flags.root.absolute()
    if flags.child:
        child(flags.child, root, flags.folder)
    if unknown := [name for name in flags.measures if name not in MEASURES]:
        parser.error(f"no measure {unknown[0]!r}; there are: {', '.join(MEASURES)}")
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for measure in flags.measures or MEASURES:
            figures[measure] = MEASURES[measure](root, folder)
            words = (f"{key} {value:,.4g}" for key, value in figures[measure].items())
            print(f"{measure}: {', '.join(words)}", flush=True)
    if flags.json:
        flags.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
