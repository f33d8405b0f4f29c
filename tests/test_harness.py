"""The code that the benchmarks share: sides that take turns, each in a process of its own."""

import json
import pathlib
import subprocess
import sys

import jax
import pytest

ROOT = pathlib.Path(__file__).parent.parent

SCRIPT = """
import dataclasses
import functools
import sys

sys.path[:0] = [{benchmarks!r}, {root!r}]
from harness import main, sides, tokens_beside


@dataclasses.dataclass(frozen=True)
class Sizes:
    count: int


def ours(sizes, broken):
    if broken and sys.flags.safe_path:
        raise AttributeError("no such function")
    return lambda: sum(range(sizes.count))


def case(tiny, broken=False):
    work = Sizes(1000)
    makers = {{
        "ours": ("jax", functools.partial(ours, work, broken)),
        "peer": ("other", functools.partial(ours, work, False)),
    }}
    yield from tokens_beside("a sum", sides(makers, 2), 10)


if __name__ == "__main__":
    cases = {{"case": case, "broken": functools.partial(case, broken=True)}}
    main("", cases, ("jax",), ["case"], releases=True)
"""


@pytest.fixture
def script(tmp_path):
    """script(*flags) -> the completed process of a benchmark, and its JSON file."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(benchmarks=str(ROOT / "benchmarks"), root=str(ROOT)))

    def run(*flags):
        command = [sys.executable, str(path), f"--json={tmp_path / 'out.json'}", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        return done, tmp_path / "out.json"

    return run


def test_another_release_is_one_more_peer(script):
    done, file = script(f"--jax={sys.executable}", "--case=case", "--case=broken")
    found = json.loads(file.read_text())
    name = f"jax {jax.__version__}"
    # The release in which the case fails is left out, and the others go on.
    assert [row["peer_name"] for row in found["rows"]] == ["peer", name, "peer"], done.stderr
    assert f"{name}: AttributeError: no such function" in done.stderr
    assert all(row["ratio"] == pytest.approx(row["ours"] / row["peer"]) for row in found["rows"])
    assert found["others"][name]["jax"] == jax.__version__
    assert str(sys.executable) not in json.dumps(found)


def test_an_interpreter_that_is_missing_or_twice(script):
    done, file = script("--jax=/no/python")
    assert done.returncode == 2 and "--jax=/no/python: no such program" in done.stderr
    done, file = script(f"--jax={sys.executable},{sys.prefix}/bin/python3")
    assert done.returncode == 2 and "another interpreter has jax" in done.stderr
    assert not file.exists()
