"""Converted encoder-decoders write what transformers' `generate` writes, token by token."""

import json

import numpy as np
import pytest

from tests.conversion.checkpoints import read_json
from tests.fixtures import make_huggingface_outputs as make
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.huggingface import encoder_decoder
from transformer_jax.runs.open import open_run


@pytest.fixture(params=make.CASES)
def name(request):
    return request.param


@pytest.fixture
def checkpoint(name, tmp_path):
    """A checkpoint whose generation_config.json has the options of the case."""
    folder = make.checkpoint(name, tmp_path / "hf")
    path = folder / encoder_decoder.FILE
    path.write_text(json.dumps(read_json(path) | make.CASES[name]))
    return folder


@pytest.mark.full
def test_outputs_and_scores_equal(name, checkpoint, tmp_path):
    """Five sources share two rows of a search."""
    convert.from_hf(checkpoint, tmp_path / "run")
    task, params = open_run(tmp_path / "run", overrides={"decode.batch": 2})
    decode = task.config.decode
    stream = task.stream(params, decode.beam)
    sources = make.sources(task.model.vocab_size)
    limits = [decode.max_length] * len(sources)
    outputs = dict(stream(task.model.for_decoding(params), sources, limits))
    expected = read_json(make.HERE / name / "outputs.json")
    for number, (rows, scores) in enumerate(zip(*row) for row in expected):
        ids, lengths, actual = outputs[number]
        assert [each[:length].tolist() for each, length in zip(ids, lengths)] == list(rows)
        np.testing.assert_allclose(actual, scores, atol=1e-4)
    written = encoder_decoder.options_of(decode, task.tokenizer.target, task.model.window)
    assert written.items() >= make.CASES[name].items()


def test_live(name, tmp_path):
    pytest.importorskip("transformers")
    actual = make.outputs(name, make.checkpoint(name, tmp_path / "hf"))
    expected = read_json(make.HERE / name / "outputs.json")
    for rows, others in zip(actual, expected, strict=True):
        assert [ids for ids, _ in rows] == [ids for ids, _ in others]


def test_published_options_become_config_decode():
    cnn = dict(  # facebook/bart-large-cnn
        num_beams=4,
        length_penalty=2.0,
        min_length=56,
        max_length=142,
        no_repeat_ngram_size=3,
        early_stopping=True,
        forced_eos_token_id=2,
    )
    assert encoder_decoder.decode_keys(cnn) == dict(
        beam=4,
        alpha=2.0,
        penalty="length",
        max_length=141,
        min_length=56,
        no_repeat_ngram=3,
        force_end=True,
        renormalize=False,
        early_stopping="first",
    )
    # t5-small names options for each of its tasks; `generate` does not use them.
    task = dict(num_beams=4, early_stopping=True, max_length=300, prefix="to German: ")
    (remark,) = encoder_decoder.remarks({}, {"task_specific_params": {"translation": task}})
    assert remark == (
        "task translation: --config.decode.beam=4 --config.decode.max_length=299 "
        "--config.decode.early_stopping=first; its inputs begin with 'to German: '"
    )
    (remark,) = encoder_decoder.remarks({"repetition_penalty": 1.2}, {})
    assert remark == "repetition_penalty=1.2 of transformers' generate has no equivalent"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_length": "long"}, "max_length='long': must be a whole number"),
        ({"early_stopping": "always"}, "early_stopping='always': must be true, false or 'never'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        encoder_decoder.decode_keys(options)
