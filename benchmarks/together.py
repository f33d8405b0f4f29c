"""Measures seeds that train as one program against the same seeds one after another.

python benchmarks/together.py [--json=FILE] [--case=gpt_cpu ...] [--tiny]

Each of eight seeds makes ten updates: all seeds in one program, as a loop over the seeds or by
`jax.vmap`, or one seed after another. All sides take turns on the same random rows in one process,
after compilation.
"""

import pathlib
import types
from collections.abc import Callable, Iterator

import jax
import numpy as np
from harness import in_turn, main
from steps import on_device

from transformer_jax import config as configs
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step as states
from transformer_jax.training.step import Program
from transformer_jax.training.together import JointStep

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEEDS = 8
UPDATES = 10  # of each seed, before its state is waited for
# What is compiled faster and shows that the script works.
TINY = {"model.d_model": 32, "model.num_layers": 1, "model.num_heads": 2, "model.unroll": 1}


def gpt_cpu(tiny: bool) -> Iterator[dict]:
    """The character model of `configs/gpt/shakespeare_char.py:cpu`, 0.8 M parameters."""
    config = configs.load(f"{ROOT}/configs/gpt/shakespeare_char.py:cpu", TINY if tiny else {})
    yield from rows_of("GPT, 4 layers of 128, 12 rows of 64", config, tiny)


def rows_of(case: str, config, tiny: bool) -> Iterator[dict]:
    spent = in_turn(
        {way: updates(config, way) for way in ("one after another", "loop", "vmap")},
        3 if tiny else 7,
    )
    tokens = SEEDS * UPDATES * config.train.batch * config.task.length
    for way in ("loop", "vmap"):
        yield {
            "case": f"{case}, {SEEDS} seeds, {way}",
            "ours": tokens / spent[way],
            "unit": "tokens/s",
            "peer": tokens / spent["one after another"],
            "peer_name": "one after another",
            "ratio": spent["one after another"] / spent[way],
        }


def updates(config, way: str) -> Callable[[], None]:
    """Returns a function that makes the updates of each seed, and waits for them."""
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    # What a `JointStep` reads of a trainer.
    trainers = [
        _Trainer(config=config, task=task, program=program, state=states.init(config, program))
        for _ in range(SEEDS)
    ]
    batches = [on_device(program, _drawn(config, seed)) for seed in range(SEEDS)]
    joint = JointStep(trainers, way)

    def together() -> None:
        for _ in range(UPDATES):
            for trainer, state in zip(trainers, joint(trainers, batches)):
                trainer.state = state
        jax.block_until_ready([trainer.state for trainer in trainers])

    def one_after_another() -> None:
        for trainer, batch in zip(trainers, batches):
            for _ in range(UPDATES):
                trainer.state = program.train_step(trainer.state, batch)
            jax.block_until_ready(trainer.state)

    return one_after_another if way == "one after another" else together


class _Trainer(types.SimpleNamespace):
    __hash__ = object.__hash__


def _drawn(config, seed: int) -> dict[str, np.ndarray]:
    shape = (config.train.batch, config.task.length)
    random = np.random.default_rng(seed)
    tokens, labels = random.integers(0, config.model.vocab_size, (2, *shape))
    return {"tokens": tokens, "labels": labels, "weights": np.ones(shape)}


if __name__ == "__main__":
    main(__doc__, {"gpt_cpu": gpt_cpu}, ["jax", "jaxlib"])
