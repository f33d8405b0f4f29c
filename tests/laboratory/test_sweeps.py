"""Sweeps: their points, the best of them on fresh seeds, halving, and mistakes."""

import dataclasses
import math
import xml.etree.ElementTree

import pytest

from tests import programs
from tests.conftest import build_bert, build_gpt
from transformer_jax.config import RunError, UserError
from transformer_jax.laboratory import sweeps
from transformer_jax.laboratory.sweeps import Sweep, axes_of, drawn, grid, name_of

RATES = "optimizer.learning_rate=1e-4,3e-4,1e-3"


def test_a_grid_has_all_combinations():
    points = grid(axes_of([RATES, "config.model.d_model=32,64"]))
    assert len(points) == 6
    assert points[1] == {"optimizer.learning_rate": "1e-4", "model.d_model": "64"}
    assert name_of(points[1]) == "learning_rate=1e-4,d_model=64"
    (axis,) = axes_of(["task.phases=((1,16,3),),((0.5,16,3),(0.5,32,5))"])
    assert axis == ("task.phases", ("((1,16,3),)", "((0.5,16,3),(0.5,32,5))"))


def test_random_points_are_those_of_a_smaller_sweep_and_more():
    varied = [
        "optimizer.learning_rate=log:1e-5:1e-2",
        "model.dropout=uniform:0:0.5",
        "train.batch=4,8",
    ]
    points = drawn(varied, 400)
    assert drawn(varied, 30) == points[:30]
    rates = [math.log10(float(point["optimizer.learning_rate"])) for point in points]
    # Uniform in the logarithm, between -5 and -2.
    assert sum(rates) / 400 == pytest.approx(-3.5, abs=0.15) and -5 <= min(rates) < -4.9
    assert max(float(point["model.dropout"]) for point in points) == pytest.approx(0.5, abs=0.01)
    assert {point["train.batch"] for point in points} == {"4", "8"}


@pytest.mark.parametrize(
    "varied, count, message",
    [
        (["x"], 0, "--vary=x: must be KEY=VALUE,VALUE"),
        (["x=1,,2"], 0, "must be KEY=VALUE,VALUE"),
        (["x=1,1"], 0, "a value occurs twice"),
        (["x=1,2", "config.x=3,4"], 0, "--vary=x: named twice"),
        (["x=log:1:2"], 0, "a range needs --random=POINTS"),
        (["x=log:0:2"], 3, "must be KEY=log:LOW:HIGH"),
        (["x=log:a:b"], 3, "must be KEY=log:LOW:HIGH"),
        (["x=uniform:2:1"], 3, "must be KEY=uniform:LOW:HIGH"),
    ],
)
def test_what_varies_nothing_is_refused(varied, count, message):
    with pytest.raises(UserError, match=message):
        drawn(varied, count) if count else grid(axes_of(varied))


def test_a_config_file_may_hold_its_sweep(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def get_config():\n    pass\n\n\ndef sweep():\n"
        "    return {'train.batch': [4, 8], 'optimizer.learning_rate': 'log:1e-4:1'}\n"
    )
    assert sweeps.varied_by(str(path)) == ["train.batch=4,8", "optimizer.learning_rate=log:1e-4:1"]
    assert sweeps.varied_by("gpt/quickstart") == []


def make(folder, rates="1e-4,3e-4,1e-3", **options):
    config = build_gpt(folder, train__num_steps=8, optimizer__warmup_steps=0)
    points = grid(axes_of([f"optimizer.learning_rate={rates}", "model.dropout=0,0.1"]))
    return Sweep(config, tuple(points), folder / "runs", **options)


def loss(arm, seed):
    """A loss whose best rate is 3e-4, in which seed 4 of a run is unlucky."""
    rate = float(arm.partition("learning_rate=")[2].partition(",")[0])
    return {"valid/loss": 1 + abs(math.log10(rate / 3e-4)) + 0.01 * (seed + 3 * (seed == 4))}


def test_the_best_point_is_reported_on_fresh_seeds(fake, tmp_path):
    trained = fake(loss)
    result = make(tmp_path, seeds=2).run()
    assert result["best"].startswith("learning_rate=3e-4") and len(result["points"]) == 6
    # Seeds 2 and 3 of the best alone.
    assert len(trained) == 6 * 2 + 2
    assert {arm for arm, seed in trained if seed > 1} == {result["best"]}
    fresh = result["best_on_fresh_seeds"]
    assert fresh["values"] == pytest.approx([1.02, 1.03])
    assert result["at_edge"] == ["model.dropout"]  # of two values, each is the last
    text = "\n".join(sweeps.lines(result))
    assert "with fresh seeds: 1.025" in text and "wider values may be better" in text
    png, svg = result["pictures"]
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg") and png
    trained.clear()
    assert make(tmp_path, seeds=2).run() == result and not trained


def test_halving_trains_the_better_half_on(fake, tmp_path):
    trained = fake(loss)
    # With the fake, a run that goes on is another run: its folder must be new.
    sweep = make(tmp_path, seeds=1, halving=True)
    sweep.check(any_schedule=True)
    sweep.check()  # a constant rate does not depend on the length
    with pytest.raises(FileExistsError):
        sweep.run()
    assert len(trained) == 6  # a quarter of the updates for all points


def test_halving_refuses_schedules_that_it_would_change(tmp_path):
    sweep = make(tmp_path, halving=True, changes=(("optimizer.schedule", "cosine"),))
    with pytest.raises(UserError, match="optimizer.schedule=cosine depends on the length"):
        sweep.check()
    sweep.check(any_schedule=True)
    # So does a warm-up that is a fraction of the run, and the lengths of phases.
    warm = make(tmp_path, halving=True, changes=(("optimizer.warmup_steps", 0.5),))
    with pytest.raises(UserError, match="optimizer.schedule=constant depends on the length"):
        warm.check()
    bert = Sweep(build_bert(tmp_path / "bert", train__num_steps=40), ({"model.dropout": "0"},), "x")
    with pytest.raises(UserError, match="config.task.phases depends on the length"):
        dataclasses.replace(bert, halving=True).check()
    make(tmp_path, halving=True, changes=(("optimizer.schedule", "inverse_sqrt"),)).check()


def test_a_point_that_diverges_is_the_worst_and_the_others_go_on(fake, tmp_path, capsys):
    def value(arm, seed):
        if "learning_rate=1e-3" in arm:
            raise RunError("update 7: the loss is not finite")
        return loss(arm, seed)

    fake(value)
    result = make(tmp_path, seeds=2).run()
    assert result["best"].startswith("learning_rate=3e-4")
    lost = [point for point in result["points"] if point["mean"] is None]
    assert len(lost) == 2 and lost[0]["values"] == [None, None]
    assert "  diverged" in "\n".join(sweeps.lines(result))
    assert "seed 0: update 7: the loss is not finite" in capsys.readouterr().err


def test_a_sweep_of_rates_is_one_program(tmp_path, capsys):
    """Of two rates and two seeds each, all with the higher rate diverge."""
    config = build_gpt(
        tmp_path,
        train__num_steps=4,
        train__eval_every=4,
        checkpoint__every=4,
        optimizer__warmup_steps=0,
        optimizer__clip_norm=0.0,
    )
    points = grid(axes_of(["optimizer.learning_rate=1e-2,1e38"]))
    result = Sweep(config, tuple(points), tmp_path / "runs", seeds=2, together=True).run()
    assert "training 4 runs together" in capsys.readouterr().err
    means = {each["name"]: each["mean"] for each in result["points"]}
    assert means["learning_rate=1e38"] is None and means["learning_rate=1e-2"] > 0
    assert len(result["best_on_fresh_seeds"]["values"]) == 2


def test_a_run_that_is_already_longer_is_not_shortened(fake, tmp_path):
    fake(loss)
    sweep = make(tmp_path, seeds=1)
    workdir = sweep.folder / sweep.arms()[0].name / "seed-0"
    workdir.mkdir(parents=True)
    (workdir / "metrics.jsonl").write_text('{"step": 9, "valid/loss": 1.0}\n')
    with pytest.raises(UserError, match="was trained to update 9, without an evaluation at 8"):
        sweep.run()


@pytest.fixture(scope="module")
def whole_and_halved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("halving")
    keys = {"train__num_steps": 8, "train__eval_every": 2, "checkpoint__every": 2}
    config = build_gpt(folder, **keys, optimizer__warmup_steps=0)
    points = grid(axes_of(["optimizer.learning_rate=1e-3,1e-2,1e-1"]))
    return [
        Sweep(config, tuple(points), folder / name, seeds=1, halving=halving).run()
        for name, halving in (("whole", False), ("halved", True))
    ]


@pytest.mark.full
def test_halving_equals_whole_runs_where_nothing_depends_on_the_length(whole_and_halved):
    """Exact resume makes the winner of the last rung the run that was never stopped."""
    whole, halved = whole_and_halved
    assert halved["best"] == whole["best"]
    assert [len(rung["points"]) for rung in halved["rungs"]] == [3, 2, 1]
    by_name = {point["name"]: point["values"] for point in whole["points"]}
    (last,) = halved["points"]
    assert by_name[last["name"]] == last["values"]
    assert halved["best_on_fresh_seeds"] == whole["best_on_fresh_seeds"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["gpt/quickstart"], "--vary=KEY=VALUE,VALUE is missing"),
        ([], "name one config"),
        (["gpt/quickstart", "--vary=optimizer.learning_rat=1,2"], "did you mean"),
        (["gpt/quickstart", f"--vary={RATES}", "--halving"], "schedule=cosine depends"),
        (["gpt/quickstart", f"--vary={RATES}", "--only=9"], "there are the runs 0 to 8"),
        (["gpt/quickstart", f"--vary={RATES}", "--budget=1"], "less than one update"),
    ],
)
def test_mistakes_get_one_line(words, message, tmp_path):
    result = programs.call("sweep", *words, f"--workdir={tmp_path / 'x'}")
    assert result.returncode == 2 and message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not (tmp_path / "x").exists()
