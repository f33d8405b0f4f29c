"""Profiles the test suite by file: its time, its compiled programs and its coverage.

python benchmarks/suite.py run --output=DIR [--coverage] [pytest arguments]
python benchmarks/suite.py table DIR [OTHER]

`run` calls pytest with a plugin, this file, which writes one JSON object a test to DIR/*.jsonl:

- `wall`, `cpu` and `children`: seconds, and CPU seconds of the process and of its children that
  have ended, with the fixtures that the test is the first or the last to use;
- `programs`, `compile` and `miss`: programs that the process compiled or read from the cache, the
  seconds of that, and how many the cache did not hold.

With --coverage it also measures the lines of transformer_jax, those of child processes included.
The context of a line is the test that reached it, of a child process the test file. This needs
coverage >= 7.10, which starts itself in each Python process, and makes the tests slower.

`table` prints the sums of each file as Markdown, the most expensive file first, beside those of
another profile if one is named.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
import time
from importlib import metadata

import pytest

ROOT = pathlib.Path(__file__).parent.parent
COVERAGE = """
[run]
source_pkgs = transformer_jax
parallel = true
data_file = {folder}/.coverage
context = ${{SUITE_CONTEXT-}}
sigterm = true
concurrency = multiprocessing,thread
patch = _exit
"""


def run(output: pathlib.Path, coverage: bool, arguments: list[str]) -> int:
    """Runs pytest with the plugin, and returns its exit code."""
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise SystemExit(f"--output={output}: not empty; name another folder")
    folder = output.absolute()
    env = {"JAX_PLATFORMS": "cpu", **os.environ, "SUITE_OUTPUT": str(folder)}
    if coverage:
        (folder / "coveragerc").write_text(COVERAGE.format(folder=folder))
        env["COVERAGE_PROCESS_START"] = str(folder / "coveragerc")
    command = ["-m", "pytest", "-p", "benchmarks.suite", *(arguments or ["tests"])]
    began = time.time()
    code = subprocess.run([sys.executable, *command], cwd=ROOT, env=env).returncode
    record = {
        "command": ["python", *command],
        "date": datetime.date.today().isoformat(),
        "seconds": time.time() - began,
        "coverage": coverage,
        "exit_code": code,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "jax": metadata.version("jax"),
    }
    (folder / "run.json").write_text(json.dumps(record, indent=1) + "\n")
    return code


class Plugin:
    """Measures each test in the process that runs it: pytest's own, or a worker of pytest-xdist."""

    def __init__(self, folder: pathlib.Path):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._file = open(folder / f"{worker}.jsonl", "a", buffering=1)  # a line at a time
        self._began = time.perf_counter()
        self._programs = {"programs": 0, "compile": 0.0, "miss": 0}
        self._coverage = None
        if os.environ.get("COVERAGE_PROCESS_START"):
            from coverage import Coverage

            self._coverage = Coverage.current()

    def pytest_configure(self):
        import jax.monitoring

        jax.monitoring.register_event_duration_secs_listener(self._compiled)
        jax.monitoring.register_event_listener(self._missed)

    def _compiled(self, event: str, seconds: float, **_):
        if event.endswith("backend_compile_duration"):
            self._programs["programs"] += 1
            self._programs["compile"] += seconds

    def _missed(self, event: str, **_):
        self._programs["miss"] += event.endswith("cache_misses")

    def _now(self) -> dict[str, float]:
        own, children = (
            sum(resource.getrusage(who)[:2])
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        wall = time.perf_counter() - self._began
        return {"wall": wall, "cpu": own, "children": children, **self._programs}

    def _write(self, names: dict[str, str], before: dict[str, float]) -> None:
        spent = {key: value - before[key] for key, value in self._now().items()}
        print(json.dumps({**names, "start": before["wall"], **spent}), file=self._file)

    def pytest_collection_finish(self):
        # The imports of this process count, too: they precede the collection.
        self._write({"file": "(collection)"}, dict.fromkeys(self._now(), 0))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        file = item.nodeid.partition("::")[0]
        if self._coverage:
            self._coverage.switch_context(item.nodeid)
            # The environments of the child processes: the present one, and the one that
            # tests/programs.py has copied.
            os.environ["SUITE_CONTEXT"] = file
            if programs := sys.modules.get("tests.programs"):
                programs.ENV["SUITE_CONTEXT"] = file
        before = self._now()
        result = yield
        self._write({"file": file, "test": item.nodeid}, before)
        return result


def pytest_configure(config):
    plugin = Plugin(pathlib.Path(os.environ["SUITE_OUTPUT"]))
    config.pluginmanager.register(plugin, "suite-profile")


SUMS = ("tests", "wall", "cpu", "children", "programs", "compile")
TITLES = ("tests", "wall s", "CPU s", "children's CPU s", "programs", "compile s")


def sums(folder: pathlib.Path) -> dict[str, dict[str, float]]:
    """Returns {file: {name: sum over its tests}} of a profile, for the names in SUMS."""
    rows = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.open()]
    if not rows:
        raise SystemExit(f"{folder}: no profile, *.jsonl, is here")
    files = collections.defaultdict(lambda: dict.fromkeys(SUMS, 0))
    for row in rows:
        row["tests"] = int("test" in row)
        for name in SUMS:
            files[row["file"]][name] += row[name]
    return dict(files)


def combined(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the coverage database of a profile, made of those of its processes.

    None where the coverage was not measured.
    """
    whole = folder / "coverage.db"
    parts = [str(path) for path in folder.glob(".coverage*")]
    if not whole.exists() and parts:
        from coverage import Coverage

        database = Coverage(data_file=str(whole), config_file=False)
        database.combine(parts, keep=True)
        database.save()
    return whole if whole.exists() else None


def covered(folder: pathlib.Path) -> str:
    """Returns the share of the lines of transformer_jax that the tests reach, in words."""
    database = combined(folder)
    if not database:
        return "not measured"
    from coverage import Coverage

    report = Coverage(data_file=str(database), config_file=False)
    report.load()
    with open(os.devnull, "w") as nowhere:
        return f"{report.report(file=nowhere, ignore_errors=True):.2f} % of lines"


def table(folders: list[pathlib.Path]) -> str:
    """Returns Markdown: what each profile is, and a table with a row a file, the sums first."""
    profiles = [sums(folder) for folder in folders]
    lines = []
    for folder in folders:
        path = folder / "run.json"
        run = json.loads(path.read_text()) if path.exists() else {}
        took = f"{run['seconds'] / 60:.1f} min, " if run else ""
        lines.append(f"`{folder.name}`: {took}coverage {covered(folder)}")
        if run:
            machine = f"{run['cores']} cores, Python {run['python']}, jax {run['jax']}"
            lines[-1] += f"; {run['date']}, {machine}: `{' '.join(run['command'])}`"
        lines.append("")
    several = len(folders) > 1
    titles = [
        f"{title}, {folder.name}" if several else title for title in TITLES for folder in folders
    ]
    lines += [f"| file | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    names = {name: None for profile in profiles for name in profile}
    ordered = sorted(names, key=lambda name: [-_cpu(profile, name) for profile in profiles])
    total = [
        {name: sum(file[name] for file in profile.values()) for name in SUMS}
        for profile in profiles
    ]
    rows = [("all", total)]
    rows += [(f"`{name}`", [profile.get(name) for profile in profiles]) for name in ordered]
    for title, entries in rows:
        cells = [f"{entry[name]:,.0f}" if entry else "" for name in SUMS for entry in entries]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cpu(profile: dict[str, dict[str, float]], name: str) -> float:
    file = profile.get(name, {"cpu": 0.0, "children": 0.0})
    return file["cpu"] + file["children"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    programs = parser.add_subparsers(dest="program", required=True)
    runs = programs.add_parser("run", help="run pytest with other arguments as they are")
    runs.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR")
    runs.add_argument("--coverage", action="store_true")
    tables = programs.add_parser("table", help="print the sums of a profile, or of two")
    tables.add_argument("folders", type=pathlib.Path, nargs="+", metavar="DIR")
    flags, others = parser.parse_known_args()
    if flags.program == "run":
        sys.exit(run(flags.output, flags.coverage, others))
    if others:
        parser.error(f"unknown arguments: {' '.join(others)}")
    print(table(flags.folders))


if __name__ == "__main__":
    main()
