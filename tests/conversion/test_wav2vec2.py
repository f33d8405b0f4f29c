"""Conversion of models of sound from and to Hugging Face checkpoints."""

import numpy as np
import pytest

from tests.conversion.checkpoints import CLOSE, copied, read_json, refused, rewrite, weights
from tests.fixtures.make_huggingface import HERE
from tests.fixtures.make_huggingface_wav2vec2 import ARCHITECTURES, VARIANTS, VOCABULARY
from tests.jitted import jitted
from transformer_jax import convert
from transformer_jax.contracts.task import Context
from transformer_jax.runs.open import open_run

PRETRAINING, TRANSCRIPTS = ARCHITECTURES
FOLDERS = [
    name if variant == "base" else f"{name}-{variant}"
    for name in ARCHITECTURES
    for variant in VARIANTS
]


def places_of(expected):
    """Returns the masked frames of each row, their weights, and the distractors among them."""
    count = expected["masked"].sum(axis=1).max()
    places = np.zeros((2, count), np.int32)
    weights = np.zeros((2, count), np.int32)
    distractors = np.zeros((2, count, expected["others"].shape[-1]), np.int32)
    for row, masked in enumerate(expected["masked"]):
        (of_row,) = np.nonzero(masked)
        places[row, : len(of_row)] = of_row
        weights[row, : len(of_row)] = 1
        others = expected["others"][row, of_row]
        distractors[row, : len(of_row)] = np.searchsorted(of_row, others)
    return places, weights, distractors


def assert_states(task, params, expected):
    states = jitted(task.model.apply)(
        {"params": params}, expected["sound"], lengths=expected["lengths"], method="layers"
    )
    filled = is_filled(task.model, expected)
    of_filled = np.asarray(states)[:, filled]
    np.testing.assert_allclose(of_filled, expected["states"][:, filled], **CLOSE)


def is_filled(model, expected):
    frames = model.num_frames(expected["lengths"])
    return np.arange(expected["states"].shape[2]) < frames[:, None]


def assert_pre_training(task, params, expected):
    """Asserts the projections of the masked frames, and both losses."""
    places, weights, distractors = places_of(expected)
    batch = {
        "sound": expected["sound"],
        "length": expected["lengths"].astype(np.int32),
        "masked": expected["masked"],
        "places": places,
        "weights": weights,
        "distractors": distractors,
    }
    predicted = jitted(task._predicted)(params, batch, Context())
    for name in ("contexts", "targets"):
        ours = np.asarray(getattr(predicted, name))
        theirs = np.take_along_axis(expected[name], places[..., None], axis=1)
        is_place = weights > 0
        np.testing.assert_allclose(unit(ours[is_place]), unit(theirs[is_place]), **CLOSE)
    loss = jitted(task.loss)(params, batch, Context())
    for name in ("contrastive", "diversity"):
        np.testing.assert_allclose(loss.terms[name], expected[name], rtol=1e-4)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def assert_transcripts(task, params, expected):
    sound, lengths = expected["sound"], expected["lengths"].astype(np.int32)
    logits = np.asarray(jitted(task.logits)(params, sound, lengths))
    filled = is_filled(task.model, expected)
    np.testing.assert_allclose(logits[filled], expected["logits"][filled], **CLOSE)
    labels = np.zeros((2, task.characters), np.int32)
    labels[:, : expected["labels"].shape[1]] = np.maximum(expected["labels"], 0)
    num_labels = (expected["labels"] >= 0).sum(axis=1)
    batch = {"sound": sound, "length": lengths, "labels": labels, "num_labels": num_labels}
    loss = jitted(task.loss)(params, batch, Context()).terms["ctc"]
    np.testing.assert_allclose(loss, expected["loss"], rtol=1e-4)


@pytest.mark.sample("Wav2Vec2ForCTC-large")
@pytest.mark.parametrize("name", FOLDERS)
def test_a_checkpoint_gives_the_published_outputs_and_is_written_unchanged(name, tmp_path):
    folder, run, back = HERE / name, tmp_path / "run", tmp_path / "back"
    convert.from_hf(folder, run)
    expected = dict(np.load(folder / "expected.npz"))
    task, params = open_run(run)
    assert_states(task, params, expected)
    if name.startswith(PRETRAINING):
        assert_pre_training(task, params, expected)
    else:
        assert task.vocabulary == VOCABULARY
        assert_transcripts(task, params, expected)

    convert.to_hf(run, back)
    original, written = weights(folder), weights(back)
    assert written.keys() == original.keys()
    for tensor in written:
        np.testing.assert_array_equal(original[tensor], written[tensor], err_msg=tensor)
    config = read_json(folder / "config.json")
    for key, value in read_json(back / "config.json").items():
        assert config.get(key, value) in (value, None), key
    assert read_json(back / "preprocessor_config.json")["sampling_rate"] == 16_000
    if name.startswith(TRANSCRIPTS):
        assert read_json(back / "vocab.json") == read_json(folder / "vocab.json")
        assert read_json(back / "tokenizer_config.json")["word_delimiter_token"] == "|"


def test_names_of_the_first_published_checkpoints(tmp_path):
    """They have the names that torch's first weight norm gave."""
    folder = copied(TRANSCRIPTS, tmp_path / "old")
    start = "parametrizations.weight.original"
    renamed = {
        name.replace(f"{start}0", "weight_g").replace(f"{start}1", "weight_v"): array
        for name, array in weights(folder).items()
    }
    assert renamed.keys() != weights(folder).keys()
    rewrite(folder, renamed)
    convert.from_hf(folder, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert_states(task, params, dict(np.load(folder / "expected.npz")))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden_act": "relu"}, "hidden_act='relu': only 'gelu'"),
        ({"add_adapter": True}, "add_adapter=True: only False"),
        ({"conv_stride": [5, 2]}, r"convolution_strides=\(5, 2\): must be"),
        ({"vocab_size": 12}, "vocab_size=12: vocab.json has 9 tokens"),
    ],
)
def test_configs_without_an_equivalent_are_refused(change, message, tmp_path):
    refused(copied(TRANSCRIPTS, tmp_path / "hf", **change), tmp_path, message)
