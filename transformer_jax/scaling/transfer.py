"""The best learning rate by width, with muP and in the standard parametrization.

In muP, the best learning rate of a narrow model is that of a wide one (Yang et al. 2022, section
6). Every run is an ordinary one, in a folder of its own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.laboratory.arms import final_scores
from transformer_jax.scaling.coordinates import MUP, STANDARD, at_width, base_of, check_distinct
from transformer_jax.storage import buckets

Run = tuple[str, int, float, int]  # parametrization, width, learning rate, seed


def runs_of(
    config: ConfigDict, widths: Sequence[int], rates: Sequence[float], seeds: int
) -> dict[str, tuple[Run, ConfigDict]]:
    """Returns {name: (what it is, its config)} of all runs.

    The base of muP is by default the smallest of the widths, at which both parametrizations are
    equal, so that it is trained only once.
    """
    check_distinct("widths", widths)
    check_distinct("rates", rates)
    if low := [rate for rate in rates if rate <= 0]:
        raise UserError(f"--rates: {low[0]:g} is not above 0")
    base = base_of(config, widths)
    found = {}
    for parametrization in (STANDARD, MUP):
        for width in widths:
            own = at_width(config, width)
            if parametrization == MUP and own == base:
                continue
            for rate in rates:
                for seed in range(seeds):
                    changed = ConfigDict(config).copy_and_resolve_references()
                    keys = {f"model.{key}": value for key, value in own.items()}
                    keys |= {"optimizer.learning_rate": rate, "train.seed": seed}
                    in_mup = base if parametrization == MUP else {}
                    keys |= {"optimizer.base": in_mup, "model.base_width": None}
                    # A rate that is too high is a result, too.
                    keys |= {"train.nonfinite": "skip"}
                    for key, value in keys.items():
                        configs.set_key(changed, key, value)
                    name = f"{parametrization}-width={width}-rate={rate:g}-seed={seed}"
                    found[name] = (parametrization, width, rate, seed), changed
    return found


def measure(
    config: ConfigDict, widths: Sequence[int], rates: Sequence[float], seeds: int, folder
) -> dict[str, Any]:
    """Returns the losses of the finished runs in `folder`, and the best rate of each width.

    A loss that is not finite is None. The best rate is the lowest point of a parabola, over the
    logarithm of the rate, through the lowest mean loss and its two neighbors. At an end of the
    rates, it is that end, and `is_inside` is false. A width whose runs are not all finished, or all
    have diverged, has none. The `shift` of a parametrization is the logarithm, base 2, of the best
    rate at the largest width over that at the smallest.
    """
    folder = buckets.folder_of_run(folder)
    runs = runs_of(config, widths, rates, seeds)
    losses, missing = {}, []
    for name, (run, changed) in runs.items():
        scores = final_scores(folder / name, changed.train.num_steps)
        if "valid/loss" in scores:
            losses.setdefault(run[:3], []).append(scores["valid/loss"])
        else:
            missing.append(name)
    result = {
        "widths": [*widths],
        "rates": [*rates],
        "seeds": seeds,
        "base": base_of(config, widths),
        "missing": missing,
    }
    for parametrization in (STANDARD, MUP):
        curves = {}
        for width in widths:
            is_base = at_width(config, width) == result["base"]
            key = STANDARD if is_base else parametrization
            curves[width] = [losses.get((key, width, rate), []) for rate in rates]
        best = {
            width: _best(rates, own) if all(len(each) == seeds for each in own) else None
            for width, own in curves.items()
        }
        known = [best[width] for width in (min(widths), max(widths)) if best[width]]
        result[parametrization] = {
            "losses": {width: dict(zip(map(str, rates), own)) for width, own in curves.items()},
            "best": best,
            "shift": math.log2(known[1]["rate"] / known[0]["rate"]) if len(known) == 2 else None,
        }
    return result


def _best(rates: Sequence[float], losses: Sequence[list[float | None]]) -> dict | None:
    """Returns the best rate of a width, given the losses of each rate; None if all diverged."""
    order = np.argsort(rates)
    x = np.log2(np.array(rates)[order])
    # If one of its runs has diverged, a rate is no candidate.
    y = np.array([np.mean([math.inf if x is None else x for x in losses[i]]) for i in order])
    lowest = int(np.argmin(y))
    if not math.isfinite(y[lowest]):
        return None
    near = slice(lowest - 1, lowest + 2)
    is_inside = 0 < lowest < len(x) - 1 and bool(np.isfinite(y[near]).all())
    at = x[lowest]
    if is_inside:
        a, b, _ = np.polyfit(x[near] - at, y[near], 2)
        at -= b / (2 * a) if a else 0.0  # three equal losses have no lowest point
    return {"rate": float(2**at), "loss": float(y[lowest]), "is_inside": is_inside}


def lines(result: Mapping[str, Any]) -> list[str]:
    """Returns the best rates in words, a line for each width."""
    said = []
    for parametrization in (STANDARD, MUP):
        own = result[parametrization]
        for width, best in own["best"].items():
            if best is None:
                said.append(f"{parametrization}, width {width}: runs are missing or have diverged")
                continue
            edge = "" if best["is_inside"] else ", at an end of the rates"
            said.append(
                f"{parametrization}, width {width}: best rate {best['rate']:.3g}{edge}, "
                f"loss {best['loss']:.4f}"
            )
        if own["shift"] is not None:
            said.append(
                f"{parametrization}: from the smallest to the largest width, the best rate moves "
                f"by a factor of {2 ** own['shift']:.2f}"
            )
    return said
