"""The shardings of every shipped config, as they are kept in tests/snapshots/shardings.txt.

A change there is a change of how every run of that config is laid out. If it is meant:
UPDATE_SNAPSHOTS=1 python -m pytest tests/planning/test_shardings.py
"""

import os
import pathlib

import jax

from transformer_jax import config as configs
from transformer_jax.planning import shardings
from transformer_jax.runs.begin import fine_tunes
from transformer_jax.runs.resolve import make_task
from transformer_jax.training.loop import Program

ROOT = pathlib.Path(__file__).parent.parent.parent
SNAPSHOT = ROOT / "tests" / "snapshots" / "shardings.txt"
MESH = {"mesh.data": "2", "mesh.fsdp": "2", "mesh.tensor": "2"}
ARGUMENTS = {
    "bert/imdb.py": ["cpu"],
    "bert/small.py": ["tiny"],
    "gpt/gpt2.py": ["124m"],
    "gpt/gpt3.py": ["175b"],
    "gpt/imdb.py": ["cpu"],
    "gpt/shakespeare_char.py": ["cpu"],
}


def cases():
    """Every config; of those that take a size, the ones that differ in more than sizes. Fine-tuning
    has the model of the run it begins with, and is none of its own.
    """
    for path in sorted((ROOT / "configs").rglob("*.py")):
        name = str(path.relative_to(ROOT / "configs"))
        yield from (
            (f"{name}:{argument}" for argument in ARGUMENTS[name]) if name in ARGUMENTS else [name]
        )


def layout(case):
    config = configs.load(str(ROOT / "configs" / case), MESH.items())
    if fine_tunes(config):
        return None
    if "vocab_multiple" in config.model:  # a vocabulary of 50,257 is not divided by two
        configs.set_key(config, "model.vocab_multiple", 128)
    program = Program.of(config, make_task(config))
    _check_optimizer(program.state)
    return [
        line
        for line in shardings.table(program)
        if not line.startswith(("  mu/", "  nu/", "  count", "optimizer"))
    ]


def _check_optimizer(state):
    """Moments are laid out as their parameters: the snapshot need not repeat them."""
    kept = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    params = [leaf for leaf in jax.tree.leaves(state.params)]
    assert [(leaf.shape, leaf.sharding) for leaf in kept] == 2 * [
        (leaf.shape, leaf.sharding) for leaf in params
    ]


def test_the_shardings_of_every_config():
    found = "".join(
        f"{case}\n" + "".join(f"  {line.rstrip()}\n" for line in lines)
        for case in cases()
        if (lines := layout(case))
    )
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(found)
    expected = SNAPSHOT.read_text()
    wrong = [
        f"-{old}\n+{new}"
        for old, new in zip(expected.splitlines(), found.splitlines())
        if old != new
    ]
    assert found == expected, "\n".join(wrong[:10]) or "lines were added or taken away"
