"""How the cost of a training step grows: its seconds with each size of a small GPT, beside its
FLOPs; what each device holds and sends, with their number.

python benchmarks/growth.py [--json=FILE] [--case=length] [--case=depth] [--case=width] [--case=vocabulary] [--case=devices] [--plot=benchmarks/results/growth_cpu.png] [--tiny]

One size grows at a time by doubling, the others stay at the base, the tokens of a step everywhere.
What the FLOPs predict is the base's time times their growth: a ratio above 1 is a step that costs
less than that. `devices` compiles the base for 1 to 8 virtual CPU devices, fully sharded
(config.mesh.fsdp); nothing is trained there.
"""

import functools

import jax
from harness import apart, in_turn, main
from train_step import gpt_rows, stepping

from transformer_jax import pictures
from transformer_jax.planning import estimate, hlo
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.training.program import Program

CPU = dict(length=256, depth=4, width=256, vocabulary=8192), 2048  # and the tokens of a step
GPU = dict(length=1024, depth=12, width=768, vocabulary=32_768), 2**14
TINY = dict(length=64, depth=2, width=128, vocabulary=512), 256
FACTORS = (0.25, 0.5, 1, 2, 4)


def axis(tiny: bool, name: str):
    """Seconds of a step as this size grows. The sizes take their turns."""
    base, tokens = TINY if tiny else GPU if jax.default_backend() == "gpu" else CPU
    shapes = {
        int(base[name] * factor): base | {name: int(base[name] * factor)}
        for factor in (FACTORS[1:4] if tiny else FACTORS)
    }
    made = {value: rows_of(shape, tokens) for value, shape in shapes.items()}
    flops = {value: task.flops() * task.config.train.batch for value, (task, _) in made.items()}
    spent = in_turn(
        {value: stepping(task, [batch]) for value, (task, batch) in made.items()}, 2 if tiny else 7
    )
    for value in shapes:
        predicted = spent[base[name]] * flops[value] / flops[base[name]]
        yield {
            "case": f"{name} {value}",
            "ours": spent[value],
            "unit": "s",
            "peer": predicted,
            "peer_name": "as the FLOPs grow",
            "ratio": predicted / spent[value],
            "axis": name,
            "value": value,
            "flops": flops[value],
        }


def rows_of(shape: dict[str, int], tokens: int):
    task, batch, _ = gpt_rows(
        tokens // shape["length"],
        shape["length"],
        shape["depth"],
        shape["width"],
        shape["vocabulary"],
    )
    return task, batch


def devices(tiny: bool):
    """The state a device holds, against an equal share of it; and the bytes it sends in a step at
    least, against what full sharding has to: the parameters gathered in both passes, their
    gradients scattered (Rajbhandari et al. 2020, section 7.2.2).
    """
    whole, parameters = 0, 0
    for count in (1, 2) if tiny else (1, 2, 4, 8):
        found = apart(sharded, count, *(TINY if tiny else CPU))
        state = found["parameters"] + found["optimizer state"]
        whole, parameters = whole or state, parameters or found["parameters"]
        yield {
            "case": f"{count} devices, state of each",
            "ours": state / 1e6,
            "unit": "MB",
            "peer": whole / count / 1e6,
            "peer_name": "an equal share",
            "ratio": whole / count / state,
        }
        if count > 1:
            least = 3 * parameters * (count - 1) / count
            yield {
                "case": f"{count} devices, sent by each",
                "ours": found["sent"] / 1e6,
                "unit": "MB",
                "peer": least / 1e6,
                "peer_name": "gather twice, scatter",
                "ratio": least / found["sent"],
                "collectives": found["collectives"],
            }


def sharded(count: int, shape: dict[str, int], tokens: int) -> dict:
    """Bytes per device of a step's arguments by what they are for, and what its collectives send,
    on so many virtual CPU devices.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)
    config = rows_of(shape, tokens)[0].config
    config.mesh.fsdp = count
    task = CausalLM(config, None, shape["length"])
    program = Program.of(config, task)
    sent = hlo.collectives(
        program.train_step.lower(program.state, program.batch).compile().as_text(), count
    )
    return {
        **estimate.arguments(program),
        "sent": sum(one.count * one.moved for one in sent),
        "collectives": hlo.summary(sent),
    }


def drawn(rows: list[dict]):
    grown = {}
    for row in (row for row in rows if "axis" in row):
        grown.setdefault(row["axis"], []).append((row["value"], row["ours"], row["peer"]))
    return pictures.growth(
        grown,
        "seconds of a step",
        "A training step as one size of a small GPT grows, beside its FLOPs",
    )


CASES = {name: functools.partial(axis, name=name) for name in CPU[0]} | {"devices": devices}

if __name__ == "__main__":
    main(__doc__, CASES, ("jax", "flax"), plot=drawn)
