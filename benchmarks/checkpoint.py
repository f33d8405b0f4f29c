"""Measures how long the training loop waits for a save in the background, against a whole save.

python benchmarks/checkpoint.py [--json=FILE] [--case=save] [--tiny]
"""

import functools
import os
import pathlib
import statistics
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from harness import main, seconds

from transformer_jax.config import experiment
from transformer_jax.data import tokenizers
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.training import step as states
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program


def save(tiny: bool):
    """Saves the state of a GPT: parameters and two moments.

    Ours is the wait of the loop, the first part of a save. The peer is the same save until it is
    committed. The states differ in every number, as after an update. Nothing runs between two
    saves, so no save waits for another.
    """
    width, layers, times = (64, 2, 3) if tiny else (512, 4, 9)
    config = experiment(
        model=dict(
            name="gpt",
            vocab_size=8192,
            d_model=width,
            num_layers=layers,
            num_heads=8,
            max_length=256,
        ),
        task=dict(name="causal_lm", length=256),
        train=dict(batch=8),
        checkpoint=dict(keep=1, best_metric=""),
    )
    task = CausalLM(config, None, length=256)
    characters = "".join(map(chr, range(32, 127)))
    task.tokenizer = tokenizers.train([characters], "characters", 8192)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    waits, whole_saves = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        Checkpoints(pathlib.Path(folder) / "checkpoints", config.checkpoint) as checkpoints,
    ):
        for step in range(times):
            state = redrawn(state, jax.random.key(step)).replace(step=jnp.int32(step))
            jax.block_until_ready(state)
            waits.append(seconds(functools.partial(checkpoints.save, state, {}, {})))
            whole_saves.append(waits[-1] + seconds(checkpoints.wait))
    wait = statistics.median(waits[1:])
    whole_save = statistics.median(whole_saves[1:])
    size = sum(x.nbytes for x in jax.tree.leaves(state)) / 1e6
    yield {
        "case": f"the loop's wait for a save of {size:,.0f} MB",
        "ours": wait,
        "unit": "s",
        "peer": whole_save,
        "peer_name": "the whole save",
        "ratio": whole_save / wait,
    }


@jax.jit
def redrawn(state, key):
    """Returns the state with random numbers instead of all floating-point numbers."""

    def draw(x):
        return (
            jax.random.normal(key, x.shape, x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x
        )

    return jax.tree.map(draw, state)


if __name__ == "__main__":
    main(__doc__, {"save": save}, ("jax", "orbax-checkpoint", "tensorstore"))
