"""Tensors that config.json ties must agree, and T5's output is read as its keys say."""

import jax
import numpy as np
import pytest

import transformer_jax
from tests.conversion.checkpoints import CLOSE, copied, refused, rewrite, weights
from tests.fixtures.make_huggingface_sequences import T5, T5_1_1
from transformer_jax import convert
from transformer_jax.contracts.model import Inputs
from transformer_jax.runs.open import open_run

WORDS = "embeddings.word_embeddings.weight"
# {architecture: the tied tensors, and those that they are tied to}
TIED = {
    "GPT2LMHeadModel": [("lm_head.weight", "transformer.wte.weight")],
    "OpenAIGPTLMHeadModel": [("lm_head.weight", "transformer.tokens_embed.weight")],
    "Qwen2ForCausalLM": [("lm_head.weight", "model.embed_tokens.weight")],
    "BertForMaskedLM": [
        ("cls.predictions.decoder.weight", f"bert.{WORDS}"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ],
    "RobertaForMaskedLM": [
        ("lm_head.decoder.weight", f"roberta.{WORDS}"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ],
    "AlbertForMaskedLM": [("predictions.decoder.weight", f"albert.{WORDS}")],
    "DistilBertForMaskedLM": [("vocab_projector.weight", f"distilbert.{WORDS}")],
    "ElectraForMaskedLM": [("generator_lm_head.weight", f"electra.{WORDS}")],
    "LongformerForMaskedLM": [("lm_head.decoder.weight", f"longformer.{WORDS}")],
    "EsmForMaskedLM": [("lm_head.decoder.weight", f"esm.{WORDS}")],
    "XLNetLMHeadModel": [("lm_loss.weight", "transformer.word_embedding.weight")],
    "BartForConditionalGeneration": [
        ("lm_head.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    ],
    "MarianMTModel": [("lm_head.weight", "model.shared.weight")],
    T5: [("lm_head.weight", "shared.weight"), ("decoder.embed_tokens.weight", "shared.weight")],
}
PAIRS = [(architecture, *names) for architecture, each in TIED.items() for names in each]


@pytest.mark.sample(
    "Qwen2ForCausalLM-lm_head.weight", "BertForMaskedLM-cls.predictions.decoder.bias"
)
@pytest.mark.parametrize(
    "architecture, name, source", PAIRS, ids=[f"{pair[0]}-{pair[1]}" for pair in PAIRS]
)
def test_another_output_is_refused_and_the_same_is_read(architecture, name, source, tmp_path):
    folder = copied(architecture, tmp_path / "hf")
    tensors = weights(folder)
    tensors[name] = tensors[source].copy()
    rewrite(folder, tensors)
    convert.from_hf(folder, tmp_path / "run")
    tensors[name].flat[5] += 0.25
    rewrite(folder, tensors)
    refused(folder, tmp_path, f"{name} differs from {source}.*tie_word_embeddings")
    # As in a checkpoint whose vocabulary was padded.
    rewrite(folder, tensors | {name: np.append(tensors[source], tensors[source][:1], axis=0)})
    refused(folder, tmp_path, f"{name} differs from {source}")


@pytest.mark.full
@pytest.mark.parametrize(
    "architecture, name",
    [
        ("BertForSequenceClassification", "cls.predictions.decoder.weight"),
        ("GPT2ForSequenceClassification", "lm_head.weight"),
        ("BartForSequenceClassification", "lm_head.weight"),
    ],
)
def test_a_classifier_does_not_read_what_is_left_of_the_output(architecture, name, tmp_path):
    folder = copied(architecture, tmp_path / "hf")
    tensors = weights(folder)
    names = ("word_embeddings.weight", "wte.weight", "shared.weight")
    table = next(x for key, x in tensors.items() if key.endswith(names))
    rewrite(folder, tensors | {name: np.zeros_like(table)})
    convert.from_hf(folder, tmp_path / "run")


# {case: (keys of config.json, which tensor is the output, the run's tie_output and scale_output)}
# `...` leaves a key out. The tensor is None, the embeddings or another one. All values have been
# compared with transformers 5.24.
T5_CASES = {
    "of transformers 5, unscaled": (
        dict(scale_decoder_outputs=False, tie_word_embeddings=True),
        None,
        (True, False),
    ),
    "of transformers 5, scaled": (
        dict(scale_decoder_outputs=True, tie_word_embeddings=True),
        None,
        (True, None),
    ),
    "of transformers 5, separate": (
        dict(scale_decoder_outputs=False, tie_word_embeddings=True),
        "other",
        (False, None),
    ),
    "older, tied": (dict(scale_decoder_outputs=..., tie_word_embeddings=...), "same", (True, None)),
    "older, separate": (
        dict(scale_decoder_outputs=..., tie_word_embeddings=False),
        "other",
        (False, None),
    ),
    "older, without its tensor": (
        dict(scale_decoder_outputs=..., tie_word_embeddings=False),
        None,
        (True, False),
    ),
    "separate, scaled": (
        dict(scale_decoder_outputs=True, tie_word_embeddings=False),
        "other",
        (False, True),
    ),
}


def t5(case, name, tmp_path):
    """Returns the model and the parameters of the run of a case."""
    keys, output, _ = T5_CASES[case]
    folder = copied(name, tmp_path / "hf", **keys)
    tensors = weights(folder)
    tensors.pop("lm_head.weight", None)
    embeddings = tensors["shared.weight"]
    other = np.random.default_rng(0).normal(size=embeddings.shape).astype(np.float32)
    outputs = {None: {}, "same": {"lm_head.weight": embeddings}, "other": {"lm_head.weight": other}}
    rewrite(folder, tensors | outputs[output])
    convert.from_hf(folder, tmp_path / "run")
    model, params, _ = transformer_jax.load(tmp_path / "run")
    return model, params


@pytest.mark.sample("of transformers 5, unscaled-T5ForConditionalGeneration-1.1")
@pytest.mark.parametrize("name", [T5, T5_1_1])
@pytest.mark.parametrize("case", T5_CASES)
def test_the_output_of_t5(case, name, tmp_path):
    expected = T5_CASES[case][2]
    model, params = t5(case, name, tmp_path)
    assert (model.tie_output, model.scale_output) == expected

    source, target = np.arange(5, 15)[None], np.arange(3, 9)[None]
    logits = jax.jit(model.apply)({"params": params}, Inputs(source), target)
    # The logits are linear in the output: without a scale they are sqrt(d_model) times as large.
    plain = model.clone(tie_output=expected[0], scale_output=True)
    scaled = jax.jit(plain.apply)({"params": params}, Inputs(source), target)
    is_scaled = expected[0] if expected[1] is None else expected[1]
    factor = 1 if is_scaled else model.d_model**0.5
    np.testing.assert_allclose(logits, scaled * factor, rtol=1e-4, atol=1e-4)

    convert.to_hf(tmp_path / "run", tmp_path / "back")
    written = weights(tmp_path / "back")
    assert ("lm_head.weight" in written) == (not expected[0])
    convert.from_hf(tmp_path / "back", tmp_path / "again")
    again = open_run(tmp_path / "again")[0].config.model
    assert (again.tie_output, again.scale_output) == expected


@pytest.mark.full
@pytest.mark.parametrize("name", [T5, T5_1_1])
@pytest.mark.parametrize("case", T5_CASES)
def test_live(case, name, tmp_path):
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    model, params = t5(case, name, tmp_path)
    source, target = np.arange(5, 15)[None], np.arange(3, 9)[None]
    actual = jax.jit(model.apply)({"params": params}, Inputs(source), target)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target)
        ).logits.numpy()
    np.testing.assert_allclose(actual, expected, **CLOSE)
