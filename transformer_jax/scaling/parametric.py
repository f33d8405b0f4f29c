"""The parametric law L(N, D): approach 3 of Hoffmann et al. 2022, section 3.3."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize

from transformer_jax.config import UserError
from transformer_jax.scaling.laws import Law, Run

HUBER = 1e-3  # larger residuals of the log loss count linearly (section 3.3)
_NUM_STARTS = 8  # of the grid of starts, the best


def parametric(runs: Sequence[Run], near: Law | None = None) -> Law:
    """Fits the law to the logarithm of the losses, with Huber's loss (equation 3).

    The fit begins at the best of a grid of starts, or at `near` alone. For each alpha and beta of
    the grid, E, A and B are the non-negative least squares. Raises UserError for fewer than five
    runs, two sizes or two amounts of data.
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

    A' and B' belong to N and D divided by their geometric means.
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
        """Returns the three terms of the law for each run (3, runs)."""
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
        """Returns the Jacobian of the residuals (runs, 5)."""
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
            bounds=([-20, -20, 0, -20, 0], [20, 20, 5, 20, 5]),
            x_scale="jac",
            ftol=1e-12,
            xtol=1e-12,
            gtol=1e-12,
            max_nfev=500,
        )

    def grid_of_starts(self) -> list[np.ndarray]:
        """Returns the best of a grid over alpha and beta."""
        exponents = np.geomspace(0.05, 2, 12)
        starts = [self._start(alpha, beta) for alpha in exponents for beta in exponents]
        starts.sort(key=lambda start: start[1])
        return [theta for theta, _ in starts[:_NUM_STARTS]]

    def _start(self, alpha: float, beta: float) -> tuple[np.ndarray, float]:
        """Returns theta and its error: E, A and B by least squares of the relative error."""
        columns = np.stack(
            [np.ones_like(self.n), np.exp(-alpha * self.n), np.exp(-beta * self.d)], axis=1
        )
        coefficients, error = optimize.nnls(
            columns / np.exp(self.log_loss)[:, None], np.ones_like(self.n)
        )
        e, a, b = np.log(np.maximum(coefficients, 1e-3))
        return np.array([e, a, alpha, b, beta]), error

    def start_near(self, law: Law) -> np.ndarray:
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
    """Returns 80 % intervals of the values of `estimate`, from the 10th to the 90th percentile.

    `estimate` is called on runs that are drawn with replacement. Draws that it refuses are left
    out. The intervals are absent if it refuses more than half of the draws.
    """
    rng = np.random.default_rng(seed)
    estimates = []
    for _ in range(samples):
        drawn = [runs[i] for i in rng.integers(len(runs), size=len(runs))]
        try:
            estimates.append(estimate(drawn))
        except UserError:
            continue
    if len(estimates) < samples / 2:
        return {}
    return {
        key: tuple(float(x) for x in np.percentile([values[key] for values in estimates], (10, 90)))
        for key in estimates[0]
    }
