"""Weights in files of torch, where it is installed: tensors are read, and nothing is executed."""

import json
import pathlib

import jax
import numpy as np
import pytest

from tests.conversion.checkpoints import HERE, copied, refused, weights
from transformer_jax import convert
from transformer_jax.runs.open import open_run

torch = pytest.importorskip("torch")
BERT = "BertForPreTraining"


def pickled(folder, dtype=None, shards=1):
    """Replaces the weights of a checkpoint by files of torch."""
    tensors = {name: torch.from_numpy(array) for name, array in weights(folder).items()}
    if dtype:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    (folder / "model.safetensors").unlink()
    if shards == 1:
        torch.save(tensors, folder / "pytorch_model.bin")
        return folder
    files = {name: f"pytorch_model-{number % shards}.bin" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        part = {name: tensors[name] for name in tensors if files[name] == file}
        torch.save(part, folder / file)
    index = {"weight_map": files}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_of_torch_are_those_of_safetensors(shards, tmp_path):
    convert.from_hf(pickled(copied(BERT, tmp_path / "hf"), shards=shards), tmp_path / "run")
    convert.from_hf(HERE / BERT, tmp_path / "expected")
    (_, params), (_, expected) = open_run(tmp_path / "run"), open_run(tmp_path / "expected")
    jax.tree.map(np.testing.assert_array_equal, params, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_floats_are_read(dtype, tmp_path):
    convert.from_hf(pickled(copied(BERT, tmp_path / "hf"), dtype), tmp_path / "run")
    convert.from_hf(HERE / BERT, tmp_path / "expected")
    (_, params), (_, expected) = open_run(tmp_path / "run"), open_run(tmp_path / "expected")
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x, torch.from_numpy(y).to(dtype).float()),
        params,
        jax.device_get(expected),
    )


class Writes:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(self.path),)


def test_a_file_that_would_execute_code_is_refused(tmp_path):
    folder = copied(BERT, tmp_path / "hf")
    (folder / "model.safetensors").unlink()
    torch.save({"x": Writes(tmp_path / "written")}, folder / "pytorch_model.bin")
    refused(folder, tmp_path, "pytorch_model.bin: is not read, because it holds more than tensors")
    assert not (tmp_path / "written").exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)  # as others would read it
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize("content", [[1, 2], {"x": 1}, {"x": [torch.zeros(1)]}])
def test_other_content_is_refused(content, tmp_path):
    folder = copied(BERT, tmp_path / "hf")
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    refused(folder, tmp_path, "pytorch_model.bin: must be a dictionary of tensors")


def test_a_damaged_file_is_refused(tmp_path):
    folder = pickled(copied(BERT, tmp_path / "hf"))
    content = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(content[: len(content) // 2])
    refused(folder, tmp_path, "pytorch_model.bin: is not read, because .* or is damaged")


def test_integers_are_no_weights(tmp_path):
    folder = pickled(copied(BERT, tmp_path / "hf"), torch.int8)
    refused(folder, tmp_path, "has dtype int8: not one of F32, F16, BF16")
