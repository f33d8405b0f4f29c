"""Draws the pictures of the pages again, from what was measured: python benchmarks/redraw.py [NAME]

Each picture of benchmarks/results that a page shows is drawn by the present program from the JSON
file that its benchmark wrote. A test compares the version in the files with that of the program.

python benchmarks/redraw.py NAME --curves=WORKDIR first copies the curves of a comparison's runs to
NAME.json, because `compare` leaves them in the runs.
"""

import argparse
import importlib
import json
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from transformer_jax import pictures
from transformer_jax.pictures import paired_runs

RESULTS = pathlib.Path(__file__).parent / "results"


def by_draw(module: str, data: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws with the function draw(rows, path) of a benchmark."""
    importlib.import_module(module).draw(data["rows"], path)


def by_plot(module: str, data: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws the figure of the function plot(rows) of a benchmark."""
    pictures.save(importlib.import_module(module).plot(data["rows"]), path)


def of_pairs(_module: str, data: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws a comparison with the curves that its file keeps, that of the first of several."""
    record = data if "result" in data else data["results"][0]
    result = record.get("result", record)
    curves = {
        arm: [
            [{"step": step} | dict(zip(result["scores"], values)) for step, *values in run]
            for run in runs
        ]
        for arm, runs in record["curves"].items()
    }
    pictures.save(paired_runs.comparison(result, curves), path)


def copy_curves(name: str, workdir: pathlib.Path) -> None:
    """Adds {arm: [[step, score, ...] of each evaluation of each run]} to a file of results."""
    path = RESULTS / f"{name}.json"
    data = json.loads(path.read_text())
    record = data if "result" in data else data["results"][0]
    result = record.get("result", record)
    arms = next(iter(result["scores"].values()))
    record["curves"] = {
        arm: [_curve(workdir / arm / f"seed-{seed}", result) for seed in range(result["pairs"])]
        for arm in arms
    }
    path.write_text(json.dumps(data, indent=1) + "\n")


def _curve(run: pathlib.Path, result: Mapping[str, Any]) -> list[list[float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    scores = [*result["scores"]]
    return [
        [line["step"], *(round(line[score], 5) for score in scores)]
        for line in lines
        if all(line.get(score) is not None for score in scores)
    ]


# {picture: (how it is drawn, module of the benchmark)}; the data is NAME.json
PICTURES: dict[str, tuple[Callable, str]] = {
    "compare_cpu": (of_pairs, ""),
    "coordinates_cpu": (by_plot, "coordinates"),
    "distance_cpu": (by_plot, "distance"),
    "encoders_cpu": (by_draw, "encoders"),
    "growth_cpu": (by_plot, "growth"),
    "history_cpu": (by_draw, "history"),
    "length": (by_draw, "length"),
    "objectives_cpu": (by_draw, "objectives"),
    "positions_cpu": (by_draw, "positions"),
    "preferences_cpu": (by_draw, "preferences"),
    "realformer_cpu": (of_pairs, ""),
    "representations_cpu": (by_draw, "representations"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *PICTURES], help="default: all")
    parser.add_argument("--curves", type=pathlib.Path, help="folder of the comparison's runs")
    arguments = parser.parse_args()
    for name in arguments.names or PICTURES:
        if arguments.curves:
            copy_curves(name, arguments.curves)
        draw, module = PICTURES[name]
        draw(module, json.loads((RESULTS / f"{name}.json").read_text()), RESULTS / f"{name}.png")
        print(f"{name}.png", file=sys.stderr)


if __name__ == "__main__":
    main()
