"""The compute-optimal model by training curves and by iso-FLOP parabolas.

They are approaches 1 and 2 of Hoffmann et al. 2022, sections 3.1 and 3.2.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import interpolate

from transformer_jax.config import UserError
from transformer_jax.scaling.laws import Allocation, Run

_NUM_GRID = 1500  # amounts of compute at which the curves are compared (section 3.1)
_NUM_NEAREST = 5  # sizes around the lowest; farther away the loss is not a parabola
# Budgets with a smaller difference in log are equal: a run has a whole number of updates.
_SAME_BUDGET = 0.1


def envelope(runs: Sequence[Run]) -> Allocation:
    """Approach 1: the size with the lowest training curve, at each amount of compute.

    A size counts once, at the middle (in log) of its stretch of the envelope: the middles of a
    staircase's steps have its slope. The first and the last size are left out, because their
    stretches continue beyond the trained budgets. Raises UserError if fewer than two sizes remain.
    """
    runs = [run for run in runs if len(run.curve) >= 5]
    if not runs:
        raise UserError(
            "training curves: no metrics.jsonl has five lines or more with the training loss"
        )
    sizes = sorted({run.params for run in runs})
    lowest = max(min(run.curve[0, 0] for run in runs if run.params == size) for size in sizes)
    highest = min(max(run.curve[-1, 0] for run in runs if run.params == size) for size in sizes)
    if lowest >= highest:
        raise UserError(
            "training curves: there is no amount of compute that every size was trained with"
        )
    grid = np.geomspace(lowest, highest, _NUM_GRID)
    winners = np.argmin([_smoothed(run.curve, grid) for run in runs], axis=0)
    best_size = np.array([runs[i].params for i in winners])
    tokens = grid * np.array([runs[i].tokens / runs[i].flops for i in winners])
    points = [
        (_log_mean(grid[best_size == size]), size, _log_mean(tokens[best_size == size]))
        for size in sizes
        if size in best_size and size not in (best_size[0], best_size[-1])
    ]
    return Allocation.fit(points, "training curves")


def _log_mean(values: np.ndarray) -> float:
    return float(np.exp(np.log(values).mean()))


def _smoothed(curve: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Returns the loss of a curve at the amounts of compute in `grid`, infinite outside the curve.

    A smoothing spline in log-log gives it. Cross-validation chooses its stiffness.
    """
    spline = interpolate.make_smoothing_spline(*np.log(curve.T))
    return np.where(
        (grid >= curve[0, 0]) & (grid <= curve[-1, 0]), np.exp(spline(np.log(grid))), np.inf
    )


@dataclasses.dataclass(frozen=True)
class Parabola:
    """The loss of a budget's runs as a parabola in log N."""

    flops: float
    runs: list[Run]
    coefficients: np.ndarray  # for numpy.polyval
    best: float | None  # N; None: the lowest point is outside the sizes


def parabolas(runs: Sequence[Run]) -> list[Parabola]:
    """Returns a parabola for each budget with three sizes or more, the smallest budget first."""
    fitted = []
    for group in _budgets(runs):
        if len({run.params for run in group}) < 3:
            continue
        lowest = min(range(len(group)), key=lambda i: group[i].loss)
        start = min(max(lowest - _NUM_NEAREST // 2, 0), max(len(group) - _NUM_NEAREST, 0))
        nearest = group[start : start + _NUM_NEAREST]
        # a resample may have the same run several times
        if len({run.params for run in nearest}) < 3:
            continue
        log_params = np.log([run.params for run in nearest])
        coefficients = np.polyfit(log_params, [run.loss for run in nearest], 2)
        vertex = -coefficients[1] / (2 * coefficients[0])
        inside = np.log(group[0].params) < vertex < np.log(group[-1].params)
        best = float(np.exp(vertex)) if coefficients[0] > 0 and inside else None
        flops = float(np.exp(np.mean(np.log([run.flops for run in group]))))
        fitted.append(Parabola(flops, group, coefficients, best))
    return fitted


def _budgets(runs: Sequence[Run]) -> list[list[Run]]:
    """Returns the runs of each budget, ordered by size."""
    ordered = sorted(runs, key=lambda run: run.flops)
    breaks = [
        i
        for i in range(1, len(ordered))
        if np.log(ordered[i].flops / ordered[i - 1].flops) > _SAME_BUDGET
    ]
    return [
        sorted(ordered[first:last], key=lambda run: run.params)
        for first, last in zip([0, *breaks], [*breaks, len(ordered)])
    ]


def isoflop(runs: Sequence[Run]) -> Allocation:
    """Approach 2: the lowest point of a parabola through the losses of each compute budget.

    Raises UserError if fewer than two budgets have one.
    """
    points = []
    for parabola in parabolas(runs):
        if parabola.best:
            log_tokens = np.interp(
                np.log(parabola.best),
                np.log([run.params for run in parabola.runs]),
                np.log([run.tokens for run in parabola.runs]),
            )
            points.append((parabola.flops, parabola.best, float(np.exp(log_tokens))))
    return Allocation.fit(points, "iso-FLOP parabolas")
