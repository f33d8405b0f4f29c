"""Draws the diagram of each family's page from its model: python docs/diagrams.py [NAME ...]

The line "Drawn from `CONFIG`" of docs/families/NAME.md names a config. Its training loss is traced
for two rows, which computes nothing, and each module of the model becomes a box of
docs/images/families/NAME.svg: its name and class, the shape of its first output, and the number of
its parameters. Layers that a scan repeats, or that follow each other and are alike, are drawn once.
"""

import dataclasses
import html
import math
import pathlib
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from PIL import Image

from transformer_jax import config as configs
from transformer_jax.contracts.task import Context
from transformer_jax.runs.spec import resolve

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ROOT / "docs" / "families"
IMAGES = ROOT / "docs" / "images" / "families"
DRAWN_FROM = re.compile(r"Drawn from `([\w./:,=-]+)`")
ROWS = 2

# Sizes in pixels, and colors by a part of the name of a module's class.
WIDTH, INSET, GAP, LINE = 760, 12, 8, 22
COLORS = {
    "Attention": "#d3e5f5",
    "MLP|Feed|GLU": "#fbe3c8",
    "Norm": "#ececec",
    "Embed|Position|Char|Patch": "#d8eed9",
    "directional|Recurrent|LSTM|GRU": "#e6dcf2",
    "Conv|Highway|Quantizer": "#f7d9e3",
}
OTHER, FRAME, INK = "#f4f6f8", "#8996a3", "#1f2933"
SMALL = {"fill": "#52606d", "font_size": 12}


@dataclasses.dataclass
class Box:
    """A module of a model.

    Attributes:
      name: its name within its parent.
      kind: the name of its class.
      shape: of the first array that it returns; empty if it returns none.
      size: the number of its parameters, those of all repetitions.
      repeats: how often its parent has it, one after another.
    """

    name: str
    kind: str
    shape: tuple[int, ...] = ()
    size: int = 0
    repeats: int = 1
    parts: list["Box"] = dataclasses.field(default_factory=list)

    @property
    def is_flat(self) -> bool:
        """Whether its parts are so simple that a line names them."""
        return all(not part.parts for part in self.parts)


def main() -> None:
    names = sys.argv[1:] or sorted(page.stem for page in PAGES.glob("*.md"))
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in names:
        (IMAGES / f"{name}.svg").write_text(diagram(name))
        print(f"{name}.svg", file=sys.stderr)


def diagram(name: str) -> str:
    """Returns the diagram of a family's page as SVG."""
    config = DRAWN_FROM.search((PAGES / f"{name}.md").read_text())[1]
    return drawn(modules(f"configs/{config}"), config)


# ------------------------------------------------------------------ the modules, from a traced loss


def modules(config: str) -> Box:
    """Returns the model of a config with its modules."""
    task = task_of(config)
    params = nn.unbox(task.param_shapes)
    batch = {
        name: jax.ShapeDtypeStruct((ROWS, *spec.shape[1:]), spec.dtype)
        for name, spec in task.batch_spec(0).items()
    }

    def loss(params, batch, carry):
        # An evaluation, because a reversible model hides its modules from the trace of a training.
        return task.loss(params, batch, Context(carry=carry)).terms

    carry = jax.eval_shape(lambda: task.initial_carry(ROWS))
    root = traced(lambda: jax.eval_shape(loss, params, batch, carry), params)
    size = task.parameter_counts()["params"]
    if sum(part.size for part in root.parts) < size / 2:
        # Layers that are applied without their model are not seen. To be initialized, they are
        # called within it.
        # A new function, because JAX keeps the trace of `task.init`.
        root = traced(lambda: jax.eval_shape(lambda key: task.init(key), jax.random.key(0)), params)
    root.kind, root.size = type(task.model).__name__, size
    return folded(root)


def traced(trace: Callable[[], Any], params) -> Box:
    """Returns the root of the modules that `trace()` calls."""
    boxes, single = {}, {}  # by path; the parameters of one repetition of each

    def record(call, arguments, options, context):
        path = context.module.path
        box = boxes.setdefault(path, Box(path[-1] if path else "", type(context.module).__name__))
        result = call(*arguments, **options)
        if context.method_name == "__call__" or not box.shape:
            box.shape = next((x.shape for x in jax.tree.leaves(result) if is_array(x)), box.shape)
        # The largest, because a module that is initialized does not have all of them at first.
        own = size_of(context.module.variables.get("params", {}))
        single[path] = max(own, single.get(path, 0))
        return result

    with nn.intercept_methods(record):
        trace()
    for path, box in boxes.items():
        box.size = size_of(below(params, path))
    root = boxes.setdefault((), Box("", ""))
    # A module is called within its parent, so that a parent comes first.
    for path, box in sorted(boxes.items(), key=lambda item: len(item[0])):
        if not path or not box.size:
            continue
        parent = next(path[:end] for end in range(len(path) - 1, -1, -1) if path[:end] in boxes)
        around = boxes[parent].size / max(single.get(parent, 0), 1)
        box.repeats = max(1, round(box.size / max(single[path], 1) / max(around, 1)))
        boxes[parent].parts.append(box)
    return root


def task_of(path: str):
    """Returns the task of a config, whose data need not exist."""
    config = configs.load(path)
    if config.task.name == "distillation":
        # The student is drawn as a masked language model, because there is no teacher's run.
        model = config.model.to_dict()
        config = configs.experiment(model=model, task={"name": "masked_lm", "next_sentence": 0.0})
    with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder) / "run"
        if config.source.name == "images":  # its classes are folders
            images = pathlib.Path(folder) / "images"
            for label in "ab":
                (images / label).mkdir(parents=True)
                Image.new("L", (8, 8)).save(images / label / "0.png")
            keys = {f"data.{split}_files": str(images) for split in ("train", "valid")}
            return resolve(config, workdir, list(keys.items())).task()
        return resolve(config, workdir).task()


def is_array(x) -> bool:
    return hasattr(x, "shape") and len(x.shape) > 1


def size_of(tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def below(params, path: tuple[str, ...]):
    """Returns the parameters of the module at a path; of none, an empty dict."""
    for name in path:
        params = params.get(name, {}) if isinstance(params, dict) else {}
    return params


def folded(box: Box) -> Box:
    """Joins neighbors that are alike and whose names differ in a number alone."""
    parts = []
    for part in map(folded, box.parts):
        if parts and looks(parts[-1]) == looks(part) and part.repeats == 1:
            parts[-1].repeats += 1
            parts[-1].size += part.size
        else:
            parts.append(part)
    box.parts = parts
    return box


def looks(box: Box) -> tuple:
    name = re.sub(r"\d+", "#", box.name)
    if name == box.name:  # without a number, each is a module of its own
        return (id(box),)
    return (name, box.kind, box.shape, box.size // box.repeats, *map(looks_inside, box.parts))


def looks_inside(box: Box) -> tuple:
    return (box.name, box.kind, box.shape, *map(looks_inside, box.parts))


# -------------------------------------------------------------------------------------- the drawing


def drawn(model: Box, config: str) -> str:
    """Returns the SVG of a model, from its input at the top to its output at the bottom."""
    shapes, height = placed(model, 0, 0, WIDTH)
    title = f"{model.kind} of {config}: {model.size:,} parameters"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-6 -6 {WIDTH + 12} {height + 12}" '
            f'width="{WIDTH}" font-family="sans-serif" font-size="13" role="img">',
            f"<title>{html.escape(title)}</title>",
            f'<rect x="-6" y="-6" width="{WIDTH + 12}" height="{height + 12}" fill="white"/>',
            *shapes,
            "</svg>",
            "",
        ]
    )


def placed(box: Box, x: int, y: int, width: int) -> tuple[list[str], int]:
    """Returns the elements of a module at (x, y), and its height."""
    has_frame = box.parts and not (box.name and box.is_flat)  # always that of the model
    height = LINE + 4
    inner, arrows = [], []
    if has_frame:
        for part in box.parts:
            elements, part_height = placed(part, x + INSET, y + height + GAP, width - 2 * INSET)
            middle = x + width // 2
            top = y + height
            arrows.append(f'<path d="M{middle} {top} v{GAP}" stroke="{FRAME}"/>')
            inner += elements
            height += GAP + part_height
        height += GAP
    elif box.parts:
        names = ", ".join(part_name(part) for part in box.parts)
        lines = textwrap.wrap(names, int((width - 2 * INSET) / 6.6))
        for number, line in enumerate(lines):
            inner.append(text(x + INSET, y + height + 12 + 17 * number, line, **SMALL))
        height += 17 * len(lines) + 2
    fill = "white" if has_frame else color(box.kind)
    frame = (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" '
        f'fill="{fill}" stroke="{FRAME}"/>'
    )
    label = f"{box.name} ({box.kind})" if box.name else box.kind
    if box.repeats > 1:
        label = f"{box.repeats} x {label}"
    facts = f"{shape_text(box.shape)}   {rounded(box.size)}".strip()
    head = [
        text(x + INSET, y + 17, label, font_weight="bold" if has_frame else "normal"),
        text(x + width - INSET, y + 17, facts, text_anchor="end", **SMALL),
    ]
    return [frame, *arrows, *head, *inner], height


def part_name(box: Box) -> str:
    name = f"{box.name} {rounded(box.size)}"
    name = f"{box.repeats} x {name}" if box.repeats > 1 else name
    return name.replace(" ", "\xa0")  # so that no line ends within it


def text(x: int, y: int, content: str, **style) -> str:
    """Returns a text; `style` has the values of attributes, such as font_weight."""
    style = {"fill": INK, "font_size": 13} | style | {"xml:space": "preserve"}
    attributes = " ".join(f'{name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x}" y="{y}" {attributes}>{html.escape(content)}</text>'


def color(kind: str) -> str:
    return next((color for names, color in COLORS.items() if re.search(names, kind)), OTHER)


def shape_text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def rounded(size: int) -> str:
    """Returns a count in three digits: 768, 2.36 M."""
    for unit, name in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if size >= unit:
            return f"{size / unit:.3g}{name}"
    return str(size)


if __name__ == "__main__":
    main()
