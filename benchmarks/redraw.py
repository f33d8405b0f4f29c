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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformer_jax import pictures
from transformer_jax.pictures import paired_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = pathlib.Path(__file__).parent / "results"


# {picture and file of results: module of the benchmark}; "": a comparison
PICTURES = {
    "compare_cpu": "",
    "coordinates_cpu": "coordinates",
    "curriculum_masks_cpu": "",
    "curriculum_sources_cpu": "",
    "distance_cpu": "distance",
    "encoders_cpu": "encoders",
    "growth_cpu": "growth",
    "history_cpu": "history",
    "language_knowledge_cpu": "language_knowledge",
    "length": "length",
    "lstm_gpt_cpu": "",
    "mup_gpt_cpu": "mup_transfer",
    "mup_transformer_cpu": "mup_transfer",
    "norms_cpu": "",
    "objectives_cpu": "objectives",
    "positions_cpu": "positions",
    "preferences_cpu": "preferences",
    "realformer_cpu": "",
    "representations_cpu": "representations",
    "wmt_positions_cpu": "",
}


def redraw(name: str) -> None:
    """Draws RESULTS/NAME.png from NAME.json, as the benchmark that wrote the file does."""
    data = json.loads((RESULTS / f"{name}.json").read_text())
    path = RESULTS / f"{name}.png"
    module = PICTURES[name] and importlib.import_module(PICTURES[name])
    if hasattr(module, "draw"):  # it saves its figure itself
        module.draw(data["rows"], path)
    else:
        pictures.save(module.plot(data["rows"]) if module else _comparison(data), path)
    print(path.name, file=sys.stderr)


def _comparison(data: Mapping[str, Any]) -> "Figure":
    """Returns the figure of a comparison with the curves that its file keeps."""
    record, result = _first(data)
    curves = {
        arm: [
            [{"step": step} | dict(zip(result["scores"], values)) for step, *values in run]
            for run in runs
        ]
        for arm, runs in record["curves"].items()
    }
    return paired_runs.comparison(result, curves)


def _first(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the record and the result of a comparison, the first one of a file of several."""
    record = data if "result" in data else data["results"][0]
    return record, record.get("result", record)


def copy_curves(name: str, workdir: pathlib.Path) -> None:
    """Adds {arm: [[step, score, ...] of each evaluation of each run]} to a file of results."""
    path = RESULTS / f"{name}.json"
    data = json.loads(path.read_text())
    record, result = _first(data)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PICTURES)}; default: all")
    parser.add_argument("--curves", type=pathlib.Path, help="folder of the comparison's runs")
    arguments = parser.parse_args()
    for name in arguments.names or PICTURES:
        if arguments.curves:
            copy_curves(name, arguments.curves)
        redraw(name)


if __name__ == "__main__":
    main()
