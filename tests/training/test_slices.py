"""Slices of TPUs: the axis data goes over the slow network between them, the others do not."""

import types

import jax
import numpy as np
import pytest

from tests.conftest import build_gpt
from tests.training.test_step import losses
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.planning import topology


def mesh_config(**sizes):
    return configs.experiment(model={"name": "gpt"}, task={"name": "causal_lm"}, mesh=sizes).mesh


def test_slices_divide_the_axis_data():
    mesh = sharding.make_mesh(mesh_config(slices=2, data=4, tensor=2), jax.devices()[:8])
    numbers = np.vectorize(lambda device: device.id)(mesh.devices).squeeze()  # data, tensor
    assert {*numbers[:2].ravel()} == {0, 1, 2, 3} and {*numbers[2:].ravel()} == {4, 5, 6, 7}


def test_devices_are_grouped_by_the_slice_that_they_name():
    devices = [types.SimpleNamespace(id=i, slice_index=i % 2) for i in range(8)]
    one, two = sharding._slices(np.array(devices), 2)
    assert [each.id for each in one] == [0, 2, 4, 6] and [each.id for each in two] == [1, 3, 5, 7]
    with pytest.raises(UserError, match="config.mesh.slices=4: the devices are in 2 slices"):
        sharding._slices(np.array(devices), 4)


def test_slices_that_do_not_divide_data_are_refused():
    with pytest.raises(UserError, match="config.mesh.slices=2 does not divide .*data=1"):
        sharding.make_mesh(mesh_config(slices=2, data=1, fsdp=8), jax.devices()[:8])


@pytest.mark.full
def test_losses_do_not_depend_on_slices(tmp_path):
    expected, _ = losses(build_gpt(tmp_path), devices=8)
    found, _ = losses(build_gpt(tmp_path, mesh__slices=2, mesh__tensor=2), devices=8)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_names_of_several_slices():
    assert topology._slices("2*v5e:16x16") == (2, "v5e:16x16")
    assert topology._slices("v5e:16x16") == (1, "v5e:16x16")
    with pytest.raises(UserError, match=r"two\*v5e:4x4: several slices are written as in 2\*v5e"):
        topology._slices("two*v5e:4x4")
