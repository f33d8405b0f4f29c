"""Computed figures equal the published ones to their printed digits, or a note says why not.

The counts are those of real arrays and traced operations.
"""

import json

import jax
import jax.numpy as jnp
import pytest

from tests.conftest import build_gpt
from tests.examples import CONFIGS
from tests.finetuning.examples import pretrained
from tests.programs import call
from transformer_jax import config as configs
from transformer_jax import hardware
from transformer_jax.planning import estimate
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step

published = configs.load_module(CONFIGS.parent / "benchmarks" / "published.py")

DIFFER = {
    "Transformer base",
    "Transformer big",
    "GPT-3 XL",
    "GPT-3 13B",
    "BERT large",
    "GPT-3 XL, 16 heads, 6ND",
}


def test_layers():
    assert [(row.name, row.value, row.printed, row.agrees) for row in published.layers()] == [
        ("self-attention", 4e9, "4e9", True),
        ("recurrence", 16e9, "16e9", True),
        ("convolution", 6e9, "6e9", True),
    ]
    attention, recurrence, convolution = (
        row.value for row in published.layers(length=50, width=8, kernel=5)
    )
    assert (attention, recurrence, convolution) == (
        4 * 50**2 * 8,
        16 * 50 * 8**2,
        2 * 5 * 50 * 8**2,
    )


@pytest.mark.full
def test_models_and_trainings():
    rows = [*published.models(), *published.trainings()]
    assert {row.name for row in rows if row.agrees is False} == DIFFER
    assert all(row.note for row in rows if row.agrees is False)
    values = {row.name: row.value for row in rows}
    assert values["GPT-2 124M"] == 124_439_808 and values["BERT base"] == 110_106_428
    assert (
        published.rounded(values["Transformer base, device hours"], "3.3e18") == "3.3e18"
        and published.rounded(values["GPT-3 175B, 6ND"], "3.14e23") == "3.14e23"
    )
    assert values["GPT-3 175B, counted"] / values["GPT-3 175B, 6ND"] == pytest.approx(
        1.01, abs=0.01
    )


def test_the_notes_are_true():
    """The notes give the figures of other vocabularies and of the encoder alone."""

    def count(file, vocab):
        config = configs.load(str(CONFIGS / file), [("model.vocab_size", str(vocab))])
        return make_task(config).parameter_counts()["params"]

    assert published.rounded(count("wmt/base.py", 40_700), "65M") == "65M"
    assert published.rounded(count("wmt/big.py", 36_000), "213M") == "213M"
    large = make_task(configs.load(str(CONFIGS / "bert/large.py"))).parameter_counts()
    assert (
        published.rounded(large["params_encoder"], "335.1M"),
        published.rounded(large["params"], "336.2M"),
    ) == ("335.1M", "336.2M")


@pytest.mark.parametrize(
    "value, printed, expected",
    [
        (3.2832e18, "3.3e18", "3.3e18"),
        (1.1985e22, "1.20e22", "1.20e22"),
        (124_439_808, "117M", "124M"),
        (174.604e9, "174.6B", "174.6B"),
    ],
)
def test_rounding(value, printed, expected):
    assert published.rounded(value, printed) == expected


def test_counts_are_those_of_the_arrays_and_the_loop(tiny, tmp_path):
    """Parameters, and the FLOPs of a run with a growing batch, as the run logs them."""
    config = build_gpt(
        tmp_path, train__num_steps=20, train__batch=8, train__first_batch=2, train__ramp_steps=10
    )
    task = make_task(config)
    assert task.parameter_counts()["params"] == sum(
        leaf.size for leaf in jax.tree.leaves(step.init_params(task))
    )
    rows = sum(task.rows().train.size(step) for step in range(20))
    assert (
        estimate.training(task) == (task.flops(0) * rows, task.positions(0) * rows)
        and rows < 8 * 20
    )


def test_phases_are_counted_apart():
    task = make_task(configs.load(str(CONFIGS / "bert/base.py")))
    assert estimate.training(task) == (
        256 * (900_000 * task.flops(0) + 100_000 * task.flops(1)),
        256 * (900_000 * 128 + 100_000 * 512),
    )


def test_the_formula_of_a_model_agrees_with_its_trace(tmp_path):
    """The row is short, so attention computes all pairs. The formula counts half of them."""
    task = make_task(build_gpt(tmp_path))
    model, length = task.model, 16
    params = step.abstract_params(task)
    traced_flops = estimate.flops(
        lambda params, tokens: model.apply({"params": params}, tokens),
        params,
        jax.ShapeDtypeStruct((1, length), jnp.int32),
    )
    hidden_pairs = model.num_layers * 2 * model.d_model * length**2
    assert traced_flops == model.flops(length) + hidden_pairs


def test_the_command(tmp_path):
    done = call(
        "costs", "--config=configs/gpt/gpt2.py:124m", "--device=h100", "--mfu=0.5", "--price=2"
    )
    assert done.returncode == 0, done.stderr
    costs = json.loads(done.stdout)
    assert (
        costs["flops"] == pytest.approx(costs["six_nd"], rel=0.1) and costs["params"] == 124_439_808
    )
    assert (
        costs["device_hours"] == pytest.approx(costs["flops"] / hardware.H100.flops / 0.5 / 3600)
        and costs["money"] == 2 * costs["device_hours"]
    )


def test_sizes_over_the_years_are_drawn(tmp_path):
    done = call("costs", f"--picture={tmp_path}/sizes.png")
    assert done.returncode == 0, done.stderr
    sizes = {each["name"]: each for each in json.loads(done.stdout)["sizes"]}
    assert sizes["GPT-2"] == {"name": "GPT-2", "year": 2019 + 1 / 12, "params": 1_557_611_200}
    assert sizes["GPT-3"]["params"] / sizes["Transformer big"]["params"] == pytest.approx(816, 0.01)
    assert (tmp_path / "sizes.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.full
def test_fine_tuning_costs_follow_from_the_pretrained_run(tmp_path):
    encoder_run = pretrained(tmp_path, "bert")
    done = call(
        "costs",
        "--config=configs/finetune/sentiment.py:olid",
        f"--config.init_from={encoder_run}",
        "--config.task.length=32",
        "--config.train.num_steps=10",
    )
    assert done.returncode == 0, done.stderr
    costs = json.loads(done.stdout)
    encoder = open_run(encoder_run)[1]["encoder"]
    matrices = sum(leaf.size for leaf in jax.tree.leaves(encoder) if leaf.ndim > 2)
    compiled = call(
        "dry_run",
        "--config=configs/finetune/sentiment.py:olid",
        f"--config.init_from={encoder_run}",
        "--config.task.length=32",
        "--devices=1",
    )
    assert json.loads(compiled.stdout.splitlines()[-1])["params"] == costs["params"], (
        compiled.stderr
    )
    unprepared = call(
        "prepare",
        "--config=configs/finetune/sentiment.py:olid",
        f"--config.init_from={encoder_run}",
    )
    assert unprepared.returncode == 2 and "nothing to prepare" in unprepared.stderr
    # the rest is attention itself
    assert (
        costs["positions"] == 32 * 32 * 10
        and 1 < costs["flops"] / (6 * matrices * costs["positions"]) < 1.5
    )


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--config=configs/gpt/gpt2.py:124m", "--device=h10"], "did you mean h100"),
        (["--config=configs/gpt/gpt2.py:124m", "--mfu=1.5"], "--mfu=1.5"),
        (["--config=configs/gpt/gpt2.py:124m", "--price=2"], "--price needs --device"),
        (["--config=configs/finetune/glue.py:cola"], "config.init_from is missing"),
        (["--device=h100"], "--device needs --config"),
        (["--config=configs/gpt/gpt2.py:124m", "--picture=a.png"], "not with --config"),
        (["--picture=/no/such/a.png"], "no such folder"),
    ],
)
def test_a_mistake_costs_one_line(flags, words):
    done = call("costs", *flags)
    assert (
        done.returncode == 2 and words in done.stderr and len(done.stderr.strip().splitlines()) == 1
    ), done.stderr
