"""Scaling laws: power laws of the loss, compute-optimal models, and the parametric law."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy import interpolate, optimize, stats

from transformer_jax.config import UserError

# --------------------------------------------------------------------------------------------------
# Runs, power laws of the loss, and the results of fits (Hoffmann et al. 2022, section 3).


@dataclasses.dataclass(frozen=True)
class Run:
    """The measurements of a training run.

    `curve` (points, 2) is the training curve: for each interval of the log, the FLOPs at the middle
    of the interval and the mean training loss in it, in nats.
    """

    name: str
    params: int
    tokens: float
    flops: float
    loss: float  # at the end, on held-out text, in nats a token
    curve: np.ndarray = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """y = coefficient * x^exponent; `r2` is the share of the variance of log y that it explains."""

    coefficient: float
    exponent: float
    r2: float

    def __call__(self, x):
        return self.coefficient * np.asarray(x, float) ** self.exponent

    @classmethod
    def fit(cls, x: Sequence[float], y: Sequence[float]) -> "PowerLaw":
        """Fits by least squares in log-log space.

        Raises UserError for fewer than two different values of x.
        """
        num_points = len(set(x))
        if num_points < 2:
            verb = "is" if num_points == 1 else "are"
            raise UserError(f"a power law needs two points or more; there {verb} {num_points}")
        # In logarithms, errors are relative, so that small values count as much as large ones.
        line = stats.linregress(np.log(x), np.log(y))
        return cls(float(np.exp(line.intercept)), float(line.slope), float(line.rvalue**2))


@dataclasses.dataclass(frozen=True)
class Allocation:
    """The compute-optimal model and data: N_opt = params(C), D_opt = tokens(C).

    `points` (n, 3) are the fitted values of C, N and D.
    """

    params: PowerLaw
    tokens: PowerLaw
    points: np.ndarray = dataclasses.field(repr=False)

    @classmethod
    def fit(cls, points: Sequence[tuple[float, float, float]], approach: str) -> "Allocation":
        """Fits both power laws. Raises UserError for fewer than two points."""
        if len(points) < 2:
            raise UserError(
                f"{approach}: an optimum was found at {len(points)} amounts of compute, two are "
                "needed: add budgets, or sizes on both sides of the best"
            )
        flops, params, tokens = (np.array(column) for column in zip(*points))
        return cls(PowerLaw.fit(flops, params), PowerLaw.fit(flops, tokens), np.array(points))


@dataclasses.dataclass(frozen=True)
class Law:
    """L(N, D) = E + A / N^alpha + B / D^beta, equation 2.

    `r2` is the share of the variance of log L that it explains.
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
        """The exponent a in N_opt ~ C^a."""
        return self.beta / (self.alpha + self.beta)

    @property
    def tokens_exponent(self) -> float:
        """The exponent b in D_opt ~ C^b."""
        return self.alpha / (self.alpha + self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """Returns the N and D that minimize the loss subject to C = 6 N D (equation 4)."""
        scale = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        params = scale * (flops / 6) ** self.params_exponent
        tokens = (flops / 6) ** self.tokens_exponent / scale
        return params, tokens


def frontier(runs: Sequence[Run], quantity: str) -> list[Run]:
    """Returns the Pareto frontier of the loss and a quantity, in ascending order of the quantity.

    No run with as much or less of `quantity` has a lower loss than a run on the frontier. It is
    "params", "tokens" or "flops".
    """
    best = []
    for run in sorted(runs, key=lambda run: (getattr(run, quantity), run.loss)):
        if not best or run.loss < best[-1].loss:
            best.append(run)
    return best


def loss_law(runs: Sequence[Run], quantity: str) -> PowerLaw:
    """Fits L(N), L(D) or L(C) without an irreducible loss (Kaplan et al. 2020, equations 1.1-1.3).

    Only the runs on the frontier are used, whose loss is limited the least by other quantities.
    """
    best = frontier(runs, quantity)
    return PowerLaw.fit([getattr(run, quantity) for run in best], [run.loss for run in best])


# --------------------------------------------------------------------------------------------------
# Compute-optimal models from training curves and from iso-FLOP parabolas, which are approaches 1
# and 2 of Hoffmann et al. 2022, sections 3.1 and 3.2.

_NUM_GRID = 1500  # amounts of compute at which the curves are compared (section 3.1)
_NUM_NEAREST = 5  # sizes around the lowest loss; farther away, the loss is not a parabola
# Budgets whose logarithms differ by less are equal. Their FLOPs differ slightly, because a run has
# a whole number of updates.
_SAME_BUDGET = 0.1


def envelope(runs: Sequence[Run]) -> Allocation:
    """Approach 1: the size with the lowest training curve at each amount of compute.

    Raises UserError if fewer than two sizes remain.
    """
    # A smoothing spline needs five points.
    runs = [run for run in runs if len(run.curve) >= 5]
    if not runs:
        raise UserError(
            "training curves: no metrics.jsonl has five lines or more with the training loss"
        )
    sizes = sorted({run.params for run in runs})
    # Only where all sizes have a curve can the lowest be the best of them.
    lowest = max(min(run.curve[0, 0] for run in runs if run.params == size) for size in sizes)
    highest = min(max(run.curve[-1, 0] for run in runs if run.params == size) for size in sizes)
    if lowest >= highest:
        raise UserError(
            "training curves: there is no amount of compute that every size was trained with"
        )
    grid = np.geomspace(lowest, highest, _NUM_GRID)
    # Smoothed, because the noise of a single point would decide otherwise.
    winners = np.argmin([_smoothed(run.curve, grid) for run in runs], axis=0)
    best_size = np.array([runs[i].params for i in winners])
    tokens = grid * np.array([runs[i].tokens / runs[i].flops for i in winners])
    # The best size is a step function of compute. Each size is one point, in the middle of its
    # step, because these middles have the slope of the law that underlies the steps. The steps of
    # the first and the last size continue beyond the trained budgets, so their middles are unknown.
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

    It is a smoothing spline in log-log space, whose regularization is chosen by cross-validation.
    """
    spline = interpolate.make_smoothing_spline(*np.log(curve.T))
    return np.where(
        (grid >= curve[0, 0]) & (grid <= curve[-1, 0]), np.exp(spline(np.log(grid))), np.inf
    )


@dataclasses.dataclass(frozen=True)
class Parabola:
    """The loss of the runs of one budget as a parabola in log N."""

    flops: float
    runs: list[Run]
    coefficients: np.ndarray  # for numpy.polyval
    best: float | None  # N at the minimum; None: there is none between the smallest and largest N


def parabolas(runs: Sequence[Run]) -> list[Parabola]:
    """Returns a parabola for each budget with three sizes or more, smallest budget first."""
    fitted = []
    for group in _budgets(runs):
        if len({run.params for run in group}) < 3:
            continue
        lowest = min(range(len(group)), key=lambda i: group[i].loss)
        start = min(max(lowest - _NUM_NEAREST // 2, 0), max(len(group) - _NUM_NEAREST, 0))
        nearest = group[start : start + _NUM_NEAREST]
        # A bootstrap sample may contain the same run several times.
        if len({run.params for run in nearest}) < 3:
            continue
        log_params = np.log([run.params for run in nearest])
        coefficients = np.polyfit(log_params, [run.loss for run in nearest], 2)
        vertex = -coefficients[1] / (2 * coefficients[0])
        # A minimum outside of the trained sizes is an extrapolation of the parabola.
        inside = np.log(group[0].params) < vertex < np.log(group[-1].params)
        best = float(np.exp(vertex)) if coefficients[0] > 0 and inside else None
        flops = float(np.exp(np.mean(np.log([run.flops for run in group]))))
        fitted.append(Parabola(flops, group, coefficients, best))
    return fitted


def _budgets(runs: Sequence[Run]) -> list[list[Run]]:
    """Returns the runs of each budget in ascending order of size."""
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
    """Approach 2: the minimum of a parabola that is fitted to the losses of each compute budget.

    Raises UserError if fewer than two budgets have a minimum.
    """
    points = []
    for parabola in parabolas(runs):
        if parabola.best:
            # C = 6 N D does not hold, because the FLOPs of a run include attention.
            log_tokens = np.interp(
                np.log(parabola.best),
                np.log([run.params for run in parabola.runs]),
                np.log([run.tokens for run in parabola.runs]),
            )
            points.append((parabola.flops, parabola.best, float(np.exp(log_tokens))))
    return Allocation.fit(points, "iso-FLOP parabolas")


# --------------------------------------------------------------------------------------------------
# The parametric law L(N, D), which is approach 3 of Hoffmann et al. 2022, section 3.3, and
# bootstrap intervals for any fit.

HUBER = 1e-3  # residuals of the log loss above this count linearly (section 3.3)
_NUM_STARTS = 8  # points of the grid to start from, in case of local minima (section 3.3)


def parametric(runs: Sequence[Run], near: Law | None = None) -> Law:
    """Fits the law to the logarithms of the losses with the Huber loss (equation 3).

    The optimization starts from the best points of a grid, or only from `near`. At each alpha and
    beta of the grid, E, A and B are the solution of non-negative least squares. Raises UserError
    for fewer than five runs, two sizes or two amounts of data.
    """
    num_sizes = len({run.params for run in runs})
    num_amounts = len({run.tokens for run in runs})
    if len(runs) < 5 or min(num_sizes, num_amounts) < 2:
        raise UserError(
            "the parametric law has five unknowns: it needs five runs or more, of several sizes "
            f"and amounts of data; there are {len(runs)}"
        )
    problem = _Problem(runs)
    starts = [problem.start_near(near)] if near else problem.grid_of_starts()
    best = min((problem.fitted(start) for start in starts), key=lambda fit: fit.cost)
    return problem.law(best.x)


class _Problem:
    """The least-squares problem in theta = (log E, log A', alpha, log B', beta).

    A' and B' are the coefficients for N and D divided by their geometric means. Centering log N and
    log D in this way makes log A' and alpha nearly independent of each other.
    """

    def __init__(self, runs: Sequence[Run]):
        log_params = np.log([run.params for run in runs])
        log_tokens = np.log([run.tokens for run in runs])
        self.log_loss = np.log([run.loss for run in runs])
        self.mean_params = log_params.mean()
        self.mean_tokens = log_tokens.mean()
        self.n = log_params - self.mean_params
        self.d = log_tokens - self.mean_tokens

    def terms(self, theta) -> np.ndarray:
        """Returns the three terms of the law for each run, (3, runs)."""
        e, a, alpha, b, beta = theta
        return np.array(
            [
                np.full_like(self.n, np.exp(e)),
                np.exp(a - alpha * self.n),
                np.exp(b - beta * self.d),
            ]
        )

    def residuals(self, theta) -> np.ndarray:
        return np.log(self.terms(theta).sum(axis=0)) - self.log_loss

    def slopes(self, theta) -> np.ndarray:
        """Returns the Jacobian of the residuals, (runs, 5)."""
        share = self.terms(theta) / self.terms(theta).sum(axis=0)
        columns = [share[0], share[1], -self.n * share[1], share[2], -self.d * share[2]]
        return np.stack(columns, axis=1)

    def fitted(self, start):
        return optimize.least_squares(
            self.residuals,
            start,
            self.slopes,
            loss="huber",
            f_scale=HUBER,
            # Without bounds, an exponent or E can run away where the runs do not determine it.
            bounds=([-20, -20, 0, -20, 0], [20, 20, 5, 20, 5]),
            x_scale="jac",
            ftol=1e-12,
            xtol=1e-12,
            gtol=1e-12,
            max_nfev=500,
        )

    def grid_of_starts(self) -> list[np.ndarray]:
        """Returns the best starting points of a grid over alpha and beta."""
        # A grid over the exponents alone, because the law is linear in E, A and B for given ones.
        exponents = np.geomspace(0.05, 2, 12)
        starts = [self._start(alpha, beta) for alpha in exponents for beta in exponents]
        starts.sort(key=lambda start: start[1])
        return [theta for theta, _ in starts[:_NUM_STARTS]]

    def _start(self, alpha: float, beta: float) -> tuple[np.ndarray, float]:
        """Returns the theta that minimizes the squared relative error at alpha and beta, and the
        error.
        """
        columns = np.stack(
            [np.ones_like(self.n), np.exp(-alpha * self.n), np.exp(-beta * self.d)], axis=1
        )
        # Divided by the losses, so that the errors are relative, as in the fit that follows.
        coefficients, error = optimize.nnls(
            columns / np.exp(self.log_loss)[:, None], np.ones_like(self.n)
        )
        e, a, b = np.log(np.maximum(coefficients, 1e-3))  # one may be 0, which has no logarithm
        return np.array([e, a, alpha, b, beta]), error

    def start_near(self, law: Law) -> np.ndarray:
        # E may have become 0, which has no logarithm. The clip keeps the start within the bounds.
        e = np.log(law.E) if law.E else -15
        a = np.log(law.A) - law.alpha * self.mean_params
        b = np.log(law.B) - law.beta * self.mean_tokens
        return np.clip([e, a, law.alpha, b, law.beta], -15, 15)

    def law(self, theta) -> Law:
        e, a, alpha, b, beta = theta
        residuals = self.log_loss - np.log(self.terms(theta).sum(axis=0))
        variance = ((self.log_loss - self.log_loss.mean()) ** 2).sum()
        return Law(
            float(np.exp(e)),
            float(np.exp(a + alpha * self.mean_params)),
            float(alpha),
            float(np.exp(b + beta * self.mean_tokens)),
            float(beta),
            float(1 - (residuals**2).sum() / variance),
        )


def bootstrap(
    runs: Sequence[Run],
    estimate: Callable[[list[Run]], dict[str, float]],
    samples: int = 100,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Returns 80% intervals for the values of `estimate`, from the 10th to the 90th percentile.

    `estimate` is called on runs that are drawn with replacement. Draws for which it raises
    UserError are left out; if they are more than half, there are no intervals.
    """
    rng = np.random.default_rng(seed)
    estimates = []
    for _ in range(samples):
        # Whole runs are drawn, because the evaluations within a run are not independent.
        drawn = [runs[i] for i in rng.integers(len(runs), size=len(runs))]
        try:
            estimates.append(estimate(drawn))
        except UserError:
            continue
    # Percentiles of the few samples that could be fitted would promise too much.
    if len(estimates) < samples / 2:
        return {}
    return {
        key: tuple(float(x) for x in np.percentile([values[key] for values in estimates], (10, 90)))
        for key in estimates[0]
    }
