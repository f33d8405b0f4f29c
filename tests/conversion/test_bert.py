"""Conversion of pre-trained BERTs and their relatives from and to Hugging Face checkpoints."""

import numpy as np
import pytest

from tests.conversion.checkpoints import CLOSE, copied, read_json, refused, rewrite, weights
from tests.fixtures import make_huggingface_albert, make_huggingface_bert, make_huggingface_roberta
from tests.fixtures.make_huggingface import HERE
from tests.jitted import jitted
from transformer_jax import convert
from transformer_jax.data import tokenizers
from transformer_jax.runs.open import open_run

ARCHITECTURES = (
    *make_huggingface_bert.ARCHITECTURES,
    *make_huggingface_albert.ARCHITECTURES,
    make_huggingface_roberta.FOLDER.name,
    make_huggingface_bert.DISTIL,
)


def assert_outputs_of_bert(run, inputs, expected):
    """Asserts the run's states and logits at all filled positions."""
    task, params = open_run(run)
    apply, variables = jitted(task.model.apply), {"params": params}
    options = dict(token_types=inputs["types"], segment_ids=inputs["filled"])
    filled = inputs["filled"] > 0
    states = np.asarray(apply(variables, inputs["ids"], **options, method="layers"))
    logits = apply(variables, states[-1], method="logits")
    np.testing.assert_allclose(states[:, filled], expected["hidden"][:, filled], **CLOSE)
    np.testing.assert_allclose(np.asarray(logits)[filled], expected["logits"][filled], **CLOSE)
    if "following" in expected:
        following = apply(variables, states[-1], method="next_logits")
        np.testing.assert_allclose(following, expected["following"], **CLOSE)


@pytest.mark.sample("AlbertForMaskedLM", "RobertaForMaskedLM", "DistilBertForMaskedLM")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_checkpoint_gives_the_published_outputs_and_is_written_unchanged(architecture, tmp_path):
    folder = HERE / architecture
    run = tmp_path / "run"
    back = tmp_path / "back"
    # RoBERTa's vocabulary has an odd number of tokens: its table may be padded.
    padded = [("model.vocab_multiple", "64")] if architecture.startswith("Roberta") else []
    convert.from_hf(folder, run, padded)
    expected = dict(np.load(folder / "expected.npz"))
    assert_outputs_of_bert(run, expected, expected)
    task = open_run(run)[0]
    assert task.next_sentence == architecture.endswith("ForPreTraining")
    is_sentence_order = architecture == "AlbertForPreTraining"
    assert (task.second_text == "sentence_order") == is_sentence_order

    convert.to_hf(run, back)
    original = weights(folder)
    written = weights(back)
    tied = {name for name in original if "decoder." in name}
    assert written.keys() == original.keys() - tied
    for name in written:
        np.testing.assert_array_equal(original[name], written[name], err_msg=name)
    config = read_json(folder / "config.json")
    for key, value in read_json(back / "config.json").items():
        assert config.get(key, value) in (value, None)
    fingerprints = [tokenizers.read_published(path).fingerprint() for path in (folder, back)]
    assert fingerprints[0] == fingerprints[1]


def test_names_of_the_first_published_checkpoints(tmp_path):
    """They call the parameters of norms gamma and beta, and name only the masked-token head."""
    folder = copied("BertForPreTraining", tmp_path / "old", architectures=["BertForMaskedLM"])
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for name, array in weights(folder).items()
    }
    assert renamed.keys() != weights(folder).keys()
    rewrite(folder, renamed)
    convert.from_hf(folder, tmp_path / "run")
    expected = dict(np.load(folder / "expected.npz"))
    assert_outputs_of_bert(tmp_path / "run", expected, expected)


def test_a_converted_checkpoint_fills_masks(tmp_path):
    convert.from_hf(HERE / "BertForMaskedLM", tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    ((candidates,),) = task.fill(params, ["the cat [MASK] on the mat"])
    assert len(candidates) == 5


@pytest.mark.parametrize(
    "architecture, change, message",
    [
        ("AlbertForMaskedLM", {"hidden_act": "gelu"}, "hidden_act='gelu': only 'gelu_new'"),
        ("AlbertForMaskedLM", {"num_hidden_groups": 2}, "num_hidden_groups=2: only 1"),
        ("RobertaForMaskedLM", {"pad_token_id": 0}, "pad_token_id=0: only 1"),
        ("RobertaForMaskedLM", {"max_position_embeddings": 2}, "max_position_embeddings=2: must"),
    ],
)
def test_configs_of_relatives_without_an_equivalent_are_refused(
    architecture, change, message, tmp_path
):
    refused(copied(architecture, tmp_path / "hf", **change), tmp_path, message)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden_act": "relu"}, "hidden_act='relu': only 'gelu'"),
        ({"architectures": ["BertLMHeadModel"]}, r"architectures=\['BertLMHeadModel'\]"),
        ({"hidden_size": 20}, "has shape"),
        ({"num_hidden_layers": 3}, "missing from the weights: bert.encoder.layer.2.attention"),
        ({"num_attention_heads": 3}, "num_heads=3"),
    ],
)
def test_configs_without_an_equivalent_are_refused(change, message, tmp_path):
    refused(copied("BertForPreTraining", tmp_path / "hf", **change), tmp_path, message)


def test_missing_and_unknown_tensors_are_named(tmp_path):
    folder = copied("BertForPreTraining", tmp_path / "hf")
    tensors = weights(folder)
    tensors["bert.extra"] = tensors.pop("bert.pooler.dense.bias")
    rewrite(folder, tensors)
    refused(folder, tmp_path, "missing from the weights: bert.pooler.dense.bias")
