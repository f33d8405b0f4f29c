"""Pictures of a family's runs and of the laws fitted to them, as PNG."""

import json
import pathlib
import tempfile

import numpy as np

from transformer_jax.scaling import laws
from transformer_jax.scaling.family import HELD_OUT
from transformer_jax.scaling.fits import AXES, PREDICTION, Fits
from transformer_jax.scaling.runs import measured
from transformer_jax.storage import buckets

_LABELS = {"params": "parameters N", "tokens": "tokens D", "flops": "compute C, FLOPs"}


def draw(runs: list[laws.Run], fits: Fits, folder) -> list:
    """laws.png: L(N), L(D) and L(C). optimum.png: the three approaches to the compute-optimal
    model, with the held-out run where there is one. Returns their paths.
    """
    return [
        _saved(_laws(runs, fits), folder, "laws.png"),
        _saved(_optimum(runs, fits, folder), folder, "optimum.png"),
    ]


def _laws(runs, fits):
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(15, 4.5), layout="constrained")
    sizes = _colours(runs)
    for axes, (name, of) in zip(figure.subplots(1, 3), AXES.items()):
        if of == "flops":
            for run in runs:
                axes.plot(
                    run.curve[:, 0],
                    run.curve[:, 1],
                    color=sizes[run.params],
                    alpha=0.25,
                    linewidth=1,
                )
        for run in runs:
            axes.plot(getattr(run, of), run.loss, "o", color=sizes[run.params])
        if law := fits.power_laws.get(name):
            best = laws.frontier(runs, of)
            at = np.geomspace(getattr(best[0], of), getattr(best[-1], of))
            axes.plot(
                at,
                law(at),
                "k--",
                label=f"{law.coefficient:.3g} {name[2]}$^{{{law.exponent:.3f}}}$, $R^2$ {law.r2:.3f}",
            )
        axes.set(
            title=name, xlabel=_LABELS[of], ylabel="loss, nats a token", xscale="log", yscale="log"
        )
        if of == "flops":
            axes.set_ylim(top=1.15 * max(run.loss for run in runs))
        _finish(axes)
    return figure


def _optimum(runs, fits, folder):
    from matplotlib.figure import Figure

    drawn = laws.parabolas(runs)
    figure = Figure(figsize=(15 if drawn else 10, 4.5), layout="constrained")
    *by_size, best, by_law = figure.subplots(1, 3 if drawn else 2)
    sizes = _colours(runs)
    if drawn:  # runs at equal compute
        _parabolas(by_size[0], drawn)

    at = np.geomspace(min(run.flops for run in runs), max(run.flops for run in runs))
    for name, one in fits.allocations.items():
        found = best.plot(one.points[:, 0], one.points[:, 1], "o")[0]
        best.plot(
            at,
            one.params(at),
            color=found.get_color(),
            label=f"{name}: C$^{{{one.params.exponent:.2f}}}$",
        )
    best.plot(
        at,
        [fits.law.optimum(flops)[0] for flops in at],
        label=f"parametric law: C$^{{{fits.law.params_exponent:.2f}}}$",
    )
    best.set(
        title="the best size for a budget",
        xlabel=_LABELS["flops"],
        ylabel=_LABELS["params"],
        xscale="log",
        yscale="log",
    )

    for size in sorted(sizes):
        own = sorted((run.tokens, run.loss) for run in runs if run.params == size)
        tokens = np.geomspace(own[0][0], own[-1][0])
        by_law.plot(*zip(*own), "o", color=sizes[size], label=f"N {size:,}")
        by_law.plot(tokens, fits.law(size, tokens), color=sizes[size], linewidth=1)
    _held_out(by_law, buckets.folder_of_run(folder))
    by_law.set(
        title=f"L(N, D), $R^2$ {fits.law.r2:.3f}",
        xlabel=_LABELS["tokens"],
        ylabel="loss, nats a token",
        xscale="log",
        yscale="log",
    )
    for axes in (*by_size, best, by_law):
        _finish(axes)
    return figure


def _parabolas(axes, drawn):
    for one in drawn:
        found = axes.plot(
            [run.params for run in one.runs],
            [run.loss for run in one.runs],
            "o",
            label=f"{one.flops:.2g} FLOPs",
        )[0]
        at = np.geomspace(one.runs[0].params, one.runs[-1].params)
        axes.plot(
            at, np.polyval(one.coefficients, np.log(at)), color=found.get_color(), linewidth=1
        )
        if one.best:
            axes.plot(
                one.best,
                np.polyval(one.coefficients, np.log(one.best)),
                "v",
                color=found.get_color(),
            )
    axes.set(
        title="loss at equal compute",
        xlabel=_LABELS["params"],
        ylabel="loss, nats a token",
        xscale="log",
    )


def _held_out(axes, folder):
    """What was predicted, with its interval, and what was measured then."""
    if (folder / PREDICTION).is_file():
        found = json.loads((folder / PREDICTION).read_text())
        low, high = found["interval"] or (found["loss"], found["loss"])
        axes.errorbar(
            found["tokens"],
            found["loss"],
            [[max(found["loss"] - low, 0)], [max(high - found["loss"], 0)]],
            fmt="s",
            color="red",
            mfc="none",
            capsize=4,
            label=f"predicted, N {found['params']:,}",
        )
    if run := measured(folder / HELD_OUT):
        axes.plot(run.tokens, run.loss, "r*", markersize=12, label="measured")


def _colours(runs) -> dict:
    from matplotlib import colormaps

    sizes = sorted({run.params for run in runs})
    return {
        size: colormaps["viridis"](i / max(len(sizes) - 1, 1) * 0.9) for i, size in enumerate(sizes)
    }


def _finish(axes) -> None:
    from matplotlib.ticker import (
        EngFormatter,
        LogFormatterSciNotation,
        LogLocator,
        NullFormatter,
        ScalarFormatter,
    )

    for axis, label in ((axes.xaxis, axes.get_xlabel()), (axes.yaxis, axes.get_ylabel())):
        if axis.get_scale() != "log":
            continue
        low, high = axis.get_view_interval()
        if label.startswith("loss"):  # less than a decade: plain numbers
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_formatter(ScalarFormatter())
            continue
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axis.set_major_formatter(
            LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf))
            if label == _LABELS["flops"]
            else EngFormatter()
        )
        axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3, which="both")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _saved(figure, folder, name: str):
    path = buckets.folder_of_run(folder) / name
    with tempfile.TemporaryDirectory() as local:  # a bucket takes whole files
        figure.savefig(drawn := pathlib.Path(local) / name, dpi=100)
        path.write_bytes(drawn.read_bytes())
    return path
