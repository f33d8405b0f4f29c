"""All fits to the runs of a family, with intervals, and the prediction for the held-out run."""

import dataclasses
import datetime
import functools
import json
from collections.abc import Callable, Sequence

from transformer_jax.config import UserError
from transformer_jax.pictures.progress import say
from transformer_jax.planning import estimate
from transformer_jax.runs.spec import Files, make_task
from transformer_jax.scaling import laws
from transformer_jax.scaling.family import HELD_OUT
from transformer_jax.scaling.laws import Allocation, Law, PowerLaw, Run, bootstrap, parametric
from transformer_jax.scaling.runs import NO_FILES, measured
from transformer_jax.storage import buckets
from transformer_jax.storage.buckets import write_whole

AXES = {"L(N)": "params", "L(D)": "tokens", "L(C)": "flops"}
# The third approach, "parametric law", follows from the law without a further fit.
APPROACHES = {"training curves": laws.envelope, "iso-FLOP parabolas": laws.isoflop}
PREDICTION = "prediction.json"


@dataclasses.dataclass(frozen=True)
class Fits:
    """All fits to the runs of a family.

    `intervals` maps names such as "L(N) exponent", "alpha" and "iso-FLOP parabolas a" to 80%
    intervals. `refused` has the reasons for fits that are missing.
    """

    power_laws: dict[str, PowerLaw]
    law: Law
    allocations: dict[str, Allocation]
    intervals: dict[str, tuple[float, float]]
    refused: dict[str, str]

    def record(self) -> dict:
        """Returns the fits, ready for JSON; a and b are the exponents of N_opt and D_opt."""
        power_laws = {
            name: {**dataclasses.asdict(law), "intervals": self._rounded(f"{name} exponent")}
            for name, law in self.power_laws.items()
        }
        parametric_law = {
            **dataclasses.asdict(self.law),
            "intervals": self._rounded("E", "A", "alpha", "B", "beta"),
        }
        optimal = {
            name: {"a": a, "b": b, "intervals": self._rounded(f"{name} a", f"{name} b")}
            for name, (a, b) in self._exponents().items()
        }
        return {
            **power_laws,
            "L(N, D)": parametric_law,
            "compute-optimal": optimal,
            "refused": self.refused,
        }

    def lines(self) -> list[str]:
        """Returns the fits as lines of text."""
        law = self.law
        return [
            "[80 % intervals, by bootstrap over the runs]",
            *(
                f"{name} = {fit.coefficient:.4g} {name[2]}^{fit.exponent:.4f}"
                f"{self._interval(f'{name} exponent')}   R^2 {fit.r2:.4f}"
                for name, fit in self.power_laws.items()
            ),
            f"L(N, D) = {law.E:.4g} + {law.A:.4g} / N^{law.alpha:.4f} + "
            f"{law.B:.4g} / D^{law.beta:.4f}   R^2 {law.r2:.4f}",
            *(f"  {name}{self._interval(name)}" for name in ("E", "alpha", "beta")),
            *(
                f"{name}: N_opt ~ C^{a:.3f}{self._interval(f'{name} a')}, "
                f"D_opt ~ C^{b:.3f}{self._interval(f'{name} b')}"
                for name, (a, b) in self._exponents().items()
            ),
            *self.refused.values(),
        ]

    def _exponents(self) -> dict[str, tuple[float, float]]:
        """Returns the exponents a and b by approach."""
        exponents = {
            name: (allocation.params.exponent, allocation.tokens.exponent)
            for name, allocation in self.allocations.items()
        }
        exponents["parametric law"] = (self.law.params_exponent, self.law.tokens_exponent)
        return exponents

    def _rounded(self, *names: str) -> dict[str, list[float]]:
        """Returns the intervals of `names`, rounded to six digits."""
        return {
            name: [float(f"{x:.6g}") for x in self.intervals[name]]
            for name in names
            if name in self.intervals
        }

    def _interval(self, name: str) -> str:
        if name not in self.intervals:
            return ""
        low, high = self.intervals[name]
        return f"  [{low:.3g}, {high:.3g}]"


def fit(runs: Sequence[Run], samples: int = 100, seed: int = 0) -> Fits:
    """Fits all laws to the runs, with intervals from `samples` bootstrap samples.

    Raises UserError if there are too few runs for the parametric law.
    """
    law = parametric(runs)
    fit_power_law = {
        name: functools.partial(laws.loss_law, quantity=axis) for name, axis in AXES.items()
    }
    power_laws, refused = _fitted(fit_power_law, runs)
    allocations, refused_allocations = _fitted(APPROACHES, runs)

    # Fits to bootstrap samples start from the fit to all runs rather than from a grid, because
    # there are many of them, and their optima lie nearby.
    def law_values(drawn):
        return _values_of_law(parametric(drawn, near=law))

    def power_law_values(name, drawn):
        return {f"{name} exponent": fit_power_law[name](drawn).exponent}

    def allocation_values(name, drawn):
        allocation = APPROACHES[name](drawn)
        return {
            f"{name} a": allocation.params.exponent,
            f"{name} b": allocation.tokens.exponent,
        }

    estimates = [
        law_values,
        *(functools.partial(power_law_values, name) for name in power_laws),
        *(functools.partial(allocation_values, name) for name in allocations),
    ]
    intervals = {}
    for estimated in estimates:
        # Each fit has a bootstrap of its own, because one that a sample does not support would
        # otherwise discard this sample for all. The seed gives all of them the same draws.
        intervals |= bootstrap(runs, estimated, samples, seed)
    return Fits(power_laws, law, allocations, intervals, refused | refused_allocations)


def _fitted(ways: dict[str, Callable], runs: Sequence[Run]) -> tuple[dict, dict[str, str]]:
    """Returns {name: fit}, and {name: reason} for the fits that are missing."""
    fitted = {}
    refused = {}
    for name, way in ways.items():
        try:
            fitted[name] = way(runs)
        except UserError as error:
            # A fit that the runs do not support must not take the others with it.
            refused[name] = f"{name}: {error}"
    return fitted, refused


def _values_of_law(law: Law) -> dict[str, float]:
    return {key: getattr(law, key) for key in ("E", "A", "alpha", "B", "beta")} | {
        "parametric law a": law.params_exponent,
        "parametric law b": law.tokens_exponent,
    }


def predict(config, runs: Sequence[Run], folder, samples: int = 100) -> dict:
    """Predicts the loss of a run with `config` by the parametric law.

    Writes the prediction to `folder`/prediction.json and returns it. Raises UserError if the
    held-out run has already been started, because it would not be a prediction then.
    """
    folder = buckets.folder_of_run(folder)
    if (folder / HELD_OUT / "config.json").exists():
        raise UserError(
            f"{folder / HELD_OUT} has been started already: a prediction must be made before the "
            "run; use another --workdir"
        )
    task = make_task(config)
    law = parametric(runs)
    params = task.parameter_counts()["params"]
    flops, tokens = estimate.training(task)

    # Each bootstrap sample of the runs gives a law, and so a prediction. Its spread includes the
    # correlation of the five values, which their own intervals do not show.
    def loss(drawn):
        return {"loss": float(parametric(drawn, near=law)(params, tokens))}

    prediction = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "params": params,
        "tokens": tokens,
        "flops": flops,
        "loss": float(law(params, tokens)),
        "interval": bootstrap(runs, loss, samples).get("loss"),
        "law": dataclasses.asdict(law),
        "fitted_to": [run.name for run in runs],
    }
    # Atomic, because the file proves that the prediction came first, and a broken one would block
    # `run --held_out`.
    write_whole(folder / PREDICTION, json.dumps(prediction, indent=2) + "\n")
    interval = " [{:.4f}, {:.4f}]".format(*prediction["interval"]) if prediction["interval"] else ""
    say(
        f"{folder / PREDICTION}: N {params:,}, D {tokens:,}: loss {prediction['loss']:.4f}"
        f"{interval}"
    )
    return prediction


def predicted(folder) -> dict:
    """Returns the prediction in `folder`. Raises UserError if there is none."""
    path = buckets.folder_of_run(folder) / PREDICTION
    if not path.is_file():
        raise UserError(
            f"{path}: nothing has been predicted; run `predict` before the held-out run is trained"
        )
    return json.loads(path.read_text())


def check(folder, files: Files = NO_FILES) -> dict:
    """Returns the prediction and the measurement of the held-out run.

    `files` is passed on to `runs.measured`. Raises UserError if one of the two is missing.
    """
    folder = buckets.folder_of_run(folder)
    prediction = predicted(folder)
    run = measured(folder / HELD_OUT, files)
    if run is None:
        raise UserError(f"{folder / HELD_OUT}: not finished; `run --held_out` trains it")
    low, high = prediction["interval"] or (None, None)
    return {
        "predicted": prediction["loss"],
        "measured": run.loss,
        "relative_error": prediction["loss"] / run.loss - 1,
        "interval": prediction["interval"],
        # There is no interval if too many bootstrap samples were refused.
        "within_interval": low is not None and low <= run.loss <= high,
        "params": run.params,
        "tokens": run.tokens,
        "flops": run.flops,
        "predicted_at": prediction["time"],
    }
