"""Comparisons: arms, equal compute, what pairs share, verdicts, and continuation after a stop."""

import json
import xml.etree.ElementTree

import jax
import numpy as np
import pytest

from tests import programs
from tests.conftest import build_config, build_gpt
from transformer_jax import compare, losses, make_step
from transformer_jax.config import UserError
from transformer_jax.laboratory import arms, comparison
from transformer_jax.laboratory.arms import Arm, parse, with_budget
from transformer_jax.laboratory.comparison import Comparison, Question
from transformer_jax.planning import estimate
from transformer_jax.planning.budgets import flops_of, updates_for
from transformer_jax.runs.spec import make_task
from transformer_jax.scores import predictions


def names(found):
    return [arm.name for arm in found]


def test_arms_are_files_or_one_file_with_changes():
    both = parse(["a/gpt.py:tiny", "bert.py"], [], [("train.batch", "4")])
    assert names(both) == ["gpt-tiny", "bert"] and both[0].changes == (("train.batch", "4"),)
    text = "wide:model.d_model=64,task.phases=((0.5,16,3),(0.5,32,5)),config.model.dropout=0"
    first, wide, again = parse(["gpt.py"], [text, "again:"])
    assert (first.name, wide.name, again.changes) == ("gpt", "wide", ())
    assert wide.changes == (
        ("model.d_model", "64"),
        ("task.phases", "((0.5,16,3),(0.5,32,5))"),
        ("model.dropout", "0"),
    )
    assert wide.overrides(3)[-2:] == [("train.seed", 3), ("data.seed", 3)]


@pytest.mark.parametrize(
    "files, changes, message",
    [
        (["a.py"], [], "give at least two configs, or one and --arm"),
        ([], ["b:x=1"], "changes one config, but there are 0"),
        (["a.py", "b.py"], ["c:x=1"], "changes one config, but there are 2"),
        (["a.py", "other/a.py"], [], "two arms are called a"),
        (["a.py"], ["x=1"], "--arm=x=1: must be NAME:KEY=VALUE"),
        (["a.py"], ["b:x"], "'x' is not KEY=VALUE"),
        (["a.py"], ["../b:x=1"], "must be NAME:KEY=VALUE"),
    ],
)
def test_what_names_no_arms_is_refused(files, changes, message):
    with pytest.raises(UserError, match=message):
        parse(files, changes)


def test_budgets():
    assert flops_of("60TFLOP") == 6e13 == flops_of("6e13") == flops_of("60 tflops")
    assert flops_of("1.5P") == 1.5e15 and flops_of("3GFLOP") == 3e9
    for wrong in ("much", "60XFLOP", "-1", "0", "nan", ""):
        with pytest.raises(UserError, match="--budget="):
            flops_of(wrong)


def test_equal_compute_gives_each_arm_its_updates(tmp_path):
    base = build_gpt(tmp_path)
    found = [Arm("narrow", base), Arm("wide", base, (("model.d_model", 64),))]

    def total(updates):
        return estimate.training(make_task(build_gpt(tmp_path, train__num_steps=updates)))[0]

    budget = total(37) * 1.01
    narrow, wide = with_budget(found, f"{budget}")
    assert narrow.updates == 37 and wide.updates < 37
    assert arms.cost(wide) <= budget < arms.cost(wide) * (wide.updates + 1) / wide.updates
    assert updates_for(base, total(1)) == 1
    with pytest.raises(UserError, match=r"--budget=1 \(narrow\): 1 FLOPs are less than one update"):
        with_budget(found, "1")
    with pytest.raises(UserError, match="different numbers of updates: narrow 60, longer 70"):
        longer = Arm("longer", base, (("train.num_steps", 70),))
        with_budget([found[0], longer], "same-updates")
    with pytest.raises(UserError, match="train.patience=3: the runs of a comparison must not end"):
        with_budget([found[0], Arm("b", base, (("train.patience", 3),))], "same-updates")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Returns the folder and the result of a comparison of three arms, two of which are equal."""
    folder = tmp_path_factory.mktemp("compared")
    base = build_gpt(folder / "text", train__num_steps=4, train__eval_every=2, checkpoint__every=2)
    other = build_gpt(folder / "text", **(dict(model__d_model=48) | SHORT))
    named = {"base": build_gpt(folder / "text", **SHORT), "same": base, "wide": other}
    scores = ("valid/loss", "valid/accuracy")
    return folder, named, compare(named, folder / "runs", pairs=2, scores=scores)


SHORT = dict(train__num_steps=4, train__eval_every=2, checkpoint__every=2)


def test_equal_arms_are_identical_in_every_pair(compared):
    _, _, result = compared
    rows = {(row["arm"], row["score"]): row for row in result["differences"]}
    for score in ("valid/loss", "valid/accuracy"):
        row = rows["same", score]
        assert row["verdict"] == "identical in every pair" and row["mean"] == row["deviation"] == 0
    assert rows["wide", "valid/loss"]["mean"] != 0
    assert rows["wide", "valid/loss"]["lower_is_better"]
    assert not rows["wide", "valid/accuracy"]["lower_is_better"]


def test_what_is_shared_is_named_with_the_reason(compared):
    _, _, result = compared
    same, wide = result["shared"]
    assert same["rows"] == wide["rows"] == ["tokens", "labels", "weights"]
    assert same["parameters"] == same["all_parameters"] and not same["because"]
    assert "initial values of 100.0% of same's parameters; their configs are equal" in same["line"]
    # Of another width, only the biases and scales that all begin as 0 or 1 could be equal.
    assert wide["parameters"] == 0 and wide["because"] == ["model.d_model"]
    assert wide["line"].endswith("no initial values; they differ in model.d_model")


def test_the_runs_are_ordinary_ones_with_the_seeds_of_their_pair(compared):
    folder, _, result = compared
    for seed in (0, 1):
        kept = json.loads((folder / "runs" / "base" / f"seed-{seed}" / "config.json").read_text())
        assert kept["config"]["train"]["seed"] == kept["config"]["data"]["seed"] == seed
    values = result["scores"]["valid/loss"]["base"]["values"]
    assert values[0] != values[1]


def test_the_same_call_goes_on_and_more_pairs_may_follow(compared, monkeypatch):
    folder, named, result = compared
    trained = []
    train = comparison.train
    monkeypatch.setattr(
        comparison,
        "train",
        lambda config, workdir, **options: (
            trained.append(workdir),
            train(config, workdir, **options),
        ),
    )
    scores = ("valid/loss", "valid/accuracy")
    assert compare(named, folder / "runs", pairs=2, scores=scores) == result and not trained
    fewer = compare(named, folder / "runs", pairs=1, scores=scores)
    assert not trained and fewer["differences"][-1]["low"] is None
    with pytest.raises(UserError, match="holds another comparison .wide."):
        compare(named | {"wide": named["base"]}, folder / "runs", pairs=2)
    with pytest.raises(UserError, match="holds another comparison .--budget=same-updates"):
        compare(named, folder / "runs", pairs=2, budget="1e9")
    with pytest.raises(UserError, match="holds a single run"):
        compare(named, folder / "runs" / "base" / "seed-0")
    compare(named, folder / "runs", pairs=2, scores=scores)  # the pictures of both pairs again


def test_pictures_are_what_their_names_say(compared):
    folder, _, result = compared
    png, svg = result["pictures"]
    assert (folder / "runs" / "comparison.png").read_bytes().startswith(b"\x89PNG") and png
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg")


def asked(folder, pairs, names=("a", "b"), **question):
    question = Question(("valid/loss",), pairs=pairs, **question)
    return Comparison(tuple(Arm(name, name, updates=10) for name in names), folder, question)


def test_a_comparison_stops_once_it_is_decided(fake, tmp_path):
    trained = fake(lambda arm, seed: {"valid/loss": 1 + 0.01 * seed**2 + 0.5 * (arm == "b") * seed})
    result = asked(tmp_path / "x", 40, until_decided=True).run()
    assert 4 < result["pairs"] < 40 and len(trained) == 2 * result["pairs"]
    assert [row["verdict"] for row in result["differences"]] == ["worse"]
    text = "\n".join(comparison.lines(result))
    assert "b - a: +" in text and ": worse" in text and "would have been found" not in text


def test_equal_and_undecided_arms_end_with_their_verdicts(fake, tmp_path):
    fake(lambda arm, seed: {"valid/loss": 1 + 0.1 * (-1) ** (seed * (arm == "b"))})
    result = asked(tmp_path / "x", 6).run()
    (row,) = result["differences"]
    assert row["verdict"] == "undecided" and row["more_pairs"] > 1
    assert f"about {row['more_pairs']:,} more pairs" in "\n".join(comparison.lines(result))
    result = asked(tmp_path / "x", 6, margin="30%").run()
    assert result["differences"][0]["verdict"] == "no difference that matters"
    assert result["differences"][0]["margin"] == pytest.approx(0.3 * 1.1)


def test_a_stop_in_the_middle_changes_nothing(fake, tmp_path):
    def value(arm, seed):
        return {"valid/loss": 1 + 0.1 * seed + 0.2 * (arm == "b")}

    whole = {}
    for stop in (None, ("b", 0), ("a", 2)):
        trained = fake(value)
        folder = tmp_path / str(stop)
        if stop:

            def killed(arm, seed, stop=stop):
                if (arm, seed) == stop:
                    raise KeyboardInterrupt
                return value(arm, seed)

            fake(killed)
            with pytest.raises(KeyboardInterrupt):
                asked(folder, 3).run()
        trained = fake(value)
        trained.clear()
        result = asked(folder, 3).run()
        whole[stop] = {name: result[name] for name in ("scores", "differences")}
        assert len(trained) == {None: 6, ("b", 0): 5, ("a", 2): 2}[stop]
    assert whole[None] == whole["b", 0] == whole["a", 2]


def test_a_plan_reads_the_finished_pairs(fake, tmp_path):
    fake(lambda arm, seed: {"valid/loss": 1 + 0.1 * (seed % 3) * (arm == "b")})
    question = asked(tmp_path / "x", 4)
    with pytest.raises(UserError, match="a plan needs at least two complete pairs; there is none"):
        question.plan(0.05)
    question.run()
    plan = question.plan(0.05)
    assert plan["pairs"] == 4 and plan["plan"][0]["pairs_needed"] > 4
    assert question.plan(10.0)["plan"][0]["pairs_needed"] == 2


def test_a_score_that_no_arm_logs_is_named_at_the_first_evaluation(fake, tmp_path):
    trained = fake(lambda arm, seed: {"valid/loss": 1.0})
    wrong = Comparison(
        (Arm("a", "a", updates=2), Arm("b", "b", updates=2)), tmp_path / "x", Question(("bleu",))
    )
    with pytest.raises(UserError, match="--score=bleu: a has no such score; it has valid/loss"):
        wrong.run()
    assert not trained


@pytest.mark.parametrize(
    "options, message",
    [
        (["--pairs=0"], "pairs"),
        (["--margin=much"], "--margin=much: must be a number from 0, or a share such as 1%"),
        (["--score="], "--score is empty"),
        (["--budget=1FLOP"], "1 FLOPs are less than one update"),
        (["--config.model.num_heads=7"], "does not divide"),
        (["--only=99"], "--only=99: there are the runs 0 to 15"),
        (["--arm=c:model.d_modle=3"], "did you mean"),
    ],
)
def test_mistakes_get_one_line(options, message, tmp_path, capsys):
    words = ["gpt/quickstart", "--arm=b:model.dropout=0.1", f"--workdir={tmp_path / 'x'}"]
    result = programs.call("compare", *words, *options)
    assert result.returncode == 2 and message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not (tmp_path / "x").exists()


def test_a_config_that_does_not_exist_is_named(tmp_path):
    result = programs.call("compare", "nowhere.py", "gpt/quickstart", f"--workdir={tmp_path / 'x'}")
    assert result.returncode == 2 and "nowhere.py" in result.stderr


def test_a_job_of_an_array_takes_its_number_from_slurm(fake, tmp_path, monkeypatch):
    monkeypatch.setitem(programs.ENV, "SLURM_ARRAY_TASK_ID", "99")
    words = ["gpt/quickstart", "--arm=b:model.dropout=0.1", f"--workdir={tmp_path / 'x'}"]
    result = programs.call("compare", *words, "--pairs=3")
    assert result.returncode == 2 and "--only=99: there are the runs 0 to 5" in result.stderr
    trained = fake(lambda arm, seed: {"valid/loss": 1.0})
    question = asked(tmp_path / "x", 3)
    question.train(*[*question.runs()][5])
    assert trained == [("b", 2)]


def test_a_budget_decides_the_length_of_a_training(tmp_path):
    words = ["--config=gpt/quickstart", f"--workdir={tmp_path / 'x'}", "--budget=1MFLOP"]
    result = programs.call("train", *words)
    assert result.returncode == 2
    assert "--budget=1MFLOP: 1e+06 FLOPs are less than one update" in result.stderr
    assert not (tmp_path / "x").exists()


def test_texts_and_pairs_are_drawn_together():
    random = np.random.default_rng(0)
    share = predictions.Share("accuracy")

    def runs(rate, pairs=6, texts=400):
        skill = rate + 0.05 * random.normal(size=pairs)
        return [(random.random((texts, 1)) < each).astype(float) for each in skill]

    first, second = runs(0.5), runs(0.7)
    found = predictions.comparison_over_seeds(share, first, second)["accuracy"]
    assert found["difference"] == pytest.approx(np.mean(second) - np.mean(first))
    low, high = found["interval"]
    assert low > 0.05 and found["p_value"] < 0.01
    # Of the trainings and of the texts: wider than either alone.
    by_run = [float(b.mean() - a.mean()) for a, b in zip(first, second)]
    over_runs = np.std(by_run) / np.sqrt(6)
    over_texts = np.std(np.mean(second, axis=0) - np.mean(first, axis=0)) / np.sqrt(400)
    assert (high - low) / 3.92 == pytest.approx(np.hypot(over_runs, over_texts), rel=0.25)
    same = predictions.comparison_over_seeds(share, first, first)["accuracy"]
    assert same == {"difference": 0.0, "interval": (0.0, 0.0), "p_value": 1.0}


def test_translations_are_compared_text_by_text(tmp_path):
    base = build_config(tmp_path, **SHORT)
    result = compare({"base": base, "same": base}, tmp_path / "runs", pairs=1, texts="valid")
    rows = {row["score"]: row for row in result["by_text"]}
    assert rows["valid/bleu"]["difference"] == 0 and rows["valid/bleu"]["p_value"] == 1
    assert rows["valid/bleu"]["texts"] == 15
    assert "valid/bleu over 15 texts and 1 pairs" in "\n".join(comparison.lines(result))


def test_a_run_without_scores_of_texts_is_named(compared):
    folder, named, _ = compared
    with pytest.raises(
        UserError, match="--texts=valid: base is a causal_lm run, without scores of"
    ):
        compare(named, folder / "runs", pairs=1, texts="valid")


def test_the_seeds_of_data_parameters_and_dropout_are_separate(tmp_path):
    """Each changes its own random numbers alone; without its own seed, dropout has the run's."""

    def start(**keys):
        state, step, batch_of = make_step(build_gpt(tmp_path, **SHORT, **keys))
        batch = batch_of(0)
        params, tokens = jax.device_get((state.params, batch["tokens"]))
        metrics = jax.device_get(step(state, batch).metrics)
        return params, tokens, losses.mean_metrics(metrics)["loss"]

    def equal(first, second):
        return all(jax.tree.leaves(jax.tree.map(np.array_equal, first, second)))

    params, tokens, loss = start()
    same = start(train__dropout_seed=0)
    assert equal(params, same[0]) and equal(tokens, same[1]) and loss == same[2]
    other = start(train__dropout_seed=1)
    assert equal(params, other[0]) and equal(tokens, other[1]) and loss != other[2]
    other = start(train__seed=1, train__dropout_seed=0)
    assert not equal(params, other[0]) and equal(tokens, other[1])
    other = start(data__seed=1)
    assert equal(params, other[0]) and not equal(tokens, other[1])
