"""What all figures share: creation, titles, and saving as PNG files and as animations."""

import ast
import contextlib
import copy
import functools
import hashlib
import io
import pathlib
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from transformer_jax.config import UserError
from transformer_jax.storage import buckets

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure

WEIGHT_COLOURS = "Blues"  # of attention weights and shares, since zero is white in it


# Colors that people with any kind of color vision tell apart (Wong 2011, Nature Methods), and
# markers that differ without them.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*"
LINES = ("-", "--", "-.", ":")

_FORMATS = (".png", ".svg", ".pdf")
_DPI = 150


def style(number: int) -> dict[str, str]:
    """Returns the color, the marker and the line of the thing with this number in a figure.

    The first 28 differ in color or in line.
    """
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number // len(COLORS) % len(LINES)],
    }


def save(figure: "Figure", path: str | pathlib.Path | buckets.Path, *, dpi: float = _DPI) -> None:
    """Writes the figure to a file on a disk or in a bucket, in the format that its ending names.

    The endings are .png, .svg and .pdf; without one, it is a PNG file. `dpi` is the number of its
    pixels in an inch. The file appears as a whole or not at all. Raises UserError for another
    ending, or if the file cannot be written.
    """
    path = buckets.path(path)
    check_ending(path)
    ending = path.suffix.lower()
    drawn = io.BytesIO()
    figure.savefig(
        drawn,
        dpi=dpi,
        metadata={"Creator" if ending in (".svg", ".pdf") else "Software": _stamp(figure)},
        format=ending.removeprefix(".") or "png",
    )
    if not isinstance(path, pathlib.Path):
        path.write_bytes(drawn.getvalue())  # writes to an object in a bucket are atomic
        return
    with buckets.writing(path), buckets.appearing(path) as temporary:
        temporary.write_bytes(drawn.getvalue())


def check_ending(path: str | pathlib.Path | buckets.Path, is_animated: bool = False) -> None:
    """Raises UserError for the name of a file in a format that can't be written."""
    formats = (".gif",) if is_animated else _FORMATS
    ending = buckets.path(path).suffix.lower()
    if ending and ending not in formats:
        what = "an animation" if is_animated else "a picture"
        raise UserError(f"{path}: {what} must end in {', '.join(formats)}")


# ------------------------ the version of what draws a figure, which tells whether it is out of date


def _stamp(figure: "Figure") -> str:
    """Returns what a file says of the program that has drawn it: a function and its version."""
    name = getattr(figure, "drawn_by", None) or _drawing_function()
    return f"transformer_jax {name} {drawing_version(name)}" if name else "transformer_jax"


def _drawing_function() -> str | None:
    """Returns the outermost drawing function of the call, None outside of the modules that draw.

    An example is "pictures.learning_curves.curves".
    """
    frame, name = sys._getframe(1), None
    while frame:
        module = str(frame.f_globals.get("__name__"))
        if _draws(module) and module != __name__:
            name = f"{module.removeprefix('transformer_jax.')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return name


def _draws(module: str) -> bool:
    folder = module.rpartition(".")[0]
    return folder == "transformer_jax.pictures" or module == "transformer_jax.scaling.pictures"


@functools.cache
def drawing_version(name: str) -> str:
    """Returns a digest of a drawing function and of all that it uses of the modules that draw.

    Comments and docstrings do not count.
    """
    found: dict[tuple[str, str], str] = {}
    module, _, function = name.rpartition(".")
    _add_source(f"transformer_jax.{module}", function, found)
    texts = [text for _, text in sorted(found.items())]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def _add_source(module: str, name: str, found: dict[tuple[str, str], str]) -> None:
    """Adds the source of a name of a module, and of the names that it refers to in turn."""
    if name in (_stamp.__name__, _drawing_function.__name__):
        return None  # they draw nothing
    own, imported = _names_of(module)
    if name in imported and imported[name] != (module, name):
        return _add_source(*imported[name], found)
    if name not in own or (module, name) in found:
        return None
    found[module, name] = ast.unparse(_without_docstrings(own[name]))
    for node in ast.walk(own[name]):
        if isinstance(node, ast.Name):
            _add_source(module, node.id, found)
    return None


@functools.cache
def _names_of(module: str) -> tuple[dict[str, ast.AST], dict[str, tuple[str, str]]]:
    """Returns the definitions at the top of a module, and what it imports of modules that draw."""
    path = pathlib.Path(__file__).parents[1] / f"{module.partition('.')[2].replace('.', '/')}.py"
    own, imported = {}, {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and _draws(node.module or ""):
            imported |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            own[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (each for target in targets for each in ast.walk(target))
            own |= {name.id: node for name in names if isinstance(name, ast.Name)}
    return own, imported


def _without_docstrings(node: ast.AST) -> ast.AST:
    node = copy.deepcopy(node)
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(each) is not None:
            each.body = each.body[1:] or [ast.Pass()]
    return node


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
            comment=_stamp(figures[0]).encode(),
            loop=0,
            optimize=True,
        )


_sizes: list[tuple[float, float]] = []  # of the contexts of `sized`, the innermost last


@contextlib.contextmanager
def sized(size: tuple[float, float] | None) -> Iterator[None]:
    """In the context, new figures have this width and height in inches, unless it is None."""
    _sizes.extend([size] if size else [])
    try:
        yield
    finally:
        del _sizes[-1 if size else len(_sizes) :]


def new_figure(size: tuple[float, float], title: str) -> "Figure":
    """Returns an empty figure of `size` inches, or of that of `sized`, with a wrapped title."""
    from matplotlib.figure import Figure

    size = _sizes[-1] if _sizes else size
    # Without pyplot, which chooses a backend, perhaps one that needs a display, and keeps each
    # figure until it is closed.
    figure = Figure(figsize=size, layout="constrained")
    # A figure of somebody else's function has the version of this one.
    figure.drawn_by = _drawing_function() or "pictures.figure.new_figure"
    if title:
        figure.suptitle(verbatim(textwrap.fill(title, round(11 * size[0]))), fontsize=11)
    return figure


def verbatim(text: str) -> str:
    """Returns the text escaped for matplotlib, which reads "$5 or $10" as a formula."""
    return text.replace("$", r"\$")
