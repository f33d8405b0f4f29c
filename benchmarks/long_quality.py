"""What kinds of attention learn on long rows: copying, retrieval, and the characters of a book.

python benchmarks/long_quality.py --book=input.txt --json=FILE [--method=NAME] [--task=NAME] \\
    [--tiny]
python benchmarks/long_quality.py --table --json=FILE

All methods have {layers} layers of width {width} and the same optimizer. A row of the table is a
method and a task; it is written as soon as it ends, and complete rows are not repeated.

- copying: a row is 0 w 0 w, with w a random word of {word} symbols of {symbols} (Kitaev et al.
  2020, section 5). The score is the share of the second w that is predicted. {copying} updates of
  {batch} rows.
- retrieval: {keys} pairs in random order, each a token for a key and its value of {values}. Then
  {gap} zeros, and {queries} random keys. The score is the share of keys at which the value is
  predicted. {retrieval} updates of {batch} rows.
- book: rows of {length} characters of --book; the last tenth is held out. The score is bits a
  character after {minutes} minutes of one core. An evaluation reads rows of this length.

The budget is {minutes} minutes of a core for a part of the book, and 2 hours for all.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from harness import machine

from transformer_jax import config as configs

COMMAND = "python benchmarks/long_quality.py --book=input.txt --json"
LAYERS, WIDTH, BATCH = 2, 128, 16
SYMBOLS, WORD = 127, 127  # of copying: rows of 256
KEYS, VALUES, GAP, QUERIES = 16, 8, 112, 128  # of retrieval: rows of 256
VOCABULARY = 256  # of both
LENGTH = 1024  # of a book's rows
UPDATES = {"copying": 500, "retrieval": 500}
MINUTES = 4
SHAPE = dict(d_model=WIDTH, num_layers=LAYERS, num_heads=4, init_std=0.05, dropout=0.0)
DECODER = SHAPE | dict(name="decoder", d_ff=256, max_length=LENGTH)
REFORMER = SHAPE | dict(
    name="reformer",
    d_ff=512,
    head_dim=32,
    attention=("lsh",),
    lsh_chunk=32,
    max_length=LENGTH,
    axial_shape=(LENGTH,),
    axial_widths=(WIDTH,),
)
# Keys of the models, by method.
METHODS = {
    "full": ("full", DECODER),
    "window": ("window of 64", DECODER | dict(local_window=64)),
    "strided": (
        "strided, 16",
        dict(name="sparse_transformer", pattern="strided", max_length=LENGTH)
        | dict(stride=16, num_summaries=4, output_std=0.02)
        | dict(d_model=WIDTH, num_layers=LAYERS, num_heads=4)
        | dict(dropout=0.0, attention_dropout=0.0),
    ),
    "xl": (
        "Transformer-XL, half a row and a memory of half a row",
        SHAPE | dict(name="transformer_xl", d_ff=512),
    ),
    **{
        f"lsh-{rounds}": (f"LSH, {rounds} rounds", REFORMER | dict(rounds=rounds))
        for rounds in (1, 4)
    },
}


def copying(key: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns tokens, labels and weights (rows, 256) of the copying task."""
    word = jax.random.randint(key, (rows, WORD), 1, SYMBOLS + 1)
    half = jnp.pad(word, ((0, 0), (1, 0)))
    tokens = jnp.concatenate([half, half], axis=1)
    positions = jnp.arange(tokens.shape[1])
    is_asked = (positions > WORD) & (positions < tokens.shape[1] - 1)
    return tokens, jnp.roll(tokens, -1, axis=1), jnp.broadcast_to(is_asked, tokens.shape)


def retrieval(key: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns tokens, labels and weights (rows, 256): pairs, a gap, then keys."""
    of_keys, of_values, of_queries = jax.random.split(key, 3)

    def permuted(key):
        return jax.random.permutation(key, KEYS)

    keys = jax.vmap(permuted)(jax.random.split(of_keys, rows))
    values = jax.random.randint(of_values, keys.shape, 0, VALUES)
    asked = jax.random.randint(of_queries, (rows, QUERIES), 0, KEYS)
    queries, labels = (jnp.take_along_axis(x, asked, axis=1) for x in (keys, values))
    # Tokens of pairs, behind them those of keys, and 0.
    pairs = 1 + keys * VALUES + values
    queries += 1 + KEYS * VALUES
    tokens = jnp.concatenate([pairs, jnp.zeros((rows, GAP), jnp.int32), queries], axis=1)
    is_asked = jnp.arange(tokens.shape[1]) >= KEYS + GAP
    labels = jnp.pad(labels, ((0, 0), (KEYS + GAP, 0)))
    return tokens, labels, jnp.broadcast_to(is_asked, tokens.shape)


def characters(text: np.ndarray, key: jax.Array, rows: int):
    """Returns tokens, labels and weights (rows, LENGTH) of random positions in a text."""
    starts = jax.random.randint(key, (rows, 1), 0, len(text) - LENGTH)
    positions = starts + jnp.arange(LENGTH)
    text = jnp.asarray(text)
    return text[positions], text[positions + 1], jnp.ones(positions.shape, bool)


def built(keys: dict, length: int, vocab_size: int):
    """Returns the model of a method for rows of `length`, and its parameters."""
    keys = keys | dict(vocab_size=vocab_size)
    if keys["name"] == "reformer":
        keys |= dict(buckets=(max(2, 2 * length // keys["lsh_chunk"]),))
    if keys["name"] == "transformer_xl":
        keys |= dict(memory_length=length // 2)
    model = configs.build_model(configs.experiment(model=keys, task=dict(name="causal_lm")))
    tokens = jnp.zeros((1, length), jnp.int32)
    return model, nn.unbox(model.init(jax.random.key(0), tokens))["params"]


def scores(model, params, batch, key: jax.Array | None):
    """Returns the mean loss in nats and the share of right predictions."""
    tokens, labels, weights = batch
    options = dict(train=key is not None, rngs=None if key is None else {"dropout": key})
    if "carry" in model.can:
        # The second half of a row has the first one in its memory.
        halves, states = jnp.split(tokens, 2, axis=1), []
        carry = model.initial_carry(len(tokens))
        for half in halves:
            hidden, carry = model.apply(
                {"params": params}, half, carry, method="advance", **options
            )
            states.append(hidden)
        hidden = jnp.concatenate(states, axis=1)
    else:
        hidden = model.apply({"params": params}, tokens, method="hidden", **options)
    output = model.apply({"params": params}, method="output")
    weights = weights.astype(jnp.float32)
    loss, _, correct = output.cross_entropy(hidden, labels, weights)
    return loss / weights.sum(), correct / weights.sum()


def train(model, params, draw: Callable, optimizer, until: Callable[[int], bool]) -> tuple:
    """Trains until `until(updates)`.

    Returns the parameters, the updates and the seconds of processor time, which other processes on
    the machine hardly change.
    """

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(params, state, number):
        key = jax.random.fold_in(jax.random.key(1), number)
        batch = draw(key, BATCH)
        loss = partial(scores, model)
        gradients = jax.grad(loss, has_aux=True)(params, batch, key)[0]
        changes, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, changes), state

    state = optimizer.init(params)
    params, state = jax.block_until_ready(update(params, state, 0))  # compiles
    number, started = 1, time.process_time()
    while not until(number):
        params, state = jax.block_until_ready(update(params, state, number))
        number += 1
    return params, number, time.process_time() - started


def optimizer_of(updates: int) -> optax.GradientTransformation:
    rate = optax.warmup_cosine_decay_schedule(0, 3e-3, updates // 20, updates, 3e-3 / 20)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, b2=0.98))


def synthetic(keys: dict, task: str, tiny: bool) -> dict:
    """Returns the scores of a method in copying or retrieval."""
    draw = {"copying": copying, "retrieval": retrieval}[task]
    length = draw(jax.random.key(0), 1)[0].shape[1]
    model, params = built(keys, length, VOCABULARY)
    updates = 2 if tiny else UPDATES[task]
    optimizer = optimizer_of(max(updates, 20))
    params, number, seconds = train(model, params, draw, optimizer, lambda n: n >= updates)
    held_out = draw(jax.random.key(2), 64)
    _, accuracy = jax.jit(partial(scores, model, key=None))(params, held_out)
    return {"accuracy": float(accuracy), "updates": number, "seconds": seconds}


def book(keys: dict, path: pathlib.Path, tiny: bool) -> dict:
    """Returns the bits a character of a method after MINUTES of training."""
    text = path.read_text("utf-8")
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    ids = np.array([alphabet[character] for character in text], np.int32)
    train_part, held_out = np.split(ids, [len(ids) * 9 // 10])
    model, params = built(keys, LENGTH, len(alphabet))
    draw = partial(characters, train_part)
    # Timed, so that the rate can fall to its end in the given minutes.
    pace_updates = 2 if tiny else 10
    _, number, seconds = train(
        model, jax.tree.map(jnp.copy, params), draw, optimizer_of(100), lambda n: n > pace_updates
    )
    updates = 3 if tiny else int(60 * MINUTES / (seconds / (number - 1)))
    params, number, seconds = train(
        model, params, draw, optimizer_of(max(updates, 20)), lambda n: n >= updates
    )
    evaluate = jax.jit(partial(scores, model, key=None))
    losses = []
    for start in range(0, len(held_out) - LENGTH - 1, 8 * LENGTH)[: 1 if tiny else None]:
        positions = start + LENGTH * np.arange(8)[:, None] + np.arange(LENGTH)
        positions = positions[positions[:, -1] + 1 < len(held_out)]
        batch = (held_out[positions], held_out[positions + 1], np.ones(positions.shape, bool))
        losses += [float(evaluate(params, batch)[0])] * len(positions)
    return {"bits": np.mean(losses) / math.log(2), "updates": number, "seconds": seconds}


def measured(arguments, method: str, task: str) -> dict:
    keys = METHODS[method][1]
    if task == "book":
        row = book(keys, arguments.book, arguments.tiny)
    else:
        row = synthetic(keys, task, arguments.tiny)
    origin = dict(machine=machine(), revision=comparison.revision())
    date = datetime.date.today().isoformat()
    return {"name": f"{method} {task}", **row, "date": date, **origin}


def main() -> None:
    sizes = dict(layers=LAYERS, width=WIDTH, batch=BATCH, word=WORD, symbols=SYMBOLS)
    sizes |= dict(
        keys=KEYS,
        values=VALUES,
        gap=GAP,
        queries=QUERIES,
        length=LENGTH,
        minutes=MINUTES,
        **UPDATES,
    )
    flags = argparse.ArgumentParser(
        description=__doc__.format(**sizes), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = (*UPDATES, "book")
    flags.add_argument("--book", type=pathlib.Path)
    flags.add_argument("--json", type=pathlib.Path, required=True)
    flags.add_argument("--method", choices=METHODS, action="append")
    flags.add_argument("--task", choices=tasks, action="append")
    flags.add_argument("--table", action="store_true", help="show the rows of --json")
    flags.add_argument("--tiny", action="store_true", help="two updates each, to try the script")
    arguments = flags.parse_args()
    rows = json.loads(arguments.json.read_text())["rows"] if arguments.json.exists() else []
    by_name = {row["name"]: row for row in rows}
    if arguments.table:
        return print(table(by_name))
    order = [f"{method} {task}" for method in METHODS for task in tasks]
    for task in arguments.task or tasks:
        for method in arguments.method or METHODS:
            if f"{method} {task}" not in by_name:
                row = measured(arguments, method, task)
                print(json.dumps(row), flush=True)
                comparison.add_rows(arguments.json, [row], "name", order, COMMAND)


def table(rows: dict[str, dict]) -> str:
    """Returns the scores as Markdown, and the updates that the minutes of the book allow."""
    header = ["attention", "copying", "retrieval", "book: bits a character", "updates"]
    lines = []
    for method, (label, _) in METHODS.items():
        cells = [label]
        for task in UPDATES:
            row = rows.get(f"{method} {task}")
            cells.append(f"{100 * row['accuracy']:.1f} %" if row else "")
        row = rows.get(f"{method} book")
        cells += [f"{row['bits']:.2f}", str(row["updates"])] if row else ["", ""]
        lines.append(cells)
    return comparison.markdown(header, lines)


if __name__ == "__main__":
    main()
