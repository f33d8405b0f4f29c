"""Comparisons: arms, equal compute, what pairs share, verdicts, and continuation after a stop."""

import json
import subprocess
import xml.etree.ElementTree

import jax
import numpy as np
import pytest

from tests import programs
from tests.conftest import build_config, build_gpt
from tests.finetuning import examples
from transformer_jax import compare, losses, make_step, open_run
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
    assert names(parse(["gpt/quickstart", "bert/quickstart"], [])) == [
        "gpt-quickstart",
        "bert-quickstart",
    ]
    # A seed of an arm's own is added to that of the pair, so that no pair has equal ones.
    _, other = parse(["gpt.py"], ["other:data.seed=1000,train.dropout_seed=7"])
    assert other.overrides(3) == [
        ("train.seed", 3),
        ("data.seed", 1003),
        ("train.dropout_seed", 10),
    ]
    with pytest.raises(UserError, match="config.data.seed='x' is not a whole number"):
        Arm("a", "gpt.py", (("data.seed", "x"),)).overrides(0)


@pytest.mark.parametrize(
    "files, changes, message",
    [
        (["a.py"], [], "give at least two configs, or one and --arm"),
        ([], ["b:x=1"], "changes one config, but there are 0"),
        (["a.py", "b.py"], ["c:x=1"], "changes one config, but there are 2"),
        (["one/a.py", "one/a.py"], [], "two arms are called one-a"),
        (["a.py"], ["a:x=1"], "two arms are called a"),
        (["a.py"], ["x=1"], "--arm=x=1: must be NAME:KEY=VALUE"),
        (["a.py"], ["b:x"], "'x' is not KEY=VALUE"),
        (["a.py"], ["../b:x=1"], "arm '../b': a name has letters, digits and"),
        (["a.py"], ["..:x=1"], "arm '..': a name has"),
        (["a.py:b/../../c", "b.py"], [], "a name has letters"),
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
    # An arm that is not among those of a call stays recorded.
    first_two = {name: named[name] for name in ("base", "same")}
    compare(first_two, folder / "runs", pairs=1, scores=scores)
    with pytest.raises(UserError, match="holds another comparison .wide."):
        compare(named | {"wide": named["base"]}, folder / "runs", pairs=2)
    with pytest.raises(UserError, match="holds another comparison .--budget=same-updates"):
        compare(named, folder / "runs", pairs=2, budget="1e9")
    with pytest.raises(UserError, match="holds a single run"):
        compare(named, folder / "runs" / "base" / "seed-0")
    compare(named, folder / "runs", pairs=2, scores=scores)  # the pictures of both pairs again


@pytest.fixture(scope="module")
def together(compared, tmp_path_factory):
    """Returns a comparison of two rates, whose runs train as one program, and its folder."""
    _, named, _ = compared
    folder = tmp_path_factory.mktemp("together")
    asked = Comparison(
        (Arm("base", named["base"], updates=4), Arm("fast", named["base"], FASTER, updates=4)),
        folder,
        Question(("valid/loss",), pairs=2),
        together=True,
    )
    return folder, asked.run()


FASTER = (("optimizer.learning_rate", 0.02),)


def test_pairs_that_train_together_have_the_scores_of_those_that_do_not(compared, together):
    """The four runs are one program, since the arms differ in their learning rates alone."""
    (_, _, alone), (folder, result) = compared, together
    values = result["scores"]["valid/loss"]["base"], alone["scores"]["valid/loss"]["base"]
    assert values[0]["mean"] == pytest.approx(values[1]["mean"], rel=1e-5)
    runs = {(folder / arm / f"seed-{seed}") for arm in ("base", "fast") for seed in range(2)}
    assert all(json.loads((run / "together.json").read_text()) for run in runs)
    assert len(json.loads((folder / "fast/seed-1/together.json").read_text())) == 4
    task, _ = open_run(folder / "fast" / "seed-1")
    assert (task.config.optimizer.learning_rate, task.config.data.seed) == (0.02, 1)


def test_together_goes_on_with_the_runs_that_are_missing(compared, together, monkeypatch):
    folder, result = together
    calls = []
    monkeypatch.setattr(comparison, "train_together", lambda *call, **_: calls.append(call))
    question = Question(("valid/loss",), pairs=2)
    _, named, _ = compared
    base = named["base"]
    arms = Arm("base", base, updates=4), Arm("fast", base, FASTER, updates=4)
    Comparison(arms, folder, question, together=True).train_together(range(2))
    assert not calls
    Comparison(arms, folder, question, together=True).train_together(range(3))
    ((_, members),) = calls
    assert [member.workdir.name for member in members] == ["seed-2", "seed-2"]


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
    assert f"about {row['more_pairs']:,} more pair" in "\n".join(comparison.lines(result))
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


def test_a_run_that_ended_before_its_last_evaluation_is_not_complete(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    progress = {"step": 4, "train/loss": 1.0, "seconds/step": 2.0}
    lines = [{"step": 2, "valid/loss": 3.0}, progress]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert arms.final_scores(folder, 4) == {}
    lines.append({"step": 4, "valid/loss": None, "valid/accuracy": 0.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert arms.final_scores(folder, 4) == {"valid/loss": None, "valid/accuracy": 0.5}


def test_a_complete_run_of_another_config_is_not_taken_for_the_arm(compared):
    folder, named, _ = compared
    workdir = folder / "runs" / "wide" / "seed-1"
    comparison.check_same(workdir, Arm("wide", named["wide"], updates=4), 1)
    with pytest.raises(UserError, match="was trained with another config .model.d_model: 48 -> 32"):
        comparison.check_same(workdir, Arm("wide", named["base"], updates=4), 1)
    with pytest.raises(UserError, match="another config .data.seed: 1 -> 0"):
        comparison.check_same(workdir, Arm("wide", named["wide"], updates=4), 0)


@pytest.mark.parametrize(
    "score, lower",
    [
        ("valid/loss", True),
        ("valid/bits_per_byte", True),
        ("valid/kl", True),
        ("test/rmse", True),
        ("valid/answer_accuracy", False),
        ("valid/power", False),
        ("valid/bleu", False),
    ],
)
def test_the_direction_of_a_score_is_in_its_words(score, lower):
    assert Question((score,)).lower_is_better(score) == lower
    assert Question((score,), better="higher").lower_is_better(score) is False


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
        (["--only=1", "--together"], "--together: trains all runs at once, and --only=1 one"),
        (["--until=decided", "--together"], "--together: trains all pairs at once, and --until"),
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
    # Of the trainings and of the texts: wider than either alone, and Student's.
    by_run = [float(b.mean() - a.mean()) for a, b in zip(first, second)]
    over_runs = np.std(by_run) / np.sqrt(6)
    over_texts = np.std(np.mean(second, axis=0) - np.mean(first, axis=0)) / np.sqrt(400)
    quantile = 2 * 2.571 * (6 / 5) ** 0.5  # of five degrees of freedom
    assert (high - low) / quantile == pytest.approx(np.hypot(over_runs, over_texts), rel=0.25)
    same = predictions.comparison_over_seeds(share, first, first)["accuracy"]
    assert same == {"difference": 0.0, "interval": (0.0, 0.0), "p_value": 1.0}
    (one,) = predictions.comparison_over_seeds(share, first[:1], second[:1]).values()
    alone = predictions.comparison(share, second[0], first[0])["accuracy"]
    assert one["interval"] == pytest.approx(alone["interval"], abs=0.02)


@pytest.mark.parametrize("pairs", [2, 3, 5])
def test_few_pairs_do_not_make_a_difference_of_noise(pairs):
    """The percentiles of the same bootstrap would be wrong in 49, 26 and 16 % of experiments."""
    random = np.random.default_rng(0)
    share = predictions.Share("accuracy")

    def experiment():
        rates = 0.5 + 0.1 * random.normal(size=(2, pairs))
        runs = (random.random((2, pairs, 100, 1)) < rates[..., None, None]).astype(float)
        return predictions.comparison_over_seeds(share, *runs)["accuracy"]["p_value"]

    assert np.mean([experiment() < 0.05 for _ in range(60)]) <= 0.12


@pytest.mark.full
def test_translations_are_compared_text_by_text(tmp_path):
    base = build_config(tmp_path, **SHORT)
    result = compare({"base": base, "same": base}, tmp_path / "runs", pairs=1, texts="valid")
    rows = {row["score"]: row for row in result["by_text"]}
    assert rows["valid/bleu"]["difference"] == 0 and rows["valid/bleu"]["p_value"] == 1
    assert rows["valid/bleu"]["texts"] == 15
    assert "valid/bleu over 15 texts of one pair alone" in "\n".join(comparison.lines(result))


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


@pytest.mark.full
@pytest.mark.parametrize("config", ["gpt/quickstart", "wmt/quickstart", "bert/quickstart"])
def test_a_config_equals_itself_in_separate_processes_without_a_cache(config, tmp_path):
    words = [config, "--arm=again:", "--pairs=1", f"--workdir={tmp_path / 'runs'}"]
    words += ["--config.train.num_steps=2", "--config.train.eval_every=2"]
    words += [f"--config.data.cache={tmp_path / 'cache'}"]
    for number in range(2):
        own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / f"programs-{number}")}
        command = programs.command("compare", *words, f"--only={number}")
        subprocess.run(command, env=programs.ENV | own, check=True, capture_output=True)
    done = subprocess.run(programs.command("compare", *words), check=True, stdout=subprocess.PIPE)
    result = json.loads(done.stdout)
    (row,) = result["differences"]
    assert row["mean"] == 0 and result["shared"][0]["because"] == []
    paths = [tmp_path / "runs" / name / "seed-0" for name in ("quickstart", "again")]
    kept = [[*open_run(path, "latest")][1] for path in paths]
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, *kept)))


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory):
    """Returns the folder, the arms and the result of fine-tuning runs that are compared."""
    folder = tmp_path_factory.mktemp("fine_tuned")
    origin = examples.pretrained(folder, "bert")
    keys = dict(train__num_steps=2, train__log_every=1, train__eval_every=2, checkpoint__every=2)
    base = examples.build(folder, "classification", origin, **keys)
    changed = (("optimizer.learning_rate", 1e-2),)
    named = {"base": base, "fast": base}
    result = compare(named, folder / "runs", pairs=1, texts="valid")
    return folder, named, changed, result


@pytest.mark.full
def test_fine_tuning_is_compared_and_goes_on(fine_tuned):
    """The record of a run names its labels, which the arm's own config does not."""
    folder, named, changed, result = fine_tuned
    assert compare(named, folder / "runs", pairs=1, texts="valid") == result
    assert [row["score"] for row in result["by_text"]] == ["valid/accuracy"]
    workdir = folder / "runs" / "fast" / "seed-0"
    with pytest.raises(UserError, match="was trained with another config .optimizer.learning_rate"):
        comparison.check_same(workdir, Arm("fast", named["fast"], changed, updates=2), 0)
