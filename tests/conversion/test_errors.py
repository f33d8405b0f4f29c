"""Checkpoints and runs that cannot be converted: one error that names the fault, and no folder."""

import numpy as np
import pytest

from tests.conversion.checkpoints import (
    GPT1,
    GPT2,
    copied,
    gpt_config,
    random_run,
    refused,
    rewrite,
    weights,
)
from tests.fixtures import make_huggingface as make
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError


@pytest.mark.parametrize(
    "architecture, change, message",
    [
        (
            GPT2,
            {"architectures": ["BloomForCausalLM"]},
            r"config.json: architectures=\['BloomForCausalLM'\]: "
            "only .*BertForPreTraining, .*, OpenAIGPTLMHeadModel, GPT2LMHeadModel, ",
        ),
        (GPT2, {"architectures": None}, "config.json: architectures=None"),
        (GPT2, {"activation_function": "relu"}, "activation_function='relu': only 'gelu_new'"),
        (GPT2, {"scale_attn_weights": False}, "scale_attn_weights=False"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention=True"),
        (GPT2, {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        (GPT1, {"afn": "relu"}, "afn='relu': only 'gelu' is supported"),
        (GPT1, {"n_head": 3}, "config.json: config.model.num_heads=3 does not divide"),
        (GPT1, {"n_layer": "x"}, "config.json: config.model.num_layers='x' is not a whole number"),
        (GPT1, {"n_embd": ...}, "config.json: no n_embd"),
        (
            GPT2,
            {"n_layer": 3},
            "missing from the weights: h.2.attn.c_attn.bias, h.2.attn.c_attn.weight, .* and 4 more",
        ),
        (GPT2, {"n_layer": 1}, "not in this architecture: h.1.attn.c_attn.bias"),
        (
            GPT2,
            {"n_inner": 36},
            r"transformer.h.0.mlp.c_fc.weight has shape \(16, 40\): "
            r"by config.json it must be \(16, 36\)",
        ),
    ],
)
def test_configs_without_an_equivalent_are_refused(architecture, change, message, tmp_path):
    refused(copied(architecture, tmp_path / "hf", **change), tmp_path, message)


def add_tensor(tensors):
    tensors["transformer.h.0.attn.rotary"] = np.zeros((2, 2), np.float32)


def remove_norm(tensors):
    del tensors["transformer.ln_f.weight"]
    del tensors["transformer.ln_f.bias"]


def transpose_positions(tensors):
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"].T.copy()


def round_positions(tensors):
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"].astype(np.int8)


def poison_norm(tensors):
    tensors["transformer.ln_f.bias"][3] = np.nan


@pytest.mark.parametrize(
    "change, message",
    [
        (add_tensor, "hf: in the weights, but not in this architecture: h.0.attn.rotary"),
        (remove_norm, "hf: missing from the weights: ln_f.bias, ln_f.weight"),
        (transpose_positions, r"transformer.wpe.weight has shape \(16, 48\)"),
        (round_positions, "transformer.wpe.weight has dtype I8: not one of F32, F16, BF16"),
        (poison_norm, "transformer.ln_f.bias has values that are not finite"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, message, tmp_path):
    folder = copied(GPT2, tmp_path / "hf")
    tensors = weights(folder)
    change(tensors)
    rewrite(folder, tensors)
    refused(folder, tmp_path, message)


def test_a_tokenizer_with_too_many_tokens_is_refused(tmp_path):
    folder = copied(GPT2, tmp_path / "hf", vocab_size=20)
    tensors = weights(folder)
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"][:20].copy()
    rewrite(folder, tensors)
    refused(folder, tmp_path, "the tokenizer has 267 tokens: .*vocab_size=20")


@pytest.mark.parametrize(
    "files, message",
    [
        (
            {"model.safetensors": None, "pytorch_model.bin": b""},
            # Without torch, or with it.
            "pytorch_model.bin(?: is pickled: .* Save it as safetensors|: is not read)",
        ),
        ({"model.safetensors": None, "weights.pt": b""}, "weights.pt is pickled"),
        ({"model.safetensors": None}, "no model.safetensors and no model.safetensors.index.json"),
        ({"model.safetensors": b"no weights"}, "model.safetensors: can't be read as safetensors"),
        (
            {"model.safetensors": None, "model.safetensors.index.json": b"{}"},
            "index.json: has no weight_map",
        ),
        ({"config.json": None}, "config.json: can't be read"),
        ({"config.json": b"{"}, "config.json: not JSON"),
        ({"config.json": b"[]"}, "config.json: not a JSON object"),
        ({"merges.txt": None}, "no tokenizer that can be read here"),
    ],
)
def test_files_that_are_missing_or_broken_are_refused(files, message, tmp_path):
    folder = copied(GPT2, tmp_path / "hf")
    for name, content in files.items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)
    refused(folder, tmp_path, message)


@pytest.mark.parametrize(
    "model, message",
    [
        (dict(local_window=4), "local_window=4: GPT2LMHeadModel has no local attention"),
        (dict(head_dim=4), "head_dim=4: GPT2LMHeadModel has only d_model / num_heads"),
        (
            dict(d_ff=40, norm_position="post"),
            r"d_ff=40: OpenAIGPTLMHeadModel has only 4 \* d_model",
        ),
    ],
)
def test_models_that_transformers_lacks_are_refused(model, message, tmp_path):
    with pytest.raises(UserError, match=message):
        convert.to_hf(random_run(gpt_config(**model), tmp_path / "run"), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_family_that_transformers_lacks_is_refused(tmp_path):
    config = configs.experiment(
        model=dict(name="recurrent", vocab_size=267, d_model=16, num_layers=1),
        task=dict(name="causal_lm", length=24),
        data=dict(train_files="unknown", tokenizer_files=str(make.HERE / GPT2)),
    )
    with pytest.raises(UserError, match="config.model.name='recurrent' .* only .* can be written"):
        convert.to_hf(random_run(config, tmp_path / "run"), tmp_path / "hf")
