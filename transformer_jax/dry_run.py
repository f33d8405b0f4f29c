"""Compiles the training of a config without running it: python -m transformer_jax.dry_run
--config=configs/wmt/big.py --topology=v5e:4x4

The target is the devices of this machine, --devices=N virtual CPU devices, or a --topology of TPUs
or GPUs, whose compilers run on any machine. Nothing is allocated and no data is opened, except for
the examples of a fine-tuning task whose config does not list its labels. Shardings, memory and a
roofline estimate go to stderr, and one JSON object goes to stdout. A run fits only if its
evaluations do, so they are compiled, too. The exit code is also 0 for a model that does not fit.
"""

import json

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError
from transformer_jax.planning import topology


def define_flags() -> None:
    cli.define_config()
    flags.DEFINE_integer(
        "devices",
        None,
        "Number of virtual CPU devices to compile for; default: this machine's devices.",
        lower_bound=1,
        upper_bound=2**16,
    )
    flags.DEFINE_string(
        "topology",
        None,
        "TPU slice or hosts of GPUs to compile for, such as v5e:4x4, v5p:4x4x4, v6e:16x16, "
        "v4:4x4x4, h100:8 (a host of 8), h100:8x64 (64 hosts), a100-80:8, b200:8, l4:1.",
    )
    flags.DEFINE_bool(
        "search",
        False,
        "Try meshes, rematerialization policies and microbatches; print those that fit, fastest "
        "first.",
    )


def before_jax() -> None:
    if cli.FLAGS.topology:
        if cli.FLAGS.devices:
            raise UserError("--devices and --topology: give one of them")
        topology.prepare(cli.FLAGS.topology)


def main() -> None:
    import jax

    if cli.FLAGS.devices:
        # Before JAX first looks for devices, after which both settings have no effect.
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", cli.FLAGS.devices)
    from transformer_jax.runs.spec import resolve

    run = resolve(cli.FLAGS.config, overrides=cli.overrides())
    devices = topology.devices(cli.FLAGS.topology) if cli.FLAGS.topology else jax.devices()
    result = _search(run.config, devices) if cli.FLAGS.search else _compile(run, devices)
    print(json.dumps({**result, "topology": cli.FLAGS.topology}))


def _compile(run, devices) -> dict:
    """Compiles the update and the evaluations of a run, and returns their sizes."""
    from transformer_jax.pictures.progress import doing, never_silent, say
    from transformer_jax.planning import estimate, verdict
    from transformer_jax.training.step import Program

    config, task = run.config, run.task()
    program = Program.of(config, task, devices)
    with never_silent():
        with doing("compiling the update"):
            estimated = estimate.estimate(config, task, program)
        # If the compiler refused the update, the run does not fit. Compiling its evaluations would
        # only take time.
        with doing("compiling the evaluations"):
            evaluated = [] if estimated.refused else verdict.evaluations(config, task, program)
    say("\n".join(verdict.lines(config, task, program, estimated, evaluated)))
    say("\n".join(estimate.table(program)))
    if cli.FLAGS.topology and topology.is_gpu(cli.FLAGS.topology):
        say(topology.NOTE)
    return {
        **task.parameter_counts(),
        "tokens_per_step": task.positions(0) * config.train.batch,
        "flops_per_step": estimated.flops,
        **_record(estimated),
        "fits": verdict.fits(estimated, evaluated),
        "evaluations": {each.name: _evaluation_record(each) for each in evaluated},
        "mesh": dict(program.mesh.shape),
    }


def _search(config, devices) -> dict:
    from transformer_jax.pictures.progress import say
    from transformer_jax.planning import search
    from transformer_jax.runs.spec import make_task

    candidates = search.search(config, make_task, devices)
    say("\n".join(search.table(candidates)))
    return {"search": search.record(candidates)}


def _record(estimated) -> dict:
    """Returns the fields of an estimate; they are null if the compiler refused the program, or if
    they depend on the chip and it is unknown.
    """
    roofline = estimated.roofline
    sizes = ("arguments", "outputs", "temporaries", "peak")
    times = ("compute_s", "memory_s", "network_s", "bound")
    return {
        "bytes_per_device": {name: getattr(estimated, name) for name in sizes},
        "arguments_by_consumer": estimated.consumers,
        "device_memory": estimated.chip and int(estimated.chip.memory),
        "fits": estimated.fits,
        "collectives": estimated.collectives,
        "compile_seconds": round(estimated.compile_seconds, 2),
        "roofline": roofline and {name: getattr(roofline, name) for name in times},
        "bubble": estimated.bubble,
        "predicted_mfu_upper_bound": estimated.mfu,
    }


def _evaluation_record(evaluated) -> dict:
    """Returns the fields of an evaluation's program; null as in `_record`."""
    sizes = ("arguments", "temporaries", "peak")
    return {
        "bytes_per_device": {name: getattr(evaluated, name) for name in sizes},
        "fits": evaluated.fits,
        "compile_seconds": round(evaluated.compile_seconds, 2),
    }


if __name__ == "__main__":
    cli.run(main, define_flags, before_jax)
