"""Compares kinds of positions in translation, at trained lengths and beyond them.

python benchmarks/positions.py --workdir=DIR [--positions=NAME] [--json=FILE] [--tiny]
python benchmarks/positions.py --table --json=FILE

Each part trains configs/wmt/quickstart.py with other positions, on the sentences of the built-in
grammar with at most 10 English words. It translates held-out sentences of such lengths, and others
of at least 13 words. These also have constructions that short sentences lack, so compare the parts
with each other. Vectors are added to those of words, or concatenated: 16 numbers of sinusoids and
learned positions, 7 bits, or 1 number. An index is normalized by config.model.max_length, because a
decoder does not know the length of its output.

The budget of all 11 parts together is 25 minutes of a core of an EPYC: 400 updates of 32 rows, and
300 sentences of each set, decoded greedily. A row is put into --json as soon as its part ends.
Complete runs are not repeated, and a part that was stopped goes on.
"""

import argparse
import datetime
import json
import os
import pathlib
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
from harness import machine

from transformer_jax.cli import use_huge_pages

CONFIG = "configs/wmt/quickstart.py"
COMMAND = "python benchmarks/positions.py --workdir=DIR --json"
PAIRS = 40_000  # of the grammar, before the choice of lengths
TRAINED = (1, 10)  # words of an English sentence
BEYOND = (13, 99)
SENTENCES = 300  # of each set that is translated


class Positions(NamedTuple):
    """A kind of positions, and the width with which they are concatenated."""

    label: str
    kind: str
    width: int = 0


KINDS = {
    "none": Positions("none", "none"),
    "index": Positions("index, added", "index"),
    "index-concatenated": Positions("index, concatenated", "index", 1),
    "normalized": Positions("normalized index, added", "normalized"),
    "normalized-concatenated": Positions("normalized index, concatenated", "normalized", 1),
    "binary": Positions("bits, added", "binary"),
    "binary-concatenated": Positions("bits, concatenated", "binary", 7),
    "sinusoidal": Positions("sinusoids, added", "sinusoidal"),
    "sinusoidal-concatenated": Positions("sinusoids, concatenated", "sinusoidal", 16),
    "learned": Positions("learned, added", "learned"),
    "learned-concatenated": Positions("learned, concatenated", "learned", 16),
}
TINY = {
    "model.d_model": 32,
    "model.d_ff": 32,
    "model.vocab_size": 300,
    "train.num_steps": 2,
}


def main() -> None:
    use_huge_pages()
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--workdir", type=pathlib.Path)
    flags.add_argument("--json", type=pathlib.Path)
    flags.add_argument("--positions", choices=KINDS, action="append", help="may be repeated")
    flags.add_argument("--table", action="store_true", help="show the rows of --json")
    flags.add_argument("--tiny", action="store_true", help="two updates each, to try the script")
    arguments = flags.parse_args()
    if arguments.table:
        rows = json.loads(arguments.json.read_text())["rows"]
        print(table(rows))
        draw(rows, arguments.json.with_suffix(".png"))
        return
    keys = write_pairs(arguments.workdir / "data", arguments.tiny)
    for name in arguments.positions or KINDS:
        row = measured(arguments, keys, name)
        print(json.dumps(row), flush=True)
        if arguments.json:
            comparison.add_rows(arguments.json, [row], "positions", list(KINDS), COMMAND)


def write_pairs(folder: pathlib.Path, tiny: bool) -> dict[str, pathlib.Path]:
    """Writes the training pairs, and returns the config keys of the data."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = {"data.corpus": "", "data.cache": folder / "cache"}
    for split, count in (("train", 2000 if tiny else PAIRS), ("valid", 1000)):
        pairs = of_length(split, count, TRAINED)
        for side, texts in zip(("source", "target"), zip(*pairs)):
            path = folder / f"{split}.{side}"
            path.write_text("\n".join(texts) + "\n", "utf-8")
            keys[f"data.{split}_{side}"] = path
    return keys


def of_length(split: str, count: int, words: tuple[int, int]) -> list[tuple[str, str]]:
    """Returns those of `count` pairs of the grammar whose English has so many words."""
    from transformer_jax.corpora import grammar

    least, most = words
    pairs = grammar.pairs(0, split, count)
    return [pair for pair in pairs if least <= len(pair[0].split()) <= most]


def measured(arguments, keys: dict, name: str) -> dict:
    """Returns the row of a kind of positions, trained here unless its run is complete."""
    _, kind, width = KINDS[name]
    run = arguments.workdir / name
    keys = keys | {
        "model.positions": kind,
        "model.position_width": width,
        "model.tie_output": "false",
        "task.bleu_lines": 0,
        "train.num_steps": 400,
    }
    keys |= TINY if arguments.tiny else {}
    # The end alone is evaluated and saved.
    keys |= dict.fromkeys(("train.eval_every", "checkpoint.every"), keys["train.num_steps"])
    comparison.train(CONFIG, run, keys)
    return {
        "positions": name,
        **scores(run, 10 if arguments.tiny else SENTENCES),
        "updates": int(keys["train.num_steps"]),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
    }


def scores(run: pathlib.Path, count: int) -> dict:
    """Returns the BLEU of held-out sentences of trained lengths and of others."""
    from transformer_jax import open_run
    from transformer_jax.scores import texts

    task, params = open_run(run, "latest", overrides={"decode.beam": 1})
    row = {}
    for name, words in (("trained", TRAINED), ("beyond", BEYOND)):
        pairs = of_length("test", 10 * count, words)[:count]
        outputs, references = task.translated_pairs(params, pairs)
        row[f"bleu_{name}"] = texts.scores(outputs, references)["bleu"]
        row[f"sentences_{name}"] = len(pairs)
    return row


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown."""
    header = [
        "positions",
        f"BLEU, {TRAINED[1]} words at most, as trained",
        f"BLEU, {BEYOND[0]} words at least",
    ]
    lines = [
        [
            KINDS[row["positions"]].label,
            f"{row['bleu_trained']:.1f}",
            f"{row['bleu_beyond']:.1f}",
        ]
        for row in rows
    ]
    return comparison.markdown(header, lines)


def draw(rows: list[dict], path: pathlib.Path) -> None:
    """Draws the codes of the positions, and the scores at both lengths."""
    import numpy as np

    from transformer_jax.layers.embeddings import position_codes
    from transformer_jax.pictures.figure import new_figure, save, style

    figure = new_figure((14, 4.5), "Positions in translation of the built-in grammar")
    bits, waves, panel = figure.subplots(1, 3, width_ratios=[0.4, 0.6, 1.6])
    positions = np.arange(64)
    bits.imshow(position_codes("binary", positions, 7, 128), aspect="auto", cmap="Greys")
    bits.set(title="bits", xlabel="column", ylabel="position")
    waves.imshow(position_codes("sinusoidal", positions, 16, 128), aspect="auto", cmap="RdBu_r")
    waves.set(title="sinusoids", xlabel="column")
    scores = {"bleu_trained": "trained lengths", "bleu_beyond": "longer sentences"}
    for number, (key, label) in enumerate(scores.items()):
        look = style(number) | {"linestyle": ""}
        panel.plot([row[key] for row in rows], range(len(rows)), label=label, **look)
    panel.set_yticks(range(len(rows)), [KINDS[row["positions"]].label for row in rows])
    panel.invert_yaxis()
    panel.set_xlabel("BLEU")
    panel.grid(axis="x", alpha=0.3)
    panel.legend()
    save(figure, path)


if __name__ == "__main__":
    main()
