"""Hugging Face's checkpoints: what transformers computes of them is computed here, and of ours
there; all else is refused by name.
"""

import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import transformer_jax
from tests.fixtures import make_huggingface as make
from tests.programs import call
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.inference.sampling import Sampling
from transformer_jax.runs import begin, record
from transformer_jax.runs.open import open_run
from transformer_jax.runs.resolve import make_task
from transformer_jax.training import loop, state

GPT2, GPT1 = "GPT2LMHeadModel", "OpenAIGPTLMHeadModel"
BOTH = pytest.mark.parametrize("architecture", [GPT2, GPT1])
CLOSE = dict(rtol=0, atol=1e-4)


@pytest.fixture(scope="module", params=[GPT2, GPT1])
def converted(request, tmp_path_factory):
    """(the committed checkpoint, its workdir)"""
    folder, run = make.HERE / request.param, tmp_path_factory.mktemp("convert") / "run"
    convert.from_hf(folder, run)
    return folder, run


def computed(run, ids):
    model, params, _ = transformer_jax.load(run)
    return model.apply({"params": params}, np.asarray(ids))


def test_a_checkpoint_gives_the_logits_it_is_published_with(converted):
    folder, run = converted
    expected = np.load(folder / "expected.npz")
    np.testing.assert_allclose(computed(run, expected["ids"]), expected["logits"], **CLOSE)


def test_a_checkpoint_encodes_and_continues_text_as_transformers_does(converted):
    folder, run = converted
    expected = np.load(folder / "expected.npz")
    task, params = open_run(run)
    assert task.tokenizer.encode([make.TEXT]) == expected["ids"].tolist()
    (found,) = task.generate(
        params, [make.PROMPT], max_tokens=len(expected["greedy"]), how=Sampling(temperature=0.0)
    )
    prompt = task.tokenizer.encode([make.PROMPT])[0]
    before, whole = task.tokenizer.decode([prompt, [*prompt, *expected["greedy"].tolist()]])
    assert before + found.text == whole


def test_a_checkpoint_goes_there_and_back(converted, tmp_path):
    folder, run = converted
    convert.to_hf(run, tmp_path / "back")
    was, now = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "back"))
    assert was.keys() == now.keys()
    for name in was:
        np.testing.assert_array_equal(was[name], now[name], err_msg=name)
    was, now = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "back"))
    assert now == {key: was[key] for key in now} | {"bos_token_id": now["eos_token_id"]}
    assert json.loads((tmp_path / "back" / "vocab.json").read_text()) == json.loads(
        (folder / "vocab.json").read_text()
    )
    assert (tmp_path / "back" / "merges.txt").read_text() == (folder / "merges.txt").read_text()


def test_a_checkpoint_is_evaluated_on_given_text_and_trained_further(tmp_path):
    run, text = tmp_path / "run", tmp_path / "text.txt"
    convert.from_hf(make.HERE / GPT2, run)
    text.write_text(f"{make.TEXT}\n\n" * 12)
    with pytest.raises(
        UserError, match="this run has no such data; give --config.data.valid_files"
    ):
        open_run(run)[0].evaluate(None, "valid")
    keys = {"data.cache": str(tmp_path / "cache"), "data.valid_files": str(text)}
    task, params = open_run(run, overrides=keys.items())
    before = task.evaluate(params, "valid")["loss"]

    config = record.read(run).config
    for key, value in {
        **keys,
        "data.train_files": str(text),
        "init_from": str(run),
        "train.num_steps": 4,
        "train.batch": 4,
        "optimizer.learning_rate": 0.01,
    }.items():
        configs.set_key(config, key, value)
    task, further = make_task(config), tmp_path / "further"
    record.begin(config, task, further)
    program = loop.Program.of(config, task, jax.devices()[:1])
    found = loop.run(config, task, further, program, origin=begin.origin(config, further))
    assert found["valid/loss"] < before - 0.1


@BOTH
def test_names_without_prefix_buffers_and_other_floats_are_read(architecture, tmp_path):
    folder = copied(architecture, tmp_path)
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


@BOTH
def test_shards_are_read(architecture, tmp_path):
    folder = copied(architecture, tmp_path)
    tensors = weights(folder)
    (folder / "model.safetensors").unlink()
    shards = {f"model-{i}.safetensors": dict(list(tensors.items())[i::3]) for i in range(3)}
    for file, content in shards.items():
        save_file(content, folder / file)
    index = {"weight_map": {name: file for file, content in shards.items() for name in content}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    convert.from_hf(folder, tmp_path / "run")
    expected = np.load(folder / "expected.npz")
    np.testing.assert_allclose(
        computed(tmp_path / "run", expected["ids"]), expected["logits"], **CLOSE
    )
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(UserError, match="model-1.safetensors: can't be read as safetensors"):
        convert.from_hf(folder, tmp_path / "other")


def copied(architecture, tmp_path):
    return pathlib.Path(shutil.copytree(make.HERE / architecture, tmp_path / "hf"))


def weights(folder):
    return load_file(folder / "model.safetensors")


def rewrite(folder, tensors):
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors")


def refused(folder, tmp_path, message):
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        convert.from_hf(folder, tmp_path / "new" / "run")
    assert not list(tmp_path.glob("new/*"))


@pytest.mark.parametrize(
    "architecture, change, message",
    [
        (
            GPT2,
            {"architectures": ["LlamaForCausalLM"]},
            r"config.json: architectures=\['LlamaForCausalLM'\]: only OpenAIGPTLMHeadModel, GPT2LMHeadModel, ",
        ),
        (GPT2, {"architectures": None}, "config.json: architectures=None"),
        (GPT2, {"activation_function": "relu"}, "activation_function='relu': only 'gelu_new'"),
        (GPT2, {"scale_attn_weights": False}, "scale_attn_weights=False"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention=True"),
        (GPT2, {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        (GPT1, {"afn": "relu"}, "afn='relu': only 'gelu' can"),
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
            r"transformer.h.0.mlp.c_fc.weight has shape \(16, 40\), config.json makes it \(16, 36\)",
        ),
    ],
)
def test_configs_that_can_not_be_computed_are_refused(architecture, change, message, tmp_path):
    folder = copied(architecture, tmp_path)
    content = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in content.items() if value is not ...})
    )
    refused(folder, tmp_path, message)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda t: {**t, "transformer.h.0.attn.rotary": t["transformer.wpe.weight"]},
            "hf: in the weights, but not in this architecture: h.0.attn.rotary",
        ),
        (
            lambda t: {name: x for name, x in t.items() if "ln_f" not in name},
            "hf: missing from the weights: ln_f.bias, ln_f.weight",
        ),
        (
            lambda t: {**t, "transformer.wpe.weight": t["transformer.wpe.weight"].T.copy()},
            r"transformer.wpe.weight has shape \(16, 48\)",
        ),
        (
            lambda t: {**t, "transformer.wpe.weight": t["transformer.wpe.weight"].astype(np.int8)},
            "transformer.wpe.weight is of dtype I8, not of F32, F16, BF16",
        ),
        (
            lambda t: {
                **t,
                "transformer.ln_f.bias": np.where(
                    np.arange(16) == 3, np.float32(np.nan), t["transformer.ln_f.bias"]
                ),
            },
            "transformer.ln_f.bias holds numbers that are not finite",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, message, tmp_path):
    folder = copied(GPT2, tmp_path)
    rewrite(folder, change(weights(folder)))
    refused(folder, tmp_path, message)


def test_a_dropout_of_its_own_on_the_embeddings_is_not_kept(tmp_path, capsys):
    folder = copied(GPT2, tmp_path)
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace('"embd_pdrop": 0.1', '"embd_pdrop": 0.2')
    )
    convert.from_hf(folder, tmp_path / "run")
    assert "embd_pdrop=0.2 becomes 0.1" in capsys.readouterr().err


def test_a_tokenizer_with_too_many_tokens_is_refused(tmp_path):
    folder = copied(GPT2, tmp_path)
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace('"vocab_size": 267', '"vocab_size": 20')
    )
    tensors = weights(folder)
    rewrite(
        folder, {**tensors, "transformer.wte.weight": tensors["transformer.wte.weight"][:20].copy()}
    )
    refused(folder, tmp_path, "the tokenizer has 267 tokens: more than config.model.vocab_size=20")


@pytest.mark.parametrize(
    "files, message",
    [
        (
            {"model.safetensors": None, "pytorch_model.bin": b""},
            "pytorch_model.bin is pickled, .* save it as safetensors",
        ),
        ({"model.safetensors": None, "weights.pt": b""}, "weights.pt is pickled"),
        ({"model.safetensors": None}, "no model.safetensors and no model.safetensors.index.json"),
        ({"model.safetensors": b"no weights"}, "model.safetensors: can't be read as safetensors"),
        (
            {"model.safetensors": None, "model.safetensors.index.json": b"{}"},
            "index.json: no weight_map",
        ),
        ({"config.json": None}, "config.json: can't be read"),
        ({"config.json": b"{"}, "config.json: not JSON"),
        ({"config.json": b"[]"}, "config.json: not a JSON object"),
        ({"merges.txt": None}, "no tokenizer that can be read here"),
    ],
)
def test_files_that_are_missing_or_broken_are_refused(files, message, tmp_path):
    folder = copied(GPT2, tmp_path)
    for name, content in files.items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)
    refused(folder, tmp_path, message)


def small(**model):
    sizes = dict(vocab_size=267, d_model=16, num_layers=3, num_heads=2, max_length=24)
    return configs.experiment(
        model=dict(name="gpt", **{**sizes, **model}),
        task=dict(name="causal_lm", length=24),
        data=dict(train_files="unknown", tokenizer_files=str(make.HERE / GPT2)),
    )


def made(config, folder):
    """A run with drawn parameters, biases and norms too; the vocabulary's padding is no token's."""
    task = make_task(config)
    draw = np.random.default_rng(0)
    record.create(
        folder,
        task,
        jax.tree.map(
            lambda x: draw.normal(0, 0.5, x.shape).astype(np.float32), state.abstract_params(task)
        ),
    )
    return folder


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
        convert.to_hf(made(small(**model), tmp_path / "run"), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
    with pytest.raises(UserError, match="config.model.name='encoder_decoder'"):
        convert.to_hf(make.HERE.parent / "format_1", tmp_path / "hf")


def test_a_tokenizer_that_transformers_lacks_is_left_out(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(make.TEXT)
    config = small()
    for key, value in {
        "data.train_files": str(tmp_path / "text.txt"),
        "data.tokenizer_files": None,
        "data.tokenizer": "characters",
        "data.cache": str(tmp_path / "cache"),
    }.items():
        configs.set_key(config, key, value)
    convert.to_hf(made(config, tmp_path / "run"), tmp_path / "hf")
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert (
        "no tokenizer written, for transformers has none like Characters" in capsys.readouterr().err
    )


def test_the_command_line(tmp_path):
    done = call("convert", f"--workdir={tmp_path / 'run'}", f"--from_hf={make.HERE / GPT2}")
    assert done.returncode == 0 and (tmp_path / "run" / "config.json").exists(), done.stderr
    again = call("convert", f"--workdir={tmp_path / 'run'}", f"--from_hf={make.HERE / GPT2}")
    assert again.returncode == 2 and re.fullmatch(
        "error: .*run: there is something already; name a new folder\n", again.stderr
    )
    step = call(
        "convert", f"--workdir={tmp_path / 'new'}", f"--from_hf={make.HERE / GPT2}", "--step=3"
    )
    assert step.returncode == 2 and step.stderr == "error: --step goes with --to_hf\n"
    neither = call("convert", f"--workdir={tmp_path / 'run'}")
    assert (
        neither.returncode == 2
        and neither.stderr == "error: give --from_hf=DIR or --to_hf=DIR, one of them\n"
    )


# where transformers and torch are installed: fresh models, both ways


@pytest.mark.parametrize(
    "architecture, sizes, saved",
    [
        (
            GPT2,
            dict(
                n_embd=24,
                n_layer=3,
                n_head=3,
                n_positions=40,
                activation_function="gelu_pytorch_tanh",
            ),
            {},
        ),
        (
            GPT2,
            dict(
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=48,
                n_inner=50,
                reorder_and_upcast_attn=True,
                embd_pdrop=0.2,
            ),
            dict(max_shard_size="20KB"),
        ),
        (
            GPT2,
            dict(
                n_embd=16,
                n_layer=1,
                n_head=1,
                n_positions=64,
                vocab_size=300,
                layer_norm_epsilon=1e-2,
            ),
            dict(dtype="bfloat16"),
        ),
        (GPT1, dict(n_embd=24, n_layer=3, n_head=2, n_positions=40), dict(max_shard_size="10KB")),
        (
            GPT1,
            dict(n_embd=32, n_layer=2, n_head=8, n_positions=48, layer_norm_epsilon=1e-2),
            dict(dtype="float16"),
        ),
    ],
)
def test_live_from_transformers(architecture, sizes, saved, tmp_path):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = make.random_model(architecture, **{"vocab_size": 270, "eos_token_id": 0, **sizes})
    model = model.to(dtype=getattr(pytest.importorskip("torch"), saved.pop("dtype", "float32")))
    model.save_pretrained(tmp_path / "hf", **saved)
    assert (tmp_path / "hf" / "model.safetensors.index.json").exists() == bool(saved)
    make.save_tokenizer(architecture, tmp_path / "hf")
    ids = np.random.default_rng(0).integers(0, 270, (2, sizes["n_positions"]))
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    np.testing.assert_allclose(
        computed(tmp_path / "run", ids), make.logits(model.float(), ids), **CLOSE
    )


@pytest.mark.parametrize(
    "model",
    [
        dict(vocab_multiple=64),
        dict(d_ff=40, num_heads=4, norm_epsilon=1e-2),
        dict(norm_position="post", vocab_multiple=8),
    ],
)
def test_live_to_transformers(model, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    run = made(small(**model), tmp_path / "run")
    convert.to_hf(run, tmp_path / "hf")
    theirs, loading = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(loading.values())
    ids = np.random.default_rng(0).integers(0, 267, (2, 24))
    np.testing.assert_allclose(computed(run, ids), make.logits(theirs.eval(), ids), **CLOSE)
    tokenizer, (_, _, ours) = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "hf"),
        transformer_jax.load(run),
    )
    assert (
        tokenizer([make.TEXT]).input_ids == ours.encode([make.TEXT])
        and tokenizer.eos_token_id == ours.eos_id == theirs.generation_config.eos_token_id
    )
