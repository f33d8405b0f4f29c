"""Conversion of ELECTRA's discriminator and generator from and to Hugging Face checkpoints."""

import jax
import numpy as np
import pytest

from tests.conversion.checkpoints import (
    CLOSE,
    copied,
    random_run,
    read_json,
    refused,
    weights,
)
from tests.fixtures.make_huggingface import HERE
from tests.fixtures.make_huggingface_electra import ARCHITECTURES
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.runs.open import open_run

DISCRIMINATOR, GENERATOR = ARCHITECTURES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_checkpoint_gives_the_published_outputs_and_is_written_unchanged(architecture, tmp_path):
    folder, run, back = HERE / architecture, tmp_path / "run", tmp_path / "back"
    convert.from_hf(folder, run)
    task, params = open_run(run)
    expected = np.load(folder / "expected.npz")
    filled = expected["filled"] > 0
    options = dict(token_types=expected["types"], segment_ids=expected["filled"])

    @jax.jit
    def outputs(ids):
        states = task.model.apply({"params": params}, ids, **options, method="layers")
        head = "detected" if architecture == DISCRIMINATOR else "logits"
        return states, task.model.apply({"params": params}, states[-1], method=head)

    states, logits = jax.device_get(outputs(expected["ids"]))
    np.testing.assert_allclose(states[:, filled], expected["hidden"][:, filled], **CLOSE)
    np.testing.assert_allclose(logits[filled], expected["logits"][filled], **CLOSE)

    convert.to_hf(run, back)
    original, written = weights(folder), weights(back)
    assert written.keys() == original.keys() - {"generator_lm_head.weight"}
    for name in written:
        np.testing.assert_array_equal(original[name], written[name], err_msg=name)
    config = read_json(folder / "config.json")
    for key, value in read_json(back / "config.json").items():
        assert config.get(key, value) == value
    assert (back / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()


def test_a_converted_generator_fills_masks(tmp_path):
    convert.from_hf(HERE / GENERATOR, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    ((candidates,),) = task.fill(params, ["the cat [MASK] on the mat"])
    assert len(candidates) == 5


def test_both_models_of_a_pair_are_written(tmp_path):
    sizes = dict(vocab_size=43, d_embed=8, d_model=8, num_layers=2, num_heads=4, max_length=48)
    config = configs.experiment(
        model=dict(name="electra", generator_size=0.5, **sizes),
        task=dict(name="replaced_tokens", phases=((1.0, 16, 3),)),
        data=dict(tokenizer_files=str(HERE / GENERATOR)),
    )
    run = random_run(config, tmp_path / "run")
    _, params = open_run(run)
    convert.to_hf(run, tmp_path / "first")
    assert read_json(tmp_path / "first" / "config.json")["architectures"] == [DISCRIMINATOR]
    convert.to_hf(run, tmp_path / "hf", architecture=GENERATOR)
    content = read_json(tmp_path / "hf" / "config.json")
    assert (content["hidden_size"], content["intermediate_size"]) == (4, 16)
    convert.from_hf(tmp_path / "hf", tmp_path / "generator")
    task, alone = open_run(tmp_path / "generator")
    assert task.config.task.name == "masked_lm" and alone.keys() > params["generator"].keys()
    for name, tree in alone.items():
        jax.tree.map(np.testing.assert_array_equal, tree, {**params, **params["generator"]}[name])
    with pytest.raises(UserError, match="'replaced_tokens' as BertForMaskedLM: only"):
        convert.to_hf(run, tmp_path / "other", architecture="BertForMaskedLM")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"summary_type": "last"}, "summary_type='last': only 'first'"),
        ({"embedding_size": ...}, "no embedding_size"),
    ],
)
def test_configs_without_an_equivalent_are_refused(change, message, tmp_path):
    refused(copied(DISCRIMINATOR, tmp_path / "hf", **change), tmp_path, message)
