"""Tiny runs that several files use, each trained once."""

from typing import Any, NamedTuple

import jax
import pytest

from tests.conftest import build_config, build_gpt
from tests.few_devices import few_devices  # noqa: F401
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import resolve
from transformer_jax.training.step import Program
from transformer_jax.training.trainer import run


class Trained(NamedTuple):
    workdir: Any
    scores: dict[str, float]  # of the last evaluation
    task: Any
    params: Any


def trained(config, folder, num_devices=1) -> Trained:
    """Trains a config in `folder`/run, and opens the run.

    One device compiles its programs sooner than eight.
    """
    workdir = folder / "run"
    resolved = resolve(config, workdir)
    config, task = resolved.config, resolved.task()
    workdir.mkdir(parents=True)
    program = Program.of(config, task, jax.devices()[:num_devices])
    spec.begin(config, task, workdir)
    scores = run(config, task, workdir, program, origin=resolved.origin)
    return Trained(workdir, scores, *open_run(workdir))


@pytest.fixture(scope="session")
def gpt(tmp_path_factory) -> Trained:
    folder = tmp_path_factory.mktemp("causal_lm")
    return trained(build_gpt(folder), folder)


@pytest.fixture(scope="session")
def translation(tmp_path_factory) -> Trained:
    folder = tmp_path_factory.mktemp("translation")
    config = build_config(
        folder,
        train__num_steps=40,
        train__eval_every=40,
        checkpoint__every=20,
        train__log_every=40,
        optimizer__learning_rate=0.02,
        decode__batch=2,
    )
    return trained(config, folder)
