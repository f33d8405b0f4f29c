"""Shared code of the comparisons of pre-training: the text, the runs, and the rows of a table."""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent


def parser(doc: str, names: list[str], key: str = "objective") -> argparse.ArgumentParser:
    """Returns the flags of a comparison of objectives, or of what `key` says."""
    flags = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("text", "data", "workdir", "json"):
        flags.add_argument(f"--{name}", type=pathlib.Path)
    flags.add_argument(f"--{key}", choices=names, action="append", help="only it; may be repeated")
    flags.add_argument("--table", action="store_true", help="show the rows of --json")
    flags.add_argument("--tiny", action="store_true", help="two updates each, to try the script")
    return flags


def write_reviews(text: pathlib.Path, folder: pathlib.Path, tiny: bool) -> dict[str, pathlib.Path]:
    """Writes the splits of IMDB's unlabelled reviews, and returns their config keys.

    `text` has a sentence a line and a blank line between reviews. Every fiftieth is held out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reviews = text.read_text("utf-8").strip().split("\n\n")
    reviews = reviews[:200] if tiny else reviews
    parts = {
        "train": [review for number, review in enumerate(reviews, 1) if number % 50],
        "valid": reviews[49::50],
    }
    keys = {}
    for name, part in parts.items():
        path = folder / f"{name}.txt"
        path.write_text("\n\n".join(part) + "\n", "utf-8")
        keys[f"data.{name}_files"] = path
    return keys


def train(config: str, workdir: pathlib.Path, keys: dict, seeds: int = 0) -> dict:
    """Trains a run, or a number of seeds. Returns the last scores of the seeds."""
    command = [
        sys.executable,
        "-m",
        "transformer_jax.train",
        f"--config={config}",
        f"--workdir={workdir}",
        *([f"--seeds={seeds}"] if seeds else []),
        *(f"--config.{key}={value}" for key, value in keys.items()),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout) if seeds else {}


def revision(root: pathlib.Path = ROOT) -> str:
    """Returns the commit of a checkout, marked where files other than results differ from it."""
    git = ["git", "-C", str(root)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, check=True, text=True
    ).stdout.strip()
    unchanged = ["diff", "--quiet", "HEAD", "--", ":!benchmarks/results"]
    return f"{commit}-dirty" if subprocess.run([*git, *unchanged]).returncode else commit


def add_rows(path: pathlib.Path, new: list[dict], key: str, order: list[str], command: str) -> None:
    """Puts rows into a file in an order of names, instead of those with the same name at `key`."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    by_name = {row[key]: row for row in [*rows, *new]}
    ordered = [by_name[name] for name in order if name in by_name]
    path.write_text(json.dumps({"command": command, "rows": ordered}, indent=2) + "\n")


def draw_scores(
    path: pathlib.Path,
    rows: list[tuple[str, dict]],
    measures: dict[str, str],
    title: str,
    size: tuple[float, float],
) -> None:
    """Draws the scores of labelled rows with their deviations over seeds, a panel for each task."""
    from transformer_jax.pictures.figure import COLORS, new_figure, save

    figure = new_figure(size, title)
    axes = figure.subplots(1, len(measures), sharey=True)
    for panel, (task, measure) in zip(axes, measures.items()):
        for index, (_, row) in enumerate(rows):
            if task in row:
                mean, deviation = 100 * row[task]["mean"], 100 * row[task]["deviation"]
                panel.errorbar(mean, index, xerr=deviation, fmt="o", color=COLORS[0])
        panel.set_xlabel(f"{task}, {measure}")
        panel.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(rows)), [label for label, _ in rows])
    axes[0].invert_yaxis()
    save(figure, path)


def spread_cell(score: dict | None, unit: float) -> str:
    """Returns the mean over seeds in a unit, with the deviation where there are at least two."""
    if score is None:
        return ""
    cell = f"{unit * score['mean']:.1f}"
    return f"{cell} ± {unit * score['deviation']:.1f}" if len(score["values"]) > 1 else cell


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Returns a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
