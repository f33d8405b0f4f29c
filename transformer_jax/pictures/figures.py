"""Pictures of what models do and have learned, as matplotlib figures. A notebook shows them; `save`
writes them.
"""

import os
import pathlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.pictures.attended import Attended

if TYPE_CHECKING:  # slow to import: a program that draws nothing does without
    from matplotlib.figure import Figure

# Panels of learning curves, by the last part of a metric's name: of every run, and of its scores
_PANELS = {
    "loss": ("loss", "nll", "nsp_loss", "lm_loss"),
    "accuracy": ("accuracy", "nsp_accuracy"),
    "learning rate": ("learning_rate",),
    "norms": ("grad_norm", "update_norm"),
}
_SCORES = {
    "BLEU and chrF": ("bleu", "chrf"),
    "perplexity": ("perplexity",),
    "bits per byte and character": ("bits_per_byte", "bits_per_character"),
    "F1": ("f1", "best_f1", "macro_f1", "precision", "recall"),
    "exact match": ("exact_match", "best_exact_match"),
    "correlation": ("matthews", "pearson", "spearman"),
}
_COLOURS = "Blues"  # of weights: none is white


def save(figure: "Figure", path: str | pathlib.Path) -> None:
    """The figure as a PNG file, which appears whole. Raises UserError where it can't be written."""
    path = pathlib.Path(path)
    half = path.with_name(f".{path.name}.half")
    try:
        figure.savefig(half, dpi=120, format="png")
        os.replace(half, path)
    except OSError as error:
        raise UserError(f"{path}: can't be written ({error.strerror or error})") from None


def attention(
    found: Attended, layer: int | None = None, head: int | None = None, title: str = ""
) -> "Figure":
    """Every layer and head at a glance; with `layer`, its heads with the words; with `head` too,
    one alone. Both are numbered from 1.

    Raises UserError for a layer or head that there is not.
    """
    depth, num_heads = found.weights.shape[:2]
    for name, number, count in (("layer", layer, depth), ("head", head, num_heads)):
        if number is not None and not 1 <= number <= count:
            raise UserError(f"{name} {number}: there are 1 to {count}")
    if layer is None and head is not None:
        raise UserError(f"head {head}: of which layer?")
    if layer is None:
        return _glance(found, title)
    heads = range(num_heads) if head is None else [head - 1]
    return _grid(
        [
            (f"layer {layer}, head {number + 1}", found.weights[layer - 1, number])
            for number in heads
        ],
        found.queries,
        found.keys,
        title,
    )


def mean_attention(found: Attended, title: str = "") -> "Figure":
    """The mean of all layers and heads."""
    return _grid([("", found.weights.mean(axis=(0, 1)))], found.queries, found.keys, title)


def _glance(found: Attended, title: str) -> "Figure":
    depth, num_heads, rows, columns = found.weights.shape
    figure = _figure(
        (1.5 + 1.25 * num_heads * min(max(columns / rows, 0.6), 1.6), 1 + 1.25 * depth), title
    )
    grid = figure.subplots(depth, num_heads, squeeze=False)
    for (layer, head), axes in np.ndenumerate(grid):
        image = axes.imshow(
            found.weights[layer, head],
            cmap=_COLOURS,
            vmin=0,
            vmax=1,
            aspect="auto",
            interpolation="nearest",
        )
        axes.set(xticks=[], yticks=[])
        if layer == 0:
            axes.set_title(f"head {head + 1}", fontsize=9)
        if head == 0:
            axes.set_ylabel(f"layer {layer + 1}", fontsize=9)
    figure.colorbar(image, ax=grid, label="attention weight", shrink=0.8, aspect=30)
    figure.supxlabel("keys, from the first word to the last", fontsize=9)
    figure.supylabel("queries", fontsize=9)
    return figure


def _grid(
    panels: Sequence[tuple[str, np.ndarray]],
    queries: Sequence[str],
    keys: Sequence[str],
    title: str,
) -> "Figure":
    """Weights (Q, K) as heat maps with the words on both axes, in rows of up to four."""
    across = min(len(panels), 4 if len(keys) <= 16 else 2)
    down = -(-len(panels) // across)
    longest = max(map(len, [*queries, *keys])) * 0.07
    figure = _figure(
        (
            1 + across * (0.3 * len(keys) + longest + 0.3),
            1 + down * (0.26 * len(queries) + longest + 0.4),
        ),
        title,
    )
    grid = figure.subplots(down, across, squeeze=False)
    most = max(weights.max() for _, weights in panels)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (name, weights) in zip(grid.flat, panels):
        image = axes.imshow(weights, cmap=_COLOURS, vmin=0, vmax=most, aspect="auto")
        axes.set_xticks(
            range(len(keys)),
            map(_verbatim, keys),
            rotation=60,
            ha="left",
            rotation_mode="anchor",
            fontsize=9,
        )
        axes.set_yticks(range(len(queries)), map(_verbatim, queries), fontsize=9)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_xlabel(name, fontsize=10)
    figure.colorbar(image, ax=grid, label="attention weight", shrink=0.8, aspect=30)
    return figure


def attended_by(word: str, pair: Sequence[tuple[str, Attended]], title: str = "") -> "Figure":
    """What `word` attends to in each of several texts, side by side: a row for each head of each
    layer. Raises UserError where a text lacks the word, or has it twice.
    """
    figure = _figure(
        (
            1.6 + sum(0.42 * len(found.keys) + 0.3 for _, found in pair),
            2 + 0.3 * pair[0][1].weights[:, :, 0, 0].size,
        ),
        title,
    )
    grid = figure.subplots(
        1, len(pair), squeeze=False, width_ratios=[len(found.keys) for _, found in pair]
    )[0]
    rows = [
        found.weights[:, :, place_of(word, found.queries, text)].reshape(-1, len(found.keys))
        for text, found in pair
    ]
    for axes, (text, found), weights in zip(grid, pair, rows):
        num_heads = found.weights.shape[1]
        image = axes.imshow(
            weights, cmap=_COLOURS, vmin=0, vmax=max(each.max() for each in rows), aspect="auto"
        )
        axes.set_xticks(
            range(len(found.keys)),
            map(_verbatim, found.keys),
            rotation=60,
            ha="left",
            rotation_mode="anchor",
            fontsize=10,
        )
        axes.set_yticks(
            range(len(weights)),
            [
                f"layer {row // num_heads + 1}, head {row % num_heads + 1}"
                for row in range(len(weights))
            ]
            if axes is grid[0]
            else [""] * len(weights),
            fontsize=9,
        )
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.get_xticklabels()[place_of(word, found.queries, text)].set_fontweight("bold")
        axes.hlines(
            np.arange(num_heads, len(weights), num_heads) - 0.5,
            -0.5,
            len(found.keys) - 0.5,
            color="grey",
            linewidth=0.8,
        )
        axes.set_xlabel(_verbatim(text), fontsize=9)
    figure.colorbar(image, ax=grid, label=_verbatim(f'weight from "{word}"'), shrink=0.8, aspect=30)
    return figure


def place_of(word: str, words: Sequence[str], text: str) -> int:
    """Where the word stands among `words`, whatever its case and punctuation."""
    bare = lambda each: each.strip(".,;:!?\"'()").lower()
    places = [place for place, each in enumerate(words) if bare(each) == bare(word)]
    if len(places) != 1:
        raise UserError(
            f"{word!r} is {'twice or more' if places else 'not'} among the words of {text!r}: {' '.join(words)}"
        )
    return places[0]


def positions(vectors: np.ndarray, title: str) -> "Figure":
    """Vectors of positions (L, M): the vectors themselves, and the dot product of each with each;
    how it falls with the distance.
    """
    figure = _figure((14, 4.4), title)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
    most = np.abs(vectors).max()
    figure.colorbar(
        left.imshow(
            vectors, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
        ),
        ax=left,
    )
    left.set(title="the vectors", xlabel="dimension", ylabel="position")
    products = vectors @ vectors.T
    figure.colorbar(middle.imshow(products, cmap="viridis", interpolation="nearest"), ax=middle)
    middle.set(title="their dot products", xlabel="position", ylabel="position")
    for place in sorted({0, len(vectors) // 2, len(vectors) - 1}):
        right.plot(
            np.arange(len(vectors)) - place,
            products[place],
            label=f"of position {place}",
            linewidth=1.2,
        )
    right.set(title="dot product by distance", xlabel="distance", ylabel="dot product")
    right.grid(alpha=0.3)
    right.legend(fontsize=8)
    return figure


def similarity(vectors: np.ndarray, title: str) -> "Figure":
    """Learned vectors of positions (L, M): the cosine of each with each, how it falls with the
    distance, and how few directions they vary in.

    The first as in Wang & Chen 2020, figure 1.
    """
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines, length = unit @ unit.T, len(vectors)
    figure = _figure((14, 4.4), title)
    left, middle, right = figure.subplots(1, 3)
    figure.colorbar(
        left.imshow(cosines, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest"), ax=left
    )
    left.set(title="cosine of positions", xlabel="position", ylabel="position")
    distances = np.arange(1, length)
    along = [np.diagonal(cosines, distance) for distance in distances]
    mean, deviation = (
        np.array([function(each) for each in along]) for function in (np.mean, np.std)
    )
    middle.plot(distances, mean)
    middle.fill_between(distances, mean - deviation, mean + deviation, alpha=0.2)
    middle.set(
        title="cosine by distance, mean and deviation",
        xlabel="distance",
        ylabel="cosine",
        ylim=(-1.05, 1.05),
    )
    variances = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False) ** 2
    right.plot(np.arange(1, len(variances) + 1), np.cumsum(variances) / max(variances.sum(), 1e-12))
    right.set(
        title="share of the variance in the first components",
        xlabel="components",
        ylabel="share",
        ylim=(0, 1.05),
    )
    for axes in (middle, right):
        axes.grid(alpha=0.3)
    return figure


def masks(shown: Mapping[str, np.ndarray], title: str = "") -> "Figure":
    """Which keys each query sees, bool (Q, K) by name: seen is dark."""
    figure = _figure((1 + 2.9 * len(shown), 3.6), title)
    for axes, (name, seen) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items()):
        axes.imshow(seen, cmap=_COLOURS, vmin=0, vmax=1.3)
        axes.set_title(name, fontsize=10)
        axes.set(
            xlabel="key",
            ylabel="query",
            xticks=range(0, seen.shape[1], 3),
            yticks=range(0, seen.shape[0], 3),
        )
        axes.set_xticks(np.arange(0.5, seen.shape[1] - 1), minor=True)
        axes.set_yticks(np.arange(0.5, seen.shape[0] - 1), minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="both", length=0)
    return figure


def curves(
    runs: Mapping[str, Sequence[dict]],
    panels: Mapping[str, Sequence[str]] | None = None,
    against: str = "step",
    title: str = "",
) -> "Figure":
    """Learning curves of runs by name, each the lines of its metrics.jsonl, in panels of metrics
    (by the end of their names).

    The default panels are losses, accuracies, learning rate, norms and every evaluated score.
    `against`: "step", or what the lines count, such as "train/tokens_total". Where there are
    several runs, each has a colour and training is dotted.
    """
    panels = panels or _PANELS | _score_panels(runs.values())
    figure = _figure((12, 3.6 * -(-len(panels) // 2)), title)
    grid = figure.subplots(-(-len(panels) // 2), min(len(panels), 2), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (panel, endings) in zip(grid.flat, panels.items()):
        drawn = 0
        for number, (run, lines) in enumerate(runs.items()):
            names = sorted(
                {
                    name
                    for line in lines
                    for name in line
                    if name in endings or name.rpartition("/")[2] in endings
                }
            )
            for name in names:
                drawn += 1
                x, y = _points(lines, name, against)
                style = (
                    dict(
                        color=f"C{number % 10}", linestyle=":" if name.startswith("train/") else "-"
                    )
                    if len(runs) > 1
                    else {}
                )
                axes.plot(
                    x,
                    y,
                    label=_verbatim(" ".join(filter(None, (run, name)))),
                    marker="." if len(x) < 50 else None,
                    **style,
                )
        wide = panel == "norms" or panel == "perplexity" and drawn and _spans_decade(axes)
        axes.set(title=panel, xlabel=against, yscale="log" if drawn and wide else "linear")
        axes.grid(alpha=0.3)
        if drawn:
            axes.legend(fontsize=8)
    return figure


def _spans_decade(axes) -> bool:
    """Whether the largest value drawn is ten times the smallest, or more."""
    drawn = np.concatenate([line.get_ydata() for line in axes.lines])
    return bool(np.nanmax(drawn, initial=0) >= 10 * np.nanmin(drawn, initial=np.inf))


def _score_panels(runs: Iterable[Sequence[dict]]) -> dict[str, tuple[str, ...]]:
    """Panels of the scores that evaluations recorded; one that no table knows has its own."""
    names = {name for lines in runs for line in lines for name in line}
    others = ("step", "train/", "seconds/")
    endings = {name.rpartition("/")[2] for name in names if not name.startswith(others)}
    known = {title: chosen for title, chosen in _SCORES.items() if endings & {*chosen}}
    grouped = {each for chosen in (*_PANELS.values(), *known.values()) for each in chosen}
    return known | {name.replace("_", " "): (name,) for name in sorted(endings - grouped)}


def confusion(labels: Sequence[str], counts: Sequence[Sequence[int]], title: str = "") -> "Figure":
    """How often each label (row) was predicted as each (column); colours are shares of a row."""
    counts = np.asarray(counts)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    longest = max(map(len, labels)) * 0.09
    figure = _figure((2.2 + 0.6 * len(labels) + longest, 1.4 + 0.45 * len(labels) + longest), title)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap=_COLOURS, vmin=0, vmax=1, aspect="auto")
    names = [_verbatim(label) for label in labels]
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="predicted label", ylabel="true label")
    for (row, column), count in np.ndenumerate(counts if len(labels) <= 20 else np.zeros((0, 0))):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=9)
    figure.colorbar(image, ax=axes, label="share of the label's examples")
    return figure


def growth(measured: Mapping[str, np.ndarray], unit: str = "s", title: str = "") -> "Figure":
    """How a cost grows, a panel for each of what it grows with: (N, 3) of value, cost as measured
    and as predicted. Both axes are logarithmic: a slope is an exponent.
    """
    figure = _figure((3.6 * len(measured), 3.6), title)
    for axes, (name, points) in zip(
        figure.subplots(1, len(measured), sharey=True, squeeze=False)[0], measured.items()
    ):
        value, cost, predicted = np.asarray(points).T
        axes.plot(value, predicted, "k--", linewidth=1, label="predicted")
        axes.plot(value, cost, "o-", label="measured")
        axes.set(xlabel=name, xscale="log", yscale="log")
        axes.set_xticks(value, [f"{each:g}" for each in value], fontsize=8)
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3, which="both")
    figure.axes[0].set_ylabel(unit)
    figure.axes[0].legend(fontsize=8)
    return figure


def _points(lines: Sequence[dict], name: str, against: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of a metric, and what `against` counted at their steps: only training's lines have
    it.
    """
    steps, values = (
        np.array(column, float)
        for column in zip(
            *[(line["step"], line[name]) for line in lines if line.get(name) is not None]
            or [(np.nan, np.nan)]
        )
    )
    if against == "step":
        return steps, values
    known = [(line["step"], line[against]) for line in lines if line.get(against) is not None]
    return np.interp(steps, *zip(*known)) if known else np.full(len(steps), np.nan), values


def _figure(size: tuple[float, float], title: str) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    if title:
        figure.suptitle(_verbatim(textwrap.fill(title, round(11 * size[0]))), fontsize=11)
    return figure


def _verbatim(text: str) -> str:
    """For matplotlib, to which "$5 or $10" is a formula."""
    return text.replace("$", r"\$")
