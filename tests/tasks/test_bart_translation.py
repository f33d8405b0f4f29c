"""A BART that learns to translate with a new encoder of the source, in two stages."""

import shutil

import jax
import numpy as np
import pytest

from tests.conftest import build_config
from tests.training.test_loop import lines
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.families.bart_translation import BARTTranslation
from transformer_jax.layers.parameters import names
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.step import Program, init_params
from transformer_jax.training.trainer import run

SIZES = dict(
    vocab_size=300,
    d_model=16,
    d_ff=32,
    num_heads=2,
    num_encoder_layers=3,
    num_decoder_layers=2,
    max_length=128,
    dropout=0.0,
)
LENGTHS = dict(source_length=32, target_length=32)


@pytest.fixture
def build(tmp_path):
    """Returns a function to the config of a translation that begins with an initial BART."""
    pairs = build_config(tmp_path)
    data = dict(
        cache=pairs.data.cache, tokenizer="roberta_bpe", train_files=pairs.data.train_target
    )
    task = dict(name="denoising", **LENGTHS)
    pretrained = make_task(
        configs.experiment(model=dict(name="bart", **SIZES), task=task, data=data)
    )
    (tmp_path / "bart").mkdir()
    spec.create(tmp_path / "bart", pretrained, init_params(pretrained))

    def config_of(model="bart_translation", **own):
        config = configs.experiment(
            model=dict(name=model, **SIZES, **own),
            task=dict(name="translation", bleu_lines=0, **LENGTHS),
            train=dict(num_steps=4, batch=8, log_every=1),
            checkpoint=dict(every=2, best_metric=""),
            optimizer=dict(learning_rate=0.01, groups=(("pretrained", (("begin", 0.5),)),)),
            init_from=str(tmp_path / "bart"),
        )
        config.data, config.decode = pairs.data, pairs.decode
        return config

    return config_of


@pytest.mark.full
def test_it_learns_in_two_stages_on_a_mesh_and_resumes(build, tmp_path, capsys):
    def trained(folder, program=None, devices=1, **mesh):
        config = build(source_vocab_size=90, num_source_layers=1)
        config.mesh.update(mesh)
        described = resolve(config, tmp_path / folder)
        config, task = described.config, described.task()
        program = program or Program.of(config, task, jax.devices()[:devices])
        if described.origin:
            spec.begin(config, task, tmp_path / folder)
        run(config, task, tmp_path / folder, program, origin=described.origin)
        losses = [line["train/loss"] for line in lines(tmp_path / folder) if "train/loss" in line]
        return losses, program

    one, program = trained("one")
    many, _ = trained("many", devices=2, tensor=2)
    np.testing.assert_allclose(many, one, atol=1e-5, rtol=0)
    shutil.copytree(tmp_path / "one", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "4")
    assert trained("resumed", program)[0] == one
    assert "dropped" not in capsys.readouterr().err

    task, straight = open_run(tmp_path / "one", 4)
    jax.tree.map(np.testing.assert_array_equal, open_run(tmp_path / "resumed", 4)[1], straight)
    pretrained, bart = open_run(tmp_path / "bart")
    assert task.tokenizer.target.fingerprint() == pretrained.tokenizer.target.fingerprint()
    assert task.tokenizer.source.fingerprint() != task.tokenizer.target.fingerprint()

    # The first stage is half of the run.
    split = bart | {
        "first_layer": jax.tree.map(lambda stack: stack[:1], bart["encoder"]),
        "encoder": jax.tree.map(lambda stack: stack[1:], bart["encoder"]),
    }
    before = {names(path): leaf for path, leaf in jax.tree.leaves_with_path(split)}
    for step, groups in ((2, {""}), (4, {"", "pretrained"})):
        params = open_run(tmp_path / "one", step)[1]
        after = {names(path): leaf for path, leaf in jax.tree.leaves_with_path(params)}
        assert {path[0] for path in after.keys() - before.keys()} == {
            "source_embed",
            "source_position_embed",
            "source_embed_norm",
            "source_encoder",
        }
        for path, leaf in before.items():
            # A key's bias changes no weight of attention.
            if path[-2:] != ("key", "bias"):
                learns = task.group(path) in groups
                assert np.array_equal(after[path], leaf) != learns, (step, path)


def test_the_first_stage_trains_the_way_into_the_pretrained_layers():
    group = BARTTranslation().group
    for path in (
        ("source_encoder", "layers", "mlp", "wi", "kernel"),
        ("position_embed", "embedding"),
        ("first_layer", "layers", "attention", "query", "kernel"),
    ):
        assert group(path) == ""
    for path in (
        ("first_layer", "layers", "attention", "out", "kernel"),
        ("encoder", "layers", "attention", "query", "kernel"),
        ("token_embed", "embedding"),
    ):
        assert group(path) == "pretrained"


def test_another_family_is_refused(build, tmp_path):
    with pytest.raises(UserError, match="a run of config.model.name='bart', not 'encoder_decoder'"):
        resolve(build("encoder_decoder"), tmp_path / "run")
    with pytest.raises(UserError, match="num_encoder_layers=1: must be at least 2"):
        BARTTranslation(num_encoder_layers=1).check()
