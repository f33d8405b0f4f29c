"""Conversion of XLNet, its two streams, its memory and its heads from and to transformers."""

import jax
import numpy as np
import pytest

from tests.conversion.checkpoints import CLOSE, copied, read_json, refused, weights
from tests.conversion.heads import assert_outputs
from tests.fixtures import make_huggingface_xlnet as make
from tests.fixtures.make_huggingface import HERE
from tests.jitted import jitted
from transformer_jax import convert
from transformer_jax.contracts.model import Inputs
from transformer_jax.data import tokenizers
from transformer_jax.runs.open import open_run

LINES = {
    "classification": "The cat sleeps.",
    "tagging": "The cat sleeps.",
    "span": "who sleeps\tThe dog runs. A cat sleeps in the house.",
    "choice": "The cat\tsleeps\truns",
}
# Only pre-training uses this vector.
TARGET = "transformer.mask_emb"


def written_unchanged(run, folder, back):
    """Asserts that the checkpoint of `folder` is written from its run as it was."""
    convert.to_hf(run, back)
    original = weights(folder)
    written = weights(back)
    assert original.keys() - written.keys() <= {TARGET} and written.keys() <= original.keys()
    for name in written:
        np.testing.assert_array_equal(original[name], written[name], err_msg=name)
    config = read_json(folder / "config.json")
    for key, value in read_json(back / "config.json").items():
        assert config.get(key) in (value, None), key
    fingerprints = [tokenizers.read_published(path).fingerprint() for path in (folder, back)]
    assert fingerprints[0] == fingerprints[1]


def test_a_checkpoint_gives_the_published_outputs_and_is_written_unchanged(tmp_path):
    folder = HERE / make.LANGUAGE_MODEL
    convert.from_hf(folder, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    expected = np.load(folder / "expected.npz")
    ids, filled = expected["ids"], expected["filled"] > 0
    options = dict(token_types=expected["types"], segment_ids=expected["filled"])
    apply, variables = jitted(task.model.apply), {"params": params}
    states = apply(variables, ids, **options, method="layers")
    of_filled = np.asarray(states)[:, filled]
    np.testing.assert_allclose(of_filled, expected["hidden"][:, filled], **CLOSE)
    logits = np.asarray(apply(variables, states[-1], method="logits"))
    np.testing.assert_allclose(logits[filled], expected["logits"][filled], **CLOSE)
    assert task.model.memory_length == make.SIZES["mem_len"]
    written_unchanged(tmp_path / "run", folder, tmp_path / "back")


def test_permuted_rows_and_their_memory_are_those_of_transformers(tmp_path):
    """The first row has no memory; the second has one that is not full."""
    folder = HERE / make.LANGUAGE_MODEL
    convert.from_hf(folder, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    names = ("ids", "ranks", "targets", "types", "logits")
    expected = np.load(folder / "expected.npz")

    @jax.jit
    def logits_of(ids, ranks, targets, types, carry):
        variables = {"params": params}
        inputs = Inputs(ids, ranks=ranks, token_types=types)
        options = dict(carry=carry, remembered=make.REMEMBERED)
        (states, carry), _ = task.model.apply(
            variables, inputs, targets, **options, method="permuted", mutable=["state"]
        )
        return task.model.apply(variables, states, method="logits"), carry

    carry = task.model.initial_carry(2)
    for *inputs, logits in zip(*(expected[f"permuted_{name}"] for name in names)):
        ours, carry = logits_of(*(each.astype(np.int32) for each in inputs), carry)
        np.testing.assert_allclose(ours, logits, **CLOSE)


@pytest.mark.full
@pytest.mark.parametrize("architecture", make.HEADS)
def test_a_head_gives_the_published_outputs_and_is_written_unchanged(architecture, tmp_path):
    folder = HERE / architecture
    convert.from_hf(folder, tmp_path / "run")
    expected = dict(np.load(folder / "expected.npz"))
    assert_outputs(tmp_path / "run", expected, expected["logits"])
    task, params = open_run(tmp_path / "run")
    name = task.config.task.name
    ((text, _),) = task.predict(params, [LINES[name]])
    assert text if name != "span" else text in LINES[name]
    written_unchanged(tmp_path / "run", folder, tmp_path / "back")


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(attn_type="uni"), "attn_type='uni': only 'bi'"),
        (dict(clamp_len=8), "clamp_len=8: only -1"),
        (dict(summary_type="first"), "summary_type='first': only 'last'"),
        (dict(n_layer=4), "missing from the weights: transformer.layer.3"),
    ],
)
def test_configs_without_an_equivalent_are_refused(changes, message, tmp_path):
    refused(copied(make.LANGUAGE_MODEL, tmp_path / "hf", **changes), tmp_path, message)
