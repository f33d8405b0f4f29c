"""Trains the small configs that no other benchmark measures, and writes their held-out scores.

python benchmarks/quickstarts.py --workdir=DIR --json=FILE [--book=input.txt] [--objective=NAME] \\
    [--tiny]
python benchmarks/quickstarts.py --table --json=FILE

They read Python's standard library or the built-in grammar, so nothing is downloaded; `bigram` and
`characters` read the characters of --book (Tiny Shakespeare), of which the last tenth is held out,
and are left out without it. A row is put into --json as soon as it ends. Complete runs are not
repeated, and one that was stopped goes on.

Each run takes about 5 to 15 minutes on 2 cores, and all of them less than two hours.
"""

import datetime
import json
import os
import pathlib
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
from harness import machine

COMMAND = "python benchmarks/quickstarts.py --workdir=DIR --book=input.txt --json"
CONFIGS = {
    "realformer": "realformer/quickstart.py",
    "linformer": "linformer/quickstart.py",
    "sparse_transformer": "sparse_transformer/quickstart.py",
    "reformer": "reformer/quickstart.py",
    "transformer_xl": "transformer_xl/quickstart.py",
    "awd_lstm": "awd_lstm/quickstart.py",
    "recurrent": "recurrent/quickstart.py",
    "de_en": "wmt/quickstart.py:de-en",
    "characters": "lstm/characters.py",
    "cbow": "word_vectors/cbow.py:quickstart",
    "bigram": "ngrams/bigram.py",
}
OF_A_BOOK = ("bigram", "characters")


def main() -> None:
    flags = comparison.parser(__doc__, list(CONFIGS))
    flags.add_argument("--book", type=pathlib.Path, help="text of bigrams and characters")
    arguments = flags.parse_args()
    if arguments.table:
        return print(table(json.loads(arguments.json.read_text())["rows"]))
    names = arguments.objective or [
        name for name in CONFIGS if name not in OF_A_BOOK or arguments.book is not None
    ]
    for name in names:
        row = measured(arguments, name)
        print(json.dumps(row), flush=True)
        if arguments.json:
            comparison.add_rows(arguments.json, [row], "objective", list(CONFIGS), COMMAND)


def measured(arguments, name: str) -> dict:
    """Returns the row of a config."""
    keys = {"data.cache": arguments.workdir / "cache"}
    if name in OF_A_BOOK:
        keys |= divided(arguments.book, arguments.workdir / "book")
    if arguments.tiny:
        keys |= {"train.num_steps": 2, "train.batch": 4}
    started = time.monotonic()
    scores = comparison.train(f"configs/{CONFIGS[name]}", arguments.workdir / name, keys, seeds=1)
    held_out = {key: score["mean"] for key, score in scores.items() if key.startswith("valid/")}
    return {
        "objective": name,
        "scores": held_out,
        "minutes": (time.monotonic() - started) / 60,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
    }


def divided(book: pathlib.Path, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Writes the first nine tenths and the last tenth of a text, and returns their config keys."""
    folder.mkdir(parents=True, exist_ok=True)
    text = book.read_text("utf-8")
    end = len(text) * 9 // 10
    keys = {}
    for split, part in (("train", text[:end]), ("valid", text[end:])):
        path = folder / f"{split}.txt"
        path.write_text(part, "utf-8")
        keys[f"data.{split}_files"] = path
    return keys


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown."""
    lines = [
        [
            f"`{CONFIGS[row['objective']]}`",
            ", ".join(
                f"{key.removeprefix('valid/')} {value:.4g}" for key, value in row["scores"].items()
            ),
            f"{row['minutes']:.0f}",
            row["date"],
        ]
        for row in rows
    ]
    return comparison.markdown(["config", "held out", "minutes", "date"], lines)


if __name__ == "__main__":
    main()
