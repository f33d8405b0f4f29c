"""Checkpoints without a head: hidden states, vectors of texts, and the start of other runs."""

import json
from functools import partial

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.conversion.checkpoints import HERE, read_json, refused
from tests.jitted import jitted
from tests.programs import call
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.runs.open import open_run

# {architecture without a head: (a stored checkpoint of the family, the prefix of its body)}
FAMILIES = {
    "BertModel": ("BertForPreTraining", "bert."),
    "RobertaModel": ("RobertaForMaskedLM", "roberta."),
    "DistilBertModel": ("DistilBertForMaskedLM", "distilbert."),
    "ElectraModel": ("ElectraForPreTraining", "electra."),
    "AlbertModel": ("AlbertForPreTraining", "albert."),
    "LongformerModel": ("LongformerForMaskedLM", "longformer."),
    "XLNetModel": ("XLNetLMHeadModel", "transformer."),
    "EsmModel": ("EsmForMaskedLM", "esm."),
    "LlamaModel": ("LlamaForCausalLM", "model."),
    "T5EncoderModel": ("T5ForConditionalGeneration", ""),
    "ViTModel": ("ViTForImageClassification", "vit."),
    "Wav2Vec2Model": ("Wav2Vec2ForPreTraining", "wav2vec2."),
}
# Tensors that no state depends on.
IGNORED = {"pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"}
COMPLETE = {  # their output projection is tied to the embeddings
    "GPT2Model": ("GPT2LMHeadModel", "transformer."),
    "OpenAIGPTModel": ("OpenAIGPTLMHeadModel", "transformer."),
    "Qwen2Model": ("Qwen2ForCausalLM", "model."),
    "BartModel": ("BartForConditionalGeneration", "model."),
    "T5Model": ("T5ForConditionalGeneration", ""),
}


def headless(architecture, folder, keeps_prefix=False):
    """Writes a checkpoint without its head, as transformers saves it, and returns its folder."""
    name, prefix = (FAMILIES | COMPLETE)[architecture]
    folder.mkdir()
    for path in (HERE / name).iterdir():
        if path.suffix in (".json", ".txt", ".model") or path.name == "merges.txt":
            (folder / path.name).write_bytes(path.read_bytes())
    content = read_json(folder / "config.json") | {"architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(content))
    body = ("shared.", "encoder.") if architecture == "T5EncoderModel" else prefix
    tensors = {
        name if keeps_prefix else name.removeprefix(prefix): array
        for name, array in load_file(HERE / name / "model.safetensors").items()
        if name.startswith(body)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def body(params):
    """Returns the parameters by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in leaves}


@pytest.mark.parametrize("keeps_prefix", [False, True])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_checkpoint_without_a_head_is_the_body_of_one_with_it(
    architecture, keeps_prefix, tmp_path
):
    folder = headless(architecture, tmp_path / "hf", keeps_prefix)
    convert.from_hf(folder, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert task.config.task.name == "features"
    convert.from_hf(HERE / FAMILIES[architecture][0], tmp_path / "whole")
    _, whole = open_run(tmp_path / "whole")
    ours, theirs = body(params), body(whole)
    assert ours and ours.keys() <= theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    # Written back, it is the same checkpoint.
    convert.to_hf(tmp_path / "run", tmp_path / "back")
    assert read_json(tmp_path / "back/config.json")["architectures"] == [architecture]
    prefix = FAMILIES[architecture][1]
    back, original = (
        {
            name.removeprefix(prefix).replace(".beta", ".bias").replace(".gamma", ".weight"): array
            for name, array in load_file(path / "model.safetensors").items()
        }
        for path in (tmp_path / "back", folder)
    )
    for name in original.keys() - IGNORED:
        np.testing.assert_array_equal(back[name], original[name], err_msg=name)


@pytest.mark.parametrize("architecture", COMPLETE)
def test_a_model_whose_head_is_tied_is_complete(architecture, tmp_path):
    folder = headless(architecture, tmp_path / "hf")
    convert.from_hf(folder, tmp_path / "run")
    convert.from_hf(HERE / COMPLETE[architecture][0], tmp_path / "whole")
    (task, params), (_, whole) = open_run(tmp_path / "run"), open_run(tmp_path / "whole")
    assert task.config.task.name in ("causal_lm", "text_to_text")
    jax.tree.map(np.testing.assert_array_equal, params, whole)


def test_vectors_of_texts_do_not_depend_on_their_neighbors(tmp_path):
    convert.from_hf(headless("BertModel", tmp_path / "hf"), tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    texts = ["the cat", "a dog runs in the park", "", "the"]
    together = [*task.embed(params, texts)]
    alone = [next(iter(task.embed(params, [text]))) for text in texts]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    states = [states[0] for _, states in task.features(params, texts)]
    expected = {
        "mean": [each.mean(axis=0) for each in states],
        "max": [each.max(axis=0) for each in states],
        "cls": [each[0] for each in states],
        "last": [each[-1] for each in states],
    }
    for pooling, vectors in expected.items():
        np.testing.assert_array_equal([*task.embed(params, texts, pooling)], vectors)
    normalized = [*task.embed(params, texts, normalize=True)]
    np.testing.assert_allclose(np.linalg.norm(normalized, axis=1), 1, rtol=1e-6)
    with pytest.raises(configs.UserError, match="pooling='median': must be one of mean, max"):
        task.embed(params, texts, "median")


def test_the_program_writes_vectors(tmp_path):
    convert.from_hf(headless("BertModel", tmp_path / "hf"), tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    run, file = f"--workdir={tmp_path}/run", tmp_path / "vectors.npz"
    options = [run, f"--output={file}"]
    done = call("features", *options, "--pooling=mean", "--normalize", text="the cat\na dog\n")
    assert done.returncode == 0 and not done.stdout, done.stderr
    expected = [*task.embed(params, ["the cat", "a dog"], normalize=True)]
    np.testing.assert_allclose(np.load(file)["vectors"], expected, rtol=0, atol=1e-6)
    for wrong in (["--normalize"], ["--pooling=mean", "--layers=0"], ["--pooling=median"]):
        assert call("features", *options, *wrong, text="the\n").returncode == 2
    assert "fills masks" in call("fill_mask", run, "--text=the [MASK]").stderr


def test_the_states_are_those_of_the_whole_model(tmp_path):
    convert.from_hf(headless("LlamaModel", tmp_path / "hf"), tmp_path / "run")
    convert.from_hf(HERE / "LlamaForCausalLM", tmp_path / "whole")
    (task, params), (other, whole) = open_run(tmp_path / "run"), open_run(tmp_path / "whole")
    ((pieces, states),) = task.features(params, ["the cat"])
    ids = [*other.tokenizer.prefix, *other.tokenizer.encode("the cat")]
    hidden = jitted(partial(other.model.apply, method="hidden"))({"params": whole}, np.array([ids]))
    assert len(pieces) == len(ids)
    np.testing.assert_allclose(states, hidden, rtol=0, atol=1e-5)


def test_what_needs_a_head_is_refused(tmp_path):
    convert.from_hf(headless("BertModel", tmp_path / "hf"), tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert not hasattr(task, "fill")
    for use in (task.rows, lambda: task.evaluate(params, "valid")):
        with pytest.raises(configs.UserError, match="a model without a head is not trained"):
            use()


@pytest.mark.parametrize(
    "architecture", ["BertLMHeadModel", "BertForNextSentencePrediction", "GPTNeoModel", "Bert"]
)
def test_another_head_is_refused_by_name(architecture, tmp_path):
    folder = headless("BertModel", tmp_path / "hf")
    content = read_json(folder / "config.json") | {"architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(content))
    refused(folder, tmp_path, f"architectures=.'{architecture}'.: only .*BertModel.* can be read")
