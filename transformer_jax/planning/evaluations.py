"""The memory of the evaluations during a training, from their compiled programs.

The training state stays on the devices during an evaluation.
"""

import dataclasses
import time
from collections.abc import Iterator

import jax

from transformer_jax import hardware
from transformer_jax.distributed import sharding
from transformer_jax.planning import estimate
from transformer_jax.planning.shardings import bytes_per_device
from transformer_jax.tasks.task import EvaluationProgram

MEAN_LOSS = "mean loss"


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """One program of an evaluation. Bytes are per device."""

    name: str
    chip: hardware.Chip | None
    arguments: int  # the training state, and the arrays of the evaluation
    temporaries: int | None  # with the results; None: the compiler refused the program
    compile_seconds: float
    remedy: str  # a change of the config with which it needs less memory
    refused: bool = False  # by the compiler, because the program does not fit

    @property
    def peak(self) -> int | None:
        return None if self.temporaries is None else self.arguments + self.temporaries

    @property
    def fits(self) -> bool | None:
        """Whether the program fits; None if the memory of the device is unknown."""
        if self.refused:
            return False
        return None if self.chip is None else self.peak <= self.chip.memory


def evaluations(config, task, program) -> list[Evaluated]:
    """Compiles the programs of the evaluations that a training with `program` may run."""
    with sharding.use(program.mesh, program.table), estimate.lowering(program.mesh):
        programs = task.evaluation_programs(program.state.params)
        if task.evaluates_rows:
            programs = {MEAN_LOSS: _mean_loss(config, program), **programs}
        return list(_measured(programs, program))


def _mean_loss(config, program) -> EvaluationProgram:
    """Returns the evaluation step, which reads the rows of a microbatch."""
    rows = config.train.batch // config.train.accumulation

    def resized(spec, *shape):
        return jax.ShapeDtypeStruct(shape, spec.dtype, sharding=spec.sharding)

    batch = {name: resized(x, 1, rows, *x.shape[2:]) for name, x in program.batch.items()}
    carry = jax.tree.map(lambda x: resized(x, rows, *x.shape[1:]), program.state.carry)
    lowered = program.eval_step.lower(program.state.params, batch, carry)
    accumulation = 2 * config.train.accumulation
    remedy = f"--config.train.accumulation={accumulation}: fewer rows at a time"
    return EvaluationProgram(lowered, (batch, carry), remedy)


def _measured(programs: dict[str, EvaluationProgram], program) -> Iterator[Evaluated]:
    device = program.mesh.devices.flat[0]
    chip = estimate.chip_of(device)
    of_state = bytes_per_device(program.state)
    for name, (lowered, held, remedy) in programs.items():
        arguments = of_state + bytes_per_device(held)
        began = time.monotonic()
        temporaries, refused = _temporaries(lowered, device.platform, arguments - of_state)
        seconds = time.monotonic() - began
        yield Evaluated(name, chip, arguments, temporaries, seconds, remedy, refused)


def _temporaries(lowered, platform: str, held: int) -> tuple[int | None, bool]:
    """Returns the bytes of temporaries and results, and whether the compiler refused.

    `held` are the bytes of the arrays beside the training state.
    """
    try:
        memory = estimate.compile_lowered(lowered, platform).memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        estimate.check_refusal(error)
        return estimate.refused_temporaries(str(error), held), True
    live = estimate.live_bytes(memory, platform)
    return max(live - memory.argument_size_in_bytes, 0), False
