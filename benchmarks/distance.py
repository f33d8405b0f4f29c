"""Measures how far recurrence and attention reach: gradients by distance, seconds by length.

python benchmarks/distance.py [--json=FILE] [--plot=FILE.png] [--case=gradients] [--case=lengths] \\
    [--tiny]

The models have one layer of 256 and read the sources of Python's standard library.

`gradients`: the norm of the gradient of the last state of a row with respect to the embedding of
each earlier token, over that of the last token's, as the mean over held-out rows; for random
parameters and after {updates} updates. Bengio et al. 1994 describe how it vanishes.

`lengths`: the milliseconds of an update with equally many tokens, in rows of several lengths. A
recurrence has as many sequential steps as a row has tokens; attention has one, and scores that grow
with the square. The models take turns: run this case on a quiet machine.

The budget is 10 minutes of one core for `gradients`, and 3 minutes for `lengths`.
"""

import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from harness import in_turn, main
from steps import stepping

import transformer_jax
from transformer_jax.config import experiment
from transformer_jax.layers import activations
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import init_params

MODELS = {
    "vanilla": dict(name="recurrent", cell="rnn"),
    "GRU": dict(name="recurrent", cell="gru"),
    "LSTM": dict(name="recurrent", cell="lstm"),
    "attention": dict(name="gpt", num_layers=1, num_heads=4),
}
UPDATES = 600
LENGTH = 128  # of the rows of `gradients`
TOKENS = 8192  # of an update of `lengths`


def config_of(model: dict, length: int, rows: int, updates: int):
    """Returns the config of a language model of one layer."""
    own = dict(max_length=length) if model["name"] == "gpt" else {}
    return experiment(
        model=dict(vocab_size=512, d_model=256, **model, **own),
        task=dict(name="causal_lm", length=length),
        data=dict(corpus="python", tokenizer="byte_bpe"),
        train=dict(num_steps=updates, batch=rows, eval_every=updates, log_every=100),
        optimizer=dict(
            name="adamw",
            learning_rate=2e-3,
            schedule="cosine",
            warmup_steps=0.1,
            b2=0.98,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        checkpoint=dict(every=updates, keep=1),
    )


def gradients(tiny: bool):
    """The gradient of the last state by the distance of a token, before and after training."""
    for name, model in MODELS.items():
        config = config_of(model, LENGTH, rows=16, updates=2 if tiny else UPDATES)
        with tempfile.TemporaryDirectory() as workdir:
            transformer_jax.train(config, workdir)
            task, trained = transformer_jax.open_run(workdir, "latest")
            tokens = task.rows().eval["valid"].batch(0, range(64), 64)["tokens"]
        for label, params in (("random", unboxed(init_params(task))), ("trained", trained)):
            norms = by_distance(task.model, params, tokens)
            yield {
                "case": f"{name}, {label}",
                "ours": norms[50],
                "unit": "at a distance of 50, of that at 0",
                "by_distance": norms,
            }


def unboxed(params):
    """Returns the arrays of parameters that carry their logical axes."""
    return jax.tree.map(
        lambda x: x.unbox() if hasattr(x, "unbox") else x,
        params,
        is_leaf=lambda x: hasattr(x, "unbox"),
    )


def by_distance(model, params, tokens: np.ndarray) -> list[float]:
    """Returns the mean norm of the gradient at each distance from the last token of a row."""
    rows, length = tokens.shape
    direction = jax.random.normal(jax.random.key(0), (model.d_model,))

    def last_states(moves, params):
        moved = {"token_embed": lambda x, layer: x + moves}
        states = activations.intervene(model, params, moved, tokens, method="hidden")
        return jnp.sum(states[:, -1] @ direction)

    moves = jnp.zeros((rows, length, model.d_model))
    norms = jnp.linalg.norm(
        jax.jit(jax.grad(last_states))(moves, params), axis=-1
    )  # (rows, length)
    means = norms.mean(axis=0)[::-1]
    return (means / means[0]).tolist()


def lengths(tiny: bool):
    """The milliseconds of an update, with equally many tokens in rows of several lengths."""
    tokens = 256 if tiny else TOKENS
    for length in (32, 64) if tiny else (64, 256, 1024, 4096):
        rows = tokens // length
        random = np.random.default_rng(0).integers(0, 500, (rows, length + 1))
        batch = {
            "tokens": random[:, :-1],
            "labels": random[:, 1:],
            "weights": np.ones((rows, length)),
        }
        calls = {
            name: stepping(make_task(config_of(MODELS[name], length, rows, 100)), [batch])
            for name in ("LSTM", "attention")
        }
        for name, seconds in in_turn(calls, repeats=3 if tiny else 9).items():
            case = f"{name}, {rows} rows of {length}"
            yield {"case": case, "ours": 1000 * seconds, "unit": "ms", "length": length}


def plot(rows: list[dict]):
    """Returns a figure with a panel for each case that the rows hold."""
    from transformer_jax.pictures.figure import COLORS, new_figure

    figure = new_figure((11, 4.5), "Recurrence and attention: one layer of 256")
    left, right = figure.subplots(1, 2)
    measured = [row for row in rows if "by_distance" in row]
    colours = dict(zip(MODELS, COLORS))
    for row in measured:
        name, _, label = row["case"].partition(", ")
        style = "--" if label == "random" else "-"
        left.semilogy(row["by_distance"], style, color=colours[name], label=row["case"])
    left.set_ylim(bottom=1e-8)
    left.set_xlabel("distance from the last token")
    left.set_ylabel("gradient, of that of the last token")
    for name in ("LSTM", "attention"):
        points = [row for row in rows if "length" in row and row["case"].startswith(f"{name},")]
        x, y = ([row[key] for row in points] for key in ("length", "ours"))
        right.loglog(x, y, "o-", color=colours[name], label=name)
    right.set_xlabel(f"tokens of a row; {TOKENS:,} of an update")
    right.set_ylabel("ms of an update")
    for panel in (left, right):
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main(
        __doc__.format(updates=UPDATES),
        {"gradients": gradients, "lengths": lengths},
        ("jax", "jaxlib", "flax"),
        plot=plot,
    )
