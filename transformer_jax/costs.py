"""Computes the cost of a training run: python -m transformer_jax.costs
--config=configs/gpt/gpt2.py:124m --device=h100 --mfu=0.4 --price=2.50

FLOPs are counted by the same formulas as in dry_run and in the MFU of the progress line. Device
hours follow from the expected share of the peak rate (MFU), and money from a price per device hour.
A fine-tuning config takes its model from --config.init_from; each row is counted at full length.

Without --config, it computes published figures from the package's layers and configs, and prints
them beside the published values: FLOPs of layers, parameters of all named models, and FLOPs of
training runs. Tables go to stderr, and one JSON object goes to stdout. With --picture=FILE.png, it
draws the sizes of models over the years instead, and prints them.
"""

import json
import math
import pathlib

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_config(required=False)
    flags.DEFINE_string(
        "device",
        None,
        "Chip of the table in hardware.py: v4, v5e, v5p, v6e, a100-40, a100-80, h100, h200, b200, "
        "l4, a10g, 4090.",
    )
    flags.DEFINE_float(
        "mfu",
        0.4,
        "Expected share of the chip's peak rate that the model's own operations reach (MFU).",
    )
    flags.DEFINE_float(
        "price", None, "Price of an hour of one device, in any currency.", lower_bound=0
    )
    flags.DEFINE_string(
        "picture", None, "PNG file to draw: the sizes of models over the years, from their configs."
    )


def main() -> None:
    if cli.FLAGS.config:
        if cli.FLAGS.picture:
            raise UserError("--picture: of all named models, so not with --config")
        return _config_costs()
    if given := [name for name in ("device", "mfu", "price") if cli.FLAGS[name].present]:
        raise UserError(f"--{given[0]} needs --config, whose cost is computed")
    if cli.FLAGS.picture:
        return _draw_sizes()
    from transformer_jax.pictures.progress import say

    published = _published_tables()
    tables = {
        "layers": published.layers(),
        "parameters": list(published.models()),
        "training": list(published.trainings()),
    }
    titles = {
        "layers": "FLOPs of a layer at length and width 1000",
        "parameters": "parameters",
        "training": "FLOPs of a training",
    }
    for key, rows in tables.items():
        say("\n".join([titles[key], *map(_line, rows)]))
    print(json.dumps({key: [_record(row) for row in rows] for key, rows in tables.items()}))


def sizes() -> list[tuple[str, float, int]]:
    """Returns (name, year of publication, parameters) of the largest model of each paper.

    Raises UserError if the package is installed without a checkout.
    """
    return list(_published_tables().sizes())


def _draw_sizes() -> None:
    """Draws the sizes of models over the years, and prints them as JSON."""
    from transformer_jax import pictures

    cli.check_output("picture")
    counted = sizes()
    title = "Parameters of published models of text, counted from their configs"
    pictures.save(pictures.model_sizes(counted, title), cli.FLAGS.picture)
    records = [{"name": name, "year": year, "params": count} for name, year, count in counted]
    print(json.dumps({"sizes": records}))


def _record(row) -> dict:
    return {
        "name": row.name,
        "value": row.value,
        "published": row.printed,
        "agrees": row.agrees,
        "formula": row.formula,
        "note": row.note,
    }


def _published_tables():
    """Returns the module benchmarks/published.py of a checkout.

    Raises UserError if the package is installed without one.
    """
    from transformer_jax.config import load_module

    # Not imported, because it is no part of the installed package.
    path = pathlib.Path(__file__).parent.parent / "benchmarks" / "published.py"
    if not path.is_file():
        raise UserError(f"{path}: no such file; the published tables need a checkout, or --config")
    return load_module(path)


def _line(row) -> str:
    sign = {True: "=", False: "not", None: ""}[row.agrees]
    value = f"{row.value:,.0f}" if row.value < 1e12 else f"{row.value:.4g}"
    note = f"; {row.note}" if row.note else ""
    return f"  {row.name:<30} {value:>18} {sign:>3} {row.printed or '':<8} {row.formula}{note}"


def _config_costs() -> None:
    from transformer_jax.pictures.progress import say
    from transformer_jax.planning import estimate
    from transformer_jax.runs.spec import resolve

    chip = _check_flags(cli.FLAGS)
    run = resolve(cli.FLAGS.config, overrides=cli.overrides())
    num_steps, task = run.config.train.num_steps, run.task()
    flops, positions = estimate.training(task)
    sizes = task.parameter_counts()
    # The common rule of 6 FLOPs for each parameter and token (Kaplan et al. 2020, section 2.1), for
    # comparison. It leaves out the products of attention that grow with the length.
    six_nd = 6 * sizes["params"] * positions
    costs = {
        **sizes,
        "num_steps": num_steps,
        "positions": positions,
        "flops": flops,
        "six_nd": six_nd,
    }
    lines = [
        f"{num_steps:,} updates, {positions:.4g} target positions, {sizes['params']:,} parameters",
        f"{flops:.4g} FLOPs (6ND: {six_nd:.4g})",
    ]
    if chip:
        hours = flops / (chip.flops * cli.FLAGS.mfu) / 3600
        costs |= {"device": chip.name, "mfu": cli.FLAGS.mfu, "device_hours": hours}
        lines.append(
            f"{hours:,.1f} hours of one {chip.name} at {cli.FLAGS.mfu:.0%} of its "
            f"{chip.flops / 1e12:.4g} TFLOP/s"
        )
        # Compared with None, because 0 is a price as well.
        if cli.FLAGS.price is not None:
            costs["money"] = hours * cli.FLAGS.price
            lines.append(f"{costs['money']:,.2f} at {cli.FLAGS.price:g} an hour")
    say("\n".join(lines))
    print(json.dumps(costs))


def _check_flags(options):
    """Returns the chip of --device, or None. Raises UserError for flags that make no sense."""
    from transformer_jax import hardware
    from transformer_jax.config import choice

    if not 0 < options.mfu <= 1:
        raise UserError(f"--mfu={options.mfu}: must be above 0 and at most 1, a share of the peak")
    if options.price is not None and not options.device:
        raise UserError("--price needs --device: hours follow from its rate")
    if options.price is not None and not math.isfinite(options.price):
        raise UserError(f"--price={options.price}: not a number")
    if not options.device:
        return None
    try:
        return choice(options.device.lower(), hardware.NAMES)
    except UserError as error:
        raise UserError(f"--device: {error}") from None


if __name__ == "__main__":
    cli.run(main, define_flags)
