"""Tests of programs with all of XLA's optimisations, as users run them.

The suite compiles with few of them. `test_as_users_run.py` runs this file in a separate process:
TEST_OPTIMIZED=1 python -m pytest tests/as_users_run.py
"""

import os
import shutil

import jax
import numpy as np
import pytest

from tests.conftest import UNOPTIMIZED, build_bert, build_config, build_gpt
from tests.finetuning import examples
from tests.tasks import test_word_vectors
from tests.tasks.test_bidirectional_lm import build as build_elmo
from tests.tasks.test_causal_lm import GOLDEN as GPT_GOLDEN
from tests.tasks.test_causal_lm import SHARDED
from tests.tasks.test_causal_lm_texts import GREEDY, by_whole_prefixes
from tests.tasks.test_masked_residues import build as build_proteins
from tests.training import recurrent
from tests.training.test_loop import final_state, lines
from tests.training.test_step import losses
from transformer_jax import config as configs
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.trainer import Program, run

STEPS, STOP = 4, 2
SHORT = dict(
    train__num_steps=STEPS,
    train__log_every=STEPS,
    train__eval_every=STEPS,
    checkpoint__every=STOP,
    model__dropout=0.1,
)


def build_finetuning(folder, **overrides):
    """Returns the config of a BERT that classifies, with a pre-trained run to begin from."""
    origin = examples.pretrained(folder, "bert")
    config = examples.build(folder / "examples", "classification", origin, **overrides)
    return resolve(config, folder / "none").config


def build_bert_of_one_phase(folder, **overrides):
    return build_bert(folder, task__phases=((1.0, 16, 3),), **overrides)


def build_word_vectors(folder, **overrides):
    config = test_word_vectors.build(folder)
    overrides.pop("model__dropout")
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    return config


FAMILIES = {
    "translation": build_config,
    "gpt": build_gpt,
    "bert": build_bert_of_one_phase,
    "finetuning": build_finetuning,
    "carry": recurrent.build,
    "word vectors": build_word_vectors,
    "elmo": build_elmo,
    "esm": build_proteins,
}


def test_the_optimisations_are_on():
    assert jax.config.values["jax_disable_most_optimizations"] is False
    assert not any(flag in os.environ.get("XLA_FLAGS", "") for flag in UNOPTIMIZED)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_is_bit_equal(family, tmp_path):
    """The resumed run compiles again or reads the cache, as in another process."""
    config = FAMILIES[family](tmp_path, **SHORT)
    task = make_task(config)

    def train(workdir):
        program = Program.of(config, task, jax.devices()[:1])
        run(config, task, workdir, program, origin=spec.origin(config, workdir))
        return program

    program = train(tmp_path / "straight")
    shutil.copytree(tmp_path / "straight", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / str(STEPS))
    jax.clear_caches()
    train(tmp_path / "resumed")
    straight, resumed = (
        final_state(tmp_path / workdir, config, program, STEPS)
        for workdir in ("straight", "resumed")
    )
    assert straight.step == STEPS
    jax.tree.map(np.testing.assert_array_equal, resumed, straight)
    assert lines(tmp_path / "resumed") == lines(tmp_path / "straight")
    if family == "gpt":
        decoding_equals_teacher_forcing(task, resumed.params)


def decoding_equals_teacher_forcing(task, params):
    """Greedy tokens from the cache are those of a forward pass over each prefix."""
    prompts = ["the ", "a dog sat. the cat"]
    generated = [output.text for output in task.generate(params, prompts, max_tokens=8, how=GREEDY)]
    assert generated == [by_whole_prefixes(task, params, prompt, 8) for prompt in prompts]
    assert any(generated)


def test_losses_are_equal_on_a_mesh(tmp_path):
    """They also equal those of the suite, with dropout, accumulation and masked documents."""
    common = dict(train__accumulation=2, **SHARDED)
    one = losses(build_gpt(tmp_path, **common))[0]
    mesh = dict(mesh__data=2, mesh__fsdp=2, mesh__tensor=2)
    many = losses(build_gpt(tmp_path, **common, **mesh), devices=8)[0]
    np.testing.assert_allclose(many, one, atol=1e-5, rtol=0)
    np.testing.assert_allclose(one, GPT_GOLDEN, rtol=1e-5)
