"""Conversion of Llama, Qwen2 and Mixtral from and to Hugging Face checkpoints."""

import json

import numpy as np
import pytest

from tests.conversion.checkpoints import (
    CLOSE,
    copied,
    logits,
    random_run,
    read_json,
    refused,
    weights,
)
from tests.fixtures.make_huggingface import HERE, PROMPT
from tests.fixtures.make_huggingface_decoder import LLAMA, MIXTRAL, QWEN2, TEXTS
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.inference.generation import Sampling
from transformer_jax.runs.open import open_run

ALL = pytest.mark.parametrize("architecture", [LLAMA, QWEN2, MIXTRAL])


@pytest.mark.full
@ALL
def test_a_checkpoint_equals_transformers_and_is_written_unchanged(architecture, tmp_path):
    folder = HERE / architecture
    run = tmp_path / "run"
    convert.from_hf(folder, run)
    expected = np.load(folder / "expected.npz")
    np.testing.assert_allclose(logits(run, expected["ids"]), expected["logits"], **CLOSE)
    task, params = open_run(run)
    assert task.tokenizer.encode(TEXTS) == json.loads(expected["texts"].item())
    (continuation,) = task.generate(
        params, [PROMPT], max_tokens=len(expected["greedy"]), how=Sampling(temperature=0.0)
    )
    prompt = task.tokenizer.encode(PROMPT)
    prefix, text = task.tokenizer.decode([prompt, [*prompt, *expected["greedy"].tolist()]])
    assert prefix + continuation.text == text

    convert.to_hf(run, tmp_path / "back")
    original, written = weights(folder), weights(tmp_path / "back")
    assert original.keys() == written.keys()
    for name in original:
        np.testing.assert_array_equal(original[name], written[name], err_msg=name)
    config = read_json(folder / "config.json")
    for key, value in read_json(tmp_path / "back" / "config.json").items():
        ours = ("bos_token_id", "rope_theta")
        assert config.get(key, value) == value or key in ours, key
    library = read_json(folder / "tokenizer.json")
    assert read_json(tmp_path / "back" / "tokenizer.json") == library
    convert.from_hf(tmp_path / "back", tmp_path / "again")
    first, second = (open_run(path)[0].config for path in (run, tmp_path / "again"))
    assert configs.differences(first, second) == []


@pytest.mark.full
def test_keys_of_earlier_releases_are_read(tmp_path):
    """They have rope_theta and rope_scaling, and no number of heads of keys and values."""
    scaling = read_json(HERE / LLAMA / "config.json")["rope_parameters"]
    theta = scaling.pop("rope_theta")
    folder = copied(
        LLAMA, tmp_path / "hf", rope_parameters=..., rope_theta=theta, rope_scaling=scaling
    )
    convert.from_hf(folder, tmp_path / "run")
    model = open_run(tmp_path / "run")[0].config.model
    assert (model.rotary_theta, model.rotary_factor, model.rotary_length) == (1000.0, 8.0, 32)
    folder = copied(LLAMA, tmp_path / "more", num_key_value_heads=...)
    refused(folder, tmp_path, r"k_proj.weight has shape \(16, 16\): .* must be \(32, 16\)")


@pytest.mark.parametrize(
    "architecture, change, message",
    [
        (LLAMA, {"attention_bias": True}, "attention_bias=True: only False is supported"),
        (LLAMA, {"mlp_bias": True}, "mlp_bias=True: only False"),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act='gelu': only 'silu'"),
        (QWEN2, {"use_sliding_window": True}, "use_sliding_window=True: only False"),
        (MIXTRAL, {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1: only 0.0 is supported"),
        (MIXTRAL, {"num_experts_per_tok": 1}, "num_experts_per_tok=1: only 2 or more experts"),
        (
            MIXTRAL,
            {"num_experts_per_tok": 5},
            "experts_per_token=5: must be at most .*=4",
        ),
        (
            QWEN2,
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            "rope_parameters.rope_type='yarn': only 'default' or 'llama3'",
        ),
        (
            QWEN2,
            {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_scaling.rope_type='linear': only 'default' or 'llama3'",
        ),
        (
            LLAMA,
            {"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 2.0}},
            "rope_parameters.low_freq_factor=2.0: only 1.0 is supported",
        ),
        (
            LLAMA,
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
            "rope_parameters: no original_max_position_embeddings",
        ),
        (LLAMA, {"rope_parameters": "default"}, "rope_parameters='default': must be an object"),
        (
            LLAMA,
            {"num_key_value_heads": 3},
            "config.json: config.model.num_kv_heads=3: must divide .*num_heads=4",
        ),
        (LLAMA, {"tie_word_embeddings": True, "num_hidden_layers": 3}, "missing from the weights"),
    ],
)
def test_configs_without_an_equivalent_are_refused(architecture, change, message, tmp_path):
    refused(copied(architecture, tmp_path / "hf", **change), tmp_path, message)


def decoder_config(**model):
    sizes = dict(vocab_size=300, d_model=16, d_ff=24, num_layers=1, num_heads=2, max_length=24)
    return configs.experiment(
        model=dict(name="decoder", **sizes | model),
        task=dict(name="causal_lm", length=24),
        data=dict(train_files="unknown", tokenizer_files=str(HERE / QWEN2)),
    )


def test_runs_that_transformers_lacks_are_refused(tmp_path):
    run = random_run(decoder_config(local_window=4), tmp_path / "run")
    message = "config.model.local_window=4: LlamaForCausalLM has no window in all layers"
    with pytest.raises(UserError, match=message):
        convert.to_hf(run, tmp_path / "hf")
    experts = dict(num_experts=2, qkv_bias=True)
    run = random_run(decoder_config(**experts), tmp_path / "experts")
    with pytest.raises(UserError, match="config.model.name=.decoder. .* can be written"):
        convert.to_hf(run, tmp_path / "hf")
