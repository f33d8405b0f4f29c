"""Compiles a config without running it: python -m transformer_jax.dry_run
--config=configs/wmt/big.py --topology=v5e:4x4

For the devices of this machine, for --devices=N virtual CPU devices, or for a --topology of TPUs
that are not here (libtpu compiles for them on any machine). Nothing is allocated and no data is
opened, but for the labels of a fine-tuning whose config does not name them. The shardings of
parameters, optimizer state and batch, the memory and the roofline go to stderr, one JSON object to
stdout. A model that does not fit is an answer, not a failure: exit code 0.
"""

import json

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError
from transformer_jax.planning import topology


def define_flags() -> None:
    cli.define_config()
    flags.DEFINE_integer(
        "devices",
        None,
        "Number of virtual CPU devices to compile for; default: the devices of this machine.",
        lower_bound=1,
        upper_bound=2**16,
    )
    flags.DEFINE_string(
        "topology",
        None,
        "TPU slice to compile for, such as v5e:4x4, v5p:4x4x4, v6e:16x16, v4:4x4x4.",
    )
    flags.DEFINE_bool(
        "search",
        False,
        "Try meshes, rematerialisation and microbatches; print those that fit, the fastest first.",
    )


def before_jax() -> None:
    if cli.FLAGS.topology:
        if cli.FLAGS.devices:
            raise UserError("--devices and --topology: give one of them")
        topology.prepare(cli.FLAGS.topology)


def main() -> None:
    import jax

    if cli.FLAGS.devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", cli.FLAGS.devices)
    from transformer_jax.pictures.progress import say
    from transformer_jax.planning import counts, estimate, shardings, verdict
    from transformer_jax.runs.resolve import make_task, resolve
    from transformer_jax.training.loop import Program

    run = resolve(cli.FLAGS.config, overrides=cli.overrides())
    devices = topology.devices(cli.FLAGS.topology) if cli.FLAGS.topology else jax.devices()
    if cli.FLAGS.search:
        return _search(run.config, make_task, devices)
    config, task = run.config, run.task()
    program = Program.of(config, task, devices)
    say("\n".join(shardings.table(program)))
    found = estimate.estimate(config, task, program)
    say("\n".join(verdict.lines(config, task, program, found)))
    print(
        json.dumps(
            {
                **counts.parameters(task),
                "tokens_per_step": task.positions(0) * config.train.batch,
                "flops_per_step": found.flops,
                **_record(found),
                "topology": cli.FLAGS.topology,
                "mesh": dict(program.mesh.shape),
            }
        )
    )


def _search(config, make_task, devices) -> None:
    from transformer_jax.pictures.progress import say
    from transformer_jax.planning import search

    found = search.search(config, make_task, devices)
    say("\n".join(search.table(found)))
    print(json.dumps({"search": search.record(found), "topology": cli.FLAGS.topology}))


def _record(found) -> dict:
    """What is kept of an estimate; null where the compiler refused, or the chip is not known."""
    roofline = found.roofline
    return {
        "bytes_per_device": {
            name: getattr(found, name) for name in ("arguments", "outputs", "temporaries", "peak")
        },
        "arguments_by_consumer": found.consumers,
        "device_memory": found.chip and int(found.chip.memory),
        "fits": found.fits,
        "collectives": found.collectives,
        "compile_seconds": round(found.compile_seconds, 2),
        "roofline": roofline
        and {
            **{name: getattr(roofline, name) for name in ("compute_s", "memory_s", "network_s")},
            "bound": roofline.bound,
        },
        "predicted_mfu_upper_bound": found.mfu,
    }


if __name__ == "__main__":
    process.run(main, define_flags, before_jax)
