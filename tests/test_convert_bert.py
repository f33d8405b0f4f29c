"""BERT's checkpoints of pre-training, both ways: hidden states and logits equal, tensors there and
back.
"""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.fixtures import make_huggingface as hf
from tests.fixtures import make_huggingface_bert as make
from tests.tasks.test_masked_lm import build
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.runs.open import open_run
from transformer_jax.runs.train import train

CLOSE = dict(rtol=0, atol=1e-4)


def equal(run, given, expected):
    """What the run computes is what is expected of every filled position."""
    task, params = open_run(run)
    arguments = (given["ids"], given["types"], None, given["filled"])
    filled = given["filled"] > 0
    states = np.asarray(task.model.apply({"params": params}, *arguments, method="layers"))
    _, logits, following = task.model.apply({"params": params}, *arguments)
    np.testing.assert_allclose(states[:, filled], expected["hidden"][:, filled], **CLOSE)
    np.testing.assert_allclose(np.asarray(logits)[filled], expected["logits"][filled], **CLOSE)
    if "following" in expected:
        np.testing.assert_allclose(following, expected["following"], **CLOSE)


@pytest.mark.parametrize("architecture", make.ARCHITECTURES)
def test_a_checkpoint_computes_what_it_is_published_with_and_goes_back(architecture, tmp_path):
    folder, run = hf.HERE / architecture, tmp_path / "run"
    convert.from_hf(folder, run)
    expected = dict(np.load(folder / "expected.npz"))
    equal(run, expected, expected)
    assert open_run(run)[0].next_sentence == (architecture == "BertForPreTraining")
    convert.to_hf(run, tmp_path / "back")
    was, now = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "back"))
    assert now.keys() == {name for name in was if not name.startswith("cls.predictions.decoder")}
    for name in now:
        np.testing.assert_array_equal(was[name], now[name], err_msg=name)
    was, now = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "back"))
    assert all(was.get(key, value) == value for key, value in now.items())
    assert (tmp_path / "back" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()


def test_names_of_the_first_published_checkpoints(tmp_path):
    """They call norms' parameters gamma and beta, and the model after its masked-token head alone."""
    shutil.copytree(hf.HERE / "BertForPreTraining", tmp_path / "old")
    weights = load_file(tmp_path / "old/model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for name, array in weights.items()
    }
    assert renamed.keys() != weights.keys()
    save_file(renamed, tmp_path / "old/model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "old/config.json").read_text())
    (tmp_path / "old/config.json").write_text(
        json.dumps(config | {"architectures": ["BertForMaskedLM"]})
    )
    convert.from_hf(tmp_path / "old", tmp_path / "run")
    expected = dict(np.load(hf.HERE / "BertForPreTraining" / "expected.npz"))
    equal(tmp_path / "run", expected, expected)


def test_a_converted_checkpoint_fills_masks(tmp_path):
    convert.from_hf(hf.HERE / "BertForMaskedLM", tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    ((mask,),) = task.fill(params, ["the cat [MASK] on the mat"])
    assert len(mask) == 5


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden_act": "relu"}, "hidden_act='relu': only 'gelu'"),
        ({"architectures": ["BertModel"]}, r"architectures=\['BertModel'\]"),
        ({"hidden_size": 20}, "has shape"),
        ({"num_hidden_layers": 3}, "missing from the weights: bert.encoder.layer.2.attention"),
        ({"num_attention_heads": 3}, "num_heads=3"),
    ],
)
def test_what_can_not_be_read_is_named(change, message, tmp_path):
    folder = shutil.copytree(hf.HERE / "BertForPreTraining", tmp_path / "hf")
    (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | change)
    )
    with pytest.raises(UserError, match=message):
        convert.from_hf(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_and_unknown_tensors_are_named(tmp_path):
    folder = shutil.copytree(hf.HERE / "BertForPreTraining", tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.extra"] = tensors.pop("bert.pooler.dense.bias")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match="missing from the weights: bert.pooler.dense.bias"):
        convert.from_hf(folder, tmp_path / "run")


# where transformers and torch are installed: fresh models, both ways


@pytest.mark.parametrize("architecture", make.ARCHITECTURES)
@pytest.mark.parametrize(
    "sizes",
    [
        dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=3),
        dict(intermediate_size=30, type_vocab_size=3, layer_norm_eps=1e-12),
    ],
)
def test_live_from_transformers(architecture, sizes, tmp_path):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    vocab_size = make.save_tokenizer(tmp_path / "hf")
    model = hf.random_model(architecture, seed=5, **{**make.SIZES, **sizes}, vocab_size=vocab_size)
    model.save_pretrained(tmp_path / "hf")
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    given = make.inputs(vocab_size, 20)
    equal(tmp_path / "run", given, make.computed(model, **given))


@pytest.mark.parametrize("next_sentence", [1.0, 0.0])
def test_live_to_transformers(next_sentence, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = build(tmp_path, task__next_sentence=next_sentence, train__num_steps=2)
    train(config, tmp_path / "run")
    convert.to_hf(tmp_path / "run", tmp_path / "hf")
    cls = transformers.BertForPreTraining if next_sentence else transformers.BertForMaskedLM
    model, loading = cls.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(loading.values())
    given = make.inputs(60, 20)
    equal(tmp_path / "run", given, make.computed(model.eval(), **given))
    task, _ = open_run(tmp_path / "run")
    text = "The cat sat, the dog ran."
    assert (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")(text).input_ids[1:-1]
        == task.tokenizer.encode([text])[0]
    )
