"""Prints one row of benchmarks/length.py: the cost of a training step at one length, as JSON.

python benchmarks/length_step.py --method=NAME --length=L --part=PART [--tiny]

A part is a device to compile for (cpu, v5e, h100), or `seconds`, those of updates on this CPU. Each
row has a process of its own, because a process compiles for one kind of device.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from transformer_jax import hardware
from transformer_jax.config import UserError, experiment
from transformer_jax.planning import topology

SEGMENT = 512  # tokens of a row of Transformer-XL, and of its memory
PREDICTED = 0.15  # share of the tokens that an encoder predicts
MOST_BYTES = 6e9  # of an update whose seconds are measured
UPDATES = 3  # whose median is taken, after a first one
ON_ONE = {"v5e": "v5e:1x1", "h100": "h100:1"}
ON_FOUR = {"v5e": "v5e:2x2", "h100": "h100:4"}
DEVICES = ("cpu", *ON_ONE)
SIZES = dict(vocab_size=256, d_model=256, num_layers=2, num_heads=4, dropout=0.0)
TINY = dict(vocab_size=64, d_model=64, num_layers=2, num_heads=1, dropout=0.0)


class Method(NamedTuple):
    """A kind of attention: a model, and the keys that make it."""

    label: str
    model: str
    keys: dict = {}
    task: str = "causal_lm"
    # the function of layers/attention.py instead of the one that `pick` chooses
    kernel: str | None = None
    devices: int = 1  # that share the length
    parts: tuple[str, ...] = (*DEVICES, "seconds")


METHODS = {
    "full-scores": Method("full, all scores", "decoder", kernel="dot_product"),
    "full": Method("full, as picked", "decoder"),
    "blockwise": Method(
        "full, dropout of weights",
        "decoder",
        dict(attention_dropout=0.1),
        parts=("v5e", "h100"),
    ),
    "ring": Method("full, ring of 4 devices", "decoder", devices=4, parts=DEVICES),
    "window": Method("window of 512", "decoder", dict(local_window=512)),
    "longformer": Method(
        "Longformer, window of 512", "longformer", dict(attention_window=(512,)), "masked_lm"
    ),
    "lsh": Method("LSH, 4 rounds", "reformer", dict(remat="none")),
    "lsh-reversible": Method("LSH, 4 rounds, reversible", "reformer"),
    "strided": Method("Sparse, strided", "sparse_transformer", dict(pattern="strided")),
    "fixed": Method("Sparse, fixed", "sparse_transformer", dict(pattern="fixed")),
    "linformer": Method("Linformer, rank 256", "linformer", dict(rank=256), "masked_lm"),
    "transformer-xl": Method("Transformer-XL, memory of 512", "transformer_xl"),
}


def decoder_keys(length: int) -> dict:
    # A gated MLP of this width has nearly the parameters of a plain one of 1,024.
    return dict(d_ff=640, max_length=length, attention_dropout=0.0)


def encoder_keys(length: int) -> dict:
    return dict(d_ff=1024, max_length=length, attention_dropout=0.0)


def sparse_transformer_keys(length: int) -> dict:
    # The root of the length, or the power of two above it.
    stride = 2 ** -(-(length.bit_length() - 1) // 2)
    return dict(d_ff=1024, max_length=length, stride=stride, num_summaries=8)


def transformer_xl_keys(length: int) -> dict:
    return dict(d_ff=1024, memory_length=SEGMENT)


def reformer_keys(length: int) -> dict:
    chunk = 64
    buckets = 2 * length // chunk
    side = 2 ** ((length.bit_length() - 1) // 2)
    # Factors of many buckets, as in the published code: their vectors are shorter.
    factor = 2 ** (buckets.bit_length() // 2)
    return dict(
        d_ff=1024,
        head_dim=64,
        max_length=length,
        attention=("lsh",),
        lsh_chunk=chunk,
        rounds=4,
        buckets=(buckets,) if buckets <= 2 * chunk else (buckets // factor, factor),
        axial_shape=(length // side, side),
    )


KEYS: dict[str, Callable[[int], dict]] = {
    "decoder": decoder_keys,
    "longformer": encoder_keys,
    "linformer": encoder_keys,
    "sparse_transformer": sparse_transformer_keys,
    "transformer_xl": transformer_xl_keys,
    "reformer": reformer_keys,
}


def row_length(method: Method, length: int) -> int:
    """Returns the tokens of a row; a longer text is several rows."""
    return SEGMENT if method.model == "transformer_xl" else length


def config_of(method: Method, length: int, tiny: bool):
    """Returns the config of a step with one row."""
    length = row_length(method, length)
    model = (TINY if tiny else SIZES) | KEYS[method.model](length) | method.keys
    if method.model == "reformer":
        model["axial_widths"] = (model["d_model"] // 4, 3 * model["d_model"] // 4)
    task = dict(length=length)
    if method.model == "transformer_xl":
        task["carry"] = True
    if method.task == "masked_lm":
        task = dict(phases=((1.0, length, int(PREDICTED * length)),), next_sentence=0.0)
    return experiment(
        model=dict(name=method.model, **model),
        task=dict(name=method.task, **task),
        train=dict(batch=1),
        optimizer=dict(name="adamw", learning_rate=1e-4, weight_decay=0.01, clip_norm=0.0),
        mesh=dict(data=1, sequence=method.devices),
    )


def row(method: Method, length: int, part: str, tiny: bool) -> dict:
    """Returns what a training step costs. Call it before jax is imported."""
    name = (ON_ONE if method.devices == 1 else ON_FOUR).get(part)
    os.environ["JAX_PLATFORMS"] = "cpu"
    if name:
        topology.prepare(name)

    import jax

    from transformer_jax.planning import estimate
    from transformer_jax.runs.spec import make_task
    from transformer_jax.training.step import Program

    if not name:
        jax.config.update("jax_num_cpu_devices", method.devices)
    devices = topology.devices(name) if name else jax.devices()
    config = config_of(method, length, tiny)
    task = make_task(config)
    kernels = picked(method.kernel)
    program = Program.of(config, task, devices[: method.devices])
    kernels.clear()  # those of the shapes of parameters
    segments = length // row_length(method, length)
    made = {"flops": segments * task.flops(0), "devices": method.devices}
    platform = devices[0].platform
    began = time.monotonic()
    try:
        lowered = program.train_step.lower(program.state, program.batch)
        compiled = estimate.compile_lowered(lowered, platform)
    except jax.errors.JaxRuntimeError as error:
        estimate.check_refusal(error)
        taken = sum(estimate.arguments(program).values())
        made |= {"kernels": sorted(kernels), "reason": str(error).splitlines()[0][:200]}
        temporaries = estimate.refused_temporaries(str(error), taken)
        return made | {"temporaries": temporaries, "fits": False}
    memory = compiled.memory_analysis()
    peak = estimate.live_bytes(memory, platform)
    made |= {
        "kernels": sorted(kernels),
        "temporaries": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "peak": peak,
        "compile_seconds": round(time.monotonic() - began, 1),
    }
    if part != "seconds":
        return made | {"fits": part == "cpu" or peak <= hardware.NAMES[part].memory}
    if peak > MOST_BYTES:
        return made | {"reason": f"an update takes {peak / 1e9:.0f} GB"}
    return made | {"seconds": segments * seconds(task, program, compiled)}


def picked(instead: str | None) -> set[str]:
    """Returns the names of the kernels that `pick` chooses from now on, or `instead` of them."""
    from transformer_jax.layers import attention

    names = set()
    pick = attention.pick

    def recorded(*arguments, **options):
        kernel = getattr(attention, instead) if instead else pick(*arguments, **options)
        names.add(kernel.__name__)
        return kernel

    attention.pick = recorded
    return names


def seconds(task, program, compiled) -> float:
    """Returns the seconds of an update on random tokens: the median of a few."""
    import jax

    from transformer_jax.training import step as states

    state = states.init(task.config, program)
    batch = jax.device_put(random_batch(program.batch, task.model.vocab_size))
    spent = []
    for _ in range(1 + UPDATES):
        began = time.perf_counter()
        state = jax.block_until_ready(compiled(state, batch))
        spent.append(time.perf_counter() - began)
    return statistics.median(spent[1:])


def random_batch(specs: dict, vocab_size: int) -> dict:
    """Returns a batch of full rows."""
    import numpy as np

    random = np.random.default_rng(0)
    batch = {}
    for name, spec in specs.items():
        if name in ("tokens", "labels", "masked_labels"):
            array = random.integers(5, vocab_size, spec.shape)
        elif name == "masked_positions":
            array = np.sort(random.permutation(specs["tokens"].size)[: spec.size])
        else:
            is_one = name in ("weights", "masked_weights", "segment_ids")
            array = np.full(spec.shape, int(is_one))
        batch[name] = array.reshape(spec.shape).astype(spec.dtype)
    return batch


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--method", choices=METHODS, required=True)
    flags.add_argument("--length", type=int, required=True)
    flags.add_argument("--part", choices=(*DEVICES, "seconds"), required=True)
    flags.add_argument("--tiny", action="store_true")
    arguments = flags.parse_args()
    method = METHODS[arguments.method]
    try:
        print(json.dumps(row(method, arguments.length, arguments.part, arguments.tiny)))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
