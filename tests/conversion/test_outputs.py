"""Converted encoder-decoders write what transformers' `generate` writes, token by token."""

import json

import numpy as np
import pytest

from tests.conversion.checkpoints import read_json
from tests.fixtures import make_huggingface_outputs as make
from transformer_jax import convert
from transformer_jax.huggingface import generation
from transformer_jax.runs.open import open_run


@pytest.fixture(params=make.CASES)
def name(request):
    return request.param


@pytest.fixture
def checkpoint(name, tmp_path):
    """A checkpoint whose generation_config.json has the options of the case."""
    folder = make.checkpoint(name, tmp_path / "hf")
    path = folder / generation.FILE
    path.write_text(json.dumps(read_json(path) | make.CASES[name]))
    return folder


def test_outputs_and_scores_equal(name, checkpoint, tmp_path):
    """Five sources share two places of a search."""
    convert.from_hf(checkpoint, tmp_path / "run")
    task, params = open_run(tmp_path / "run", overrides={"decode.batch": 2})
    decode = task.config.decode
    stream = task.stream(params, decode.beam)
    sources = make.sources(task.model.vocab_size)
    limits = [decode.max_length] * len(sources)
    found = dict(stream(task.model.for_decoding(params), sources, limits))
    expected = read_json(make.HERE / name / "outputs.json")
    for number, (rows, scores) in enumerate(zip(*row) for row in expected):
        ids, lengths, actual = found[number]
        assert [each[:length].tolist() for each, length in zip(ids, lengths)] == list(rows)
        np.testing.assert_allclose(actual, scores, atol=1e-4)
    written = generation.options_of(decode, task.tokenizer.target, task.model.window)
    assert written.items() >= make.CASES[name].items()


def test_live(name, tmp_path):
    pytest.importorskip("transformers")
    actual = make.outputs(name, make.checkpoint(name, tmp_path / "hf"))
    expected = read_json(make.HERE / name / "outputs.json")
    for rows, others in zip(actual, expected, strict=True):
        assert [ids for ids, _ in rows] == [ids for ids, _ in others]
