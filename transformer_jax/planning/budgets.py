"""Budgets of compute: how many updates of a config they pay for."""

import math
import re

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.planning import estimate
from transformer_jax.runs.spec import make_task

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21}


def flops_of(budget: str) -> float:
    """Returns the FLOPs of a budget such as "60TFLOP" or "6e13". Raises UserError for another."""
    found = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?) *([KMGTPEZ]?)(?:FLOPs?)?", budget, re.I)
    try:
        flops = float(found[1]) * _UNITS[found[2].upper()]
    except (TypeError, ValueError):
        raise UserError(
            f"--budget={budget}: must be a number of FLOPs, such as 60TFLOP or 6e13"
        ) from None
    if not 0 < flops < math.inf:
        raise UserError(f"--budget={budget}: must be above 0")
    return flops


def updates_for(config: ConfigDict, flops: float, flag: str = "--budget") -> int:
    """Returns the most updates of a config whose forward and backward passes take these FLOPs.

    Padding counts, because it is computed, too. The FLOPs are those of `estimate.training`. Raises
    UserError if not even one update fits.
    """

    def total(updates: int) -> float:
        changed = ConfigDict(config).copy_and_resolve_references()  # its sections, too
        changed.train.num_steps = updates
        return estimate.training(make_task(changed))[0]

    if total(1) > flops:
        raise UserError(f"{flag}: {flops:.3g} FLOPs are less than one update, {total(1):.3g}")
    # The FLOPs are nearly proportional to the updates, so the search begins around that guess.
    guess = max(1, int(flops / (total(1000) / 1000)))
    low, high = (guess, guess + 1) if total(guess) <= flops else (1, guess)
    step = 1
    while total(high) <= flops:
        low, high, step = high, high + step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(middle) <= flops else (low, middle)
    return low
