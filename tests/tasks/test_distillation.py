"""Distillation: its three losses, the beginning from a teacher, resumed runs, and refusals."""

import shutil

import jax
import numpy as np
import pytest
import scipy.special

from tests.conftest import build_bert
from tests.conversion.checkpoints import weights
from tests.fixtures.make_huggingface import HERE
from tests.fixtures.make_huggingface_bert import DISTIL
from tests.jitted import jitted
from tests.training.test_loop import final_state, lines
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.tasks.distillation import Output, divergence
from transformer_jax.training.step import Program, init_params
from transformer_jax.training.trainer import run

SIZES = dict(vocab_size=80, d_model=32, num_heads=2, max_length=64)
STUDENT = dict(name="distilbert", num_layers=1, dropout=0.0, attention_dropout=0.0, **SIZES)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Returns a config of random BERTs, and the workdir of one."""
    folder = tmp_path_factory.mktemp("teacher")
    config = build_bert(folder)
    task, workdir = make_task(config), folder / "run"

    @jax.jit
    def changed(params):
        noise = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape), params)
        return jax.tree.map(lambda x, change: x + 0.2 * change, params, noise)

    # The teacher has opinions, so that the student differs from it.
    spec.create(workdir, task, changed(init_params(task)))
    return config, workdir


def config_of(teacher, model=STUDENT, task=(), **sections):
    other, workdir = teacher
    config = configs.experiment(
        model=model,
        task=dict(name="distillation", teacher=str(workdir), phases=((1.0, 16, 3),), **dict(task)),
        train=dict(num_steps=3, log_every=1, batch=8),
        checkpoint=dict(every=1),
    )
    config.data = other.data
    config.decode = other.decode
    for key, value in sections.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.set_key(config, "data.valid_files", None)
    return config


@pytest.mark.full
def test_the_losses_are_those_of_the_paper(teacher, tmp_path):
    """The divergence and the distance are of all positions without padding (section 3)."""
    task = resolve(config_of(teacher), tmp_path / "run").task()
    params = init_params(task)
    params["teacher"] = {
        name: tree for name, tree in open_run(teacher[1])[1].items() if name in params["teacher"]
    }
    batch = task.rows().train.batch(0, range(4))
    loss = jax.jit(lambda params, batch: task.loss(params, batch, Context()))(params, batch)

    inputs = dict(segment_ids=batch["segment_ids"], token_types=batch["token_types"])

    def outputs(model, params):
        apply = jitted(model.apply)
        hidden = apply({"params": params}, batch["tokens"], **inputs, method="hidden")
        logits = apply({"params": params}, hidden, method="logits")
        return np.asarray(hidden), scipy.special.log_softmax(np.asarray(logits) / 2, axis=-1)

    hidden, log_q = outputs(task.model, params)
    target, log_p = outputs(make_task(teacher[0], teacher[1]).model, params["teacher"])
    filled = batch["segment_ids"] > 0
    soft = 4 * np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)[filled].sum()
    norms = np.linalg.norm(hidden, axis=-1) * np.linalg.norm(target, axis=-1)
    cosine = (1 - np.sum(hidden * target, axis=-1) / norms)[filled].sum()
    np.testing.assert_allclose(loss.terms["soft_targets"], soft, rtol=1e-4)
    np.testing.assert_allclose(loss.terms["cosine"], cosine, rtol=1e-4)
    assert task.coefficients == {"mlm": 2.0, "soft_targets": 5.0, "cosine": 1.0}
    weights = task.weights(batch)
    assert weights["soft_targets"] == weights["cosine"] == filled.sum() > weights["mlm"]


def test_chunks_have_the_divergence_and_the_gradients_of_the_whole(monkeypatch):
    keys = jax.random.split(jax.random.key(0), 5)
    states = [jax.random.normal(key, (2, 7, 4)) for key in keys[:2]]
    tables = [jax.random.normal(key, (11, 4)) for key in keys[2:4]]
    weights = jax.random.uniform(keys[4], (2, 7))

    def value(student):
        targets = Output(states[1], tables[1], None)
        return divergence(Output(*student, None), targets, weights, 2.0)

    student = (states[0], tables[0])
    whole = jax.jit(jax.value_and_grad(value))(student)
    monkeypatch.setattr("transformer_jax.tasks.distillation.num_chunks", lambda *sizes: 3)
    chunks = jax.jit(jax.value_and_grad(value))(student)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), whole, chunks)


@pytest.mark.full
def test_a_student_begins_with_layers_of_its_teacher_and_goes_on_without_it(teacher, tmp_path):
    """The teacher stays as it is, in frozen/; a resumed run no longer needs the teacher's run."""
    source = tmp_path / "teacher"
    shutil.copytree(teacher[1], source)
    options = dict(init_from=str(source), task__teacher=str(source))
    frozen = config_of(teacher, task=dict(frozen_positions=True), **options)
    program = None
    for name in ("straight", "resumed"):
        workdir = tmp_path / name
        resolved = resolve(frozen, workdir)
        config, task = resolved.config, resolved.task()
        program = program or Program.of(config, task, jax.devices()[:1])
        spec.begin(config, task, workdir)
        run(config, task, workdir, program, origin=resolved.origin)
        if name == "straight":
            shutil.copytree(workdir, tmp_path / "resumed")
            shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "3")
            shutil.rmtree(source)
    assert lines(tmp_path / "resumed") == lines(tmp_path / "straight")
    straight, resumed = (
        final_state(tmp_path / name, config, program, 3).params for name in ("straight", "resumed")
    )
    jax.tree.map(np.testing.assert_array_equal, resumed, straight)
    assert len(list((tmp_path / "straight" / "frozen").iterdir())) == 1

    of_teacher = open_run(teacher[1])[1]
    for name, tree in resumed["teacher"].items():
        jax.tree.map(np.testing.assert_array_equal, tree, of_teacher[name])
    positions = resumed["position_embed"]["embedding"]
    np.testing.assert_array_equal(positions, of_teacher["position_embed"]["embedding"])
    kernel = of_teacher["encoder"]["layers"]["mlp"]["wi"]["kernel"][:1]
    first = resumed["encoder"]["layers"]["mlp"]["wi"]["kernel"]
    assert 1e-4 < np.abs(first - kernel).max() < 0.1
    convert.to_hf(tmp_path / "resumed", tmp_path / "hf")
    tensors = weights(tmp_path / "hf")
    assert tensors.keys() == weights(HERE / DISTIL).keys() - {
        name for name in weights(HERE / DISTIL) if ".layer.1." in name
    }


@pytest.mark.full
@pytest.mark.parametrize("family", [dict(name="bert"), dict(name="roberta", vocab_multiple=32)])
def test_a_narrow_student_learns_from_a_wide_bert(teacher, tmp_path, family):
    model = STUDENT | dict(d_model=16) | family
    task = resolve(config_of(teacher, model, dict(cosine=0.0)), tmp_path / "run").task()

    def loss(batch):
        return task.loss(task.init(jax.random.key(0)), batch, Context())

    shapes = jax.eval_shape(loss, task.batch_spec(0))
    assert shapes.terms.keys() == task.coefficients.keys() == {"mlm", "soft_targets"}


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(task__teacher=""), "config.task.teacher is missing: the workdir of a run"),
        (dict(task__teacher="nowhere"), "config.task.teacher=nowhere: no run here"),
        (dict(model__vocab_size=90), "config.model.vocab_size=90: must be the teacher's 80"),
        (dict(model__d_model=16), "config.model.d_model=16: must be the teacher's 32, or set "),
        (dict(task__cosine=-1.0), "config.task.cosine=-1.0: must be at least 0"),
        (dict(task__temperature=0.0), "config.task.temperature=0.0: must be above 0"),
        (
            dict(task__soft_targets=0.0, task__masked_tokens=0.0, task__cosine=0.0),
            "soft_targets, masked_tokens and cosine are all 0",
        ),
        (dict(task__next_sentence=1.0), "config.model.name=.distilbert. has no head for it"),
        (
            dict(model__max_length=128, task__phases=((1.0, 100, 3),)),
            "config.task.teacher=.*: for its model, .*config.model.max_length=64",
        ),
    ],
)
def test_a_student_that_does_not_suit_its_teacher_is_refused(teacher, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        resolve(config_of(teacher, **changes), tmp_path / "run").task()


def test_a_teacher_whose_head_is_untrained_is_refused(teacher, tmp_path):
    """Such as a run of ELECTRA's replaced tokens, or a fine-tuned one."""
    task, params = open_run(teacher[1])
    headless = {name: tree for name, tree in params.items() if not name.startswith("mlm")}
    spec.create(tmp_path / "teacher", task, headless)
    resolved = resolve(config_of((teacher[0], tmp_path / "teacher")), tmp_path / "run")
    program = Program.of(resolved.config, resolved.task(), jax.devices()[:1])
    with pytest.raises(UserError, match="config.task.teacher=.*: its checkpoint lacks mlm_bias/b"):
        resolved.origin.match(resolved.config, program)
