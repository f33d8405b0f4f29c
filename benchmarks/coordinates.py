"""The coordinate check of muP for five families: GPT, BERT, Transformer, T5 and LSTM.

python benchmarks/coordinates.py [--json=FILE] [--plot=FILE.png] [--case=gpt ...] [--tiny]

Models of 64 to 512 make five updates of AdamW, with muP and without, from five seeds. A row has the
steepest slope of the logarithm of an activation's change over that of the width, for a family and
parametrization; 0 is flat. `outputs` is that of the outputs alone, which are the logits, the scores
of pairs of sentences and the loss, and `ours` that of all other activations.

The theory is about widths far above the number of tokens of an update and of the vocabulary, so the
text is made of few characters, and an update has few of them: additions, in words, such as "six
plus four is ten"; the translation has them in digits, too.

The budget is 25 minutes of 2 cores.
"""

import os
import pathlib
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from harness import main

from transformer_jax import config as configs
from transformer_jax.scaling import coordinates

WIDTHS = (64, 128, 256, 512)
ONES = "zero one two three four five six seven eight nine ten eleven twelve".split()
OUTPUTS = ("logits", "nsp", "loss")
COMMON = {"data.corpus": "", "data.tokenizer": "characters", "optimizer.name": "adamw"}
SHORT = {"task.length": 8, "task.sample_tokens": 0, "train.batch": 1, "model.vocab_size": 32}
PAIRS = {"task.source_length": 16, "task.target_length": 8, "train.batch": 1}
FAMILIES = {
    "gpt": ("gpt/quickstart", SHORT | {"model.num_heads": 4, "model.num_layers": 2}),
    "bert": (
        "bert/quickstart",
        {
            "data.tokenizer": "wordpiece",
            "task.phases": ((1.0, 16, 4),),
            "train.batch": 1,
            "model.vocab_size": 48,
        },
    ),
    "transformer": (
        "wmt/quickstart",
        PAIRS | {"task.source_length": 32, "task.bleu_lines": 0, "model.vocab_size": 48},
    ),
    "t5": ("t5/quickstart", PAIRS | {"model.vocab_size": 128, "optimizer.learning_rate": 1e-3}),
    "lstm": ("lstm/quickstart", SHORT),
}


def check(tiny: bool, family: str):
    name, keys = FAMILIES[family]
    with tempfile.TemporaryDirectory() as folder:
        keys = COMMON | keys | write(pathlib.Path(folder), family)
        result = coordinates.check(
            configs.load(name, keys),
            WIDTHS[:2] if tiny else WIDTHS,
            seeds=1 if tiny else 5,
            updates=2 if tiny else coordinates.UPDATES,
        )
    last = f"update {result['updates']}"
    for parametrization in (coordinates.MUP, coordinates.STANDARD):
        found = result[parametrization]
        slopes = found["slopes"]
        outputs = {name: x for name, x in slopes.items() if name.startswith(OUTPUTS)}
        inner = {name: x for name, x in slopes.items() if name not in outputs}
        yield {
            "case": f"{family}, {parametrization}",
            "ours": max(inner.values(), key=abs),
            "outputs": max(outputs.values(), key=abs),
            "unit": "steepest slope",
            "within": sum(abs(slope) <= 0.1 for slope in slopes.values()),
            "slopes": {name: round(slope, 4) for name, slope in slopes.items()},
            "changes": {
                width: {name: round(x, 4) for name, x in changes.items() if name.endswith(last)}
                for width, changes in found["changes"].items()
            },
        }


def write(folder: pathlib.Path, family: str) -> dict[str, str]:
    """Writes the text of a family into a folder, and returns the keys that name its files."""
    sums = [(a, b) for a in range(13) for b in range(13) if a + b < len(ONES)]
    words = [f"{ONES[a]} plus {ONES[b]} is {ONES[a + b]}" for a, b in sums]
    digits = [f"{a}+{b}={a + b}" for a, b in sums]
    keys = {"data.cache": str(folder / "cache")}
    sides = {"source": words, "target": digits} if family == "transformer" else {"files": words}
    for side, lines in sides.items():
        for split, part in (("train", lines), ("valid", lines[::7])):
            path = folder / f"{split}.{side}"
            text = "\n".join(part * 20) + "\n"
            if family == "bert":  # a document has three sentences
                text = "\n\n".join("\n".join(part[i : i + 3]) for i in range(len(part) - 3)) + "\n"
            path.write_text(text)
            keys[f"data.{split}_{side}"] = str(path)
    return keys


def plot(rows: list[dict]):
    """Returns a figure with a panel for each case: the changes after the last update by width."""
    import numpy as np

    from transformer_jax.pictures.figure import new_figure

    figure = new_figure((3 * len(rows) / 2, 6), "How much activations change in five updates")
    panels = figure.subplots(2, len(rows) // 2, squeeze=False, sharey=True)
    for number, row in enumerate(rows):
        axes = panels[number % 2, number // 2]
        changes = row["changes"]
        widths = [int(width) for width in changes]
        for name in set.intersection(*({*found} for found in changes.values())):
            axes.loglog(widths, [np.exp(found[name]) for found in changes.values()], "0.5")
        axes.set_title(f"{row['case']}: {row['ours']:+.2f}", fontsize=9)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
    return figure


if __name__ == "__main__":
    main(
        __doc__,
        {name: lambda tiny, name=name: check(tiny, name) for name in FAMILIES},
        ("jax", "jaxlib", "flax", "optax"),
        plot=plot,
    )
