"""Models in Hugging Face's format in Python, without a workdir."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import transformer_jax
from tests.conversion.checkpoints import HERE, read_json
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.runs.open import open_run

USES = {
    "BertForMaskedLM": lambda task, params: [*task.fill(params, ["the [MASK] sat"])],
    "GPT2LMHeadModel": lambda task, params: [*task.generate(params, ["the"], max_tokens=3)],
    "BartForConditionalGeneration": lambda task, params: [*task.translate(params, ["the cat"])],
    "ViTForImageClassification": lambda task, params: task.model.image_size,
}


@pytest.mark.parametrize("architecture", USES)
def test_it_is_used_and_written_as_a_run_is(architecture, tmp_path):
    task, params = transformer_jax.from_hf(HERE / architecture)
    convert.from_hf(HERE / architecture, tmp_path / "run")
    run, expected = open_run(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    use = USES[architecture]
    assert use(task, params) == use(run, expected)
    assert task.config == run.config

    transformer_jax.to_hf(task, params, tmp_path / "one")
    convert.to_hf(tmp_path / "run", tmp_path / "other")
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("one", "other")]
    assert files[0] == files[1]
    assert read_json(tmp_path / "one/config.json") == read_json(tmp_path / "other/config.json")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_folder_that_exists_is_not_written(tmp_path):
    task, params = transformer_jax.from_hf(HERE / "GPT2LMHeadModel")
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UserError, match="exists already"):
        transformer_jax.to_hf(task, params, tmp_path)
    assert (tmp_path / "file").read_text() == "kept"
