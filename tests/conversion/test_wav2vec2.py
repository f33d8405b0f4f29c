"""Conversion of models of sound from and to Hugging Face checkpoints."""

import dataclasses
import json
import types

import numpy as np
import pytest
import soundfile

from tests.conversion.checkpoints import CLOSE, copied, read_json, refused, rewrite, weights
from tests.fixtures.make_huggingface import HERE
from tests.fixtures.make_huggingface_wav2vec2 import ARCHITECTURES, VARIANTS, VOCABULARY, clips
from tests.jitted import jitted
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.data.speech import Utterances, waveform
from transformer_jax.families import wav2vec2
from transformer_jax.families.wav2vec2 import ctc
from transformer_jax.families.wav2vec2.ctc import Decoded
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task

PRETRAINING, TRANSCRIPTS = ARCHITECTURES
FOLDERS = [
    name if variant == "base" else f"{name}-{variant}"
    for name in ARCHITECTURES
    for variant in VARIANTS
]


def masked_positions_of(expected):
    """Returns the masked frames of each row, their weights, and the distractors among them."""
    count = expected["masked"].sum(axis=1).max()
    masked_positions = np.zeros((2, count), np.int32)
    weights = np.zeros((2, count), np.int32)
    distractors = np.zeros((2, count, expected["others"].shape[-1]), np.int32)
    for row, masked in enumerate(expected["masked"]):
        (of_row,) = np.nonzero(masked)
        masked_positions[row, : len(of_row)] = of_row
        weights[row, : len(of_row)] = 1
        others = expected["others"][row, of_row]
        distractors[row, : len(of_row)] = np.searchsorted(of_row, others)
    return masked_positions, weights, distractors


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
    masked_positions, weights, distractors = masked_positions_of(expected)
    batch = {
        "sound": expected["sound"],
        "length": expected["lengths"].astype(np.int32),
        "masked": expected["masked"],
        "masked_positions": masked_positions,
        "weights": weights,
        "distractors": distractors,
    }
    predicted = jitted(task._predicted)(params, batch, Context())
    for name in ("contexts", "targets"):
        ours = np.asarray(getattr(predicted, name))
        theirs = np.take_along_axis(expected[name], masked_positions[..., None], axis=1)
        is_masked = weights > 0
        np.testing.assert_allclose(unit(ours[is_masked]), unit(theirs[is_masked]), **CLOSE)
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


# How utterances are prepared, and how they are transcribed beside others.


def with_file(folder, name, content):
    (folder / name).write_text(json.dumps(content))
    return folder


def log_probs(task, params, utterances):
    """Returns the log-probabilities from which each utterance of a batch is transcribed."""
    keep = dataclasses.replace(
        task.transcriber, decoder=lambda frames: [Decoded((), frames)], spell=str
    )
    return [best.score for [best] in keep(params, utterances)]


@pytest.mark.sample("Wav2Vec2ForCTC-raw")
@pytest.mark.parametrize("prepared", ["normalized", "raw"])
@pytest.mark.parametrize("name", [TRANSCRIPTS, f"{TRANSCRIPTS}-large"])
def test_a_clip_in_a_batch_is_prepared_and_read_as_alone(name, prepared, tmp_path, monkeypatch):
    """The oracle is transformers with its feature extractor, on each clip without padding.

    The first convolution of the base model has a norm over time, whose statistics leave the padding
    out.
    """
    monkeypatch.setattr(ctc, "_MULTIPLE", 2**12)  # less padding, which takes less time
    expected = np.load(HERE / name / "clips.npz")
    extractor = {"do_normalize": prepared == "normalized", "return_attention_mask": False}
    folder = with_file(copied(name, tmp_path / "hf"), "preprocessor_config.json", extractor)
    convert.from_hf(folder, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert task.model.normalize == extractor["do_normalize"]
    # The same samples as floats, as other programs read them.
    kinds = [lambda clip: clip, lambda clip: clip.astype(np.int32) << 16, waveform]
    utterances = [kind(clip) for kind, clip in zip(kinds, clips())]
    together = log_probs(task, params, [*utterances, np.zeros(0, np.int16)])
    for number, computed in enumerate(together[:-1]):
        np.testing.assert_allclose(computed, expected[f"{prepared}.{number}"], **CLOSE)
    assert together[-1].shape[0] == 0


def read_config(folder):
    [family] = [each for each in wav2vec2.ARCHITECTURES if each.architecture == TRANSCRIPTS]
    return family, family.read_config(read_json(folder / "config.json"), folder)


def test_keys_of_the_feature_extractor(tmp_path):
    folder = copied(TRANSCRIPTS, tmp_path / "hf")
    _, config = read_config(folder)
    assert config.model.normalize  # the default of transformers' class
    # transformers 5 writes it beside the tokenizer's keys; an older file does not count then.
    nested = {"feature_extractor": {"do_normalize": False, "sampling_rate": 16_000}}
    with_file(folder, "processor_config.json", nested | {"processor_class": "Wav2Vec2Processor"})
    with_file(folder, "preprocessor_config.json", {"do_normalize": True})
    family, config = read_config(folder)
    assert not config.model.normalize
    [content] = [
        content
        for name, content in family.tokenizer_files(make_task(config)).items()
        if name == "preprocessor_config.json"
    ]
    assert json.loads(content)["do_normalize"] is False


@pytest.mark.parametrize(
    "change",
    [
        {"feature_size": 80},
        {"feature_extractor_type": "WhisperFeatureExtractor"},
    ],
)
def test_another_feature_extractor_is_refused(change, tmp_path):
    folder = with_file(copied(TRANSCRIPTS, tmp_path / "hf"), "preprocessor_config.json", change)
    [(key, value)] = change.items()
    refused(folder, tmp_path, f"preprocessor_config.json: {key}={value!r}: only .* is read")


def test_files_are_resampled_to_the_rate_of_the_model(tmp_path):
    """The oracle is the clip alone at this rate, as transformers' feature extractor demands it."""
    folder = copied(TRANSCRIPTS, tmp_path / "hf")
    with_file(folder, "preprocessor_config.json", {"sampling_rate": 8_000, "do_normalize": False})
    family, config = read_config(folder)
    assert config.model.sampling_rate == 8_000
    for rate in (8_000, 24_000):
        seconds = np.arange(rate) / rate
        soundfile.write(tmp_path / f"{rate}.wav", 0.5 * np.sin(600 * seconds), rate)
    (tmp_path / "manifest.tsv").write_text("8000.wav\tE\n24000.wav\tE\n")
    config.data.train_files = str(tmp_path / "manifest.tsv")
    config.data.cache = str(tmp_path / "cache")
    task = make_task(config)
    assert task.samples == round(8_000 * task.seconds)
    same, resampled = Utterances(task.source.records("train")).read([0, 1])
    stored, _ = soundfile.read(tmp_path / "8000.wav", dtype="float32")
    np.testing.assert_array_equal(waveform(same.samples), stored)
    # The filter knows no samples beyond the ends.
    inside = slice(100, -100)
    np.testing.assert_allclose(waveform(resampled.samples)[inside], stored[inside], atol=2e-4)
    [written] = [
        json.loads(content)
        for name, content in family.tokenizer_files(task).items()
        if name == "preprocessor_config.json"
    ]
    assert written["sampling_rate"] == 8_000
    configs.set_key(config, "source.sampling_rate", 16_000)
    with pytest.raises(UserError, match="config.model.sampling_rate=8000: the audio of .* 16000"):
        make_task(config)


def transcript(config, tokens):
    """Returns the text of a path of tokens, one for each frame, which the blank is between."""
    spelling = make_task(config).spelling
    return spelling.decode([spelling.vocabulary.index(token) for token in tokens])


@pytest.mark.parametrize("file", ["added_tokens.json", "tokenizer_config.json", "without outputs"])
def test_tokens_that_were_added_later(file, tmp_path):
    """They have the last outputs of the model, or none."""
    *first, delimiter, e, t, a, quote = VOCABULARY
    numbers = {token: number for number, token in enumerate([*first, delimiter, e, t])}
    later = {a: 7, quote: 8}
    if file == "without outputs":
        numbers, later = numbers | later, {"<s2>": 9, "<s3>": 10}
    folder = with_file(copied(TRANSCRIPTS, tmp_path / "hf"), "vocab.json", numbers)
    if file == "tokenizer_config.json":
        decoder = {str(number): {"content": token} for token, number in later.items()}
        with_file(folder, file, {"added_tokens_decoder": decoder})
    else:
        with_file(folder, "added_tokens.json", later)
    _, config = read_config(folder)
    assert config.task.vocabulary == VOCABULARY


@pytest.mark.parametrize("delimiter", [" ", "_", "<space>", {"content": "[w]"}])
def test_another_word_delimiter(delimiter, tmp_path):
    """The transcripts are those that transformers' tokenizer decodes, by hand."""
    token = delimiter["content"] if isinstance(delimiter, dict) else delimiter
    vocabulary = [token if each == "|" else "|" if each == "'" else each for each in VOCABULARY]
    numbers = {each: number for number, each in enumerate(vocabulary)}
    folder = with_file(copied(TRANSCRIPTS, tmp_path / "hf"), "vocab.json", numbers)
    with_file(folder, "tokenizer_config.json", {"word_delimiter_token": delimiter})
    family, config = read_config(folder)
    assert transcript(config, ["E", "T", token, token, "A", "|", "<s>"]) == "ET A|"
    spelling = make_task(config).spelling
    assert [vocabulary[number] for number in spelling.encode("et a|")] == [
        "E",
        "T",
        token,
        "A",
        "|",
    ]
    [content] = [
        content
        for name, content in family.tokenizer_files(make_task(config)).items()
        if name == "tokenizer_config.json"
    ]
    assert json.loads(content)["word_delimiter_token"] == token


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("vocab.json", {"eng": {"<pad>": 0}}, "vocabularies by language are not read"),
        ("vocab.json", {"<pad>": 0, "|": 2}, "must number its tokens 0, 1, 2"),
        ("tokenizer_config.json", {"word_delimiter_token": "#"}, "='#' is not in vocab.json"),
    ],
)
def test_vocabularies_without_an_equivalent_are_refused(name, content, message, tmp_path):
    refused(with_file(copied(TRANSCRIPTS, tmp_path / "hf"), name, content), tmp_path, message)


def test_options_of_the_tokenizer_that_are_not_obeyed_are_named(tmp_path, capsys):
    folder = copied(TRANSCRIPTS, tmp_path / "hf")
    read_config(with_file(folder, "tokenizer_config.json", {"do_lower_case": False}))
    assert "not obeyed" not in capsys.readouterr().err
    read_config(with_file(folder, "tokenizer_config.json", {"do_lower_case": True}))
    assert "do_lower_case=True is not obeyed" in capsys.readouterr().err


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_the_feature_extractor_has_the_keys_of_transformers(norm):
    model = types.SimpleNamespace(sampling_rate=16_000, normalize=True, convolution_norm=norm)
    (architecture,) = (
        found for found in wav2vec2.ARCHITECTURES if found.architecture == PRETRAINING
    )
    files = architecture.tokenizer_files(types.SimpleNamespace(model=model, tokenizer=None))
    # The keys of transformers 5.24's Wav2Vec2FeatureExtractor.to_dict().
    assert json.loads(files["preprocessor_config.json"]) == {
        "do_normalize": True,
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "feature_size": 1,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": norm == "layer",
        "sampling_rate": 16_000,
    }
