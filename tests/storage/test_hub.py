"""Published models by their names on the hub: right, or one line that says why not."""

import os
import pathlib

import jax
import numpy as np
import pytest
from huggingface_hub import constants

from tests.conversion.checkpoints import copied
from tests.file_server import FakeHub, running
from tests.fixtures.make_huggingface import HERE
from tests.programs import call
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.storage import hub as hubs

NAME = "distilbert-base-uncased"
OWNED = f"distilbert/{NAME}"
FILES = {"config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with DistilBERT under its present and its earlier name, and an empty cache."""
    monkeypatch.chdir(tmp_path)  # so that no folder there has the name of a model
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with running(FakeHub()) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(
            "huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False
        )
        folder = HERE / "DistilBertForMaskedLM"
        files = {name: (folder / name).read_bytes() for name in FILES}
        # What real repositories hold beside them.
        others = ("pytorch_model.bin", "tf_model.h5", "onnx/config.json", "README.md")
        server.models[OWNED] = {"main": files | dict.fromkeys(others, b"another format")}
        server.renamed[NAME] = OWNED
        yield server


def refused(name, *words):
    with pytest.raises(UserError) as error:
        hubs.folder(name, hubs.MODEL)
    line = str(error.value)
    assert "\n" not in line and line.startswith(f"{name}: ")
    for word in words:
        assert word in line
    return line


def fetched(hub) -> set[str]:
    return {path.rpartition("/")[2] for path in hub.paths() if "/resolve/" in path}


def test_a_name_is_converted_as_its_folder_is(hub, tmp_path):
    done = call("convert", f"--from_hf={NAME}", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    convert.from_hf(HERE / "DistilBertForMaskedLM", tmp_path / "other")
    _, params = open_run(tmp_path / "run")
    _, expected = open_run(tmp_path / "other")
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    # Nothing else is downloaded, least of all what is pickled.
    assert fetched(hub) == FILES

    # The second time, and without a network, the files come from the cache.
    hub.requests.clear()
    folder = hubs.folder(NAME, hubs.MODEL)
    assert {path.name for path in folder.iterdir()} == FILES and not fetched(hub)


def test_offline(hub, monkeypatch):
    folder = hubs.folder(NAME, hubs.TOKENIZER)
    assert fetched(hub) == {"config.json", "tokenizer_config.json", "vocab.txt"}
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hubs.folder(NAME, hubs.TOKENIZER) == folder
    refused("other/model", "HF_HUB_OFFLINE", constants.HF_HUB_CACHE)
    refused(NAME, "HF_HUB_OFFLINE")  # the weights are not there
    assert not hub.requests


def test_without_a_network(hub, monkeypatch):
    hubs.folder(NAME, hubs.MODEL)
    hub.server_close()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    refused("other/model", "no such folder", "http://127.0.0.1:1 can't be reached", "refused")
    assert hubs.folder(NAME, hubs.MODEL).is_dir()


def test_a_wrong_name(hub, tmp_path):
    refused("distilbert-base-uncasd", "no such folder", f"no such model on {hub.url}", "HF_TOKEN")
    done = call("convert", "--from_hf=distilbert-base-uncasd", f"--workdir={tmp_path / 'run'}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: distilbert-base-uncasd: ")
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "run").exists()


def test_a_revision(hub):
    changed = hub.models[OWNED]["main"] | {"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n"}
    hub.models[OWNED]["v1.0"] = changed
    folder = hubs.folder(f"{NAME}@v1.0", hubs.MODEL)
    assert (folder / "vocab.txt").read_bytes() == changed["vocab.txt"]
    assert (hubs.folder(NAME, hubs.MODEL) / "vocab.txt").read_bytes() != changed["vocab.txt"]
    refused(f"{NAME}@v2.0", f"{hub.url}/{NAME} has no revision 'v2.0'")


def test_a_download_that_is_cut(hub):
    """It is never used as it is, and the next call makes up for it."""
    size = len(hub.models[OWNED]["main"]["model.safetensors"])
    hubs.folder(NAME, hubs.TOKENIZER)
    hubs.folder(NAME, hubs.CONFIG)
    hub.cuts = [10**9, size // 2, *[0] * 20]  # the answer of the API is whole
    refused(NAME, "broke off", "the same command downloads what is missing")
    hub.cuts.clear()
    path = hubs.folder(NAME, hubs.MODEL) / "model.safetensors"
    assert path.read_bytes() == hub.models[OWNED]["main"]["model.safetensors"]


def test_a_model_that_needs_a_token(hub, monkeypatch):
    hub.gated.add(OWNED)
    refused(NAME, f"{hub.url}/{NAME}", "HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert hubs.folder(NAME, hubs.MODEL).is_dir()
    assert "Bearer hf_secret" in hub.tokens


def test_weights_that_are_only_pickled(hub, monkeypatch):
    monkeypatch.setattr("transformer_jax.storage.hub.reads_torch_files", lambda: False)
    files = hub.models[OWNED]["main"]
    del files["model.safetensors"]
    refused(NAME, "no model.safetensors", "pickled")
    assert "pytorch_model.bin" not in fetched(hub)


def test_an_architecture_is_refused_before_its_weights_are_downloaded(hub, tmp_path):
    hub.models[OWNED]["main"]["config.json"] = b'{"architectures": ["MambaForCausalLM"]}'
    with pytest.raises(UserError, match="MambaForCausalLM"):
        convert.from_hf(NAME, tmp_path / "run")
    assert fetched(hub) == {"config.json"} and not (tmp_path / "run").exists()


def test_a_folder_comes_first(hub):
    pathlib.Path(NAME).mkdir()
    for name in (NAME, f"./{NAME}", os.path.abspath("none"), "a/b/c", "~/none"):
        assert hubs.folder(name, hubs.MODEL) == pathlib.Path(name).expanduser()
    assert not hub.requests


def test_the_tokenizer_of_a_name(hub):
    config = configs.experiment(model={"name": "bert"}, task={"name": "masked_lm"})
    configs.set_key(config, "data.tokenizer_files", NAME)
    read = tokenizers.run_tokenizer(None, config.data, None, 10_000)
    expected = tokenizers.read_published(HERE / "DistilBertForMaskedLM")
    assert read.encode("the cat") == expected.encode("the cat")
    assert fetched(hub) == {"config.json", "tokenizer_config.json", "vocab.txt"}


def test_a_checkpoint_is_no_run(tmp_path):
    folder = copied("DistilBertForMaskedLM", tmp_path / "hf")
    with pytest.raises(
        UserError, match="a checkpoint of Hugging Face.*convert --from_hf="
    ) as error:
        spec.read(folder)
    assert str(folder) in str(error.value)


def test_adapters_of_a_name(hub):
    folder = HERE.parent / "peft" / "GPT2LMHeadModel"
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.models["me/adapters"] = {"main": files | {"training_args.bin": b"", "README.md": b""}}
    copy = hubs.folder("me/adapters", hubs.ADAPTERS)
    assert fetched(hub) == {"adapter_config.json", "adapter_model.safetensors"}
    assert (copy / "adapter_config.json").read_bytes() == files["adapter_config.json"]
