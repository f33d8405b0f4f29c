"""A language model that begins from the parameters of another run."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_gpt as build
from transformer_jax.config import UserError
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.runs.train import train
from transformer_jax.tasks.causal_lm import CausalLM
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program, abstract_params
from transformer_jax.training.trainer import run


def test_a_run_takes_the_parameters_and_the_tokenizer_of_another(gpt, tmp_path, capsys):
    overrides = dict(train__num_steps=1, optimizer__learning_rate=0.0)
    config = build(tmp_path, init_from=str(gpt.workdir), **overrides)
    task, workdir = make_task(config), tmp_path / "run"
    assert task.tokenizer.fingerprint() == gpt.task.tokenizer.fingerprint()
    workdir.mkdir()
    spec.begin(config, task, workdir)
    run(config, task, workdir, origin=spec.origin(config, workdir))
    assert "tensors restored" in capsys.readouterr().err
    _, params = open_run(workdir)
    jax.tree.map(np.testing.assert_array_equal, params, gpt.params)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (dict(model__d_ff=48), r"mlp/wi/bias has shape \(2, 128\) there, \(2, 48\) in this config"),
        (dict(init_from="nothing"), "no run here"),
    ],
)
def test_a_run_that_does_not_fit_is_refused(gpt, tmp_path, overrides, message):
    config = build(tmp_path, **{"init_from": str(gpt.workdir), **overrides})
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "refused")


@pytest.mark.full
def test_the_padding_of_a_vocabulary_may_differ(gpt, tmp_path):
    """So a converted GPT-2 can be trained with a config that pads its vocabulary."""
    size, table = gpt.task.model.vocab_size, gpt.params["token_embed"]["embedding"]
    workdir = gpt.workdir
    for multiple, num_rows in ((size + 7, size + 7), (1, size)):
        config = build(
            tmp_path,
            init_from=str(workdir),
            train__num_steps=1,
            optimizer__learning_rate=0.0,
            model__vocab_multiple=multiple,
        )
        workdir = tmp_path / str(multiple)
        train(config, workdir)
        padded = open_run(workdir)[1]["token_embed"]["embedding"]
        assert padded.shape[0] == num_rows and not padded[size:].any()
        np.testing.assert_array_equal(padded[:size], table[:size])


@pytest.mark.full
def test_a_run_that_has_started_does_not_need_the_other_any_more(gpt, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(gpt.workdir, other)
    config = build(tmp_path, init_from=str(other), train__num_steps=2)
    train(config, tmp_path / "run")
    shutil.rmtree(other)
    config.train.num_steps = 3
    assert train(config, tmp_path / "run")["valid/loss"] > 0


@pytest.mark.full
def test_tensors_that_this_model_lacks_are_named(gpt, tmp_path, capsys):
    config = build(
        tmp_path, init_from=str(gpt.workdir), train__num_steps=1, model__norm_position="post"
    )
    train(config, tmp_path / "run")
    assert "2 dropped, not in this model: norm/bias, norm/scale" in capsys.readouterr().err


class TwoModels(CausalLM):
    """A student beside a frozen teacher with twice its layers."""

    def init(self, rng):
        teacher = self.model.clone(num_layers=2).init(rng, jnp.zeros((1, 8), jnp.int32))
        return {"student": super().init(rng), "teacher": teacher["params"]}

    def group(self, path):
        return None if path[0] == "teacher" else ""

    def loss(self, params, batch, context):
        return super().loss(params["student"], batch, context)


@pytest.fixture
def two_models(tmp_path):
    """Returns the task and the origin of a run that begins as `init_from` says."""

    def make(init_from):
        config = build(tmp_path, model__num_layers=1, train__num_steps=1, init_from=init_from)
        config.optimizer.learning_rate = 0.0
        source = spec.source(config)
        task = TwoModels(config, source.workdir / "tokenizer", length=32)
        return config, task, spec.origin(config, tmp_path / "new")

    return make


@pytest.mark.full
def test_each_of_several_models_begins_from_a_run(gpt, two_models, tmp_path):
    """The student has every second layer of the teacher, the teacher all; a run goes on from it."""
    workdir = str(gpt.workdir)
    config, task, origin = two_models(
        {"teacher": workdir, "student": {"run": workdir, "layers": "1::2"}}
    )
    assert spec.names_same_run(config.init_from, config.init_from)
    spec.begin(config, task, tmp_path / "new")
    run(config, task, tmp_path / "new", Program.of(config, task, jax.devices()[:2]), origin=origin)
    assert spec.read(tmp_path / "new").config.init_from == config.init_from
    checkpoints = Checkpoints(tmp_path / "new/checkpoints", config.checkpoint, read_only=True)
    params = checkpoints.restore_params(abstract_params(task), 1)
    jax.tree.map(np.testing.assert_array_equal, params["teacher"], gpt.params)
    kernel = gpt.params["decoder"]["layers"]["mlp"]["wi"]["kernel"]
    of_student = params["student"]["decoder"]["layers"]["mlp"]["wi"]["kernel"]
    np.testing.assert_array_equal(of_student, kernel[1:])
    part = {"": {"run": str(tmp_path / "new"), "part": "teacher"}}
    config = build(tmp_path, init_from=part, train__num_steps=1)
    origin = spec.origin(config, tmp_path / "third")
    program = Program.of(config, make_task(config), jax.devices()[:1])
    [match] = origin.match(config, program)
    restored = match.restore(program.state.params)
    np.testing.assert_array_equal(restored["decoder/layers/mlp/wi/kernel"], kernel)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"techer": {}}, "no parameter begins with 'techer'; there are student, teacher"),
        ({"student": {"layers": "0,5"}}, "'student' takes the layers '0,5' of .* which has 2"),
        ({"student": {"layers": "::2", "part": "x"}}, "shares no tensor with this model"),
        ({"student": {}}, r"has shape \(2, .*\) there, \(1, "),
        ({"student": {"layer": "::2"}}, "'student' has no key 'layer'; did you mean layers"),
        ({"student": {"layers": "odd"}}, "layers='odd', no numbers such as"),
        ({"student": {"run": "nothing"}}, "config.init_from=nothing: no run here"),
        ("{'student': 3}", "must be a workdir, or a mapping"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused_before_compiling(gpt, two_models, changes, message):
    if isinstance(changes, dict):
        changes = {name: {"run": str(gpt.workdir), **keys} for name, keys in changes.items()}
    with pytest.raises(UserError, match=message):
        config, task, origin = two_models(changes)
        origin.match(config, Program.of(config, task, jax.devices()[:1]))
