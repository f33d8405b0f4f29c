"""Adapters of PEFT, in both directions. tests/fixtures/make_peft.py has made those here."""

import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.conversion.checkpoints import CLOSE, logits, random_run
from tests.conversion.heads import assert_outputs
from tests.fixtures import make_peft as make
from tests.programs import call
from tests.training.test_lora import randomised
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.huggingface import family as families
from transformer_jax.huggingface import peft
from transformer_jax.layers import low_rank
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """The workdirs of the converted checkpoints, by architecture."""
    folder = tmp_path_factory.mktemp("bases")
    for architecture in make.OPTIONS:
        convert.from_hf(make.CHECKPOINTS / architecture, folder / architecture)
    return {architecture: folder / architecture for architecture in make.OPTIONS}


@pytest.fixture(scope="module")
def read(bases, tmp_path_factory):
    """The workdirs of the runs with the adapters of PEFT, by architecture."""
    folder = tmp_path_factory.mktemp("read")
    for architecture, base in bases.items():
        convert.from_peft(make.HERE / architecture, folder / architecture, base)
    return {architecture: folder / architecture for architecture in bases}


@pytest.mark.sample("BertForSequenceClassification")
@pytest.mark.parametrize("architecture", make.OPTIONS)
def test_adapters_of_peft_have_its_outputs(architecture, read):
    expected = np.load(make.HERE / architecture / "expected.npz")["logits"]
    inputs = dict(np.load(make.CHECKPOINTS / architecture / "expected.npz"))
    if architecture == make.GPT2:
        np.testing.assert_allclose(logits(read[architecture], inputs["ids"]), expected, **CLOSE)
    else:
        assert_outputs(read[architecture], inputs, expected)


@pytest.mark.parametrize("architecture", make.OPTIONS)
def test_peft_to_a_run_and_back_changes_no_bit(architecture, read, tmp_path):
    convert.to_peft(read[architecture], tmp_path / "peft")
    expected, actual = (
        load_file(folder / WEIGHTS) for folder in (make.HERE / architecture, tmp_path / "peft")
    )
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(actual[name], tensor)
    content = json.loads((tmp_path / "peft" / CONFIG).read_text())
    options = make.OPTIONS[architecture]
    assert {key: content[key] for key in ("task_type", "r", "lora_alpha")} == {
        key: options[key] for key in ("task_type", "r", "lora_alpha")
    }


@pytest.mark.full
@pytest.mark.parametrize(
    "matrices, layers",
    [(("query/kernel", "value/kernel"), ""), (("*/kernel",), "1:")],
)
def test_a_run_to_peft_and_back_changes_no_bit(matrices, layers, bases, tmp_path):
    """GPT-2's queries, keys and values have adapters of their own, or none."""
    base = bases[make.GPT2]
    config = spec.read(base).config
    configs.set_key(config, "init_from", str(base))
    for key, value in dict(rank=2, alpha=3.0, matrices=matrices, layers=layers).items():
        configs.set_key(config, f"lora.{key}", value)
    task = make_task(config)
    params = randomised(step.init_params(task))
    _, of_base = open_run(base)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: x if low_rank.is_adapter(path[-1].key) else at(of_base, path), params
    )
    spec.create(tmp_path / "run", task, params)
    convert.to_peft(tmp_path / "run", tmp_path / "peft")
    convert.from_peft(tmp_path / "peft", tmp_path / "read", base)
    jax.tree.map(
        np.testing.assert_array_equal,
        open_run(tmp_path / "read", merged=False)[1],
        open_run(tmp_path / "run", merged=False)[1],
    )
    content = json.loads((tmp_path / "peft" / CONFIG).read_text())
    assert content["rank_pattern"] == {"attn.c_attn": 6}
    assert content["alpha_pattern"] == {"attn.c_attn": 9.0}


def at(params, path):
    for key in path:
        params = params[key.key]
    return params


def test_to_hf_writes_the_merged_model(read, tmp_path):
    convert.to_hf(read[make.GPT2], tmp_path / "hf")
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    ids = np.load(make.CHECKPOINTS / make.GPT2 / "expected.npz")["ids"]
    actual, expected = logits(tmp_path / "run", ids), logits(read[make.GPT2], ids)
    np.testing.assert_array_equal(actual, expected)


def test_the_command_line(bases, tmp_path):
    folder, run = make.HERE / make.GPT2, tmp_path / "run"
    base = f"--config.init_from={bases[make.GPT2]}"
    done = call("convert", f"--from_peft={folder}", base, f"--workdir={run}")
    assert done.returncode == 0, done.stderr
    done = call("convert", f"--to_peft={tmp_path / 'peft'}", f"--workdir={run}")
    assert done.returncode == 0 and (tmp_path / "peft" / WEIGHTS).exists(), done.stderr


def changed(folder, architecture=make.GPT2, *, tensors=(), without="?", **keys):
    """Copies adapters with other keys in the config, and with or without some tensors."""
    shutil.copytree(make.HERE / architecture, folder)
    content = json.loads((folder / CONFIG).read_text()) | keys
    (folder / CONFIG).write_text(json.dumps(content))
    weights = load_file(folder / WEIGHTS) | dict(tensors)
    weights = {name: x for name, x in weights.items() if without not in name}
    save_file(weights, folder / WEIGHTS)
    return folder


MODULE = "base_model.model.transformer.h.0.attn.c_attn.lora_"


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(peft_type="LOHA"), f"{CONFIG}: peft_type=LOHA: must be LORA"),
        (dict(use_rslora=True), "use_rslora=True: adapters of this kind are not supported"),
        # Activated LoRA adapts only the tokens after an invocation, and cannot be merged.
        (dict(alora_invocation_tokens=[3, 4]), "alora_invocation_tokens=.3, 4.: adapters of this"),
        (dict(use_bdlora={"nblocks": 2}), "use_bdlora={'nblocks': 2}: adapters of this kind"),
        (dict(arrow_config={"top_k": 2}), "arrow_config={'top_k': 2}: adapters of this kind"),
        (dict(kasa_config={"beta": 1}), "kasa_config={'beta': 1}: adapters of this kind"),
        (dict(use_next_variant=True), "use_next_variant=True: adapters of this kind"),
        (dict(bias="all"), "bias=all: must be none"),
        (dict(r=None), "r or lora_alpha is missing"),
        (dict(r=5), "h.0.attn.c_attn has rank 3 and scale 2, not r=5 and 1.2"),
        (dict(alpha_pattern={"c_attn": 9}), "has rank 3 and scale 3, not r=3 and 2"),
        # A pattern may have the whole name of a module in its model, with its prefix.
        (dict(alpha_pattern={"^transformer.h.0.attn.c_attn": 9}), "has rank 3 and scale 3, not"),
        (dict(alpha_pattern={"transformer.h.1.mlp.c_proj": 9}), "has rank 3 and scale 3, not"),
        (dict(without="lora_B"), "missing from the weights: h.0.attn.c_attn.lora_B.weight"),
        (dict(without="h.1.attn"), "the matrices have adapters in different layers"),
        (dict(tensors={"x.lora_A.weight": np.zeros((3, 4), np.float32)}), "not in this model: x"),
        (
            dict(tensors={f"{MODULE}A.weight": np.ones((3, 5), np.float32)}),
            "c_attn: has 5 inputs and 48 outputs in the adapter, 16 and 48 in the model",
        ),
        (
            dict(tensors={f"{MODULE}B.weight": np.full((48, 3), np.nan, np.float32)}),
            "values that are not finite",
        ),
    ],
)
def test_adapters_that_do_not_fit_are_refused(changes, message, bases, tmp_path):
    folder = changed(tmp_path / "peft", **changes)
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        convert.from_peft(folder, tmp_path / "run", bases[make.GPT2])
    assert not (tmp_path / "run").exists()


PATTERNS = {
    "^transformer.h.0.attn.c_attn": [12, 6, 6, 6],
    r"transformer\.h\.\d+\.attn.*": [12, 12, 6, 6],
    "h.1.mlp.c_proj": [6, 6, 6, 12],
    "c_attn|c_proj": [12, 12, 12, 12],
    "^h.0.attn.c_attn": [6, 6, 6, 6],
    "attn": [6, 6, 6, 6],
}


def alphas(bases, pattern):
    task, _ = open_run(bases[make.GPT2])
    family = families.run_family(task.config, None)
    stored = peft.Stored.open(make.HERE / make.GPT2, family, task.config.model)
    stored.content["alpha_pattern"] = {pattern: 12}
    names = sorted(name for name in stored.sources if name.endswith("lora_A.weight"))
    names = sorted(names, key=lambda name: "mlp" in name)
    full = [f"transformer.{name.removesuffix('.lora_A.weight')}" for name in names]
    return full, [stored._alpha(name.removesuffix(".lora_A.weight")) for name in names]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_of_alpha_match_whole_names(pattern, bases):
    full, found = alphas(bases, pattern)
    assert full[0] == "transformer.h.0.attn.c_attn" and full[3] == "transformer.h.1.mlp.c_proj"
    assert found == PATTERNS[pattern]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_of_alpha_match_as_in_peft(pattern, bases):
    other = pytest.importorskip("peft.utils.other")
    full, found = alphas(bases, pattern)
    assert found == [{pattern: 12}.get(other.get_pattern_key([pattern], name), 6) for name in full]


def test_pickled_adapters_are_not_read(bases, tmp_path):
    folder = changed(tmp_path / "peft")
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(UserError, match="adapter_model.bin is pickled"):
        convert.from_peft(folder, tmp_path / "run", bases[make.GPT2])


def test_runs_without_peft_adapters_are_refused(bases, tmp_path):
    with pytest.raises(UserError, match="has no adapters, config.lora.rank is none"):
        convert.to_peft(bases[make.GPT2], tmp_path / "peft")
    with pytest.raises(UserError, match="--from_peft needs --config.init_from=RUN"):
        convert.from_peft(make.HERE / make.GPT2, tmp_path / "run", None)
    config = spec.read(bases[make.GPT2]).config
    for key, value in dict(rank=1, matrices=("token_embed/embedding",)).items():
        configs.set_key(config, f"lora.{key}", value)
    run = random_run(config, tmp_path / "embeddings")
    with pytest.raises(UserError, match="PEFT has no adapter of token_embed/embedding; merge"):
        convert.to_peft(run, tmp_path / "peft")
    assert not (tmp_path / "peft").exists()


@pytest.mark.parametrize(
    "initial", ["pissa", "pissa_niter_4", "OLoRA", "loftq", "corda", "lora_ga", "of tomorrow"]
)
def test_adapters_of_a_changed_base_are_refused(initial, bases, tmp_path):
    """PEFT 0.21 subtracts such an initial adapter from the base model when it loads one."""
    folder = changed(tmp_path / "peft", init_lora_weights=initial)
    message = f"{CONFIG}: init_lora_weights='{initial}'.*path_initial_model_for_weight_conversion"
    with pytest.raises(UserError, match=message):
        convert.from_peft(folder, tmp_path / "run", bases[make.GPT2])
    assert not (tmp_path / "run").exists()


@pytest.mark.sample("True", "gaussian", "eva")
@pytest.mark.parametrize("initial", [True, False, None, "gaussian", "orthogonal", "eva", "mica"])
def test_other_initial_values_do_not_matter(initial, bases, read, tmp_path):
    folder = changed(tmp_path / "peft", init_lora_weights=initial)
    convert.from_peft(folder, tmp_path / "run", bases[make.GPT2])
    expected, actual = (
        open_run(run, merged=False)[1] for run in (read[make.GPT2], tmp_path / "run")
    )
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    if initial == "eva":
        convert.to_peft(tmp_path / "run", tmp_path / "back")
        assert "init_lora_weights" not in json.loads((tmp_path / "back" / CONFIG).read_text())
