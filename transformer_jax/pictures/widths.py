"""Figures of muP: changes of activations by width, and losses by learning rate."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_jax.pictures.figure import COLORS, new_figure, style

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure

_PANELS = ("muP", "standard")


def coordinates(result: Mapping[str, Any]) -> "Figure":
    """Returns a figure of the changes after the last update, by width, a line an activation.

    `result` is that of `scaling.coordinates.check`. The logits are drawn in red.
    """
    figure = new_figure((11, 4.5), "How much activations change in the first updates")
    ending = re.compile(rf", update {result['updates']}$")
    for axes, name in zip(figure.subplots(1, 2, sharey=True), _PANELS):
        changes = result[name]["changes"]
        for activation in sorted(set.intersection(*({*found} for found in changes.values()))):
            if ending.search(activation):
                is_logits = re.match(r"logits \d", activation) is not None
                axes.loglog(
                    [int(width) for width in changes],
                    [np.exp(found[activation]) for found in changes.values()],
                    color=COLORS[1] if is_logits else "0.6",
                    linewidth=2.5 if is_logits else 0.8,
                    label="logits" if is_logits else None,
                )
        axes.set_title(f"{name}: steepest slope {result[name]['largest']:+.2f}")
        axes.set_xlabel("d_model")
        axes.set_xticks(result["widths"], [str(width) for width in result["widths"]])
        axes.minorticks_off()
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left")
    figure.axes[0].set_ylabel(f"root mean square of the change after {result['updates']} updates")
    return figure


def transfer(result: Mapping[str, Any]) -> "Figure":
    """Returns a figure of the losses by learning rate, a line a width; stars are the best rates.

    `result` is that of `scaling.transfer.measure`.
    """
    figure = new_figure((11, 4.5), "Loss of held-out rows by learning rate")
    for axes, name in zip(figure.subplots(1, 2, sharey=True), _PANELS):
        own = result[name]
        for number, (width, losses) in enumerate(own["losses"].items()):
            # A rate at which a run has diverged has no mean.
            known = [
                (float(rate), values)
                for rate, values in losses.items()
                if values and None not in values
            ]
            if not known:
                continue
            look = style(number)
            rates = [rate for rate, _ in known]
            axes.plot(rates, [np.mean(values) for _, values in known], label=str(width), **look)
            spread = [value for _, values in known for value in values]
            at = [rate for rate, values in known for _ in values]
            axes.plot(at, spread, ".", color=look["color"], alpha=0.4)
            if best := own["best"][width]:
                axes.plot(best["rate"], best["loss"], "*", color=look["color"], markersize=15)
        axes.set_xscale("log", base=2)
        rates = result["rates"]
        axes.set_xticks(rates, [f"{rate:.2g}" for rate in rates], fontsize=8)
        axes.set_title(name)
        axes.set_xlabel("learning rate")
        axes.legend(title="d_model")
    figure.axes[0].set_ylabel("loss")
    return figure
