"""muP measured: the coordinate check, and the best learning rate by width."""

import json

import numpy as np
import pytest

from tests.layers.test_mup import gpt
from transformer_jax.config import UserError
from transformer_jax.layers.embeddings import Projection
from transformer_jax.pictures import widths as pictures
from transformer_jax.scaling import coordinates, transfer

WIDTHS, RATES = (16, 32), (1e-3, 2e-3, 4e-3)


@pytest.fixture(scope="module")
def checked():
    return coordinates.check(gpt(), (16, 32), seeds=1, updates=1)


def test_the_check_measures_every_module_the_logits_and_the_loss(checked):
    assert checked["base"] == {"d_model": 16}
    names = {name.removesuffix(", update 1") for name in checked["muP"]["slopes"]}
    layers = "decoder/layers"
    assert {"token_embed 1", f"{layers}/attention/query 1", f"{layers}/mlp 2"} < names
    assert {"logits 1", "logits by the initial table 1", "logits by its change 1"} < names
    assert "loss 1" in names
    # At the base's own width, both parametrizations are one.
    assert checked["muP"]["changes"][16] == checked["standard"]["changes"][16]
    assert checked["muP"]["changes"][32] != checked["standard"]["changes"][32]
    text = "\n".join(coordinates.lines(checked))
    assert text.startswith("muP: ") and "\nstandard: not flat" in text
    figure = pictures.coordinates(checked)
    assert [axes.get_title().partition(":")[0] for axes in figure.axes] == ["muP", "standard"]


def test_the_parts_of_the_logits_add_up():
    random = np.random.default_rng(0)

    def logits():
        hidden, table = random.normal(size=(3, 8)), random.normal(size=(5, 8))
        return coordinates._Logits(hidden.astype("f"), Projection(table.astype("f")))

    start, now = logits(), logits()
    first, second = coordinates._parts(start, now).values()
    hidden = now.hidden - start.hidden
    np.testing.assert_allclose(first, hidden @ start.output.table.T, rtol=1e-5, atol=1e-5)
    change = now.with_hidden(now.hidden) - start.with_hidden(start.hidden)
    np.testing.assert_allclose(first + second, change, rtol=1e-5, atol=1e-5)


def test_a_slope_is_that_of_the_logarithms():
    changes = {width: {("x", 1): np.log(3 * width**0.5)} for width in (64, 128, 512)}
    assert coordinates._slopes(changes) == {("x", 1): pytest.approx(0.5)}


@pytest.mark.parametrize(
    "keys, width, expected",
    [
        ({}, 64, {"d_model": 64}),
        ({"model.d_ff": 128}, 64, {"d_model": 64, "d_ff": 256}),
        ({"model.head_dim": 16}, 64, {"d_model": 64, "num_heads": 4}),
        ({"optimizer.base": {"d_model": 16, "d_ff": 64}}, 64, {"d_model": 64, "d_ff": 256}),
    ],
)
def test_the_other_widths_grow_in_proportion(keys, width, expected):
    assert coordinates.at_width(gpt(**keys), width) == expected


def test_wrong_widths_are_refused():
    with pytest.raises(UserError, match="--widths=64: name at least two values, each once"):
        coordinates.check(gpt(), (64,))
    with pytest.raises(UserError, match=r"--widths: a d_model of 33 gives d_ff=134"):
        coordinates.at_width(gpt(**{"model.d_ff": 130}), 33)


def finish(folder, name: str, config, loss: float | None) -> None:
    """Writes what a finished run leaves of its config and its last loss."""
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"config": config.to_dict()}, default=str))
    line = {"step": config.train.num_steps, "valid/loss": loss}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")


def test_the_best_rate_of_each_width_and_how_far_it_moves(tmp_path):
    """Runs whose losses are parabolas: the best rate halves in the standard parametrization."""
    runs = transfer.runs_of(gpt(), WIDTHS, RATES, seeds=2)
    assert len(runs) == 2 * 3 * 2 + 3 * 2  # at the base, both parametrizations are one run
    for name, ((parametrization, width, rate, seed), config) in runs.items():
        assert (config.optimizer.base != ()) == (parametrization == "muP")
        best = 2.2e-3 / (2 if (parametrization, width) == ("standard", 32) else 1)
        loss = 1 + 0.1 * (np.log2(rate) - np.log2(best)) ** 2 + 0.01 * seed
        finish(tmp_path, name, config, float(loss))
    result = transfer.measure(gpt(), WIDTHS, RATES, 2, tmp_path)
    assert result["missing"] == []
    assert result["muP"]["best"][32]["rate"] == pytest.approx(2.2e-3, rel=1e-6)
    assert result["muP"]["shift"] == pytest.approx(0, abs=1e-6)
    # 1.1e-3 lies next to the lowest rate, so the lowest loss is at an end.
    lowest = 1 + 0.1 * np.log2(1.1) ** 2 + 0.01 * 0.5
    assert result["standard"]["best"][32] == {
        "rate": 1e-3,
        "loss": pytest.approx(lowest),
        "is_inside": False,
    }
    assert "at an end of the rates" in "\n".join(transfer.lines(result))
    assert len(pictures.transfer(result).axes) == 2


def test_runs_that_are_missing_or_have_diverged(tmp_path):
    runs = transfer.runs_of(gpt(), WIDTHS, RATES, seeds=1)
    names = [*runs]
    for name in names[1:]:
        rate = runs[name][0][2]
        finish(tmp_path, name, runs[name][1], None if rate == 4e-3 else rate)
    result = transfer.measure(gpt(), WIDTHS, RATES, 1, tmp_path)
    assert result["missing"] == names[:1]
    assert result["standard"]["best"][16] is None and result["standard"]["shift"] is None
    assert result["standard"]["best"][32]["rate"] == 1e-3
    assert "standard, width 16: runs are missing or have diverged" in transfer.lines(result)
    json.loads(json.dumps(result, allow_nan=False))
    assert len(pictures.transfer(result).axes) == 2


def test_runs_of_muP_that_are_missing_are_not_taken_from_the_standard(tmp_path):
    for name, ((parametrization, *_), config) in transfer.runs_of(gpt(), WIDTHS, RATES, 1).items():
        if parametrization == "standard":
            finish(tmp_path, name, config, 1.0)
    result = transfer.measure(gpt(), WIDTHS, RATES, 1, tmp_path)
    assert result["standard"]["best"][32] and result["muP"]["best"][16]
    assert result["muP"]["best"][32] is None and result["muP"]["shift"] is None
    # A width has a best rate only once all seeds are there.
    assert transfer.measure(gpt(), WIDTHS, RATES, 2, tmp_path)["standard"]["best"][16] is None


def test_rates_are_positive_and_distinct():
    with pytest.raises(UserError, match="--rates: 0 is not above 0"):
        transfer.runs_of(gpt(), WIDTHS, (0.0, 0.1), 1)
    with pytest.raises(UserError, match="--rates=0.1,0.1: name at least two values, each once"):
        transfer.runs_of(gpt(), WIDTHS, (0.1, 0.1), 1)


@pytest.mark.full
def test_the_command_trains_goes_on_and_draws(tmp_path):
    import subprocess
    import sys

    from tests.layers.test_mup import TINY

    command = [sys.executable, "-m", "transformer_jax.scaling", "transfer"]
    command += ["--config=gpt/quickstart", "--widths=16,32", "--rates=1e-3,2e-3", "--seeds=1"]
    command += [f"--config.{key}={value}" for key, value in TINY.items() if key != "model.d_model"]
    command += [f"--workdir={tmp_path}"]
    for only in (["--only=0"], []):
        done = subprocess.run([*command, *only], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["missing"] == [] and (tmp_path / "transfer.svg").is_file()
    assert "standard-width=16-rate=0.001-seed=0: done" in done.stderr


@pytest.mark.full
def test_muP_is_flat_where_the_standard_parametrization_is_not():
    keys = {"model.vocab_size": 256, "data.tokenizer": "characters", "data.corpus": "python"}
    config = gpt(**keys, **{"task.length": 8, "train.batch": 8})
    slopes = {}
    for name, found in coordinates.check(config, (64, 128, 256), seeds=3, updates=3).items():
        if name in (coordinates.MUP, coordinates.STANDARD):
            inner = [x for key, x in found["slopes"].items() if key.startswith("decoder")]
            slopes[name] = max(inner, key=abs)
    assert abs(slopes["muP"]) < 0.2 and slopes["standard"] > 0.8
