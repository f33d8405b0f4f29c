"""Masked residues: overfitting, ECE beside n-grams, masks, features, mutations, and refusals."""

import numpy as np
import pytest

from tests.examples import CONFIGS
from tests.jitted import jitted
from tests.programs import call, refused
from tests.tasks.conftest import trained
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.scores import ngrams

# A mesh divides the alphabet.
SIZES = dict(vocab_multiple=2, d_model=32, num_layers=2, num_heads=4, max_length=32)
MODEL = dict(name="esm", init_std=0.1, **SIZES)
SEQUENCES = ("MKTAYIAKQRQISFVKSHFS", "ACDEFGHIKLMNPQRSTVWY", "GGGGSSSSGGGGSSSSGGGG")


def build(folder, **overrides):
    """Returns the config of a tiny ESM; overrides are written model__dropout=0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "proteins.fasta"
    path.write_text("".join(f">{n}\n{SEQUENCES[n % 3]}\n" for n in range(24)))
    config = configs.experiment(
        model=MODEL,
        task=dict(name="masked_residues", length=24),
        source=dict(name="fasta"),
        data=dict(train_files=str(path), valid_files=str(path), cache=str(folder / "cache")),
        train=dict(num_steps=150, batch=8, log_every=50, eval_every=150),
        optimizer=dict(learning_rate=1e-2, warmup_steps=10, clip_norm=1.0),
        checkpoint=dict(every=150),
        decode=dict(batch=4),
    )
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("residues")
    return trained(build(folder), folder).workdir


@pytest.mark.full
def test_three_proteins_are_learned(run):
    task, params = open_run(run)
    scores = task.evaluate(params, "valid")
    assert scores["ece"] == pytest.approx(np.exp(scores["loss"])) and scores["ece"] < 2
    assert scores["accuracy"] > 0.8 and scores["records"] == 24
    assert all(1 < ngram["ece"] < 4 for ngram in scores["ngrams"].values())
    ((filled,),) = task.fill(params, ["MKTAYIAK<mask>RQISFVKSHFS"], 1)
    assert filled[0].word == "Q" and filled[0].probability > 0.5
    ((pieces, states),) = task.features(params, ["MKT"])
    assert pieces == ["<cls>", "M", "K", "T", "<eos>"] and states.shape == (1, 5, 32)
    assert task.attention(params, "MKT").weights.shape == (2, 4, 5, 5)


def test_mutations_are_scored_with_all_positions_masked(run):
    task, params = open_run(run)
    lines = ["MKTAYIAKQRQISFVKSHFS\tQ9A", "", "MKTAYIAKQRQISFVKSHFS\tQ9A, K2R"]
    one, empty, two, soft = task.predict(params, [*lines, "mktayiakqrqisfvkshfs\tQ9A"])
    assert soft == one  # lower-case letters denote repeats
    assert empty.text == "" and empty.details["score"] is None
    assert one.details["score"] < -2 and one.text == f"{one.details['score']:.4f}"
    assert [*two.details["mutations"]] == ["Q9A", "K2R"]
    tokens = task.tokenizer.encode_masked("M<mask>TAYIAK<mask>RQISFVKSHFS")
    row = np.array([[0, *tokens, 2]], np.int32)
    logits = np.asarray(jitted(task.model.apply)({"params": params}, row)[1])[0]
    ids = {letter: task.tokenizer.encode(letter)[0] for letter in "QAKR"}
    expected = logits[9, ids["A"]] - logits[9, ids["Q"]] + logits[2, ids["R"]] - logits[2, ids["K"]]
    assert two.details["score"] == pytest.approx(expected, abs=1e-4)
    done = call("predict", f"--workdir={run}", "--json", text=f"{lines[0]}\n")
    assert done.stdout.startswith('{"score": -')


@pytest.mark.parametrize(
    "line, message",
    [
        ("MKT", "line 1: must hold residues, a tab, and mutations"),
        ("MKT\tK1A", "line 1: mutation K1A: the protein has M at this position"),
        ("MKT\tK9A", "line 1: mutation K9A: the protein has 3 residues"),
        ("MKT\t2A", "line 1: mutation '2A': must be a residue, its position from 1"),
        (f"{'M' * 31}\tM1A", "line 1: longer than config.model.max_length=32 tokens"),
    ],
)
def test_lines_of_another_form_are_refused(line, message, run):
    task, params = open_run(run)
    with pytest.raises(UserError, match=message):
        task.predict(params, [line])


def test_wrong_keys_and_files_end_with_code_2(tmp_path):
    for keys, message in (
        (dict(task__mask_share=0.0), "config.task.mask_share=0.0: must be above 0"),
        (dict(task__length=64), "config.task.length=64: must be from 3 to config.model.max_length"),
        (dict(model__vocab_size=20), "the tokenizer has 33 tokens: more than"),
    ):
        with pytest.raises(UserError, match=message):
            make_task(build(tmp_path, **keys)).rows()
    path = tmp_path / "proteins.fasta"
    path.write_text(">a\nMK7T\n")
    done = call(
        "train",
        f"--config={CONFIGS / 'esm/esm1b.py'}",
        f"--workdir={tmp_path / 'run'}",
        f"--config.data.train_files={path}",
        f"--config.data.cache={tmp_path / 'cache'}",
    )
    refused(done, f"{path}:2: a: '7', character 3 of the line, is not a residue")


def test_both_sides_of_a_residue_tell_more_than_the_left():
    """Every third residue is the sum of its neighbours, which the left alone does not tell."""
    random = np.random.default_rng(0)

    def proteins(count):
        sides = random.integers(1, 6, (count, 2))
        rows = np.stack([np.zeros(count, int), sides[:, 0], sides.sum(axis=1), sides[:, 1]], axis=1)
        return np.append(rows.reshape(-1), 0)

    scores = ngrams.residue_scores(proteins(3000), proteins(300), 12, 0)
    uniform = np.log(5)
    # The first and the last residue are uniform, given an end; the middle is known from both sides.
    assert scores["left"]["loss"] == pytest.approx((uniform + uniform + 0) / 3, abs=0.05)
    assert scores["both_sides"]["loss"] < scores["left"]["loss"] - 0.2
