"""Conversion of GPT and GPT-2 from and to Hugging Face checkpoints."""

import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.conversion.checkpoints import (
    CLOSE,
    GPT1,
    GPT2,
    copied,
    gpt_config,
    logits,
    random_run,
    read_json,
    rewrite,
    weights,
)
from tests.fixtures import make_huggingface as make
from tests.programs import call
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.inference.generation import Sampling
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.training import trainer

BOTH = pytest.mark.parametrize("architecture", [GPT2, GPT1])


@pytest.fixture(scope="module", params=[GPT2, GPT1])
def converted(request, tmp_path_factory):
    """Returns the committed checkpoint and the workdir converted from it."""
    folder = make.HERE / request.param
    run = tmp_path_factory.mktemp("convert") / "run"
    convert.from_hf(folder, run)
    return folder, run


def test_a_checkpoint_gives_the_published_logits(converted):
    folder, run = converted
    expected = np.load(folder / "expected.npz")
    np.testing.assert_allclose(logits(run, expected["ids"]), expected["logits"], **CLOSE)


@pytest.mark.sample("GPT2LMHeadModel")
def test_a_checkpoint_encodes_and_continues_text_as_transformers_does(converted):
    folder, run = converted
    expected = np.load(folder / "expected.npz")
    task, params = open_run(run)
    assert task.tokenizer.encode([make.TEXT]) == expected["ids"].tolist()
    (continuation,) = task.generate(
        params, [make.PROMPT], max_tokens=len(expected["greedy"]), how=Sampling(temperature=0.0)
    )
    prompt = task.tokenizer.encode([make.PROMPT])[0]
    prefix, text = task.tokenizer.decode([prompt, [*prompt, *expected["greedy"].tolist()]])
    assert prefix + continuation.text == text


def test_a_converted_checkpoint_is_written_unchanged(converted, tmp_path):
    folder, run = converted
    back = tmp_path / "back"
    convert.to_hf(run, back)
    original = weights(folder)
    written = weights(back)
    assert original.keys() == written.keys()
    for name in original:
        np.testing.assert_array_equal(original[name], written[name], err_msg=name)
    original = read_json(folder / "config.json")
    written = read_json(back / "config.json")
    expected = {key: original[key] for key in written}
    assert written == expected | {"bos_token_id": written["eos_token_id"]}
    assert read_json(back / "vocab.json") == read_json(folder / "vocab.json")
    assert (back / "merges.txt").read_text() == (folder / "merges.txt").read_text()


@pytest.mark.full
def test_a_checkpoint_is_evaluated_on_given_text_and_trained_further(tmp_path):
    run = tmp_path / "run"
    text = tmp_path / "text.txt"
    convert.from_hf(make.HERE / GPT2, run)
    text.write_text(f"{make.TEXT}\n\n" * 12)
    message = "this run has no such data; give --config.data.valid_files"
    with pytest.raises(UserError, match=message):
        open_run(run)[0].evaluate(None, "valid")
    keys = {"data.cache": str(tmp_path / "cache"), "data.valid_files": str(text)}
    task, params = open_run(run, overrides=keys.items())
    initial_loss = task.evaluate(params, "valid")["loss"]

    config = spec.read(run).config
    for key, value in {
        **keys,
        "data.train_files": str(text),
        "init_from": str(run),
        "train.num_steps": 4,
        "train.batch": 4,
        "optimizer.learning_rate": 0.01,
    }.items():
        configs.set_key(config, key, value)
    task = make_task(config)
    folder = tmp_path / "further"
    spec.begin(config, task, folder)
    program = trainer.Program.of(config, task, jax.devices()[:1])
    scores = trainer.run(config, task, folder, program, origin=spec.origin(config, folder))
    assert scores["valid/loss"] < initial_loss - 0.1


@BOTH
def test_names_without_prefix_buffers_and_other_floats_are_read(architecture, tmp_path):
    folder = copied(architecture, tmp_path / "hf")
    tensors = {
        name.removeprefix("transformer."): value.astype("bfloat16" if "ln" in name else np.float16)
        for name, value in weights(folder).items()
    }
    buffers = {f"h.0.attn.{name}": np.ones((1, 1, 4, 4), bool) for name in ("bias", "masked_bias")}
    rewrite(folder, tensors | buffers | {"lm_head.weight": np.zeros((2, 2), np.float32)})
    convert.from_hf(folder, tmp_path / "run")
    convert.to_hf(tmp_path / "run", tmp_path / "back")
    for name, value in weights(tmp_path / "back").items():
        np.testing.assert_array_equal(
            value, tensors[name.removeprefix("transformer.")].astype(np.float32), err_msg=name
        )


@pytest.mark.sample("OpenAIGPTLMHeadModel")
@BOTH
def test_shards_are_read(architecture, tmp_path):
    folder = copied(architecture, tmp_path / "hf")
    tensors = weights(folder)
    (folder / "model.safetensors").unlink()
    shards = {f"model-{i}.safetensors": dict(list(tensors.items())[i::3]) for i in range(3)}
    for file, content in shards.items():
        save_file(content, folder / file)
    index = {"weight_map": {name: file for file, content in shards.items() for name in content}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    convert.from_hf(folder, tmp_path / "run")
    expected = np.load(folder / "expected.npz")
    computed = logits(tmp_path / "run", expected["ids"])
    np.testing.assert_allclose(computed, expected["logits"], **CLOSE)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(UserError, match="model-1.safetensors: can't be read as safetensors"):
        convert.from_hf(folder, tmp_path / "other")


def test_another_dropout_on_the_embeddings_is_reported(tmp_path, capsys):
    folder = copied(GPT2, tmp_path / "hf", embd_pdrop=0.2)
    convert.from_hf(folder, tmp_path / "run")
    assert "embd_pdrop=0.2 becomes 0.1" in capsys.readouterr().err


def test_a_tokenizer_that_transformers_lacks_is_left_out(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(make.TEXT)
    config = gpt_config()
    for key, value in {
        "data.train_files": str(tmp_path / "text.txt"),
        "data.tokenizer_files": None,
        "data.tokenizer": "characters",
        "data.cache": str(tmp_path / "cache"),
    }.items():
        configs.set_key(config, key, value)
    convert.to_hf(random_run(config, tmp_path / "run"), tmp_path / "hf")
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    # The unknown character is never generated there either.
    generation = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert generation["bad_words_ids"] == [[1]]
    message = "no tokenizer written: transformers has no Characters tokenizer"
    assert message in capsys.readouterr().err


def test_the_command_line(tmp_path):
    done = call("convert", f"--workdir={tmp_path / 'run'}", f"--from_hf={make.HERE / GPT2}")
    assert done.returncode == 0 and (tmp_path / "run" / "config.json").exists(), done.stderr
    again = call("convert", f"--workdir={tmp_path / 'run'}", f"--from_hf={make.HERE / GPT2}")
    assert again.returncode == 2
    assert re.fullmatch("error: .*run: exists already; name a new folder\n", again.stderr)
    step = call(
        "convert", f"--workdir={tmp_path / 'new'}", f"--from_hf={make.HERE / GPT2}", "--step=3"
    )
    assert step.returncode == 2
    assert step.stderr == "error: --step can't be given with --from_hf\n"
    neither = call("convert", f"--workdir={tmp_path / 'run'}")
    assert neither.returncode == 2
    assert neither.stderr.startswith("error: give one of --from_hf, --to_hf, --from_peft")
