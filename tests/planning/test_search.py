"""The search compiles a bounded number of variants, leaves out what can't fit or can't be faster,
and ranks the rest.
"""

import dataclasses
import types

import jax
import pytest

from tests.planning.test_estimate import SMALL, TINY
from transformer_jax import config as configs
from transformer_jax import hardware
from transformer_jax.planning import search
from transformer_jax.planning.estimate import Estimate, Roofline, compute_seconds
from transformer_jax.runs.resolve import make_task


@pytest.fixture
def config():
    path, tiny = TINY["gpt"]
    return configs.load(
        path, [(key, str(value)) for key, value in {**tiny, "train.batch": 16}.items()]
    )


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled; in the compiler's place, temporaries of 100 kB for each row of a microbatch
    on a device, and a network that only tensor uses.
    """
    done = []

    def estimate(config, task, program):
        sizes, taken = program.mesh.shape, 10**5
        rows = config.train.batch // config.train.accumulation // (sizes["data"] * sizes["fsdp"])
        done.append(
            (
                sizes["data"],
                sizes["fsdp"],
                sizes["tensor"],
                config.model.remat,
                config.train.accumulation,
            )
        )
        seconds = compute_seconds(config, task, SMALL, 8)
        line = Roofline(seconds, seconds / 2, seconds * sizes["tensor"] / 2)
        return Estimate(
            SMALL, 8, 1.0, {}, taken, 0, rows * 10**5, taken + rows * 10**5, {}, 0.0, line
        )

    monkeypatch.setattr(search, "estimate", estimate)
    monkeypatch.setattr(hardware, "of", lambda kind: SMALL)
    return done


def test_the_fastest_that_fits_comes_first(config, compiled):
    found = search.search(config, make_task, jax.devices())
    assert len(found) == len(compiled) == len(set(compiled)) <= search.MOST
    times = [one.roofline.step_s for _, one in found if one.fits]
    assert times == sorted(times) and found[0][0].tensor <= 2 and found[0][0].remat != "full"
    assert all(v.data * v.fsdp * v.tensor == 8 for v, _ in found)
    assert (
        f"1. data {found[0][0].data:>3}" in search.table(found)[1]
        and found[0][0].flags() in search.table(found)[-1]
    )
    assert search.record(found)[0]["fits"] is True


def test_what_can_not_fit_is_not_compiled(config, compiled, monkeypatch):
    monkeypatch.setattr(hardware, "of", lambda kind: dataclasses.replace(SMALL, memory=1e3))
    assert search.search(config, make_task, jax.devices()) == [] and compiled == []
    assert search.table([]) == ["no variant fits: more chips, or a smaller model"]


def test_more_microbatches_only_where_fewer_do_not_fit(config, compiled, monkeypatch):
    tight = dataclasses.replace(SMALL, memory=3.5e5)  # the arguments and two rows
    monkeypatch.setattr(hardware, "of", lambda kind: tight)
    monkeypatch.setattr("tests.planning.test_search.SMALL", tight)
    found = search.search(config, make_task, jax.devices())
    assert found[0][1].fits
    for variant, one in found:
        fewer = [
            v
            for v, other in found
            if other.fits
            and v != variant
            and dataclasses.replace(v, accumulation=variant.accumulation) == variant
            and v.accumulation < variant.accumulation
        ]
        assert not fewer


def test_devices_of_no_known_chip_are_refused(config):
    with pytest.raises(configs.UserError, match="--search ranks by the rates of a chip"):
        search.search(config, make_task, [types.SimpleNamespace(device_kind="cpu")])
