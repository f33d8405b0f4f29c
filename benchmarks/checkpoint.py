"""Saving: how long the training loop waits for a save in the background, against one it waits for
to its end.

python benchmarks/checkpoint.py [--json=FILE] [--case=save] [--tiny]
"""

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
from transformer_jax.training import state as states
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.program import Program


def save(tiny: bool):
    """A GPT's whole state: parameters and two moments. The peer is the same save, waited for until
    it is committed: `ours` is its first part.

    The states differ in every number, as after an update. Between two saves nothing else runs, so
    that the wait holds no wait for another save.
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
    task.tokenizer = tokenizers.train(["".join(map(chr, range(32, 127)))], "characters", 8192)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task, program.tx, program.state)
    other = jax.jit(
        lambda state, key: jax.tree.map(
            lambda x: (
                jax.random.normal(key, x.shape, x.dtype)
                if jnp.issubdtype(x.dtype, jnp.floating)
                else x
            ),
            state,
        )
    )
    waits, wholes = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        Checkpoints(pathlib.Path(folder) / "checkpoints", config.checkpoint) as checkpoints,
    ):
        for step in range(times):
            state = jax.block_until_ready(
                other(state, jax.random.key(step)).replace(step=jnp.int32(step))
            )
            waits.append(seconds(lambda: checkpoints.save(state, {}, {})))
            wholes.append(waits[-1] + seconds(checkpoints.wait))
    wait, whole = statistics.median(waits[1:]), statistics.median(wholes[1:])
    size = sum(x.nbytes for x in jax.tree.leaves(state)) / 1e6
    yield {
        "case": f"the loop's wait for a save of {size:,.0f} MB",
        "ours": wait,
        "unit": "s",
        "peer": whole,
        "peer_name": "the whole save",
        "ratio": whole / wait,
    }


if __name__ == "__main__":
    main(__doc__, {"save": save}, ("jax", "orbax-checkpoint", "tensorstore"))
