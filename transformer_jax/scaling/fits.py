"""All that is fitted to a family's runs, with its intervals; and what is predicted by it before it
is trained.
"""

import dataclasses
import datetime
import functools
import json
from collections.abc import Sequence

from transformer_jax.config import UserError
from transformer_jax.pictures.progress import say
from transformer_jax.planning import counts
from transformer_jax.runs.resolve import make_task
from transformer_jax.scaling import laws
from transformer_jax.scaling.family import HELD_OUT
from transformer_jax.scaling.laws import Allocation, Law, PowerLaw, Run
from transformer_jax.scaling.runs import measured
from transformer_jax.storage import buckets

AXES = {"L(N)": "params", "L(D)": "tokens", "L(C)": "flops"}
# the third, "parametric law", follows from the law itself
APPROACHES = {"training curves": laws.envelope, "iso-FLOP parabolas": laws.isoflop}
PREDICTION = "prediction.json"


@dataclasses.dataclass(frozen=True)
class Fits:
    """`intervals`: 80 %, by name ("L(N) exponent", "alpha", "iso-FLOP parabolas a", ...); what
    could not be fitted is missing, and `refused` says why.
    """

    power_laws: dict[str, PowerLaw]
    law: Law
    allocations: dict[str, Allocation]
    intervals: dict[str, tuple[float, float]]
    refused: dict[str, str]

    def record(self) -> dict:
        """As JSON has it. a and b are the exponents of N_opt and D_opt by compute."""
        of = lambda *names: {
            name: [float(f"{x:.6g}") for x in self.intervals[name]]
            for name in names
            if name in self.intervals
        }
        found = {
            name: {**dataclasses.asdict(law), "intervals": of(f"{name} exponent")}
            for name, law in self.power_laws.items()
        }
        found["L(N, D)"] = {
            **dataclasses.asdict(self.law),
            "intervals": of("E", "A", "alpha", "B", "beta"),
        }
        optimal = {
            name: {
                "a": one.params.exponent,
                "b": one.tokens.exponent,
                "intervals": of(f"{name} a", f"{name} b"),
            }
            for name, one in self.allocations.items()
        }
        optimal["parametric law"] = {
            "a": self.law.params_exponent,
            "b": self.law.tokens_exponent,
            "intervals": of("parametric law a", "parametric law b"),
        }
        return {**found, "compute-optimal": optimal, "refused": self.refused}

    def lines(self) -> list[str]:
        """For people."""
        within = lambda name: (
            "" if name not in self.intervals else "  [{:.3g}, {:.3g}]".format(*self.intervals[name])
        )
        found = ["[80 % intervals, by bootstrap over the runs]"]
        for name, law in self.power_laws.items():
            found.append(
                f"{name} = {law.coefficient:.4g} {name[2]}^{law.exponent:.4f}{within(f'{name} exponent')}   R^2 {law.r2:.4f}"
            )
        law = self.law
        found.append(
            f"L(N, D) = {law.E:.4g} + {law.A:.4g} / N^{law.alpha:.4f} + {law.B:.4g} / D^{law.beta:.4f}   R^2 {law.r2:.4f}"
        )
        found += [f"  {name}{within(name)}" for name in ("E", "alpha", "beta")]
        for name, one in self.allocations.items():
            found.append(
                f"{name}: N_opt ~ C^{one.params.exponent:.3f}{within(f'{name} a')}, D_opt ~ C^{one.tokens.exponent:.3f}{within(f'{name} b')}"
            )
        found.append(
            f"parametric law: N_opt ~ C^{law.params_exponent:.3f}{within('parametric law a')}, D_opt ~ C^{law.tokens_exponent:.3f}{within('parametric law b')}"
        )
        return found + list(self.refused.values())


def fit(runs: Sequence[Run], samples: int = 100, seed: int = 0) -> Fits:
    """Every law of the runs; `samples` draws for the intervals. Raises UserError where there are
    too few runs for the parametric law.
    """
    law, power_laws, allocations, refused = laws.parametric(runs), {}, {}, {}
    power_law = {name: functools.partial(laws.loss_law, of=of) for name, of in AXES.items()}
    for found, ways in ((power_laws, power_law), (allocations, APPROACHES)):
        for name, way in ways.items():
            try:
                found[name] = way(runs)
            except UserError as error:
                refused[name] = f"{name}: {error}"
    intervals = laws.bootstrap(
        runs, lambda drawn: _of_law(laws.parametric(drawn, near=law)), samples, seed
    )
    for name in power_laws:
        intervals |= laws.bootstrap(
            runs, lambda drawn: {f"{name} exponent": power_law[name](drawn).exponent}, samples, seed
        )
    for name in allocations:
        intervals |= laws.bootstrap(
            runs, lambda drawn: _exponents(name, APPROACHES[name](drawn)), samples, seed
        )
    return Fits(power_laws, law, allocations, intervals, refused)


def _of_law(law: Law) -> dict[str, float]:
    return {key: getattr(law, key) for key in ("E", "A", "alpha", "B", "beta")} | {
        "parametric law a": law.params_exponent,
        "parametric law b": law.tokens_exponent,
    }


def _exponents(name: str, found: Allocation) -> dict[str, float]:
    return {f"{name} a": found.params.exponent, f"{name} b": found.tokens.exponent}


def predict(config, runs: Sequence[Run], folder, samples: int = 100) -> dict:
    """Writes down, in `folder`/prediction.json, the loss that the parametric law expects of the run
    of `config`; returns what was written.

    Raises UserError once that run has begun: a prediction is made before.
    """
    folder = buckets.folder_of_run(folder)
    if (folder / HELD_OUT / "config.json").exists():
        raise UserError(
            f"{folder / HELD_OUT} has begun: what is predicted after that is no prediction"
        )
    task = make_task(config)
    law, params, (flops, tokens) = (
        laws.parametric(runs),
        counts.parameters(task)["params"],
        counts.training(task),
    )
    interval = laws.bootstrap(
        runs,
        lambda drawn: {"loss": float(laws.parametric(drawn, near=law)(params, tokens))},
        samples,
    )
    found = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "params": params,
        "tokens": tokens,
        "flops": flops,
        "loss": float(law(params, tokens)),
        "interval": interval.get("loss"),
        "law": dataclasses.asdict(law),
        "fitted_to": [run.name for run in runs],
    }
    buckets.write(folder / PREDICTION, json.dumps(found, indent=2) + "\n")
    say(
        f"{folder / PREDICTION}: N {params:,}, D {tokens:,}: loss {found['loss']:.4f}"
        + (" [{:.4f}, {:.4f}]".format(*found["interval"]) if found["interval"] else "")
    )
    return found


def predicted(folder) -> dict:
    """What has been predicted in `folder`. Raises UserError where nothing has."""
    path = buckets.folder_of_run(folder) / PREDICTION
    if not path.is_file():
        raise UserError(
            f"{path}: nothing has been predicted yet; `predict` does, before the held-out run is trained"
        )
    return json.loads(path.read_text())


def check(folder) -> dict:
    """The prediction beside what the held-out run measured. Raises UserError where one of them is
    missing.
    """
    folder = buckets.folder_of_run(folder)
    before, run = predicted(folder), measured(folder / HELD_OUT)
    if run is None:
        raise UserError(f"{folder / HELD_OUT}: not finished; `run --held_out` trains it")
    low, high = before["interval"] or (None, None)
    return {
        "predicted": before["loss"],
        "measured": run.loss,
        "relative_error": before["loss"] / run.loss - 1,
        "interval": before["interval"],
        "within_interval": low is not None and low <= run.loss <= high,
        "params": run.params,
        "tokens": run.tokens,
        "flops": run.flops,
        "predicted_at": before["time"],
    }
