"""Computes the hours and the money of published trainings on rented chips, from compiled programs.

python benchmarks/costs.py --json=FILE [--training=NAME] [--machine=NAME]
python benchmarks/costs.py --table --json=FILE [--price h100=2.49]

It needs the compilers of `pip install -e '.[tpu,gpu]'`, and none of the chips. Each row is a
training on a machine. `dry_run` compiles its update with the fewest microbatches that fit. An
update takes at least the largest of its three limits: compute, memory, network. Beside this bound
stands the time at 40 % of the peak rate. A row takes one to four minutes of two busy cores. Rows
that --json has are not computed again.

A Chinchilla-optimal training has 20 tokens a parameter (Hoffmann et al. 2022). The last table has
three such trainings: with half the tokens, with as many, and with twice as many. With a cosine
schedule they are three runs. With `warmup_stable_decay`, the shorter two are branches of the
longest: each repeats only its last tenth (Hu et al. 2024, section 4).
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys
from typing import NamedTuple

import comparison

COMMAND = "python benchmarks/costs.py --json"
MFU = 0.4
TOKENS_A_PARAMETER = 20
BUDGETS = (0.5, 1, 2)  # of the Chinchilla-optimal tokens
COOLDOWN = 0.1  # of a run


class Machine(NamedTuple):
    label: str
    topology: str
    devices: int
    price: float  # of a device hour, in dollars: an assumption, see --price


class Training(NamedTuple):
    """A published training. Its parts have different rows."""

    label: str
    config: str
    parts: tuple[tuple[float, dict], ...] = ((1.0, {}),)  # (share of the updates, config keys)
    is_sharded: bool = False  # parameters and optimizer state over all devices


MACHINES = {
    "v5e": Machine("v5e-16", "v5e:4x4", 16, 1.20),
    "v5p": Machine("v5p-64", "v5p:2x4x4", 32, 4.20),
    "h100": Machine("8 H100", "h100:8", 8, 3.00),
}
# The translation of validation sentences takes as long to compile as the update.
WITHOUT_BLEU = ((1.0, {"task.bleu_lines": 0}),)
BERT_PARTS = (
    (0.9, {"task.phases": "((1.0,128,20),)"}),
    (0.1, {"task.phases": "((1.0,512,76),)"}),
)
TRAININGS = {
    "base": Training("Transformer base", "configs/wmt/base.py", WITHOUT_BLEU),
    "big": Training("Transformer big", "configs/wmt/big.py", WITHOUT_BLEU),
    "bert-base": Training("BERT base", "configs/bert/base.py", BERT_PARTS),
    "bert-large": Training("BERT large", "configs/bert/large.py", BERT_PARTS),
    "gpt2-124m": Training("GPT-2 124M", "configs/gpt/gpt2.py:124m"),
    "gpt2-355m": Training("GPT-2 355M", "configs/gpt/gpt2.py:355m"),
    "gpt2-774m": Training("GPT-2 774M", "configs/gpt/gpt2.py:774m", is_sharded=True),
    "gpt2-1558m": Training("GPT-2 1558M", "configs/gpt/gpt2.py:1558m", is_sharded=True),
}
LANGUAGE_MODELS = [name for name in TRAININGS if name.startswith("gpt2")]


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--json", type=pathlib.Path, required=True)
    flags.add_argument("--training", choices=TRAININGS, action="append", help="may be repeated")
    flags.add_argument("--machine", choices=MACHINES, action="append", help="may be repeated")
    flags.add_argument("--table", action="store_true", help="show the rows of --json")
    flags.add_argument(
        "--price", action="append", default=[], metavar="NAME=DOLLARS", help="of a device hour"
    )
    arguments = flags.parse_args()
    rows = json.loads(arguments.json.read_text())["rows"] if arguments.json.exists() else []
    if arguments.table:
        prices = {name: machine.price for name, machine in MACHINES.items()}
        prices |= {name: float(price) for name, price in (x.split("=") for x in arguments.price)}
        return print("\n\n".join((trainings_table(rows, prices), budgets_table(rows, prices))))
    order = [f"{training}, {machine}" for training in TRAININGS for machine in MACHINES]
    done = {row["name"] for row in rows}
    for training in arguments.training or TRAININGS:
        for machine in arguments.machine or MACHINES:
            if f"{training}, {machine}" not in done:
                row = computed(training, machine)
                print(json.dumps(row), flush=True)
                comparison.add_rows(arguments.json, [row], "name", order, COMMAND)


def computed(name: str, machine_name: str) -> dict:
    """Returns the row of a training on a machine."""
    from transformer_jax import hardware

    training, machine = TRAININGS[name], MACHINES[machine_name]
    mesh = {"mesh.data": 1, "mesh.fsdp": machine.devices} if training.is_sharded else {}
    parts = [
        {"share": share, **fitting(training.config, machine, mesh | keys)}
        for share, keys in training.parts
    ]
    costs = program("costs", f"--config={training.config}")
    peak = machine.devices * hardware.NAMES[machine_name].flops
    seconds = costs["num_steps"] * sum(part["share"] * part["seconds"] for part in parts)
    return {
        "name": f"{name}, {machine_name}",
        "training": name,
        "machine": machine_name,
        "devices": machine.devices,
        "parameters": costs["params"],
        "updates": costs["num_steps"],
        "positions": costs["positions"],
        "flops": costs["flops"],
        "hours_at_bound": seconds / 3600,
        "hours_at_mfu": costs["flops"] / (MFU * peak) / 3600,
        "parts": parts,
        "date": datetime.date.today().isoformat(),
        "revision": comparison.revision(),
    }


def fitting(config: str, machine: Machine, keys: dict) -> dict:
    """Returns the limits of an update, with the fewest microbatches that fit."""
    accumulation = 1
    while True:
        keys = keys | {"train.accumulation": accumulation}
        flags = [f"--config.{key}={value}" for key, value in keys.items()]
        topology = f"--topology={machine.topology}"
        result = program("dry_run", f"--config={config}", topology, *flags)
        if result["fits"]:
            break
        accumulation *= 2
    limits = {name: result["roofline"][f"{name}_s"] for name in ("compute", "memory", "network")}
    return {
        "accumulation": accumulation,
        "peak_bytes": result["bytes_per_device"]["peak"],
        "limits": limits,
        "seconds": max(limits.values()),
        "bound": result["roofline"]["bound"],
    }


def program(name: str, *flags: str) -> dict:
    """Runs a program of the package, and returns its JSON. Raises CalledProcessError."""
    command = [sys.executable, "-m", f"transformer_jax.{name}", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


# results


def trainings_table(rows: list[dict], prices: dict[str, float]) -> str:
    """Returns the cost of each published training on each machine, as Markdown."""
    header = ["training", "updates", "machine", "microbatches", "bound by"]
    header += ["hours at the bound", f"hours at {MFU:.0%}", "$ at the bound", f"$ at {MFU:.0%}"]
    lines = []
    for row in rows:
        hours = (row["hours_at_bound"], row["hours_at_mfu"])
        lines.append(
            [
                TRAININGS[row["training"]].label,
                f"{row['updates']:,}",
                MACHINES[row["machine"]].label,
                ", ".join(str(part["accumulation"]) for part in row["parts"]),
                ", ".join(dict.fromkeys(part["bound"] for part in row["parts"])),
                *(f"{each:,.1f}" if each >= 10 else f"{each:.2f}" for each in hours),
                *(f"{each * hourly_price(row, prices):,.0f}" for each in hours),
            ]
        )
    return comparison.markdown(header, lines)


def budgets_table(rows: list[dict], prices: dict[str, float]) -> str:
    """Returns the cost of Chinchilla-optimal trainings and of their two schedules, as Markdown.

    The costs of a row are proportional to its tokens.
    """
    header = ["model", "machine", "tokens", f"hours at {MFU:.0%}", f"$ at {MFU:.0%}"]
    header += ["$ of three lengths, cosine", "$ of three lengths, warm-up, stable, decay"]
    longest = max(BUDGETS)
    branches = longest + COOLDOWN * (sum(BUDGETS) - longest)
    lines = []
    for row in rows:
        if row["training"] in LANGUAGE_MODELS:
            tokens = TOKENS_A_PARAMETER * row["parameters"]
            hours = row["hours_at_mfu"] * tokens / row["positions"]
            money = hours * hourly_price(row, prices)
            costs = (money, sum(BUDGETS) * money, branches * money)
            names = [TRAININGS[row["training"]].label, MACHINES[row["machine"]].label]
            cells = [f"{tokens / 1e9:.1f} billion", f"{hours:,.1f}"]
            lines.append([*names, *cells, *(f"{each:,.0f}" for each in costs)])
    return comparison.markdown(header, lines)


def hourly_price(row: dict, prices: dict[str, float]) -> float:
    """Returns the dollars of an hour of a row's machine."""
    return row["devices"] * prices[row["machine"]]


if __name__ == "__main__":
    main()
