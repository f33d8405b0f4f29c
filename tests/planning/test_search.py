"""The search compiles few variants, skips those that cannot be the fastest, and ranks the rest."""

import dataclasses
import types

import jax
import pytest

from tests.planning.test_estimate import SMALL, TINY
from transformer_jax import config as configs
from transformer_jax import hardware
from transformer_jax.planning import search
from transformer_jax.planning.estimate import Estimate, Roofline, compute_seconds
from transformer_jax.runs.spec import make_task


@pytest.fixture
def config():
    path, tiny = TINY["gpt"]
    changes = {**tiny, "train.batch": 16}
    return configs.load(path, [(key, str(value)) for key, value in changes.items()])


@pytest.fixture
def compiled(monkeypatch):
    """Returns the list of compiled variants, which grows during the search.

    Instead of the compiler's figure, temporaries take 100 kB for each row of a microbatch on a
    device, and only the axis tensor uses the network.
    """
    variants = []

    def estimate(config, task, program):
        sizes = program.mesh.shape
        taken = 10**5
        rows = config.train.batch // config.train.accumulation // (sizes["data"] * sizes["fsdp"])
        variants.append(
            (
                sizes["data"],
                sizes["fsdp"],
                sizes["tensor"],
                config.model.remat,
                config.train.accumulation,
            )
        )
        seconds = compute_seconds(config, task, SMALL, 8)
        limits = Roofline(seconds, seconds / 2, seconds * sizes["tensor"] / 2)
        return Estimate(
            SMALL, 8, 1.0, {}, taken, 0, rows * 10**5, taken + rows * 10**5, {}, 0.0, limits
        )

    monkeypatch.setattr(search, "estimate", estimate)
    monkeypatch.setattr(hardware, "of", lambda kind: SMALL)
    return variants


def test_the_fastest_that_fits_comes_first(config, compiled):
    estimates = search.search(config, make_task, jax.devices())
    assert len(estimates) == len(compiled) == len(set(compiled)) <= search.MAX_COMPILED
    times = [result.roofline.step_s for _, result in estimates if result.fits]
    assert (
        times == sorted(times) and estimates[0][0].tensor <= 2 and estimates[0][0].remat != "full"
    )
    assert all(v.data * v.fsdp * v.tensor == 8 for v, _ in estimates)
    assert (
        f"1. data {estimates[0][0].data:>3}" in search.table(estimates)[1]
        and estimates[0][0].flags() in search.table(estimates)[-1]
    )
    assert search.record(estimates)[0]["fits"] is True


def test_variants_that_cannot_fit_are_not_compiled(config, compiled, monkeypatch):
    monkeypatch.setattr(hardware, "of", lambda kind: dataclasses.replace(SMALL, memory=1e3))
    assert search.search(config, make_task, jax.devices()) == [] and compiled == []
    assert search.table([]) == ["no variant fits: more chips, or a smaller model"]


@pytest.mark.full
def test_more_microbatches_only_where_fewer_do_not_fit(config, compiled, monkeypatch):
    tight = dataclasses.replace(SMALL, memory=3.5e5)  # the arguments and two rows
    monkeypatch.setattr(hardware, "of", lambda kind: tight)
    monkeypatch.setattr("tests.planning.test_search.SMALL", tight)
    estimates = search.search(config, make_task, jax.devices())
    assert estimates[0][1].fits
    for variant, _ in estimates:
        fewer = [
            v
            for v, other in estimates
            if other.fits
            and v != variant
            and dataclasses.replace(v, accumulation=variant.accumulation) == variant
            and v.accumulation < variant.accumulation
        ]
        assert not fewer


def test_an_unknown_chip_is_refused(config):
    with pytest.raises(configs.UserError, match="--search ranks by the rates of a chip"):
        search.search(config, make_task, [types.SimpleNamespace(device_kind="cpu")])
