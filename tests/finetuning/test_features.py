"""Heads on frozen states, of every kind of model that has an encoder."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.finetuning.examples import build, pretrained, task_of
from tests.jitted import jitted
from transformer_jax.config import UserError
from transformer_jax.families.bart import BART
from transformer_jax.families.encoder_decoder import EncoderDecoder
from transformer_jax.families.t5 import T5
from transformer_jax.finetuning.encoder import Encoder
from transformer_jax.layers.embeddings import RecurrentHead
from transformer_jax.runs.open import open_run
from transformer_jax.runs.train import train

STATES = np.random.default_rng(0).normal(size=(3, 2, 5, 8)).astype(np.float32)
FILLED = np.arange(5) < np.array([[5], [3]])


@pytest.fixture(scope="module")
def translation(tmp_path_factory):
    """The workdir of an initial recurrent translation, with a vocabulary for each side."""
    folder = tmp_path_factory.mktemp("translation")
    sizes = dict(model__source_vocab_size=90, model__encoder_width=12, model__bridge="project")
    return pretrained(folder, "recurrent_seq2seq", **sizes)


def learned(folder, kind, origin, features, rate=2e-2, **keys):
    """Returns (task, params, scores) of a head that has learned from the frozen states."""
    config = build(
        folder,
        kind,
        origin,
        task__features=features,
        task__lstm_width=16,
        optimizer__learning_rate=rate,
        **keys,
    )
    scores = train(config, folder / "run")
    return *open_run(folder / "run"), scores


@pytest.mark.full
def test_a_text_is_classified_from_weighted_states(runs, tmp_path):
    """All layers of BERT, with weights and a factor that the task learns."""
    task, params, scores = learned(tmp_path, "classification", runs["bert"], "weighted")
    assert scores["valid/accuracy"] > 0.85
    assert params["head"]["weights"].shape == (3,) and params["head"]["scale"] != 1
    (prediction,) = task.predict(params, ["the cat sat"])
    assert prediction.text == "cat"
    _, pretrained = open_run(runs["bert"])
    np.testing.assert_array_equal(*(x["token_embed"]["embedding"] for x in (params, pretrained)))


@pytest.mark.full
@pytest.mark.parametrize("kind, score", [("tagging", "f1"), ("classification", "accuracy")])
def test_the_encoder_of_a_translation_gives_features(kind, score, translation, tmp_path):
    """As CoVe: the source's tokenizer reads the text, and embeddings stand beside the states."""
    task, params, scores = learned(tmp_path, kind, translation, "concat-embeddings-last")
    assert scores[f"valid/{score}"] > 0.85
    width = 32 + 2 * 12  # the embeddings, and the encoder's two directions
    assert params["head"]["lstm_0_forward"]["input"]["kernel"].shape == (width, 4, 8)
    assert "decoder" not in params and "output_embed" not in params
    earlier, _ = open_run(translation)
    assert task.tokenizer.fingerprint() == earlier.tokenizer.source.fingerprint()
    (prediction,) = task.predict(params, ["the cat sat"])
    assert "cat" in prediction.text


@pytest.mark.full
def test_elmo_gives_features_of_known_and_unknown_words(tmp_path):
    """The rows hold characters, so a word that no training has read has a vector of its own."""
    origin = pretrained(tmp_path, "elmo", model__d_model=32, model__lstm_width=16)
    task, params, scores = learned(tmp_path / "tags", "tagging", origin, "weighted", rate=5e-2)
    assert scores["valid/f1"] > 0.85
    assert params["head"]["weights"].shape == (3,) and "output_embed" not in params
    (prediction,) = task.predict(params, ["the cat sat"])
    assert prediction.text == "the/O cat/B-PET sat/O"
    rows = [task.row(parts[0]) for parts, _ in task.unlabelled([(1, "catty"), (2, "dogmatic")])]
    assert rows[0]["tokens"].shape == (32, 10) and (rows[0]["tokens"] != rows[1]["tokens"]).any()
    steps = dict(train__num_steps=2)
    task, params, _ = learned(tmp_path / "texts", "classification", origin, "weighted", **steps)
    first, second = (x.details for x in task.predict(params, ["a catty", "a dogmatic"]))
    assert first["probabilities"] != second["probabilities"]


@pytest.mark.full
def test_an_update_of_a_pair_in_both_orders(runs, tmp_path):
    steps = dict(train__num_steps=2, task__symmetric=True)
    task, params, _ = learned(tmp_path, "pairs", runs["bert"], "sum-all", **steps)
    first, second = task.predict(params, ["the cat sat\ta dog", "a dog\tthe cat sat"])
    probabilities = second.details["probabilities"]
    assert first.details["probabilities"] == pytest.approx(probabilities, rel=1e-4)


@pytest.mark.full
def test_the_states_of_a_source_are_read_as_arrays(translation):
    task, params = open_run(translation)
    texts = ["the cat", "", "a dog ran to the mat"]
    embeddings, states = (list(task.features(params, texts, (layer,))) for layer in (0, -1))
    source, encode = task.tokenizer.source, jitted(task.model.apply)
    table = np.asarray(params["source_embed"]["embedding"])
    for text, (pieces, vectors), (_, memory) in zip(texts, embeddings, states, strict=True):
        ids = source.framed(source.encode(text))
        assert pieces == source.pieces(ids) and vectors.shape == (1, len(ids), 32)
        expected = encode({"params": params}, np.array([ids]), method="encode")
        np.testing.assert_allclose(memory[0], np.asarray(expected)[0, :, :24], atol=1e-5)
        np.testing.assert_array_equal(vectors[0], table[ids])
    with pytest.raises(UserError, match="layers of the widths 24 and 32"):
        list(task.features(params, texts, (0, 1)))
    with pytest.raises(UserError, match="layer 2: must be from 0 .* to 1"):
        list(task.features(params, texts, (2,)))


@pytest.mark.parametrize("model", [EncoderDecoder, BART, T5])
def test_every_encoder_decoder_gives_the_states_of_a_source(model):
    layers = dict(num_encoder_layers=1, num_decoder_layers=1)
    encoder = Encoder(model(vocab_size=16, d_model=8, d_ff=8, num_heads=2, **layers), True)
    assert encoder.arrays == ("tokens", "token_types", "segment_ids")
    (embeddings, states), params = jax.jit(lambda: encoder.init_layers(jax.random.key(0)))()
    params = nn.unbox(params)
    assert "decoder" not in params and embeddings.shape == states.shape == (1, 8, 8)
    ids = np.array([[1, 2, 3, 0]])
    row = {"tokens": ids, "token_types": 0 * ids, "segment_ids": np.array([[1, 1, 1, 0]])}
    memory = jitted(encoder.model.apply)({"params": params}, ids[:, :3], method="encode")
    layers = jax.device_get(jitted(encoder.layers)(params, row))
    np.testing.assert_allclose(layers[1][:, :3], memory, atol=1e-5)
    assert 0 < encoder.flops(8, False) < encoder.model.flops(8, 8)


@pytest.mark.sample("True")
@pytest.mark.parametrize("pools", [False, True])
def test_the_head_is_that_of_the_equations(pools):
    """gamma * sum_j softmax(s)_j h_j; padding changes nothing."""
    head = RecurrentHead(3, width=8, scaled=True, pools=pools)
    apply = jitted(head.apply)
    params = nn.unbox(jax.jit(head.init)(jax.random.key(0), [*STATES], FILLED))["params"]
    params |= {"weights": np.log(np.float32([1, 2, 5])), "scale": np.array(2, np.float32)}
    outputs = np.asarray(apply({"params": params}, [*STATES], FILLED))
    mixed = 2 * np.einsum("s,sblm->blm", np.float32([1, 2, 5]) / 8, STATES)
    plain = RecurrentHead(3, width=8, concatenate=True, pools=pools)
    of_mixed = {name: x for name, x in params.items() if name not in ("weights", "scale")}
    expected = jitted(plain.apply)({"params": of_mixed}, [mixed], FILLED)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    short = apply({"params": params}, [*STATES[:, 1:, :3]], FILLED[1:, :3])
    long = outputs[1:] if pools else outputs[1:, :3]
    np.testing.assert_allclose(short, long, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "family, features, message",
    [
        ("concatenation", "last", "head_kind='concatenation': not with config.task.features"),
        ("gpt", "weighted", "features=weighted: needs the states of an encoder; gpt is a causal"),
        ("translation", "weighted", "must be one of embeddings, last, concat-embeddings-last"),
    ],
)
def test_features_of_other_models_are_refused(
    family, features, message, runs, translation, tmp_path
):
    origin = translation if family == "translation" else runs.get(family, runs["bert"])
    keys = dict(task__head_kind=family) if family == "concatenation" else {}
    with pytest.raises(UserError, match=message) as error:
        task_of(tmp_path, "classification", origin, task__features=features, **keys)
    assert "\n" not in str(error.value)
