"""Conversion of ESM from and to Hugging Face checkpoints."""

import numpy as np
import pytest
import scipy.special

from tests.conversion.checkpoints import CLOSE, copied, read_json, refused, weights
from tests.fixtures import make_huggingface_esm as make
from tests.fixtures.make_huggingface import HERE, random_model
from tests.jitted import jitted
from transformer_jax import convert
from transformer_jax.data import tokenizers
from transformer_jax.families.esm import contacts
from transformer_jax.runs.open import open_run


def assert_outputs(run, inputs, expected):
    """Asserts the run's states, logits and contacts at all filled positions."""
    task, params = open_run(run)
    ids, segments = inputs["ids"].astype(np.int32), inputs["filled"].astype(np.int32)
    filled = segments > 0
    apply, variables = jitted(task.model.apply), {"params": params}
    states = apply(variables, ids, segment_ids=segments, method="layers")
    of_filled = np.asarray(states)[:, filled]
    np.testing.assert_allclose(of_filled, expected["hidden"][:, filled], **CLOSE)
    logits = apply(variables, states[-1], method="logits")
    np.testing.assert_allclose(np.asarray(logits)[filled], expected["logits"][filled], **CLOSE)
    touch = scipy.special.expit(jitted(contacts.logits)(task.model, params, ids, segments))
    is_residue = contacts.residues(segments)
    pairs = is_residue[:, :, None] & is_residue[:, None]
    np.testing.assert_allclose(touch[pairs], expected["contacts"][pairs], **CLOSE)


@pytest.mark.sample("EsmForMaskedLM-rotary")
@pytest.mark.parametrize("name", make.KINDS)
def test_a_checkpoint_gives_the_published_outputs_and_is_written_unchanged(name, tmp_path):
    folder, run, back = HERE / name, tmp_path / "run", tmp_path / "back"
    convert.from_hf(folder, run)
    expected = dict(np.load(folder / "expected.npz"))
    assert_outputs(run, expected, expected)
    convert.to_hf(run, back)
    # transformers writes the norms with the names of TensorFlow.
    names = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    original, written = weights(folder), weights(back)
    for old, new in names.items():
        original = {key.replace(old, new): array for key, array in original.items()}
    unread = {key for key in original if key.endswith(("decoder.weight", "inv_freq"))}
    assert written.keys() == original.keys() - unread
    for key in written:
        np.testing.assert_array_equal(original[key], written[key], err_msg=key)
    config = read_json(folder / "config.json")
    for key, value in read_json(back / "config.json").items():
        assert config.get(key, value) in (value, None)
    prints = [tokenizers.read_published(path).fingerprint() for path in (folder, back)]
    assert prints[0] == prints[1] == tokenizers.load(run / "tokenizer").fingerprint()


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"position_embedding_type": "relative_key"},
            "'relative_key': only 'absolute' or 'rotary'",
        ),
        ({"pad_token_id": 0}, "pad_token_id=0: only 1"),
        ({"is_folding_model": True}, "is_folding_model=True: only False"),
        ({"max_position_embeddings": 2}, "max_position_embeddings=2: must be"),
        ({"mask_token_id": ...}, "no mask_token_id"),
    ],
)
def test_configs_without_an_equivalent_are_refused(change, message, tmp_path):
    refused(copied(make.ARCHITECTURE, tmp_path / "hf", **change), tmp_path, message)


@pytest.mark.parametrize("keys", make.KINDS.values(), ids=make.KINDS)
def test_live(keys, tmp_path):
    """Models of another size, with transformers in both directions."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=3, token_dropout=False)
    model = random_model(make.ARCHITECTURE, seed=5, **make.SIZES | sizes, **keys)
    model.save_pretrained(tmp_path / "hf")
    make.save_tokenizer(tmp_path / "hf")
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    inputs = make.inputs(20)
    assert_outputs(tmp_path / "run", inputs, make.computed(model, **inputs))
    convert.to_hf(tmp_path / "run", tmp_path / "back")
    reread, loading = transformers.EsmForMaskedLM.from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    # The rates of the rotations follow from config.json.
    assert {key for key in loading["missing_keys"] if "inv_freq" not in key} == set()
    assert not loading["unexpected_keys"] and not loading["mismatched_keys"]
    assert_outputs(tmp_path / "run", inputs, make.computed(reread.eval(), **inputs))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    ids = open_run(tmp_path / "run")[0].tokenizer.encode("MKTAYIAKQRX")
    assert tokenizer("MKTAYIAKQRX").input_ids == [0, *ids, 2]
