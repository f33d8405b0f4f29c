"""Limits of an update's time: operations, memory traffic and network traffic at peak rates."""

import copy
import dataclasses

from transformer_jax import hardware


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of an update by each of three limits. The largest binds if it hides the other two.

    compute_s is a lower bound: the matrix products at the peak rate, with those of the layers that
    full rematerialisation repeats. Products that the policy "dots" repeats are not counted.

    memory_s is an estimate. The state is read and written once. In every microbatch, the other
    arrays that are live at the peak are written once and read once. The forward and the backward
    pass read the gathered weights. Activations that live within a layer are not counted.

    network_s is a lower bound: the least that every collective sends, over all links of a chip.
    GPUs send within a host over NVLink, and to other hosts over the network; both at once.
    """

    compute_s: float
    memory_s: float
    network_s: float

    @property
    def step_s(self) -> float:
        return max(dataclasses.astuple(self))

    @property
    def bound(self) -> str:
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, f"{name}_s"))


def compute_seconds(config, task, chip: hardware.Chip, devices: int) -> float:
    """Returns the seconds that an update's matrix products take at the peak rate.

    They include the products that full rematerialisation repeats.
    """
    repeated = _layers_flops(task) / 3 if config.model.get("remat") == "full" else 0
    return (task.flops(0) + repeated) * config.train.batch / chip.flops / devices


def weight_bytes_read(config, program, parameters: int) -> float:
    """Returns the bytes of weights that a device's matrix products read in a microbatch.

    `parameters` are the bytes of parameters on a device. The weights are split over the tensor axis
    alone and have the dtype of computation.
    """
    passes = 3 if config.model.get("remat") == "full" else 2
    width = 1 if config.model.get("dtype") == "float32" else 0.5
    return passes * parameters * program.mesh.shape["fsdp"] * width


def _layers_flops(task) -> float:
    """Returns `task.flops` without the output projection, which no rematerialisation repeats.

    The size of the vocabulary enters the FLOPs through this projection only.
    """
    if not task.model.vocab_size:
        return task.flops(0)
    without_output = copy.copy(task)
    without_output.model = task.model.clone(vocab_size=0)
    return without_output.flops(0)
