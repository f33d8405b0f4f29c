"""Translating and evaluating with the parameters and the sentences split over several devices."""

import math
import re

import jax
import numpy as np
import pytest

from tests.conftest import build_config
from tests.tasks.conftest import trained
from tests.tasks.test_translation import LINES
from transformer_jax.distributed.sharding import AXES
from transformer_jax.inference.stream import Stream
from transformer_jax.runs import open as opening
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task


def held(arrays) -> float:
    """Returns the part of the arrays that the first device holds."""
    arrays = jax.tree.leaves(arrays)
    shards = [shard for array in arrays for shard in array.addressable_shards]
    local = sum(shard.data.nbytes for shard in shards if shard.device == jax.devices()[0])
    return local / sum(array.nbytes for array in arrays)


@pytest.mark.full
@pytest.mark.parametrize(
    "mesh",
    [
        {"fsdp": 2},
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"fsdp": 8},
        {"data": 4, "fsdp": 2},
        {"fsdp": 2, "tensor": 2, "sequence": 2},
    ],
    ids=str,
)
def test_a_mesh_gives_the_translations_of_one_device(translation, mesh, monkeypatch):
    decode = {"beam": 3, "no_repeat_ngram": 2, "max_length": 24, "early_stopping": "estimate"}
    overrides = {f"decode.{key}": value for key, value in decode.items()}
    task, alone = open_run(translation.workdir, overrides=overrides)
    devices = jax.local_devices()[: math.prod(mesh.values())]
    monkeypatch.setattr(opening, "local_devices", lambda: devices)
    sizes = {f"mesh.{axis}": mesh.get(axis, 1) for axis in AXES}
    _, split = open_run(translation.workdir, overrides=sizes)
    actual, expected = (list(task.translate(params, LINES)) for params in (split, alone))
    for (best, *_), (of_one, *_) in zip(actual, expected):
        assert best.text == of_one.text and best.score == pytest.approx(of_one.score, rel=1e-4)
    assert len(actual) == len(LINES)


@pytest.mark.full
def test_attention_weights_come_from_split_parameters(translation, monkeypatch):
    monkeypatch.setattr(opening, "local_devices", jax.local_devices)
    sizes = {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}
    task, split = open_run(translation.workdir, overrides=sizes)
    actual, expected = (task.attention(params, LINES[0]) for params in (split, translation.params))
    np.testing.assert_allclose(actual.weights, expected.weights, atol=1e-5)


def _check_gathers(program: str, params) -> None:
    """Asserts that only parameters are gathered, and only in the loop over tokens."""
    loop, _, entry = program.partition("\nENTRY")
    sizes = {leaf.size for leaf in jax.tree.leaves(params)}
    assert _gathered(loop) and _gathered(loop) <= sizes
    assert not _gathered(entry) & sizes


def _gathered(program: str) -> set[int]:
    """Returns the numbers of elements of the float arrays that are gathered."""
    shapes = re.findall(r"= f32\[([\d,]+)\]\S* all-gather\(", program)
    return {math.prod(map(int, shape.split(","))) for shape in shapes}


@pytest.mark.full
def test_a_run_on_two_devices_evaluates_with_sharded_parameters(tmp_path, monkeypatch):
    """A device holds half of the parameters. BLEU equals that of one device."""
    config = build_config(
        tmp_path,
        mesh__data=1,
        mesh__fsdp=2,
        model__d_model=64,
        model__d_ff=128,
        model__num_encoder_layers=1,
        train__num_steps=8,
        train__eval_every=8,
        checkpoint__every=8,
        optimizer__learning_rate=0.02,
        decode__batch=8,
        task__bleu_lines=12,
    )
    earlier = {id(array): array for array in jax.live_arrays()}
    advance, parts = Stream.advance, []

    def recorded(self, params, search, free):
        if not parts:
            _check_gathers(advance.lower(self, params, search, free).compile().as_text(), params)
        shapes = {array.shape for array in jax.tree.leaves((stacked, params))}
        live = [x for x in jax.live_arrays() if id(x) not in earlier and x.shape in shapes]
        parts.extend((held(params), held(live)))
        return advance(self, params, search, free)

    monkeypatch.setattr(Stream, "advance", recorded)
    task = make_task(config)
    stacked = jax.eval_shape(task.init, jax.random.key(0))  # the parameters in training
    run = trained(config, tmp_path, num_devices=2)
    assert parts and max(parts) <= 1 / 2 + 0.02
    expected = task.evaluations()["valid"](run.params)
    assert {name: run.scores[f"valid/{name}"] for name in expected} == expected
    assert expected["chrf"] > 0
