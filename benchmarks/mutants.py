"""Puts small faults into a copy of the package, one at a time, and asks which tests notice them.

python benchmarks/mutants.py --list
python benchmarks/mutants.py --profile=DIR --rows=FILE [--count=40] [--seed=0] [--minutes=5]
    [--like=ROWS] [--root=CHECKOUT] [pytest arguments]

A mutant is one changed expression in the body of a function of AREAS. The draw takes the areas and
the kinds of fault in turn, so that each is represented. `--like` takes the mutants of another
file of rows instead, to judge the same ones with another suite; `--root` names the checkout whose
package and tests are meant.

Each mutant is judged by the test files that reach its line, which the profile DIR tells, as
`benchmarks/suite.py run --coverage` has written it for the same source. The tests that reach the
line come first, those of the file with the least work at the front, and then the other tests of
these files, all in one call of `pytest -x` with a limit of --minutes. A test that fails without the
mutant, too, kills nothing: the judgement is repeated without it.

FILE gets one JSON object a mutant as it is judged; mutants that it holds already are skipped. The
verdict is "killed" (by `test`), "survived", "timed out" (`test` was running then) or "not reached".
A mutant with which the tests cannot be collected is drawn anew.
"""

import argparse
import ast
import collections
import dataclasses
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import suite

ROOT = pathlib.Path(__file__).parent.parent
AREAS = {
    "models": ("layers/*.py", "families/*.py", "families/*/__init__.py", "contracts/model.py"),
    "step": ("training/step.py", "training/optimizer.py"),
    "losses": ("losses.py",),
    "packing": ("data/pack*.py", "data/texts.py", "data/mask*.py"),
    "decoding": ("inference/*.py", "families/*/[!_]*.py"),
    "conversion": ("huggingface/*.py",),
}
KINDS = ("operator", "axis", "sign", "mask", "key", "term")

_ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Pow: ("**", "*"),
}
_BITWISE = {ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&")}
_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
_LOGIC = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
# Functions whose last positional argument, behind the array, is an axis where it is a number.
_WITH_AXIS = {
    *("all", "any", "argmax", "argmin", "argsort", "concatenate", "cumsum", "expand_dims"),
    *("flip", "log_softmax", "logsumexp", "max", "mean", "min", "repeat", "roll", "softmax"),
    *("sort", "squeeze", "stack", "sum", "take", "take_along_axis"),
}
# Words of the keys of batches and tensors, each with the one that replaces it.
_WORDS = dict(
    [("query", "key"), ("key", "value"), ("value", "query")]
    + [("source", "target"), ("target", "source"), ("start", "end"), ("end", "start")]
    + [("tokens", "labels"), ("labels", "tokens"), ("positions", "segment_ids")]
    + [("segment_ids", "positions"), ("weight", "bias"), ("bias", "weight")]
    + [("scale", "bias"), ("kernel", "bias"), ("encoder", "decoder"), ("decoder", "encoder")]
    + [("input", "output"), ("output", "input"), ("intermediate", "output")]
)
_MESSAGES = {"say", "print", "warn", "warning", "info", "error", "debug", "UserError", "RunError"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A replacement in a source.

    Attributes:
      function: the name of the function, with those of the classes and functions around it.
      line: the number of the changed line; `statement` that of the first line of its statement.
      start, end: the replaced bytes of the source.
      before, after: the text there, and its replacement.
      number: counts the mutants of a function that are otherwise equal, from 0.
    """

    kind: str
    function: str
    line: int
    statement: int
    start: int
    end: int
    before: str
    after: str
    number: int = 0

    def applied(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.after.encode() + data[self.end :]).decode()

    def name(self, file: str) -> str:
        """Returns a name that does not change where other functions do."""
        return f"{file} {self.function} {self.kind} {self.before} -> {self.after} #{self.number}"


def mutants(source: str) -> list[Mutant]:
    """Returns the mutants of a module's source.

    There are none at the top level, in classes, decorators, defaults and functions that the module
    calls as it is imported, because these may make the import fail; none in annotations, in texts
    and in messages, nor in the conditions under which alone an error is raised.
    """
    visitor = _Visitor(source)
    visitor.visit(visitor.tree)
    found, counts = [], collections.Counter()
    for mutant in sorted(visitor.found, key=lambda mutant: (mutant.start, mutant.end)):
        same = (mutant.kind, mutant.function, mutant.before, mutant.after)
        found.append(dataclasses.replace(mutant, number=counts[same]))
        counts[same] += 1
    return found


class _Visitor(ast.NodeVisitor):
    def __init__(self, source: str):
        self.tree = ast.parse(source)
        self.found: list[Mutant] = []
        self._data = source.encode()
        lines = self._data.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, lines))]
        self._names: list[str] = []  # of the classes and functions around the node
        self._in_body = False
        self._statement = 0
        self._expression: ast.expr | None = None  # the outermost one around the node
        self._called = {
            node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            for node in _run_at_import(self.tree)
            if isinstance(node, ast.Call)
        }

    # what is left out

    def visit(self, node):
        if isinstance(node, ast.stmt):
            self._statement = node.lineno
        is_outermost = isinstance(node, ast.expr) and self._expression is None
        if is_outermost:
            self._expression = node
        super().visit(node)
        if is_outermost:
            self._expression = None

    def visit_ClassDef(self, node):
        in_body, self._in_body = self._in_body, False
        self._names.append(node.name)
        for child in node.body:
            self.visit(child)
        self._names.pop()
        self._in_body = in_body

    def visit_FunctionDef(self, node):
        if node.name in self._called or node.name in ("__repr__", "__str__"):
            return
        in_body, self._in_body = self._in_body, True
        self._names.append(node.name)
        for child in node.body:
            self.visit(child)
        self._names.pop()
        self._in_body = in_body

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node):
        self.visit(node.body)

    def visit_AnnAssign(self, node):
        if node.value:
            self.visit(node.value)

    def visit_If(self, node):
        if not all(isinstance(child, ast.Raise) for child in node.body):
            self.visit(node.test)
        for child in (*node.body, *node.orelse):
            self.visit(child)

    def visit_Assert(self, node):
        self.visit(node.test)

    def visit_Raise(self, node):
        pass

    def visit_JoinedStr(self, node):
        pass

    # what is changed

    def visit_BinOp(self, node):
        kind = type(node.op)
        if kind in _BITWISE:
            self._between("mask", node.left, node.right, *_BITWISE[kind])
        elif kind in _ARITHMETIC and not (_is_sequence(node.left) or _is_sequence(node.right)):
            self._between("operator", node.left, node.right, *_ARITHMETIC[kind])
            if kind in (ast.Add, ast.Sub, ast.Mult, ast.Div):
                self._replace("term", node, self._grouped(node.left))
        self.generic_visit(node)

    def visit_AugAssign(self, node):
        kind = type(node.op)
        if kind in (ast.Add, ast.Sub, ast.Mult, ast.Div) and not _is_sequence(node.value):
            before, after = (f"{symbol}=" for symbol in _ARITHMETIC[kind])
            self._between("operator", node.target, node.value, before, after)
        self.generic_visit(node)

    def visit_Compare(self, node):
        if len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
            symbols = _COMPARISONS[type(node.ops[0])]
            self._between("operator", node.left, node.comparators[0], *symbols)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        self._between("operator", *node.values[:2], *_LOGIC[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        is_number = isinstance(node.operand, ast.Constant)
        if isinstance(node.op, ast.USub) and not (is_number and type(node.operand.value) is int):
            self._replace("sign", node, self._grouped(node.operand))
        elif isinstance(node.op, ast.Invert):
            self._replace("mask", node, self._grouped(node.operand))
        elif isinstance(node.op, ast.Not):
            self._replace("operator", node, self._grouped(node.operand))
        self.generic_visit(node)

    def visit_Subscript(self, node):
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            self._axis(node.slice)
        elif isinstance(node.ctx, ast.Load):
            self._key(node.slice)
        self.generic_visit(node)

    def visit_Dict(self, node):
        for key in node.keys:
            self._key(key)
        self.generic_visit(node)

    def visit_Call(self, node):
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name in _MESSAGES:
            return
        for keyword in node.keywords:
            if keyword.arg == "axis":
                self._axis(keyword.value)
        args = node.args
        is_plain = not any(isinstance(arg, ast.Starred) for arg in args)
        is_method = isinstance(function, ast.Attribute)  # and not the built-in min, for one
        if name in _WITH_AXIS and is_method and is_plain and len(args) > 1:
            self._axis(args[-1])
        elif name == "where" and is_plain and len(args) == 3:
            swapped = f"{self._text(args[2])}, {self._text(args[1])}"
            self._replace("mask", (args[1], args[2]), swapped)
        elif name == "fold_in" and is_plain and len(args) == 2:
            self._replace("key", node, self._grouped(args[0]))
        elif name == "split" and is_plain and args and ".random.split" in self._text(function):
            count = self._text(args[1]) if len(args) > 1 else "2"
            self._replace("key", node, f"[{self._text(args[0])}] * ({count})")
        self.generic_visit(node)

    def _axis(self, node) -> None:
        try:
            number = ast.literal_eval(node)
        except ValueError:
            return
        if type(number) is int and abs(number) <= 4:  # larger ones are sizes
            other = {-1: -2, -2: -1, 0: 1, 1: 0}.get(number, number - 1)
            self._replace("axis", node, str(other))

    def _key(self, node) -> None:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            return
        text = self._text(node)
        for word in re.findall(r"[a-z]+(?:_ids)?", node.value):
            if word in _WORDS:
                alone = rf"(?<![a-z]){word}(?![a-z])"
                self._replace("key", node, re.sub(alone, _WORDS[word], text, count=1))
                return

    def _between(self, kind: str, left, right, before: str, after: str) -> None:
        """Replaces an operator. Only blanks, parentheses and comments are beside it."""
        start, end = self._span(left)[1], self._span(right)[0]
        text = self._data[start:end].decode()
        text = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0].encode()), text)
        start += text.index(before)
        self._add(kind, start, start + len(before), after)

    def _replace(self, kind: str, nodes, after: str) -> None:
        first, last = nodes if isinstance(nodes, tuple) else (nodes, nodes)
        self._add(kind, self._span(first)[0], self._span(last)[1], after)

    def _add(self, kind: str, start: int, end: int, after: str) -> None:
        if not self._in_body:
            return
        line = self._data[:start].count(b"\n") + 1
        before = self._data[start:end].decode()
        name = ".".join(self._names)
        if self._expression and not self._is_other(start, end, after):
            return
        self.found.append(Mutant(kind, name, line, self._statement, start, end, before, after))

    def _is_other(self, start: int, end: int, after: str) -> bool:
        """Whether the outermost expression is another one after a replacement, and still Python.

        Of arguments in parentheses, for one, the swapped texts may not be.
        """
        first, last = self._span(self._expression)
        whole = self._data[first:last]
        changed = self._data[first:start] + after.encode() + self._data[end:last]
        try:
            trees = [ast.parse(b"(" + text + b"\n)", mode="eval") for text in (whole, changed)]
        except SyntaxError:
            return False
        return ast.dump(trees[0]) != ast.dump(trees[1])

    def _span(self, node) -> tuple[int, int]:
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node) -> str:
        start, end = self._span(node)
        return self._data[start:end].decode()

    def _grouped(self, node) -> str:
        """Returns the text of an expression, in parentheses where it has parts."""
        is_whole = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        text = self._text(node)
        return text if is_whole or isinstance(node, ast.Constant) else f"({text})"


def _run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes outside the bodies of functions."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            outside = [*getattr(child, "decorator_list", ()), child.args]
            for node in outside:
                yield node
                yield from ast.walk(node)
        else:
            yield child
            yield from _run_at_import(child)


def _is_sequence(node) -> bool:
    """Whether an operand is a text or a display, for which + and * mean something else."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    if isinstance(node, ast.BinOp):
        return _is_sequence(node.left) or _is_sequence(node.right)
    displays = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.Set)
    return isinstance(node, displays)


def candidates(root: pathlib.Path) -> dict[tuple[str, str], list[tuple[str, Mutant]]]:
    """Returns {(area, kind): (file, mutant)}, the files relative to `root`."""
    cells = {cell: [] for cell in itertools.product(AREAS, KINDS)}
    for area, patterns in AREAS.items():
        paths = {path for name in patterns for path in (root / "transformer_jax").glob(name)}
        if not paths:
            raise SystemExit(f"AREAS[{area!r}]: no file of {root}/transformer_jax is one of these")
        for path in sorted(paths):
            for mutant in mutants(path.read_text("utf-8")):
                cells[area, mutant.kind].append((str(path.relative_to(root)), mutant))
    return cells


def drawn(cells: dict, seed: int) -> Iterator[tuple[str, Mutant]]:
    """Yields all candidates, one of each cell in turn, in an order that the seed decides."""
    order = random.Random(seed)
    columns = [order.sample(cell, len(cell)) for cell in cells.values()]
    order.shuffle(columns)
    for row in itertools.zip_longest(*columns):
        yield from (entry for entry in row if entry)


@dataclasses.dataclass(frozen=True)
class Tests:
    """The tests that reach a line, by the coverage and the CPU seconds of a profile."""

    reached: dict[str, dict[int, set[str]]]  # file of the package -> line -> tests and test files
    seconds: dict[str, float]  # test -> CPU seconds

    @classmethod
    def of(cls, profile: pathlib.Path) -> "Tests":
        database = suite.combined(profile)
        if not database:
            raise SystemExit(f"--profile={profile}: without coverage; run suite.py with --coverage")
        from coverage import CoverageData

        data = CoverageData(basename=str(database))
        data.read()
        reached = {}
        for path in data.measured_files():
            if "/transformer_jax/" not in path:
                continue  # a model outside the package
            file = path[path.rindex("transformer_jax/") :]
            contexts = data.contexts_by_lineno(path)
            # A forked program has the context of its parent in front of its own.
            reached[file] = {
                line: {name.rpartition("|")[2] for name in names if name.startswith("tests/")}
                | {name.rpartition("|")[2] for name in names if "|tests/" in name}
                for line, names in contexts.items()
            }
        rows = [json.loads(line) for path in profile.glob("*.jsonl") for line in path.open()]
        seconds = {row["test"]: row["cpu"] + row["children"] for row in rows if "test" in row}
        return cls(reached, seconds)

    def judging(self, file: str, mutant: Mutant) -> list[str]:
        """Returns the tests to run for a mutant, in order."""
        lines = self.reached.get(file, {})
        names = lines.get(mutant.line) or lines.get(mutant.statement) or set()
        files = {name.partition("::")[0] for name in names}
        of_file = {file: [] for file in files}
        for test in self.seconds:
            if (owner := test.partition("::")[0]) in files:
                of_file[owner].append(test)
        first = {
            file: [test for test in tests if test in names or file in names]
            for file, tests in of_file.items()
        }
        order = sorted(
            files, key=lambda file: (sum(self.seconds[test] for test in first[file]), file)
        )
        front = [test for file in order for test in first[file]]
        chosen = {*front}
        return front + [test for file in order for test in of_file[file] if test not in chosen]


class Copy:
    """A copy of a checkout in a temporary folder, in which the mutants are made."""

    def __init__(self, root: pathlib.Path, folder: str, arguments: list[str]):
        self.folder = pathlib.Path(folder) / "checkout"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        outputs = {".git", ".venv", "runs", "build"}  # of the checkout, not those of a package

        def left_out(path: str, names: list[str]) -> set[str]:
            return ignored(path, names) | (outputs if pathlib.Path(path) == root else set())

        shutil.copytree(root, self.folder, symlinks=True, ignore=left_out)
        self._arguments = arguments
        self._passes: dict[str, bool] = {}  # whether a test passes without a mutant

    def judge(self, file: str, mutant: Mutant, tests: list[str], seconds: float) -> dict:
        """Returns the verdict, the test that decided it, and the seconds that it took."""
        if not tests:
            return {"verdict": "not reached", "test": None, "seconds": 0.0}
        path = self.folder / file
        source = path.read_text("utf-8")
        tests = [test for test in tests if self._passes.get(test, True)]
        try:
            path.write_text(mutant.applied(source), "utf-8")
            result = self._run(tests, seconds)
        finally:
            path.write_text(source, "utf-8")
        killer = result["test"]
        if result["verdict"] == "killed" and killer not in self._passes:
            self._passes[killer] = self._run([killer], seconds)["verdict"] == "survived"
            if not self._passes[killer]:
                return self.judge(file, mutant, tests, seconds)
        return result

    def _run(self, tests: list[str], limit: float) -> dict:
        # A file of bytecode is as new as its source to the second, and a mutant may be as long.
        env = {"JAX_PLATFORMS": "cpu", **os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        env["PYTHONPATH"] = str(self.folder)  # for programs that run in other folders
        command = [sys.executable, "-m", "pytest", "-x", "-v", "--tb=no", "-p", "no:cacheprovider"]
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            running = subprocess.Popen(
                [*command, *self._arguments, *tests],
                cwd=self.folder,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = running.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if running.poll() is None:  # the programs that it has started, too
                    os.killpg(running.pid, signal.SIGKILL)
                    running.wait()
            output.seek(0)
            text = output.read()
        return _result(code, text, time.monotonic() - began)


def _result(code: int | None, output: str, seconds: float) -> dict:
    """Returns the verdict of a call of `pytest -x -v`; its code is None where it was ended."""
    lines = re.findall(
        r"^(tests/[^\n]*?)(?: (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*)?$", output, re.M
    )
    failed = [test for test, word in lines if word in ("FAILED", "ERROR")]
    if code is None:
        verdict, test = "timed out", lines[-1][0].strip() if lines else None
    elif code == 0:
        verdict, test = "survived", None
    elif code == 1 and failed:
        verdict, test = "killed", failed[0]
    elif code == 2:
        verdict, test = "not collected", None
    elif code == 5:  # none of the tests is in the suite of these arguments
        verdict, test = "not reached", None
    else:
        raise SystemExit(f"pytest ended with {code}:\n{output[-2000:]}")
    return {"verdict": verdict, "test": test, "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the candidates")
    parser.add_argument("--profile", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--rows", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--like", type=pathlib.Path, metavar="ROWS")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, metavar="CHECKOUT")
    flags, arguments = parser.parse_known_args()
    cells = candidates(flags.root)
    if flags.list:
        _print(cells)
        return
    if not flags.profile or not flags.rows:
        parser.error("needs --profile and --rows, or --list")
    named = {mutant.name(file): (file, mutant) for file, mutant in itertools.chain(*cells.values())}
    order = [mutant.name(file) for file, mutant in drawn(cells, flags.seed)]
    if flags.like:
        rows = [json.loads(line) for line in flags.like.open()]
        order = [row["mutant"] for row in rows if row["verdict"] != "not collected"]
        flags.count = len(order)
        if unknown := [name for name in order if name not in named]:
            raise SystemExit(f"--like={flags.like}: not in {flags.root}: {unknown[0]}")
    rows = [json.loads(line) for line in flags.rows.open()] if flags.rows.exists() else []
    known = {row["mutant"]: row["verdict"] for row in rows}
    tests = Tests.of(flags.profile)
    judged = 0
    with tempfile.TemporaryDirectory() as folder, flags.rows.open("a", buffering=1) as file:
        copy = Copy(flags.root, folder, arguments)
        for name in order:
            if judged == flags.count:
                break
            if name not in known:
                path, mutant = named[name]
                result = copy.judge(path, mutant, tests.judging(path, mutant), flags.minutes * 60)
                location = {"file": path, "line": mutant.line, "kind": mutant.kind}
                texts = {"before": mutant.before, "after": mutant.after}
                row = {"mutant": name, **location, **texts, **result, "arguments": arguments}
                print(json.dumps(row), file=file)
                print(f"{result['verdict']:13} {result['seconds']:6.1f} s  {name}", flush=True)
                known[name] = result["verdict"]
            judged += known[name] != "not collected"
    chosen = collections.Counter(known[name] for name in order if name in known)
    print(", ".join(f"{verdict}: {count}" for verdict, count in chosen.items()))


def _print(cells: dict) -> None:
    for (area, kind), cell in cells.items():
        for file, mutant in cell:
            change = f"{mutant.before} -> {mutant.after}"
            print(
                f"{area} {kind} {file}:{mutant.line} {mutant.function}: {' '.join(change.split())}"
            )
    for kind in KINDS:
        counts = {area: len(cells[area, kind]) for area in AREAS}
        parts = ", ".join(f"{area} {count}" for area, count in counts.items())
        print(f"{kind}: {sum(counts.values())} ({parts})")
    print(f"all: {sum(map(len, cells.values()))}")


if __name__ == "__main__":
    main()
