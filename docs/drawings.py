"""Draws the pictures of the page "Architecture": python docs/drawings.py [FOLDER]

FOLDER is docs/images unless it is named. Row numbers come from the package itself.
"""

import pathlib
import sys

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from transformer_jax.data.rows import Phase, TrainRows

IMAGES = pathlib.Path(__file__).parent / "images"
INK, SOFT, PAPER = "#22303c", "#5b6b79", "#eef2f6"
DEVICES = ("#bcd9f2", "#8fc1e8", "#f6d9a8", "#efbf74")  # two of each host
WIDTH, INCHES = 13, 0.78  # of a drawing, in units; of a unit

ROWS, BATCH, MICROBATCHES, STEP = 1000, 8, 2, 1037  # of the example
PER_MICROBATCH = BATCH // MICROBATCHES

BATCH_BOXES = (  # (x, y, width, height), title and lines
    (
        (0.1, 4.9, 2.7, 2.0),
        f"Config|train.batch={BATCH}|train.accumulation={MICROBATCHES}|"
        "data.seed=0|mesh: data=2, fsdp=2",
    ),
    ((0.1, 2.3, 2.7, 1.5), f"Step|s = {STEP}|the only position|a checkpoint keeps"),
    (
        (7.1, 4.9, 2.4, 2.0),
        "Row|tokens from the store;|masks and pairs drawn|from (seed, phase,|epoch, row number)",
    ),
    ((7.1, 2.3, 2.4, 1.5), "Host|reads the rows|of its own devices|and no others"),
)
BATCH_ARROWS = (  # x and y of the start, of the end
    (2.8, 5.9, 3.5, 5.5),
    (2.8, 3.05, 3.5, 3.5),
    (6.5, 5.4, 7.1, 5.8),
    (8.3, 4.9, 8.3, 3.8),
    (9.5, 3.2, 10.1, 3.7),
)
UPDATE_BOXES = (
    ((0.1, 5.3, 2.4, 1.6), "State|parameters|optimizer state|step, metric sums"),
    ((0.1, 2.9, 2.4, 1.6), "Batch|(microbatches,|rows, positions)|on the devices"),
    ((3.2, 2.9, 2.0, 1.6), "Weights|denominators|over the whole|global batch"),
    (
        (5.6, 2.9, 2.2, 3.2),
        "Each microbatch|task.loss, its|gradient and metrics,|added to the sums|"
        "|dropout key from|(seed, step,|microbatch)",
    ),
    ((8.15, 4.75, 1.85, 1.35), "Reduce|gradients cross|data once"),
    ((8.15, 2.9, 1.85, 1.45), "Optimizer|clip, rate,|update"),
    ((10.6, 4.7, 2.3, 2.2), "Next state|the old one is|donated: its memory|serves the new one"),
    (
        (10.6, 1.75, 2.3, 2.4),
        "Host, at intervals|log_every: metrics|eval_every: scores|"
        "checkpoint.every:|save in the|background",
    ),
)
UPDATE_ARROWS = (
    (2.5, 6.1, 5.6, 5.6),
    (2.5, 3.7, 3.2, 3.7),
    (5.2, 3.7, 5.6, 3.7),
    (7.8, 5.4, 8.15, 5.4),
    (9.07, 4.75, 9.07, 4.35),
    (10.0, 3.9, 10.6, 5.2),
    (11.75, 4.7, 11.75, 4.15),
)


class _Rows:
    """A data set of the example: it has a length and is never read."""

    def __len__(self) -> int:
        return ROWS


def main() -> None:
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    save(life_of_a_batch(), folder / "life_of_a_batch.svg")
    save(life_of_an_update(), folder / "life_of_an_update.svg")


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes the figure; equal drawings give equal bytes."""
    settings = {"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.family": "sans-serif"}
    with matplotlib.rc_context(settings):
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None, "Creator": None})


def life_of_a_batch() -> Figure:
    """Config and step give row numbers, rows, and parts on the devices of a mesh."""
    figure, axes = _canvas(7.1)
    _boxes_and_arrows(axes, BATCH_BOXES, BATCH_ARROWS)
    _row_numbers(axes)
    _mesh(axes)
    _write(axes, 0.1, 0.55, "Nothing else enters: no iterator state and no shuffle buffer.")
    _note(axes, 0.1, 0.12, "Another mesh or another number of hosts splits the same rows.")
    _note(axes, 6.0, 0.12, f"Example: {ROWS:,} training rows; numbers as the package gives them.")
    return figure


def _row_numbers(axes: Axes) -> None:
    """The table from the indices of the batch to epochs and row numbers."""
    rows = TrainRows([Phase([_Rows()], BATCH)], seed=0)
    _title(axes, 3.5, 6.65, "Row numbers")
    _note(axes, 3.5, 6.3, f"position g = s x {BATCH} + j; epoch = g div {ROWS:,}")
    for column, name in enumerate(("index j", "epoch", "row number")):
        _note(axes, 3.6 + column, 5.95, name)
    for index, (_, number, epoch) in enumerate(rows.numbers(STEP, range(BATCH))):
        y = 5.3 - 0.5 * index
        _tile(axes, (3.5, y, 3.0, 0.45), _device(index))
        for column, value in enumerate((index, epoch, number)):
            _write(axes, 3.75 + column, y + 0.12, str(value))
    _note(axes, 3.5, 1.45, "shuffle(g mod R; seed, epoch)")


def _mesh(axes: Axes) -> None:
    """Microbatches by rows, coloured by the device that holds them, and the mesh."""
    _title(axes, 10.1, 6.65, "Batch on the mesh")
    for number in range(MICROBATCHES):
        _note(axes, 10.15 + 1.5 * number, 6.25, f"microbatch {number}")
    for index in range(BATCH):
        x, y = 10.1 + 1.5 * (index // PER_MICROBATCH), 5.75 - 0.42 * _device(index)
        _tile(axes, (x, y, 1.3, 0.36), _device(index))
        _write(axes, x + 0.45, y + 0.1, f"j = {index}")
    _note(axes, 10.1, 4.05, "mesh: rows over data and fsdp")
    for device in range(len(DEVICES)):
        x, y = 10.1 + 1.5 * (device % 2), 2.95 - 1.05 * (device // 2)
        _tile(axes, (x, y, 1.3, 0.9), device)
        _write(axes, x + 0.25, y + 0.53, f"device {device}")
        _note(axes, x + 0.25, y + 0.17, f"host {device // 2}")


def _device(index: int) -> int:
    """The device that holds this row of the batch."""
    return index % PER_MICROBATCH


def life_of_an_update() -> Figure:
    """The compiled step from (state, batch) to the next state, and the events around it."""
    figure, axes = _canvas(7.9)
    axes.add_patch(Rectangle((3.0, 1.75), 7.15, 5.15, fill=False, edgecolor=SOFT, linestyle="--"))
    _title(axes, 3.15, 6.55, "train_step: one compiled program")
    _boxes_and_arrows(axes, UPDATE_BOXES, UPDATE_ARROWS)
    _write(axes, 3.2, 2.3, "A loss, gradient or update that is not finite")
    _write(axes, 3.2, 1.97, "leaves the parameters as they are.")
    _arrow(axes, (11.75, 6.9, 1.3, 6.9), bend=0.07)
    _note(axes, 6.0, 7.55, "next update")
    _write(
        axes,
        0.1,
        0.9,
        "While the devices compute an update, the host reads the rows of later ones.",
    )
    _note(axes, 0.1, 0.47, "Over fsdp, each microbatch gathers parameters and scatters gradients.")
    _note(axes, 0.1, 0.12, "Over tensor, each layer exchanges activations.")
    return figure


def _canvas(height: float) -> tuple[Figure, Axes]:
    figure = Figure((INCHES * WIDTH, INCHES * height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def _boxes_and_arrows(axes: Axes, boxes, arrows) -> None:
    for (x, y, width, height), text in boxes:
        style = {
            "boxstyle": "round,pad=0,rounding_size=0.12",
            "facecolor": PAPER,
            "edgecolor": SOFT,
        }
        axes.add_patch(FancyBboxPatch((x, y), width, height, **style))
        title, *lines = text.split("|")
        _title(axes, x + 0.12, y + height - 0.33, title)
        for number, line in enumerate(lines):
            _write(axes, x + 0.12, y + height - 0.68 - 0.33 * number, line)
    for arrow in arrows:
        _arrow(axes, arrow)


def _arrow(axes: Axes, ends: tuple[float, float, float, float], bend: float = 0.0) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 14, "color": INK, "lw": 1.3}
    curve = f"arc3,rad={bend}"
    axes.add_patch(FancyArrowPatch(ends[:2], ends[2:], connectionstyle=curve, **style))


def _tile(axes: Axes, box: tuple[float, float, float, float], device: int) -> None:
    """A rectangle at (x, y, width, height) in the colour of a device."""
    x, y, width, height = box
    axes.add_patch(Rectangle((x, y), width, height, facecolor=DEVICES[device], edgecolor="white"))


def _title(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, fontsize=12, weight="bold", color=INK)


def _write(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, fontsize=10, color=INK)


def _note(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, fontsize=9, color=SOFT)


if __name__ == "__main__":
    main()
