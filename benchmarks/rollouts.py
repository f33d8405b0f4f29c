"""Compares the speed of sampling within a training step with `generate`.

python benchmarks/rollouts.py [--json=FILE] [--tiny]

Both write 64 tokens behind 64 prompts of 16 tokens, by a GPT of random parameters with the shape of
configs/gpt/imdb.py:cpu. The turns alternate, and each figure is the median. The completions of a
step (objectives/rollouts.py) are computed in a program of their own here. `batch_invariant` is what
config.task.batch_invariant costs: completions that are sampled one row at a time instead of all
together, and then scored by the same decoding steps instead of one pass over all positions.
"""

import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import harness
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import config as configs
from transformer_jax.contracts.model import Inputs
from transformer_jax.inference.generation import Sampling
from transformer_jax.objectives.rollouts import Writer, row_by_row
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import init_params

ROOT = pathlib.Path(__file__).parent.parent
ROWS, PROMPT, TOKENS, ROUNDS = 64, 16, 64, 7


def completions(tiny: bool) -> Iterator[dict]:
    """Yields the tokens a second of both, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        task = built(pathlib.Path(folder), tiny)
    params = init_params(task)
    (ids,) = task.tokenizer.encode(["the film is good and the man is bad. " * 8])
    prompt = task.with_start(ids)[:PROMPT]
    prompts = np.tile(np.array(prompt, np.int32), (ROWS, 1))
    texts = task.tokenizer.decode([prompt] * ROWS)
    write = jax.jit(Writer(task.model, Sampling(), TOKENS, task.tokenizer.eos_id).__call__)
    lengths = jnp.full(ROWS, PROMPT, jnp.int32)

    def by_generate(seed: int) -> int:
        drawn = task.generate(params, texts, max_tokens=TOKENS, seed=seed)
        return sum(each.tokens for each in drawn)

    def within_a_step(seed: int) -> int:
        keys = jax.random.split(jax.random.key(seed), ROWS)
        written = jax.block_until_ready(write(params, prompts, lengths, keys))
        return int((written.lengths - written.begins).sum())

    rates = {run: [] for run in (by_generate, within_a_step)}
    for number in range(2 if tiny else ROUNDS + 1):
        for run, measured in rates.items():
            began = time.perf_counter()
            count = run(number)
            if number:  # the first one compiles
                measured.append(count / (time.perf_counter() - began))
    of_generate, of_step = rates.values()
    yield {
        "case": "completions",
        "unit": "tokens/s",
        "ours": statistics.median(of_step),
        "peer": statistics.median(of_generate),
        "peer_name": "generate",
        "ratio": statistics.median(a / b for a, b in zip(of_step, of_generate)),
    }


def batch_invariant(tiny: bool) -> Iterator[dict]:
    """Yields the completions a second, sampled and scored, of both ways."""
    with tempfile.TemporaryDirectory() as folder:
        task = built(pathlib.Path(folder), tiny)
    params = init_params(task)
    write = Writer(task.model, Sampling(), TOKENS, task.tokenizer.eos_id)
    prompts = np.ones((ROWS, PROMPT), np.int32)
    lengths = jnp.full(ROWS, PROMPT, jnp.int32)

    def together(params, keys):
        written = write(params, prompts, lengths, keys)
        inputs = Inputs(written.ids[:, :-1])
        hidden = task.model.apply({"params": params}, inputs, method="hidden")
        output = task.model.apply({"params": params}, method="limited_output")
        states = written.states(hidden, TOKENS)
        return output.label_log_probs(states, written.tokens(TOKENS)), written.drawn_log_probs

    def by_row(params, keys):
        written = row_by_row(write, params, prompts, lengths, keys)
        return row_by_row(write.given, params, written), written.drawn_log_probs

    seconds = {run: [] for run in (by_row, together)}
    programs = {run: jax.jit(run) for run in seconds}
    for number in range(2 if tiny else ROUNDS + 1):
        keys = jax.random.split(jax.random.key(number), ROWS)
        for run, measured in seconds.items():
            began = time.perf_counter()
            jax.block_until_ready(programs[run](params, keys))
            if number:  # the first one compiles
                measured.append(time.perf_counter() - began)
    ours, peer = (ROWS / statistics.median(each) for each in seconds.values())
    yield {
        "case": "completions that are batch-invariant",
        "unit": "rows/s",
        "ours": ours,
        "peer": peer,
        "peer_name": "together",
        "ratio": ours / peer,
    }


def built(folder: pathlib.Path, tiny: bool):
    """Returns the task of a language model, with a tokenizer of a small text."""
    (folder / "text.txt").write_text("the film is good and the man is bad.\n" * 400)
    config = configs.load(ROOT / "configs/gpt/imdb.py:cpu")
    keys = {
        "data.train_files": str(folder / "text.txt"),
        "data.cache": str(folder / "cache"),
        "decode.batch": ROWS,
        **({"model.d_model": 32} if tiny else {}),
    }
    for key, value in keys.items():
        configs.set_key(config, key, value)
    task = make_task(config)
    _ = task.tokenizer  # read before the folder is deleted
    return task


if __name__ == "__main__":
    harness.main(
        __doc__, {"completions": completions, "batch_invariant": batch_invariant}, ["jax", "jaxlib"]
    )
