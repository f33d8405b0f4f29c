"""Compiles a config without running it: python -m transformer_jax.dry_run --config=configs/wmt/big.py --devices=8

Nothing is allocated and no data is opened. A table of the parameters goes to stderr, one JSON object to stdout.
"""
import json
import math
import time

from absl import flags

from transformer_jax import cli

cli.define_config()
flags.DEFINE_integer("devices", None, "Number of virtual CPU devices to compile for; default: the devices of this machine.", lower_bound=1)


def main() -> None:
    import jax

    if cli.FLAGS.devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", cli.FLAGS.devices)
    config = cli.load_config()

    from transformer_jax import workdir
    from transformer_jax.training.loop import Program

    task = workdir.make_task(config)
    program = Program.of(config, task)
    _print_table(program)
    began = time.monotonic()
    compiled = program.train_step.lower(program.state, program.batch).compile()
    seconds = time.monotonic() - began
    memory = compiled.memory_analysis()
    print(json.dumps({
        **_counts(task.model, program.state.params),
        "tokens_per_step": task.positions(0) * config.train.batch,
        "flops_per_step": task.flops(0) * config.train.batch,
        "bytes_per_device": {"arguments": memory.argument_size_in_bytes, "outputs": memory.output_size_in_bytes,
                             "temporaries": memory.temp_size_in_bytes, "peak": memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes + memory.temp_size_in_bytes},
        "compile_seconds": round(seconds, 2),
        "mesh": dict(program.mesh.shape),
    }))


def _counts(model, params) -> dict[str, int]:
    """Parameters, without rows that only fill up a vocabulary; those of pre-training heads, where there are any, apart."""
    import jax

    size = lambda tree: sum(math.prod(p.shape) for p in jax.tree.leaves(tree))
    counts = {"params": size(params) - getattr(model, "num_padding", int)()}
    if heads := getattr(model, "HEADS", ()):
        counts["params_heads"] = sum(size(params[name]) for name in heads)
        counts["params_encoder"] = counts["params"] - counts["params_heads"]
    return counts


def _print_table(program) -> None:
    """Every parameter with its shape, the mesh axes its dimensions are split over, and its bytes on a device."""
    import jax

    from transformer_jax.progress import say
    from transformer_jax.training.optimizer import names

    rows = [("parameter", "shape", "sharding", "MB a device")]
    for path, leaf in jax.tree_util.tree_leaves_with_path(program.state.params):
        split = ", ".join("-" if axes is None else "*".join((axes,) if isinstance(axes, str) else axes) for axes in leaf.sharding.spec)
        local = math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        rows.append(("/".join(names(path)), str(leaf.shape), f"({split})", f"{local / 1e6:.2f}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for name, shape, split, size in rows:
        say(f"{name:{widths[0]}}  {shape:{widths[1]}}  {split:{widths[2]}}  {size:>{widths[3]}}")


if __name__ == "__main__":
    cli.run(main)
