"""What all figures share: creation, titles, and saving as PNG files and as animations."""

import io
import pathlib
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformer_jax.config import UserError
from transformer_jax.storage import buckets

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure

WEIGHT_COLOURS = "Blues"  # of attention weights and shares, since zero is white in it


_FORMATS = (".png", ".svg", ".pdf")


def save(figure: "Figure", path: str | pathlib.Path | buckets.Path) -> None:
    """Writes the figure to a file on a disk or in a bucket, in the format that its ending names.

    The endings are .png, .svg and .pdf; without one, it is a PNG file. The file appears as a whole
    or not at all. Raises UserError for another ending, or if the file cannot be written.
    """
    path = buckets.path(path)
    ending = path.suffix.lower()
    if ending and ending not in _FORMATS:
        raise UserError(f"{path}: a picture must end in {', '.join(_FORMATS)}")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format=ending.removeprefix(".") or "png")
    if not isinstance(path, pathlib.Path):
        path.write_bytes(drawn.getvalue())  # writes to an object in a bucket are atomic
        return
    with buckets.writing(path), buckets.appearing(path) as temporary:
        temporary.write_bytes(drawn.getvalue())


_GIF_COLOURS = 64  # of a frame; fewer would merge its inks
_LAST_FRAME = 3  # times the others' duration, so that the end can be read before the first frame


def save_animation(
    figures: Sequence["Figure"], path: str | pathlib.Path, seconds: float = 0.9
) -> None:
    """Writes figures of equal size to an animated GIF file, which repeats without end.

    Each figure is shown for `seconds`, and the last one three times as long. The file appears as a
    whole or not at all. Raises UserError if it cannot be written.
    """
    from PIL import Image  # a dependency of matplotlib

    path = pathlib.Path(path)
    frames = []
    for figure in figures:
        png = io.BytesIO()
        figure.savefig(png, dpi=72, format="png")
        # Without dithering, whose noise does not compress.
        frame = Image.open(png).convert("RGB")
        frames.append(frame.quantize(_GIF_COLOURS, dither=Image.Dither.NONE))
    durations = [round(1000 * seconds)] * len(frames)
    durations[-1] *= _LAST_FRAME
    first, *others = frames
    with buckets.writing(path), buckets.appearing(path) as temporary:
        first.save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=others,
            duration=durations,
            loop=0,
            optimize=True,
        )


def new_figure(size: tuple[float, float], title: str) -> "Figure":
    """Returns an empty figure of `size` inches with a wrapped title."""
    from matplotlib.figure import Figure

    # Without pyplot, which chooses a backend, perhaps one that needs a display, and keeps each
    # figure until it is closed.
    figure = Figure(figsize=size, layout="constrained")
    if title:
        figure.suptitle(verbatim(textwrap.fill(title, round(11 * size[0]))), fontsize=11)
    return figure


def verbatim(text: str) -> str:
    """Returns the text escaped for matplotlib, which reads "$5 or $10" as a formula."""
    return text.replace("$", r"\$")
