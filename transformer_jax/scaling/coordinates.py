"""The coordinate check of muP (Yang et al. 2022, appendix D.1).

Models of several widths make the first updates of a run. In muP, the activations change by an
amount that does not depend on the width. In the standard parametrization, some of them change by
more in wider models.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.layers import activations
from transformer_jax.layers.embeddings import Output
from transformer_jax.pictures.progress import say
from transformer_jax.runs.spec import resolve
from transformer_jax.runs.train import loop_of
from transformer_jax.training.step import init_params

UPDATES = 5
STANDARD, MUP = "standard", "muP"
_ROWS = 4  # of the first batch, in which activations are read
_LARGEST = 0.1  # a slope that still counts as flat

Changes = dict[tuple[str, int], float]  # {(activation, update): root mean square of its change}


def check(
    config: ConfigDict, widths: Sequence[int], seeds: int = 5, updates: int = UPDATES
) -> dict[str, Any]:
    """Returns how the change of each activation grows with the width, with muP and without.

    `widths` are those of d_model, and the base is by default the smallest. For each
    parametrization, "changes" has the logarithm of the root mean square of each change, as the mean
    over the seeds, by width, activation and update. "slopes" has the slope of a line through these
    over the logarithm of the width.
    """
    check_distinct("widths", widths)
    base = base_of(config, widths)
    result = {"widths": [*widths], "seeds": seeds, "updates": updates, "base": base}
    for name in (MUP, STANDARD):
        changes = {}
        for width in widths:
            say(f"{name}, width {width}")
            wide = _wide_config(config, width, base if name == MUP else {})
            changes[width] = _mean_logarithms(_changes(wide, seeds, updates))
        slopes = _slopes(changes)
        result[name] = {
            "slopes": {f"{activation}, update {t}": x for (activation, t), x in slopes.items()},
            "largest": max(slopes.values(), key=abs),
            "flat": all(abs(slope) <= _LARGEST for slope in slopes.values()),
            "changes": {
                width: {f"{activation}, update {t}": x for (activation, t), x in found.items()}
                for width, found in changes.items()
            },
        }
    return result


def check_distinct(flag: str, values: Sequence) -> None:
    """Raises UserError unless there are at least two values, each once."""
    if len({*values}) < max(len(values), 2):
        given = ",".join(map(str, values))
        raise UserError(f"--{flag}={given}: name at least two values, each once")


def base_of(config: ConfigDict, widths: Sequence[int]) -> dict[str, int]:
    """Returns the base of muP: the config's, else the smallest of the widths."""
    return dict(config.optimizer.base) or at_width(config, min(widths))


def at_width(config: ConfigDict, width: int) -> dict[str, int]:
    """Returns the widths of a model whose d_model is `width`: those of the base, in proportion.

    Without a base, they are d_model, d_ff if the config sets it, and the number of heads if the
    config sets their dimension, which otherwise grows.
    """
    model = config.model
    keys = ["d_model", "d_ff", *(["num_heads"] if model.get("head_dim") else [])]
    widths = dict(config.optimizer.base) or {key: model[key] for key in keys if model.get(key)}
    if "d_model" not in widths:
        raise UserError("config.optimizer.base has no d_model, which --widths varies")
    found = {key: value * width / widths["d_model"] for key, value in widths.items()}
    if odd := [key for key, value in found.items() if value != int(value)]:
        raise UserError(f"--widths: a d_model of {width} gives {odd[0]}={found[odd[0]]:g}")
    return {key: int(value) for key, value in found.items()}


def _wide_config(config: ConfigDict, width: int, base: Mapping[str, int]) -> ConfigDict:
    """Returns the config of a model, with a constant learning rate and in float32."""
    changed = ConfigDict(config).copy_and_resolve_references()
    keys = {f"model.{key}": value for key, value in at_width(config, width).items()}
    keys |= {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
    keys |= {"optimizer.base": dict(base), "model.base_width": None}
    # Recomputed layers are traced even if operations run one by one.
    for key, value in (("dtype", "float32"), ("remat", "none")):
        keys |= {f"model.{key}": value} if key in config.model else {}
    for key in ("decay_steps", "final_fraction", "power", "cooldown_steps", "ratio"):
        keys[f"optimizer.{key}"] = getattr(configs.Optimizer, key)
    for key in ("dropout", "attention_dropout"):
        keys |= {f"model.{key}": 0.0} if key in config.model else {}
    for key, value in keys.items():
        configs.set_key(changed, key, value)
    return changed


def _changes(config: ConfigDict, seeds: int, updates: int) -> list[Changes]:
    """Returns how activations have changed since the initial values, for each seed.

    A seed has its own initial values and rows.
    """
    run = resolve(config)
    task = run.task()
    state, step, batch_of = loop_of(run, task)
    # The optimizer starts from zeros, whatever the parameters are.
    start = jax.device_get(state)
    measured = []
    for seed in range(seeds):
        params = init_params(task, seed)
        state = jax.tree.map(
            lambda x, old: jax.device_put(x, old.sharding), start.replace(params=params), state
        )
        rows = {key: value[0, :_ROWS] for key, value in batch_of(seed * updates).items()}
        before, start_of_logits = _activations(task, state.params, rows)
        measured.append({})
        for update in range(updates):
            state = step(state, batch_of(seed * updates + update))
            after, logits = _activations(task, state.params, rows)
            changes = {name: after[name] - before[name] for name in after}
            if logits and start_of_logits:
                changes |= _parts(start_of_logits, logits)
            for name, change in changes.items():
                change = np.square(change, dtype=np.float64)
                # A model that diverges has no change that could be compared.
                if change.any() and np.isfinite(change).all():
                    measured[-1][name, update + 1] = float(np.sqrt(change.mean()))
    return measured


class _Logits(NamedTuple):
    """Logits as a product: of hidden states (..., M) with the table of an output layer."""

    hidden: jax.Array
    output: Output

    def with_hidden(self, hidden: jax.Array) -> np.ndarray:
        return np.asarray(self.output.logits(hidden))


def _parts(start: _Logits, now: _Logits) -> dict[str, np.ndarray]:
    """Returns the two parts whose sum is the change of the logits.

    The table starts from random values, so that the first part is largely a sum of random terms,
    which falls with the width until there are many more of them than tokens. The second part is
    what the table has learned.
    """
    between = start.with_hidden(now.hidden)
    return {
        "logits by the initial table 1": between - start.with_hidden(start.hidden),
        "logits by its change 1": now.with_hidden(now.hidden) - between,
    }


def _activations(task, params, batch: dict) -> tuple[dict[str, np.ndarray], _Logits | None]:
    """Returns the output of each module, the logits and the loss of a few rows.

    With them are the factors of the logits, or None for a model that computes them in another way.
    """
    rows = len(jax.tree.leaves(batch)[0])
    context = Context(carry=task.initial_carry(rows))
    loss, calls = activations.calls(lambda: task.loss(params, batch, context))
    found, last = {}, {}
    for path, method, result in calls:
        if not path:
            # The output layer takes what the last of these methods has returned.
            last["hidden" if method in ("hidden", "transformed") else method] = result
        # Weights, such as those that dropout changes, have no rows.
        elif method == "__call__" and isinstance(result, jax.Array) and len(result) == rows:
            # The factor of muP in the projection of queries belongs to the scale of the scores.
            growth = task.growths.get((*path, "kernel"))
            scale = growth.queries if growth else 1.0
            _number(found, "/".join(path), np.asarray(result) * scale)
    logits = None
    if {"hidden", "scaled_output"} <= last.keys():
        # The table may be a parameter itself, whose memory the next update takes.
        logits = _Logits(last["hidden"], jax.tree.map(jnp.copy, last["scaled_output"]))
        _number(found, "logits", logits.with_hidden(logits.hidden))
    terms = [task.coefficients[name] * term for name, term in loss.terms.items()]
    _number(found, "loss", np.asarray(sum(terms)))
    return found, logits


def _number(found: dict[str, np.ndarray], name: str, value: np.ndarray) -> None:
    """Adds a call of a module, such as a layer of a stack, under its name and number."""
    number = sum(key.rpartition(" ")[0] == name for key in found) + 1
    if np.issubdtype(value.dtype, np.floating):
        found[f"{name} {number}"] = value


def _mean_logarithms(measured: Sequence[Changes]) -> Changes:
    names = set.intersection(*({*found} for found in measured))
    return {
        name: float(np.mean([math.log(found[name]) for found in measured]))
        for name in sorted(names)
    }


def _slopes(changes: Mapping[int, Changes]) -> dict[tuple[str, int], float]:
    """Returns the slopes of lines through the changes over the widths, both as logarithms."""
    names = set.intersection(*({*found} for found in changes.values()))
    if not names:
        raise UserError(
            "no activation has a finite change at all widths: is config.optimizer.learning_rate 0, "
            "or too high?"
        )
    x = np.log([*changes])
    return {
        name: float(np.polyfit(x, [found[name] for found in changes.values()], 1)[0])
        for name in sorted(names)
    }


def lines(result: Mapping[str, Any]) -> list[str]:
    """Returns the steepest slopes in words."""
    said = []
    for name in (MUP, STANDARD):
        slopes = sorted(result[name]["slopes"].items(), key=lambda item: -abs(item[1]))
        said.append(
            f"{name}: {'flat' if result[name]['flat'] else 'not flat'}, "
            f"{sum(abs(slope) <= _LARGEST for _, slope in slopes)} of {len(slopes)} slopes are "
            f"within {_LARGEST}; the steepest: "
            + "; ".join(f"{activation} {slope:+.3f}" for activation, slope in slopes[:3])
        )
    return said
