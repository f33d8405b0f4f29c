"""Measures what each kind of attention costs as the text grows from 512 to 65,536 tokens.

python benchmarks/length.py --json=FILE [--method=NAME] [--device=cpu|v5e|h100] [--tiny]
python benchmarks/length.py --seconds --json=FILE [--method=NAME] [--tiny]
python benchmarks/length.py --table --json=FILE

A row is a training step with one text: two layers of 256 with 4 heads of 64, 256 tokens in the
vocabulary, no dropout. Causal models predict all tokens, and encoders 15 % of them. The row has the
FLOPs of the model's formula, and the temporary bytes of a device as compiled. v5e and h100 need the
compilers of `pip install -e '.[tpu,gpu]'`, and no such device. `--seconds` measures updates on this
CPU instead: the median of three after a first one. It leaves out steps that take more than 6 GB, or
more than 60 seconds by the seconds of a shorter text and the FLOPs.

- Full attention has all scores in memory, or the kernel that layers/attention.py picks: blocks of
  queries on a CPU, splash on a TPU, cuDNN on a GPU. The formula counts half of the scores.
- Dropout of 0.1 on the weights has a kernel of its own on accelerators.
- The ring has 4 devices. Bytes are those of each, and FLOPs those of all.
- Transformer-XL reads a text in rows of 512 tokens, one after the other. FLOPs and seconds are
  those of all rows, and bytes those of one.

Rows are put into --json as soon as they end, and complete ones are not computed again. A step that
cannot be compiled is a row with the reason. The budget of the 280 rows without seconds is two hours
of two cores. The seconds take half an hour of quiet ones.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

import comparison
from length_step import DEVICES, METHODS, row_length

STEP = pathlib.Path(__file__).parent / "length_step.py"
COMMAND = "python benchmarks/length.py --json"
LENGTHS = [2**power for power in range(9, 17)]
TINY_LENGTHS = (512, 1024)
PARTS = (*DEVICES, "seconds")
ORDER = [f"{name}, {n}, {part}" for name in METHODS for n in LENGTHS for part in PARTS]
MOST_SECONDS = 60  # of an update
MOST_MINUTES = 30  # of a row
GROWTH_FROM, GROWTH_TO = 8192, 65_536
# The window's memory must grow at most so many times between these lengths, whose ratio is 8.
MOST_GROWTH = 8.5
TITLES = {
    "cpu": "temporaries on a CPU",
    "v5e": "temporaries on a TPU v5e",
    "h100": "temporaries on an H100",
    "seconds": "seconds of an update on a CPU",
}


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--json", type=pathlib.Path, required=True)
    flags.add_argument("--method", choices=METHODS, action="append", help="may be repeated")
    flags.add_argument("--device", choices=DEVICES, action="append", help="may be repeated")
    flags.add_argument("--length", type=int, choices=LENGTHS, action="append", help="likewise")
    flags.add_argument("--seconds", action="store_true", help="measure updates, compile no others")
    flags.add_argument("--table", action="store_true", help="show and draw the rows of --json")
    flags.add_argument("--tiny", action="store_true", help="a narrow model, to try the script")
    arguments = flags.parse_args()
    if arguments.table:
        rows = rows_of(arguments.json)
        print("\n\n".join(tables(rows)))
        draw(rows, arguments.json.with_suffix(".png"))
        return
    lengths = arguments.length or (TINY_LENGTHS if arguments.tiny else LENGTHS)
    parts = ("seconds",) if arguments.seconds else arguments.device or DEVICES
    for part in parts:
        for name in arguments.method or METHODS:
            for length in lengths if part in METHODS[name].parts else ():
                complete(arguments, name, length, part)


def complete(arguments, name: str, length: int, part: str) -> None:
    """Puts a row into the file, unless the file has it."""
    rows = rows_of(arguments.json)
    key = f"{name}, {length}, {part}"
    if any(row["name"] == key for row in rows):
        return
    row = {"name": key, "method": name, "length": length, "part": part}
    if reason := too_slow(rows, name, length) if part == "seconds" else None:
        row |= {"reason": reason}
    else:
        row |= repeated(rows, row) or computed(name, length, part, arguments.tiny)
    row |= {"date": datetime.date.today().isoformat(), "revision": comparison.revision()}
    print(json.dumps(row), flush=True)
    comparison.add_rows(arguments.json, [row], "name", ORDER, COMMAND)


def rows_of(path: pathlib.Path) -> list[dict]:
    return json.loads(path.read_text())["rows"] if path.exists() else []


def too_slow(rows: list[dict], name: str, length: int) -> str | None:
    """Returns why the seconds of a step are not measured; None if they may be few.

    They are expected to grow as the FLOPs do, from the longest text that was measured.
    """
    own = [row for row in rows if row["method"] == name and row["length"] <= length]
    flops = {row["length"]: row["flops"] for row in own if "flops" in row}
    shorter = [row for row in own if "seconds" in row]
    if length not in flops or not shorter:
        return None
    last = max(shorter, key=lambda row: row["length"])
    expected = last["seconds"] * flops[length] / flops[last["length"]]
    return f"about {expected:.0f} seconds" if expected > MOST_SECONDS else None


def repeated(rows: list[dict], row: dict) -> dict | None:
    """Returns what a step costs that reads more of the same rows than one that is known."""
    method = METHODS[row["method"]]
    for known in rows:
        same = all(known[key] == row[key] for key in ("method", "part"))
        if same and row_length(method, known["length"]) == row_length(method, row["length"]):
            times = row["length"] / known["length"]
            scaled = {key: times * known[key] for key in ("flops", "seconds") if key in known}
            return {key: known[key] for key in known if key not in row} | scaled
    return None


def computed(name: str, length: int, part: str, tiny: bool) -> dict:
    """Returns what a step costs, computed in a separate process, or the reason for a failure."""
    flags = [f"--method={name}", f"--length={length}", f"--part={part}"]
    flags += ["--tiny"] if tiny else []
    try:
        done = subprocess.run(
            [sys.executable, str(STEP), *flags],
            capture_output=True,
            text=True,
            timeout=60 * MOST_MINUTES,
        )
    except subprocess.TimeoutExpired:
        return {"reason": f"more than {MOST_MINUTES} minutes"}
    if done.returncode == 0:
        from harness import machine

        return json.loads(done.stdout) | ({"machine": machine()} if part == "seconds" else {})
    if done.returncode < 0:
        return {"reason": f"ended by signal {-done.returncode}"}
    last_line = done.stderr.strip().splitlines()[-1]
    if last_line.startswith("error: "):  # a fault of the config, or a compiler that is missing
        raise SystemExit(last_line)
    return {"reason": last_line[:200]}


# results


def tables(rows: list[dict]) -> list[str]:
    """Returns the bytes, the seconds, the FLOPs and their growth, as Markdown."""
    results = []
    for part in parts_of(rows):
        title = TITLES[part] + ("" if part == "seconds" else ", MB")
        cell = seconds_cell if part == "seconds" else bytes_cell
        results.append(f"{title}\n\n{by_length(rows, part, cell)}")
    results.append(f"GFLOP of an update\n\n{by_length(rows, None, flops_cell)}")
    results.append(f"growth from {GROWTH_FROM:,} to {GROWTH_TO:,} tokens\n\n{growth_table(rows)}")
    growths = [growth(rows, "window", part, "temporaries") for part in DEVICES]
    known = [each for each in growths if each is not None]
    if known:
        verdict = "does" if max(known) <= MOST_GROWTH else "does NOT"
        results.append(f"The memory of the window {verdict} grow at most {MOST_GROWTH} times.")
    return results


def parts_of(rows: list[dict]) -> list[str]:
    """Returns the parts that have rows with figures."""
    fields = ("temporaries", "seconds")
    return [
        part
        for part in PARTS
        if any(row["part"] == part and any(map(row.get, fields)) for row in rows)
    ]


def by_length(rows: list[dict], part: str | None, cell) -> str:
    """Returns a table of methods by lengths. With no part, a cell is of any row."""
    chosen = [row for row in rows if part in (None, row["part"])]
    lengths = sorted({row["length"] for row in chosen})
    lines = []
    for name, method in METHODS.items():
        by_length = {row["length"]: cell(row) for row in chosen if row["method"] == name}
        if by_length:
            lines.append([method.label, *(by_length.get(length, "") for length in lengths)])
    return comparison.markdown(["attention", *(f"{length:,}" for length in lengths)], lines)


def bytes_cell(row: dict) -> str:
    if "fits" not in row:
        return row["reason"]
    size = "" if row["temporaries"] is None else f"{row['temporaries'] / 1e6:,.0f}"
    return size if row["fits"] else f"{size} (too large)".strip()


def seconds_cell(row: dict) -> str:
    return f"{row['seconds']:.3g}" if "seconds" in row else row["reason"]


def flops_cell(row: dict) -> str:
    return f"{row['flops'] / 1e9:,.1f}" if "flops" in row else ""


def growth_table(rows: list[dict]) -> str:
    columns = {"FLOPs": (None, "flops")}
    columns |= {TITLES[part]: (part, "temporaries") for part in DEVICES}
    columns |= {TITLES["seconds"]: ("seconds", "seconds")}
    lines = []
    for name, method in METHODS.items():
        factors = [growth(rows, name, *column) for column in columns.values()]
        cells = ["" if each is None else f"{each:.1f}" for each in factors]
        if any(cells):
            lines.append([method.label, *cells])
    return comparison.markdown(["attention", *columns], lines)


def growth(rows: list[dict], name: str, part: str | None, field: str) -> float | None:
    """Returns how many times a field grows between the two lengths; None if one is missing."""
    values = points(rows, name, part, field)
    if values.get(GROWTH_FROM) and values.get(GROWTH_TO):
        return values[GROWTH_TO] / values[GROWTH_FROM]
    return None


def points(rows: list[dict], name: str, part: str | None, field: str) -> dict[int, float]:
    """Returns a field of a method by length; that of any part for None."""
    own = [row for row in rows if row["method"] == name and part in (None, row["part"])]
    return {row["length"]: row[field] for row in own if row.get(field) is not None}


def draw(rows: list[dict], path: pathlib.Path) -> None:
    """Draws bytes and seconds by length, a panel for each part. Both axes are logarithmic."""
    from transformer_jax.pictures.figure import new_figure, save, style

    parts = parts_of(rows)
    figure = new_figure((5 * len(parts), 5.5), "A training step with one text, two layers of 256")
    panels = figure.subplots(1, len(parts), squeeze=False)[0]
    lines = {}
    for panel, part in zip(panels, parts):
        field, unit = ("seconds", 1) if part == "seconds" else ("temporaries", 1e6)
        for number, (name, method) in enumerate(METHODS.items()):
            values = points(rows, name, part, field)
            heights = [value / unit for value in values.values()]
            (line,) = panel.plot([*values], heights, markersize=4, **style(number))
            lines[method.label] = line
        panel.set(xscale="log", yscale="log", title=TITLES[part])
        panel.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS], rotation=45)
        panel.minorticks_off()
        panel.set_ylabel("s" if part == "seconds" else "MB")
        panel.grid(alpha=0.3)
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(parts) + 1)
    save(figure, path)


if __name__ == "__main__":
    main()
