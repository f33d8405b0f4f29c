"""Training steps, compiled and warmed up, on random rows: ours against what they are measured by.

python benchmarks/train_step.py [--json=FILE] [--case=masked_head] [--tiny]
"""
import statistics

import jax
import numpy as np
from harness import main, seconds

from transformer_jax.config import experiment
from transformer_jax.tasks.masked_lm import MaskedLM
from transformer_jax.training import state as states
from transformer_jax.training.loop import Program


def stepping(task, batch, repeats: int) -> float:
    """Seconds of a training step, the median of `repeats`."""
    program = Program.of(task.config, task, jax.devices()[:1])
    state = states.init(task, program.tx, program.state)
    batch = {name: jax.device_put(array[None], program.batch[name].sharding) for name, array in batch.items()}

    def step():
        nonlocal state
        state = jax.block_until_ready(program.train_step(state, batch))

    step()
    return statistics.median(seconds(step) for _ in range(repeats))


def masked_head(tiny: bool):
    """BERT at a vocabulary of 30,522: the 20 masked positions of each row of 128 alone meet the vocabulary, against all of them doing so."""
    rows, length, most = (2, 32, 5) if tiny else (16, 128, 20)
    random, vocab_size = np.random.default_rng(0), 30_522
    tokens, places = random.integers(5, vocab_size, (rows, length)), np.sort(np.argsort(random.random((rows, length)))[:, :most])
    masked = np.zeros((rows, length), np.int32)
    np.put_along_axis(masked, places, 1, axis=1)
    asked = {
        most: {"masked_positions": places, "masked_labels": np.take_along_axis(tokens, places, axis=1), "masked_weights": np.ones((rows, most))},
        length: {"masked_positions": np.broadcast_to(np.arange(length), tokens.shape), "masked_labels": tokens, "masked_weights": masked},
    }
    text = {"tokens": np.where(masked, 4, tokens), "token_types": np.arange(length) >= length // 2, "segment_ids": np.ones(length)}
    text = {name: np.broadcast_to(values, tokens.shape) for name, values in text.items()} | {"follows": random.integers(0, 2, rows)}
    for name, layers, width in (("tiny", 2, 128), ("mini", 4, 256), ("small", 4, 512)):
        found = {}
        for predictions, labels in asked.items():
            config = experiment(model=dict(name="bert", vocab_size=vocab_size, num_layers=layers, d_model=width, num_heads=width // 64, max_length=length),
                                task=dict(name="masked_lm"), train=dict(batch=rows))
            task = MaskedLM(config, None, phases=((1.0, length, predictions),))
            found[predictions] = stepping(task, {key: np.asarray(array, np.int32) for key, array in (text | labels).items()}, 2 if tiny else 7)
        yield {"case": f"BERT-{name}, {rows} rows of {length}, masked positions", "ours": rows / found[most], "unit": "examples/s",
               "peer": rows / found[length], "peer_name": "all positions", "ratio": found[length] / found[most]}


if __name__ == "__main__":
    main(__doc__, {"masked_head": masked_head}, ("jax", "flax"))
