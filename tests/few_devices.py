"""Runs of tests take two devices where their config needs no more."""

import math

import jax
import pytest

from transformer_jax.distributed import sharding


@pytest.fixture(scope="module", autouse=True)
def few_devices():
    """Lets a run take two devices by default instead of all eight, for which its programs take
    twice as long to compile. A config with a larger mesh gets as many as that has.
    """
    make_mesh = sharding.make_mesh

    def make(config, devices=None):
        if devices is None:
            known = math.prod(config[axis] for axis in sharding.AXES if config[axis] > 0)
            devices = jax.devices()[: max(known, 2)]
        return make_mesh(config, devices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "make_mesh", make)
        yield
