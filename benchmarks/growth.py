"""Measures how the cost of a small GPT's training step grows with its sizes and with the devices.

python benchmarks/growth.py [--json=FILE] [--case=length] [--case=depth] [--case=width] \\
    [--case=vocabulary] [--case=devices] [--plot=benchmarks/results/growth_cpu.png] [--tiny]

One size doubles at a time; the other sizes and the tokens of a step stay those of the base. The
peer is the prediction from the FLOPs: the base's seconds times the growth of the FLOPs. A ratio
above 1 means that the step costs less than predicted. `devices` compiles the base for 1 to 8
virtual CPU devices, fully sharded (config.mesh.fsdp), and trains nothing.
"""

import dataclasses
import functools

import jax
from harness import apart, in_turn, main
from steps import gpt_rows, stepping

from transformer_jax import pictures
from transformer_jax.planning import estimate, hlo
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.training.step import Program

FACTORS = (0.25, 0.5, 1, 2, 4)
AXES = ("length", "depth", "width", "vocabulary")


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a GPT, and the tokens of a step."""

    length: int
    depth: int
    width: int
    vocabulary: int
    tokens: int

    def rows(self):
        """Returns the task and a batch."""
        task, batch, _ = gpt_rows(
            rows=self.tokens // self.length,
            length=self.length,
            layers=self.depth,
            width=self.width,
            vocab_size=self.vocabulary,
        )
        return task, batch


CPU = Shape(length=256, depth=4, width=256, vocabulary=8192, tokens=2048)
GPU = Shape(length=1024, depth=12, width=768, vocabulary=32_768, tokens=2**14)
TINY = Shape(length=64, depth=2, width=128, vocabulary=512, tokens=256)


def base_shape(tiny: bool) -> Shape:
    if tiny:
        return TINY
    return GPU if jax.default_backend() == "gpu" else CPU


def axis(tiny: bool, name: str):
    """Yields the seconds of a step for each value of a size. The values take turns."""
    base = base_shape(tiny)
    base_value = getattr(base, name)
    values = [int(base_value * factor) for factor in (FACTORS[1:4] if tiny else FACTORS)]
    made = {value: dataclasses.replace(base, **{name: value}).rows() for value in values}
    flops = {value: task.flops() * task.config.train.batch for value, (task, _) in made.items()}
    steps = {value: stepping(task, [batch]) for value, (task, batch) in made.items()}
    spent = in_turn(steps, 2 if tiny else 7)
    for value in values:
        predicted = spent[base_value] * flops[value] / flops[base_value]
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


def devices(tiny: bool):
    """Yields the bytes of a device's state, and those that it sends in a step.

    The peer of the first is an equal share of the state. The peer of the second is the minimum for
    full sharding: the parameters are gathered in both passes and their gradients are scattered
    (Rajbhandari et al. 2020, section 7.2.2).
    """
    whole_state = None
    parameters = None
    for count in (1, 2) if tiny else (1, 2, 4, 8):
        sizes = apart(sharded, count, TINY if tiny else CPU)
        state = sizes["parameters"] + sizes["optimizer state"]
        if count == 1:
            whole_state = state
            parameters = sizes["parameters"]
        yield {
            "case": f"{count} devices, state of each",
            "ours": state / 1e6,
            "unit": "MB",
            "peer": whole_state / count / 1e6,
            "peer_name": "an equal share",
            "ratio": whole_state / count / state,
        }
        if count > 1:
            least = 3 * parameters * (count - 1) / count
            yield {
                "case": f"{count} devices, sent by each",
                "ours": sizes["sent"] / 1e6,
                "unit": "MB",
                "peer": least / 1e6,
                "peer_name": "gather twice, scatter",
                "ratio": least / sizes["sent"],
                "collectives": sizes["collectives"],
            }


def sharded(count: int, shape: Shape) -> dict:
    """Returns the bytes per device of a step's arguments, by kind, and those of its collectives.

    Compiles for `count` virtual CPU devices.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)
    config = shape.rows()[0].config
    config.mesh.fsdp = count
    task = CausalLM(config, None, shape.length)
    program = Program.of(config, task)
    compiled = program.train_step.lower(program.state, program.batch).compile()
    collectives = hlo.collectives(compiled.as_text(), count)
    return {
        **estimate.arguments(program),
        "sent": sum(collective.count * collective.moved for collective in collectives),
        "collectives": hlo.summary(collectives),
    }


def plot(rows: list[dict]):
    points = {}
    for row in rows:
        if "axis" in row:
            points.setdefault(row["axis"], []).append((row["value"], row["ours"], row["peer"]))
    return pictures.growth(
        points,
        "seconds of a step",
        "A training step as one size of a small GPT grows, beside its FLOPs",
    )


CASES = {name: functools.partial(axis, name=name) for name in AXES} | {"devices": devices}

if __name__ == "__main__":
    main(__doc__, CASES, ("jax", "flax"), plot=plot)
