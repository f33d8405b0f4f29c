"""Power laws of the loss, and the quantities that fits give (Hoffmann et al. 2022, section 3)."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import stats

from transformer_jax.config import UserError


@dataclasses.dataclass(frozen=True)
class Run:
    """The measurements of a training.

    `curve` (points, 2) has the FLOPs in the middle of each interval of the log and the mean
    training loss of the interval, in nats.
    """

    name: str
    params: int
    tokens: float
    flops: float
    loss: float  # at the end, on held-out text, in nats a token
    curve: np.ndarray = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """y = coefficient * x^exponent. `r2` is the explained share of the variance of log y."""

    coefficient: float
    exponent: float
    r2: float

    def __call__(self, x):
        return self.coefficient * np.asarray(x, float) ** self.exponent

    @classmethod
    def fit(cls, x: Sequence[float], y: Sequence[float]) -> "PowerLaw":
        """Fits by least squares in log-log. Raises UserError for fewer than two values of x."""
        num_points = len(set(x))
        if num_points < 2:
            verb = "is" if num_points == 1 else "are"
            raise UserError(f"a power law needs two points or more; there {verb} {num_points}")
        line = stats.linregress(np.log(x), np.log(y))
        return cls(float(np.exp(line.intercept)), float(line.slope), float(line.rvalue**2))


@dataclasses.dataclass(frozen=True)
class Allocation:
    """The best model and data for a compute budget: N_opt = params(C), D_opt = tokens(C).

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

    `r2` is the explained share of the variance of log L.
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
        """a in N_opt ~ C^a."""
        return self.beta / (self.alpha + self.beta)

    @property
    def tokens_exponent(self) -> float:
        """b in D_opt ~ C^b."""
        return self.alpha / (self.alpha + self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """Returns N and D of the lowest loss at C = 6 N D, equation 4."""
        scale = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        params = scale * (flops / 6) ** self.params_exponent
        tokens = (flops / 6) ** self.tokens_exponent / scale
        return params, tokens


def frontier(runs: Sequence[Run], quantity: str) -> list[Run]:
    """Returns the runs that no run with as much or less of `quantity` undercuts, in its order.

    `quantity` is "params", "tokens" or "flops".
    """
    best = []
    for run in sorted(runs, key=lambda run: (getattr(run, quantity), run.loss)):
        if not best or run.loss < best[-1].loss:
            best.append(run)
    return best


def loss_law(runs: Sequence[Run], quantity: str) -> PowerLaw:
    """Fits L(N), L(D) or L(C) without a floor (Kaplan et al. 2020, equations 1.1 to 1.3).

    The fit goes through the frontier, where the other quantities limit the loss the least.
    """
    best = frontier(runs, quantity)
    return PowerLaw.fit([getattr(run, quantity) for run in best], [run.loss for run in best])
