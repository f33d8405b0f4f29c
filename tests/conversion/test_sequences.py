"""Conversion of BART and T5 from and to Hugging Face checkpoints."""

import jax
import numpy as np
import pytest

import transformer_jax
from tests.conversion.checkpoints import CLOSE, copied, read_json, refused, rewrite, weights
from tests.fixtures.make_huggingface import HERE
from tests.fixtures.make_huggingface_sequences import BART, FOLDERS, PROMPT, T5, T5_1_1
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.contracts.model import Inputs
from transformer_jax.runs.open import open_run


def logits(run, source, filled, target):
    """Returns the logits of a run for the arrays of `make_huggingface_sequences.inputs`."""
    model, params, _ = transformer_jax.load(run)
    apply = jax.jit(model.apply)
    return apply({"params": params}, Inputs(source, segment_ids=filled), target)


@pytest.mark.full
@pytest.mark.parametrize("name", FOLDERS)
def test_a_checkpoint_equals_transformers_and_is_written_unchanged(name, tmp_path):
    folder = HERE / name
    run = tmp_path / "run"
    convert.from_hf(folder, run)
    expected = np.load(folder / "expected.npz")
    inputs = {key: expected[key] for key in ("source", "filled", "target")}
    np.testing.assert_allclose(logits(run, **inputs), expected["logits"], **CLOSE)

    length = len(expected["greedy"]) - 1
    task, params = open_run(run, overrides=[("decode.max_length", length)])
    tokenizer = task.tokenizer.target
    assert tokenizer.framed(tokenizer.encode(PROMPT)) == expected["prompt"].tolist()
    assert tokenizer.start_id == expected["greedy"][0]
    ((hypothesis,),) = task.translate(params, [PROMPT])
    assert hypothesis.text == tokenizer.decode(expected["greedy"][1:].tolist())

    for kind in task.attentions:
        attended = task.attention(params, PROMPT, "the cat", kind)
        np.testing.assert_allclose(attended.weights.sum(axis=-1), 1, rtol=1e-4)

    convert.to_hf(run, tmp_path / "back")
    original, written = weights(folder), weights(tmp_path / "back")
    assert original.keys() == written.keys()
    for key in original:
        np.testing.assert_array_equal(original[key], written[key], err_msg=key)
    config = read_json(folder / "config.json")
    for key, value in read_json(tmp_path / "back" / "config.json").items():
        assert config.get(key, value) == value or key in ("bos_token_id", "tie_word_embeddings"), (
            key
        )
    convert.from_hf(tmp_path / "back", tmp_path / "again")
    first, second = (open_run(path)[0].config for path in (run, tmp_path / "again"))
    assert configs.differences(first, second) == []


@pytest.mark.full
def test_published_names_and_older_keys_are_read(tmp_path):
    """The published BART of pre-training names no head, and files before 5 have one key less."""
    folder = copied(BART, tmp_path / "hf", architectures=["BartModel"])
    tensors = {name.removeprefix("model."): x for name, x in weights(folder).items()}
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"]
    rewrite(folder, tensors)
    convert.from_hf(folder, tmp_path / "run")
    convert.to_hf(tmp_path / "run", tmp_path / "back")
    assert read_json(tmp_path / "back" / "config.json")["architectures"] == [BART]

    older = dict(scale_decoder_outputs=..., tie_word_embeddings=False, num_decoder_layers=...)
    folder = copied(T5_1_1, tmp_path / "t5", **older)
    refused(folder, tmp_path, "missing from the weights: decoder.block.2.layer.0")
    older["num_decoder_layers"] = 2
    convert.from_hf(copied(T5_1_1, tmp_path / "older", **older), tmp_path / "t5_run")
    model = open_run(tmp_path / "t5_run")[0].config.model
    assert model.gated and not model.tie_output


@pytest.mark.parametrize(
    "name, change, message",
    [
        (BART, {"activation_function": "relu"}, "activation_function='relu': only 'gelu'"),
        (BART, {"scale_embedding": True}, "scale_embedding=True: only False is supported"),
        (BART, {"decoder_ffn_dim": 30}, "decoder_ffn_dim=30: only the value of encoder_ffn_dim"),
        (BART, {"architectures": ["BartForCausalLM"]}, "BartForCausalLM.*only .* can be read"),
        (T5, {"feed_forward_proj": "gated-silu"}, "='gated-silu': only 'relu' or 'gated-gelu'"),
        (T5, {"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon=1e-05: only 1e-06"),
        (T5, {"relative_attention_max_distance": 4}, "max_distance=4: must be above half of"),
    ],
)
def test_configs_without_an_equivalent_are_refused(name, change, message, tmp_path):
    refused(copied(name, tmp_path / "hf", **change), tmp_path, message)


@pytest.mark.full
def test_a_bias_of_the_logits_is_refused(tmp_path):
    folder = copied(BART, tmp_path / "hf")
    bias = np.zeros((1, len(weights(folder)["model.shared.weight"])), np.float32)
    rewrite(folder, weights(folder) | {"final_logits_bias": bias})
    convert.from_hf(folder, tmp_path / "run")
    bias[0, 7] = 0.5
    rewrite(folder, weights(folder) | {"final_logits_bias": bias})
    refused(folder, tmp_path, "final_logits_bias has values for which our model has no parameter")
    rewrite(folder, weights(folder) | {"final_logits_bias": bias[:, 1:]})
    refused(folder, tmp_path, "final_logits_bias has shape .1, 270.: by config.json it must be")


def test_a_folder_with_a_pickle_alone_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.storage.hub.reads_torch_files", lambda: False)
    folder = copied(T5, tmp_path / "hf")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, tmp_path, "pytorch_model.bin is pickled: .* save_pretrained")
