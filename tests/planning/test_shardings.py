"""The shardings of every shipped config equal tests/snapshots/shardings.txt.

A difference changes the layout of every run of that config. To accept it:
UPDATE_SNAPSHOTS=1 python -m pytest tests/planning/test_shardings.py
"""

import collections
import os
import pathlib

import jax
import pytest

from transformer_jax import config as configs
from transformer_jax.layers import parameters
from transformer_jax.planning import estimate
from transformer_jax.runs.spec import make_task, takes_model
from transformer_jax.training.step import Program

ROOT = pathlib.Path(__file__).parent.parent.parent
SNAPSHOT = ROOT / "tests" / "snapshots" / "shardings.txt"
MESH = {"mesh.data": "2", "mesh.fsdp": "2", "mesh.tensor": "2"}
ARGUMENTS = {
    "bert/imdb.py": ["cpu"],
    "bert/small.py": ["tiny"],
    "decoder/llama2.py": ["70b"],
    "electra/electra.py": ["base"],
    "gpt/gpt2.py": ["124m"],
    "gpt/gpt3.py": ["175b"],
    "gpt/imdb.py": ["cpu"],
    "gpt/shakespeare_char.py": ["cpu"],
}


def cases():
    """Yields every config. ARGUMENTS lists the sizes that differ in more than sizes."""
    for path in sorted((ROOT / "configs").rglob("*.py")):
        name = str(path.relative_to(ROOT / "configs"))
        yield from (
            (f"{name}:{argument}" for argument in ARGUMENTS[name]) if name in ARGUMENTS else [name]
        )


def layout(case):
    config = configs.load(str(ROOT / "configs" / case), MESH.items())
    if takes_model(config):  # the model is that of another run
        return None
    if "vocab_multiple" in config.model:  # two does not divide a vocabulary of 50,257
        configs.set_key(config, "model.vocab_multiple", 128)
    if config.train.batch % 4:
        configs.set_key(config, "train.batch", 64)
    task = make_task(config)
    program = Program.of(config, task)
    if config.optimizer.name != "adafactor":  # its moments are factored
        _check_optimizer(program.state, task)
    return [
        line
        for line in estimate.table(program)
        if not line.startswith(("  mu/", "  nu/", "  count", "optimizer"))
    ]


def _check_optimizer(state, task):
    """Moments have the layout of their parameters. The snapshot does not repeat them."""
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    is_trained = [task.group(parameters.names(path)) is not None for path, _ in leaves]
    params = [leaf for (_, leaf), trained in zip(leaves, is_trained) if trained]
    num_moments = len(moments) // len(params)  # 0: SGD without momentum, 1: RMSprop
    assert num_moments in (0, 1, 2)
    # Groups of parameters have a state each, so the moments are in another order.
    layouts = collections.Counter((leaf.shape, leaf.sharding) for leaf in moments)
    expected = collections.Counter((leaf.shape, leaf.sharding) for leaf in num_moments * params)
    assert layouts == expected


@pytest.mark.full
def test_the_shardings_of_every_config():
    layouts = "".join(
        f"{case}\n" + "".join(f"  {line.rstrip()}\n" for line in lines)
        for case in cases()
        if (lines := layout(case))
    )
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(layouts)
    expected = SNAPSHOT.read_text()
    differences = [
        f"-{old}\n+{new}"
        for old, new in zip(expected.splitlines(), layouts.splitlines())
        if old != new
    ]
    assert layouts == expected, "\n".join(differences[:10]) or "lines were added or removed"
