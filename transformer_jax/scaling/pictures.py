"""Figures of the runs of a family, and of the laws fitted to them, as PNG files."""

import json

import numpy as np

from transformer_jax.pictures.figure import COLORS, save, style
from transformer_jax.runs.spec import Files
from transformer_jax.scaling import laws
from transformer_jax.scaling.family import HELD_OUT
from transformer_jax.scaling.fits import AXES, PREDICTION, Fits
from transformer_jax.scaling.runs import NO_FILES, measured
from transformer_jax.storage import buckets

_LABELS = {"params": "parameters N", "tokens": "tokens D", "flops": "compute C, FLOPs"}
_LOSS = "loss, nats a token"


def draw(runs: list[laws.Run], fits: Fits, folder, files: Files = NO_FILES) -> list:
    """Draws two figures into `folder`, and returns the paths of their files.

    laws.png shows L(N), L(D) and L(C). optimum.png shows the three approaches to the
    compute-optimal model, and the held-out run if there is one. `files` is passed on to
    `runs.measured`.
    """
    return [
        _saved(_laws(runs, fits), folder, "laws.png"),
        _saved(_optimum(runs, fits, folder, files), folder, "optimum.png"),
    ]


def _laws(runs, fits):
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(15, 5.2), layout="constrained")
    colors = _colors(runs)
    for axes, (name, quantity) in zip(figure.subplots(1, 3), AXES.items()):
        if quantity == "flops":
            for run in runs:
                flops, losses = run.curve.T
                axes.plot(flops, losses, color=colors[run.params], alpha=0.25, linewidth=1)
        for run in runs:
            axes.plot(getattr(run, quantity), run.loss, "o", color=colors[run.params])
        if quantity == "tokens":  # a legend of the colors, once
            for size, color in colors.items():
                axes.plot([], [], "o", color=color, label=f"N {size:,}")
        if law := fits.power_laws.get(name):
            best = laws.frontier(runs, quantity)
            x = np.geomspace(getattr(best[0], quantity), getattr(best[-1], quantity))
            label = f"{law.coefficient:.3g} {name[2]}$^{{{law.exponent:.3f}}}$"
            axes.plot(x, law(x), "k--", label=f"{label}, $R^2$ {law.r2:.3f}")
        axes.set(title=name, xlabel=_LABELS[quantity], ylabel=_LOSS, xscale="log", yscale="log")
        if quantity == "flops":
            # The curves start at the loss of a random model, which would squeeze the rest.
            axes.set_ylim(top=1.15 * max(run.loss for run in runs))
        _finish(axes)
    return figure


def _optimum(runs, fits, folder, files):
    from matplotlib.figure import Figure

    parabolas = laws.parabolas(runs)
    figure = Figure(figsize=(15 if parabolas else 10, 5.2), layout="constrained")
    panels = figure.subplots(1, 3 if parabolas else 2)
    if parabolas:
        _parabolas(panels[0], parabolas)
    _best_sizes(panels[-2], runs, fits)
    _parametric_law(panels[-1], runs, fits, buckets.folder_of_run(folder), files)
    for axes in panels:
        _finish(axes)
    return figure


def _parabolas(axes, parabolas):
    """Draws the loss by size at each budget, with the parabolas and their minima."""
    for number, parabola in enumerate(parabolas):
        sizes = [run.params for run in parabola.runs]
        losses = [run.loss for run in parabola.runs]
        look = style(number)
        color = look["color"]
        points = {"color": color, "marker": look["marker"], "linestyle": ""}
        axes.plot(sizes, losses, label=f"{parabola.flops:.2g} FLOPs", **points)
        x = np.geomspace(sizes[0], sizes[-1])
        axes.plot(x, np.polyval(parabola.coefficients, np.log(x)), color=color, linewidth=1)
        if parabola.best:
            lowest = np.polyval(parabola.coefficients, np.log(parabola.best))
            axes.plot(parabola.best, lowest, "v", color=color)
    axes.set(title="loss at equal compute", xlabel=_LABELS["params"], ylabel=_LOSS, xscale="log")


def _best_sizes(axes, runs, fits):
    """Draws the compute-optimal size by budget, according to each approach."""
    flops = np.geomspace(min(run.flops for run in runs), max(run.flops for run in runs))
    for number, (name, allocation) in enumerate(fits.allocations.items()):
        look = style(1 + number)
        points = look | {"linestyle": ""}
        axes.plot(allocation.points[:, 0], allocation.points[:, 1], **points)
        axes.plot(
            flops,
            allocation.params(flops),
            color=look["color"],
            label=f"{name}: C$^{{{allocation.params.exponent:.2f}}}$",
        )
    axes.plot(
        flops,
        [fits.law.optimum(budget)[0] for budget in flops],
        "--",
        color=COLORS[0],
        label=f"parametric law: C$^{{{fits.law.params_exponent:.2f}}}$",
    )
    axes.set(
        title="the best size for a budget",
        xlabel=_LABELS["flops"],
        ylabel=_LABELS["params"],
        xscale="log",
        yscale="log",
    )


def _parametric_law(axes, runs, fits, folder, files):
    """Draws L(N, D) as a function of D for each size, and the held-out run."""
    for size, color in _colors(runs).items():
        points = sorted((run.tokens, run.loss) for run in runs if run.params == size)
        tokens = np.geomspace(points[0][0], points[-1][0])
        axes.plot(*zip(*points), "o", color=color, label=f"N {size:,}")
        axes.plot(tokens, fits.law(size, tokens), color=color, linewidth=1)
    _held_out(axes, folder, files)
    axes.set(
        title=f"L(N, D), $R^2$ {fits.law.r2:.3f}",
        xlabel=_LABELS["tokens"],
        ylabel=_LOSS,
        xscale="log",
        yscale="log",
    )


def _held_out(axes, folder, files):
    """Draws the prediction for the held-out run with its interval, and the measurement."""
    if (folder / PREDICTION).is_file():
        prediction = json.loads((folder / PREDICTION).read_text())
        loss = prediction["loss"]
        low, high = prediction["interval"] or (loss, loss)
        axes.errorbar(
            prediction["tokens"],
            loss,
            # Matplotlib refuses negative lengths, but a bootstrap interval need not contain the
            # fit.
            [[max(loss - low, 0)], [max(high - loss, 0)]],
            fmt="s",
            color=COLORS[1],
            mfc="none",
            capsize=4,
            label=f"predicted, N {prediction['params']:,}",
        )
    if run := measured(folder / HELD_OUT, files):
        axes.plot(run.tokens, run.loss, "*", color=COLORS[1], markersize=12, label="measured")


def _colors(runs) -> dict:
    """Returns a color for each size, in ascending order of size."""
    from matplotlib import colormaps

    # The last tenth of the map is left out: a yellow that is hard to see on white.
    sizes = sorted({run.params for run in runs})
    return {
        size: colormaps["viridis"](i / max(len(sizes) - 1, 1) * 0.9) for i, size in enumerate(sizes)
    }


def _finish(axes) -> None:
    from matplotlib.ticker import (
        EngFormatter,
        LogFormatterSciNotation,
        LogLocator,
        MaxNLocator,
        NullFormatter,
        NullLocator,
        ScalarFormatter,
    )

    for axis, label in ((axes.xaxis, axes.get_xlabel()), (axes.yaxis, axes.get_ylabel())):
        if axis.get_scale() != "log":
            continue
        low, high = axis.get_view_interval()
        if label == _LOSS:
            # A loss spans less than a decade, in which a logarithmic axis has too few ticks, and
            # plain numbers are clearer.
            axis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_locator(NullLocator())
            continue
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axis.set_major_formatter(
            LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf))
            if label == _LABELS["flops"]
            else EngFormatter()
        )
        # The labels of minor ticks would overlap.
        axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3, which="both")
    if axes.get_legend_handles_labels()[0]:
        # Below the panel, where it covers no run.
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def _saved(figure, folder, name: str):
    path = buckets.folder_of_run(folder) / name
    save(figure, path)
    return path
