"""Attention weights between words or tokens, and figures of them and of attention masks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.pictures.figure import WEIGHT_COLOURS, new_figure, verbatim

# -------------------------------------------------------- attention weights between words or tokens


class Attended(NamedTuple):
    """Attention weights, which sum to 1 over the keys, and the labels of queries and keys."""

    weights: np.ndarray  # (layers, H, Q, K) float32
    queries: list[str]
    keys: list[str]


class Side(NamedTuple):
    """The labels of the queries or of the keys, and the index of the label of each token."""

    labels: list[str]
    numbers: list[int]

    @classmethod
    def of(cls, tokenizer, ids: list[int], pieces: bool) -> "Side":
        """Returns the words of `ids` or, with `pieces`, the tokens."""
        if pieces:
            return cls(tokenizer.pieces(ids), list(range(len(ids))))
        return cls(*tokenizer.words(ids))

    def __add__(self, other: "Side") -> "Side":
        shifted = [number + len(self.labels) for number in other.numbers]
        return Side(self.labels + other.labels, self.numbers + shifted)

    def members(self) -> np.ndarray:
        """Returns 1 where a token belongs to a label, (tokens, labels) float32."""
        is_member = np.array(self.numbers)[:, None] == np.arange(len(self.labels))
        return is_member.astype(np.float32)


def between(weights: np.ndarray, queries: Side, keys: Side) -> Attended:
    """Converts weights between tokens (..., Q, K) to weights between words.

    The weights are summed over the tokens of an attended word, and averaged over the tokens of an
    attending word (Clark et al. 2019, section 4.1). So they still sum to 1 over the keys.
    """
    averaging = queries.members()
    averaging = averaging / averaging.sum(axis=0)
    word_weights = np.einsum("qa,...qk,kb->...ab", averaging, weights, keys.members())
    return Attended(word_weights, queries.labels, keys.labels)


# ----------------------------------------------------------- figures of attention weights and masks

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure


def attention(
    attended: Attended, layer: int | None = None, head: int | None = None, title: str = ""
) -> "Figure":
    """Returns a figure of attention weights.

    By default it shows small maps of all layers and heads. With `layer`, it shows the heads of one
    layer, labeled with the words, and with `head` only one of them. Both count from 1. Raises
    UserError for a layer or head that does not exist.
    """
    depth, num_heads = attended.weights.shape[:2]
    for name, number, count in (("layer", layer, depth), ("head", head, num_heads)):
        if number is not None and not 1 <= number <= count:
            raise UserError(f"{name} {number}: there are 1 to {count}")
    if layer is None and head is not None:
        raise UserError(f"head {head}: of which layer? Give the layer, too")
    if layer is None:
        return _overview(attended, title)
    heads = range(num_heads) if head is None else [head - 1]
    panels = [
        (f"layer {layer}, head {number + 1}", attended.weights[layer - 1, number])
        for number in heads
    ]
    return _heat_maps(panels, attended, title)


def mean_attention(attended: Attended, title: str = "") -> "Figure":
    """Returns a figure of the weights, averaged over all layers and heads."""
    return _heat_maps([("", attended.weights.mean(axis=(0, 1)))], attended, title)


def _overview(attended: Attended, title: str) -> "Figure":
    depth, num_heads, num_queries, num_keys = attended.weights.shape
    # Within bounds, so that a long text beside a short one does not make the maps too thin.
    panel_width = 1.25 * min(max(num_keys / num_queries, 0.6), 1.6)
    figure = new_figure((1.5 + panel_width * num_heads, 1 + 1.25 * depth), title)
    grid = figure.subplots(depth, num_heads, squeeze=False)
    for (layer, head), axes in np.ndenumerate(grid):
        image = axes.imshow(
            attended.weights[layer, head],
            cmap=WEIGHT_COLOURS,
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


def _heat_maps(
    panels: Sequence[tuple[str, np.ndarray]], attended: Attended, title: str
) -> "Figure":
    """Returns a figure of named weights (Q, K), up to four per row, with the words on both axes."""
    queries = attended.queries
    keys = attended.keys
    # Fewer maps in a row for long texts, because the labels of their words need the width.
    num_columns = min(len(panels), 4 if len(keys) <= 16 else 2)
    num_rows = -(-len(panels) // num_columns)
    word_length = max(map(len, [*queries, *keys])) * 0.07
    width = 1 + num_columns * (0.3 * len(keys) + word_length + 0.3)
    height = 1 + num_rows * (0.26 * len(queries) + word_length + 0.4)
    figure = new_figure((width, height), title)
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    # One scale for all panels, so that heads can be compared.
    max_weight = max(weights.max() for _, weights in panels)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (name, weights) in zip(grid.flat, panels):
        image = axes.imshow(weights, cmap=WEIGHT_COLOURS, vmin=0, vmax=max_weight, aspect="auto")
        _label_keys(axes, keys, fontsize=9)
        axes.set_yticks(range(len(queries)), map(verbatim, queries), fontsize=9)
        axes.set_xlabel(name, fontsize=10)
    figure.colorbar(image, ax=grid, label="attention weight", shrink=0.8, aspect=30)
    return figure


def _label_keys(axes, keys: Sequence[str], fontsize: int) -> None:
    """Writes the keys above the panel."""
    axes.set_xticks(
        range(len(keys)),
        map(verbatim, keys),
        rotation=60,
        ha="left",
        rotation_mode="anchor",
        fontsize=fontsize,
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)


def attended_by(word: str, texts: Sequence[tuple[str, Attended]], title: str = "") -> "Figure":
    """Returns a figure of the weights from `word` in several texts, side by side.

    A panel has a row for each head of each layer. Raises UserError unless each text has the word
    exactly once.
    """
    depth, num_heads = texts[0][1].weights.shape[:2]
    widths = [len(attended.keys) for _, attended in texts]
    size = (1.6 + sum(0.42 * width + 0.3 for width in widths), 2 + 0.3 * depth * num_heads)
    figure = new_figure(size, title)
    grid = figure.subplots(1, len(texts), squeeze=False, width_ratios=widths)[0]
    indices = [word_index(word, attended.queries, text) for text, attended in texts]
    panels = [
        attended.weights[:, :, index].reshape(-1, len(attended.keys))
        for index, (_, attended) in zip(indices, texts)
    ]
    # All panels share one color scale, so that the weights of different texts can be compared.
    max_weight = max(weights.max() for weights in panels)
    for axes, (text, attended), index, weights in zip(grid, texts, indices, panels):
        num_heads = attended.weights.shape[1]
        image = axes.imshow(weights, cmap=WEIGHT_COLOURS, vmin=0, vmax=max_weight, aspect="auto")
        _label_keys(axes, attended.keys, fontsize=10)
        axes.get_xticklabels()[index].set_fontweight("bold")
        rows = [
            f"layer {row // num_heads + 1}, head {row % num_heads + 1}"
            for row in range(len(weights))
        ]
        axes.set_yticks(
            range(len(weights)), rows if axes is grid[0] else [""] * len(rows), fontsize=9
        )
        axes.hlines(
            np.arange(num_heads, len(weights), num_heads) - 0.5,
            -0.5,
            len(attended.keys) - 0.5,
            color="grey",
            linewidth=0.8,
        )
        axes.set_xlabel(verbatim(text), fontsize=9)
    figure.colorbar(image, ax=grid, label=verbatim(f'weight from "{word}"'), shrink=0.8, aspect=30)
    return figure


def word_index(word: str, words: Sequence[str], text: str) -> int:
    """Returns the index of the word among `words`, ignoring case and punctuation.

    Raises UserError, which mentions `text`, unless the word occurs exactly once.
    """
    found = [index for index, other in enumerate(words) if _bare(other) == _bare(word)]
    if len(found) != 1:
        count = "twice or more" if found else "not"
        raise UserError(f"{word!r} is {count} among the words of {text!r}: {' '.join(words)}")
    return found[0]


def _bare(word: str) -> str:
    return word.strip(".,;:!?\"'()").lower()


_LEAST_DRAWN = 0.05  # of a weight; lighter lines hide the others, and make the file larger


def translation_steps(
    encoder: Attended, decoder: Attended, cross: Attended, title: str = ""
) -> list["Figure"]:
    """Returns the figures of an animation: how a translation is encoded and decoded.

    The first figure shows the tokens of the source. Then follows a figure for each layer of the
    encoder, which reads all tokens at once, and one for each token that the decoder writes, with
    the tokens to which it attends. The three weights belong to one translation, between tokens. The
    darker a line, the larger is the mean weight of the heads: of a layer in the encoder, of all
    layers in the decoder.
    """
    encoding = encoder.weights.mean(axis=1)  # (layers, source, source)
    self_weights, source_weights = (each.weights.mean(axis=(0, 1)) for each in (decoder, cross))
    depth, length = len(encoding), len(cross.queries)
    figures = []
    for step in range(1 + depth + length):
        num_layers, num_written = min(step, depth), max(step - depth, 0)
        figure, axes = _columns(encoder.keys, depth, max(len(encoder.keys), length + 1), title)
        for layer, weights in enumerate(encoding[:num_layers]):
            is_new = layer == num_layers - 1 and not num_written
            _connect(axes, (layer + 1, layer), weights, "C0" if is_new else "0.6")
        written = [decoder.keys[0], *cross.queries][: num_written + 1]
        if num_written:
            query = num_written - 1
            _connect(axes, (depth + 2, depth), source_weights[query : query + 1], "C3", query + 1)
            _connect(axes, (depth + 2, depth + 2), self_weights[query : query + 1], "C2", query + 1)
        for row, token in enumerate(written if num_written else []):
            style = dict(weight="bold", color="C3") if row == num_written else dict(color="black")
            axes.text(depth + 2.1, -row, verbatim(token), va="center", fontsize=10, **style)
        axes.set_title(_step_name(num_layers, depth, written, length), fontsize=11, loc="left")
        figures.append(figure)
    return figures


def _columns(tokens: Sequence[str], depth: int, rows: int, title: str):
    """Returns a figure and its axes: the source, a column for each layer, room for the target."""
    figure = new_figure((7, 1.1 + 0.27 * rows), title)
    axes = figure.subplots()
    axes.set(xlim=(-1.3, depth + 3.4), ylim=(-rows + 0.3, 0.9))
    axes.set_axis_off()
    for row, token in enumerate(tokens):
        axes.text(-0.1, -row, verbatim(token), ha="right", va="center", fontsize=10)
    for column in range(depth + 1):
        axes.plot([column] * len(tokens), -np.arange(len(tokens)), "o", color="0.35", markersize=4)
    return figure, axes


def _connect(axes, columns: tuple[int, int], weights: np.ndarray, color, first_row=0) -> None:
    """Draws lines from the queries in one column to the keys in another, darker for more weight.

    `weights` is (Q, K). `first_row` is the row of the first query. Within one column, the lines are
    arcs, which would otherwise lie on each other.
    """
    from matplotlib.patches import FancyArrowPatch

    for (query, key), weight in np.ndenumerate(weights):
        if weight < _LEAST_DRAWN:
            continue
        start, end = (columns[0], -query - first_row), (columns[1], -key)
        bend = "arc3,rad=-0.3" if columns[0] == columns[1] else "arc3"
        # The square root, because most weights are below a tenth and could hardly be seen.
        darkness = float(weight) ** 0.5
        style = dict(color=color, alpha=darkness, linewidth=0.5 + 2 * darkness)
        axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-", connectionstyle=bend, shrinkA=0, shrinkB=0, **style
            )
        )


def _step_name(num_layers: int, depth: int, written: Sequence[str], length: int) -> str:
    if len(written) > 1:
        return verbatim(f"decoder, step {len(written) - 1} of {length}: it writes {written[-1]}")
    if num_layers:
        return f"encoder, layer {num_layers} of {depth}: all tokens at once"
    return "the tokens of the source"


def masks(visible: Mapping[str, np.ndarray], title: str = "") -> "Figure":
    """Returns a figure of attention masks, bool (Q, K): dark where a query sees a key."""
    figure = new_figure((1 + 2.9 * len(visible), 3.6), title)
    panels = figure.subplots(1, len(visible), squeeze=False)[0]
    for axes, (name, mask) in zip(panels, visible.items()):
        # Beyond 1, so that visible keys are blue instead of almost black.
        axes.imshow(mask, cmap=WEIGHT_COLOURS, vmin=0, vmax=1.3)
        axes.set_title(name, fontsize=10)
        axes.set(
            xlabel="key",
            ylabel="query",
            xticks=range(0, mask.shape[1], 3),
            yticks=range(0, mask.shape[0], 3),
        )
        axes.set_xticks(np.arange(0.5, mask.shape[1] - 1), minor=True)
        axes.set_yticks(np.arange(0.5, mask.shape[0] - 1), minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="both", length=0)
    return figure
