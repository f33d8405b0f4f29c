"""The laws: power laws of the loss, and the compute-optimal model by the three approaches of
Hoffmann et al. 2022, section 3.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy import interpolate, optimize, stats

from transformer_jax.config import UserError

HUBER = 1e-3  # residuals of the logarithm of the loss beyond it count linearly (section 3.3)
_GRID = 1500  # values of compute at which the lowest curve is looked for (section 3.1)
_NEAR = 5  # sizes around the lowest that a parabola is drawn through: farther off the loss is none
# budgets that differ by less, in log, are one: the length of a run is a whole number of updates
_EQUAL = 0.1
_STARTS = 8  # of the grid of starts, the best are followed


@dataclasses.dataclass(frozen=True)
class Run:
    """What a training measured. `curve` (points, 2): the FLOPs in the middle of each interval of
    the log, and the mean training loss in it, in nats.
    """

    name: str
    params: int
    tokens: float
    flops: float
    loss: float  # at the end, on held-out text, nats a token
    curve: np.ndarray = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """y = coefficient * x^exponent; r2: the share of the variance of log y that it explains."""

    coefficient: float
    exponent: float
    r2: float

    def __call__(self, x):
        return self.coefficient * np.asarray(x, float) ** self.exponent

    @classmethod
    def fit(cls, x: Sequence[float], y: Sequence[float]) -> "PowerLaw":
        """Least squares in log-log. Raises UserError for fewer than two values of x."""
        if len(set(x)) < 2:
            raise UserError(
                f"a power law needs two points or more, there {'is' if len(set(x)) == 1 else 'are'} {len(set(x))}"
            )
        line = stats.linregress(np.log(x), np.log(y))
        return cls(float(np.exp(line.intercept)), float(line.slope), float(line.rvalue**2))


def frontier(runs: Sequence[Run], of: str) -> list[Run]:
    """The runs that none with as little or less `of` (params, tokens, flops) undercuts, by `of`."""
    found = []
    for run in sorted(runs, key=lambda run: (getattr(run, of), run.loss)):
        if not found or run.loss < found[-1].loss:
            found.append(run)
    return found


def loss_law(runs: Sequence[Run], of: str) -> PowerLaw:
    """L(N), L(D) or L(C), without a floor (Kaplan et al. 2020, equations 1.1 to 1.3), through the
    frontier: where the other quantities limit least.
    """
    best = frontier(runs, of)
    return PowerLaw.fit([getattr(run, of) for run in best], [run.loss for run in best])


@dataclasses.dataclass(frozen=True)
class Allocation:
    """The best model and data for a compute budget: N_opt = params(C), D_opt = tokens(C); `points`
    (n, 3) of C, N, D are what they were fitted to.
    """

    params: PowerLaw
    tokens: PowerLaw
    points: np.ndarray = dataclasses.field(repr=False)

    @classmethod
    def fit(cls, points: Sequence[tuple[float, float, float]], approach: str) -> "Allocation":
        if len(points) < 2:
            raise UserError(
                f"{approach}: an optimum was found at {len(points)} amounts of compute, two are needed: more budgets, or sizes on both sides of the best"
            )
        flops, params, tokens = (np.array(column) for column in zip(*points))
        return cls(PowerLaw.fit(flops, params), PowerLaw.fit(flops, tokens), np.array(points))


def envelope(runs: Sequence[Run]) -> Allocation:
    """Approach 1: the size whose training curve is the lowest, at each amount of compute.

    A size counts once, where its stretch of the envelope has its middle (in log): a staircase has
    the slope of its steps' middles. The first and the last size there have no such middle, as their
    stretches go on where nothing was trained. Raises UserError where fewer than two sizes are left.
    """
    runs = [run for run in runs if len(run.curve) >= 5]
    if not runs:
        raise UserError(
            "training curves: no run's metrics.jsonl has five lines or more on the training loss"
        )
    sizes = sorted({run.params for run in runs})
    lowest = max(min(run.curve[0, 0] for run in runs if run.params == size) for size in sizes)
    highest = min(max(run.curve[-1, 0] for run in runs if run.params == size) for size in sizes)
    if lowest >= highest:
        raise UserError(
            "training curves: there is no amount of compute that every size was trained with"
        )
    grid = np.geomspace(lowest, highest, _GRID)
    winners = np.argmin([_smoothed(run.curve, grid) for run in runs], axis=0)
    won, tokens = (
        np.array([value(runs[i]) for i in winners])
        for value in (lambda run: run.params, lambda run: run.tokens / run.flops)
    )
    middle = lambda values: float(np.exp(np.log(values).mean()))
    points = [
        (middle(grid[won == size]), size, middle((grid * tokens)[won == size]))
        for size in sizes
        if size in won and size not in (won[0], won[-1])
    ]
    return Allocation.fit(points, "training curves")


def _smoothed(curve: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The curve's loss at these amounts of compute, by a smoothing spline in log-log whose
    stiffness is cross-validated; infinite outside the curve.
    """
    spline = interpolate.make_smoothing_spline(*np.log(curve.T))
    return np.where(
        (grid >= curve[0, 0]) & (grid <= curve[-1, 0]), np.exp(spline(np.log(grid))), np.inf
    )


@dataclasses.dataclass(frozen=True)
class Parabola:
    """The loss of the runs of one budget by log N: `coefficients` as numpy.polyval takes them;
    `best` N, or None where the lowest point lies outside the sizes.
    """

    flops: float
    runs: list[Run]
    coefficients: np.ndarray
    best: float | None


def parabolas(runs: Sequence[Run]) -> list[Parabola]:
    """One for each budget that three sizes or more were trained with, the smallest first."""
    found, ordered = [], sorted(runs, key=lambda run: run.flops)
    breaks = [
        i
        for i in range(1, len(ordered))
        if np.log(ordered[i].flops / ordered[i - 1].flops) > _EQUAL
    ]
    for first, last in zip([0, *breaks], [*breaks, len(ordered)]):
        group = sorted(ordered[first:last], key=lambda run: run.params)
        if len({run.params for run in group}) < 3:
            continue
        lowest = min(range(len(group)), key=lambda i: group[i].loss)
        start = min(max(lowest - _NEAR // 2, 0), max(len(group) - _NEAR, 0))
        near = group[start : start + _NEAR]
        if len({run.params for run in near}) < 3:  # a resample may hold one run several times
            continue
        coefficients = np.polyfit(
            np.log([run.params for run in near]), [run.loss for run in near], 2
        )
        vertex = -coefficients[1] / (2 * coefficients[0])
        inside = coefficients[0] > 0 and np.log(group[0].params) < vertex < np.log(group[-1].params)
        found.append(
            Parabola(
                float(np.exp(np.mean(np.log([run.flops for run in group])))),
                group,
                coefficients,
                float(np.exp(vertex)) if inside else None,
            )
        )
    return found


def isoflop(runs: Sequence[Run]) -> Allocation:
    """Approach 2: the lowest point of a parabola through the losses at each compute budget. Raises
    UserError where fewer than two budgets have one.
    """
    points = []
    for one in parabolas(runs):
        if one.best:
            tokens = np.interp(
                np.log(one.best),
                np.log([run.params for run in one.runs]),
                np.log([run.tokens for run in one.runs]),
            )
            points.append((one.flops, one.best, float(np.exp(tokens))))
    return Allocation.fit(points, "iso-FLOP parabolas")


@dataclasses.dataclass(frozen=True)
class Law:
    """L(N, D) = E + A / N^alpha + B / D^beta, equation 2; r2: the share of the variance of log L
    that it explains.
    """

    E: float
    A: float
    alpha: float
    B: float
    beta: float
    r2: float

    def __call__(self, params, tokens):
        return (
            self.E
            + self.A * np.asarray(params, float) ** -self.alpha
            + self.B * np.asarray(tokens, float) ** -self.beta
        )

    @property
    def params_exponent(self) -> float:
        """a of N_opt proportional to C^a."""
        return self.beta / (self.alpha + self.beta)

    @property
    def tokens_exponent(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """(N, D) of the lowest loss at C = 6 N D, equation 4."""
        scale = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        return scale * (flops / 6) ** self.params_exponent, (
            flops / 6
        ) ** self.tokens_exponent / scale


def parametric(runs: Sequence[Run], near: Law | None = None) -> Law:
    """Approach 3: the law whose logarithm is the nearest, by Huber's loss (equation 3), from many
    starts; with `near`, from there alone.

    The starts: for each alpha and beta of a grid, the E, A and B of least squares that are not
    negative. Raises UserError for fewer than five runs, or fewer than two sizes or amounts of data.
    """
    if (
        len(runs) < 5
        or min(len({run.params for run in runs}), len({run.tokens for run in runs})) < 2
    ):
        raise UserError(
            f"the parametric law has five unknowns: it needs five runs or more, of several sizes and amounts of data; there are {len(runs)}"
        )
    log_n, log_d, log_l = (
        np.log([getattr(run, key) for run in runs]) for key in ("params", "tokens", "loss")
    )
    n, d = log_n - log_n.mean(), log_d - log_d.mean()

    def terms(theta):
        e, a, alpha, b, beta = theta
        return np.array([np.full_like(n, np.exp(e)), np.exp(a - alpha * n), np.exp(b - beta * d)])

    def slopes(theta):
        share = terms(theta) / terms(theta).sum(axis=0)
        return np.stack([share[0], share[1], -n * share[1], share[2], -d * share[2]], axis=1)

    def fitted(start):
        return optimize.least_squares(
            lambda theta: np.log(terms(theta).sum(axis=0)) - log_l,
            start,
            slopes,
            loss="huber",
            f_scale=HUBER,
            bounds=([-20, -20, 0, -20, 0], [20, 20, 5, 20, 5]),
            x_scale="jac",
            ftol=1e-12,
            xtol=1e-12,
            gtol=1e-12,
            max_nfev=500,
        )

    starts = [
        _start(n, d, log_l, alpha, beta)
        for alpha in np.geomspace(0.05, 2, 12)
        for beta in np.geomspace(0.05, 2, 12)
    ]
    starts.sort(key=lambda one: one[1])
    chosen = [start for start, _ in starts[:_STARTS]]
    if near:
        a, b = np.log(near.A) - near.alpha * log_n.mean(), np.log(near.B) - near.beta * log_d.mean()
        chosen = [
            np.clip([np.log(near.E) if near.E else -15, a, near.alpha, b, near.beta], -15, 15)
        ]
    best = min((fitted(start) for start in chosen), key=lambda found: found.cost)
    e, a, alpha, b, beta = best.x
    rest = log_l - np.log(terms(best.x).sum(axis=0))
    r2 = 1 - (rest**2).sum() / ((log_l - log_l.mean()) ** 2).sum()
    return Law(
        float(np.exp(e)),
        float(np.exp(a + alpha * log_n.mean())),
        float(alpha),
        float(np.exp(b + beta * log_d.mean())),
        float(beta),
        float(r2),
    )


def _start(n, d, log_l, alpha, beta) -> tuple[np.ndarray, float]:
    """(theta, its error): E, A and B by least squares of the relative error."""
    columns = np.stack([np.ones_like(n), np.exp(-alpha * n), np.exp(-beta * d)], axis=1)
    found, error = optimize.nnls(columns / np.exp(log_l)[:, None], np.ones_like(n))
    e, a, b = np.log(np.maximum(found, 1e-3))
    return np.array([e, a, alpha, b, beta]), error


def bootstrap(
    runs: Sequence[Run],
    estimate: Callable[[list[Run]], dict[str, float]],
    samples: int = 100,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """80 % intervals (10th to 90th percentile, as in the paper) of what `estimate` gives of runs
    drawn with replacement; draws that it refuses are left out.

    An interval is absent where less than half of the draws could be used.
    """
    rng, found = np.random.default_rng(seed), []
    for _ in range(samples):
        try:
            found.append(estimate([runs[i] for i in rng.integers(len(runs), size=len(runs))]))
        except UserError:
            continue
    if len(found) < samples / 2:
        return {}
    return {
        key: tuple(float(x) for x in np.percentile([one[key] for one in found], (10, 90)))
        for key in found[0]
    }
