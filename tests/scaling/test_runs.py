"""The commands of a scaling experiment in a user's order, and the errors of each."""

import json

import numpy as np
import pytest

from tests.conftest import build_gpt
from tests.programs import call, here
from tests.scaling.test_laws import TRUE
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.planning import estimate
from transformer_jax.runs.spec import make_task
from transformer_jax.scaling import fits, runs
from transformer_jax.scaling.family import HELD_OUT, Family
from transformer_jax.training.checkpoint import FORMAT

FILE = """
from transformer_jax import config as configs
from transformer_jax.scaling.family import Family

def base():
    config = configs.experiment(model=dict(name="gpt"), task=dict(name="causal_lm"))
    for key, value in {keys!r}.items():
        configs.set_key(config, key, value)
    return config

def size(d_model):
    return {{"model.d_model": d_model}}

FAMILY = Family(
    base,
    {{f"d{{width}}": size(width) for width in (8, 16, 32)}},
    tokens=(64e3, 128e3, 256e3),
    held_out=(size(64), 512e3),
)

def get_config(name=FAMILY.names[0]):
    return FAMILY.config(name)
"""


@pytest.fixture
def file(tmp_path):
    """The file of a family that trains on a tiny text."""
    config = build_gpt(tmp_path / "text", model__dropout=0.0, model__attention_dropout=0.0)
    keys = {
        key: value
        for key, value in configs.flat(config).items()
        if key not in ("model.name", "task.name")
    }
    (tmp_path / "family.py").write_text(FILE.format(keys=keys))
    return tmp_path / "family.py"


def measured_by_law(file, folder, names):
    """Writes workdirs of finished runs with the losses of the law."""
    for name in names:
        config = configs.load(f"{file}:{name}")
        task = make_task(config)
        flops, tokens = estimate.training(task)
        params = task.parameter_counts()["params"]
        steps = config.train.num_steps
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(
            json.dumps(
                {
                    "checkpoint_format": FORMAT,
                    "config": config.to_dict(),
                    "fingerprint": {"train": ["text"], "tokenizer": None},
                }
            )
        )
        shares = np.arange(1, 26) / 25
        lines = [
            {
                "step": round(steps * share),
                "train/loss": float(TRUE(params, tokens * share)),
                "train/tokens_total": tokens * share,
                "train/flops_total": flops * share,
            }
            for share in shares
        ]
        lines.append({"step": steps, "valid/loss": float(TRUE(params, tokens))})
        (folder / name / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )


def test_a_family_is_ordinary_configs(file):
    family = configs.load_module(file).FAMILY
    assert len(family.names) == 9 and family.names[:4] == [
        "d8-6.4e4",
        "d16-6.4e4",
        "d32-6.4e4",
        "d8-1.28e5",
    ]
    config = configs.load(f"{file}:d16-1.28e5")
    task = make_task(config)
    assert config.model.d_model == 16 and estimate.training(task)[1] == pytest.approx(
        128e3, rel=0.01
    )
    steps = config.train.num_steps
    assert (
        config.train.eval_every,
        config.train.log_every,
        config.optimizer.warmup_steps,
        config.optimizer.decay_steps,
    ) == (steps, steps // 25, round(0.1 * steps), None)
    with pytest.raises(UserError, match="did you mean d16-1.28e5"):
        family.config("d16-1.2e5")


def test_budgets_with_equal_names_are_refused():
    family = Family(base=None, sizes={"a": {}}, tokens=(1.231e5, 1.234e5))
    with pytest.raises(UserError, match="the same in three digits"):
        assert family.names


def test_equal_compute_is_equal_by_the_formula(file):
    family = configs.load_module(file).FAMILY
    equal = Family(family.base, family.sizes, flops=(5e9,))
    spent = [estimate.training(make_task(equal.config(name)))[0] for name in equal.names]
    assert (
        spent == pytest.approx([5e9] * 3, rel=0.02)
        and len({equal.config(name).train.num_steps for name in equal.names}) == 3
    )
    with pytest.raises(UserError, match="fewer than 50"):
        Family(family.base, family.sizes, flops=(5e6,)).config("d8-5e6")
    with pytest.raises(UserError, match="either flops"):
        Family(family.base, family.sizes, held_out=family.held_out).config(HELD_OUT)


def test_runs_that_may_end_early_are_refused(file, tmp_path):
    config = configs.load(str(file), {"train.patience": 2})
    with pytest.raises(UserError, match=r"config.train.patience=2 \(d8\)"):
        runs.train({"d8": config}, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_runs_are_trained_once_and_measured(file, tmp_path, capsys):
    """The model is a file of the user's, which a measurement opens only where it is named."""
    model = tmp_path / "mine.py"
    model.write_text(
        "from transformer_jax.families import gpt\n\n\nclass Mine(gpt.GPT):\n    pass\n"
    )
    short = {
        "train.num_steps": "6",
        "train.log_every": "2",
        "train.eval_every": "6",
        "checkpoint.every": "3",
        "optimizer.warmup_steps": "1",
    }
    short["model.name"] = str(model)
    config = configs.load(f"{file}:d8-6.4e4", short.items())
    files = configs.named_files(config)
    assert runs.measured(tmp_path / "runs" / "one", files) is None
    runs.train({"one": config}, tmp_path / "runs")
    (run,) = runs.collect(tmp_path / "runs", files)
    with pytest.raises(UserError, match="a recorded file is not executed by itself"):
        runs.collect(tmp_path / "runs")
    task = make_task(config)
    assert (
        (run.flops, run.tokens) == estimate.training(task)
        and run.params == task.parameter_counts()["params"]
        and 0 < run.loss < 10
    )
    assert run.curve[:, 0] == pytest.approx(run.flops * np.array([1, 3, 5]) / 6)
    capsys.readouterr()
    runs.train({"one": config}, tmp_path / "runs")
    assert capsys.readouterr().err.strip() == "one: done"
    lines = (tmp_path / "runs" / "one" / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "runs" / "one" / "metrics.jsonl").write_text("\n".join(lines[:-1]))
    assert runs.measured(tmp_path / "runs" / "one", files) is None
    with pytest.raises(UserError, match="no finished run"):
        runs.collect(tmp_path / "runs", files)


def test_fit_predict_check(file, tmp_path):
    names = configs.load_module(file).FAMILY.names
    folder = tmp_path / "runs"
    measured_by_law(file, folder, names)
    done = here("scaling", "fit", f"--workdir={folder}")
    assert done.returncode == 0, done.stderr
    fitted = json.loads(done.stdout.splitlines()[-1])
    law = fitted["L(N, D)"]
    assert (
        (law["alpha"], law["beta"]) == pytest.approx((TRUE.alpha, TRUE.beta), rel=0.02)
        and law["r2"] > 0.999
        and fitted["runs"] == 9
    )
    assert fitted["L(D)"]["exponent"] < 0 and fitted["compute-optimal"]["parametric law"][
        "a"
    ] == pytest.approx(TRUE.params_exponent, rel=0.02)
    assert "iso-FLOP parabolas" in fitted["refused"] and "two are needed" in done.stderr
    assert all((folder / name).stat().st_size > 10_000 for name in ("laws.png", "optimum.png"))

    early = here("scaling", "run", f"--config={file}", f"--workdir={folder}", "--held_out")
    assert early.returncode == 2 and "nothing has been predicted" in early.stderr
    done = here("scaling", "predict", f"--config={file}", f"--workdir={folder}")
    assert done.returncode == 0, done.stderr
    written = json.loads((folder / "prediction.json").read_text())
    assert written == json.loads(done.stdout) and written["fitted_to"] == sorted(names)
    with pytest.raises(UserError, match="not finished"):
        fits.check(folder)

    measured_by_law(file, folder, [HELD_OUT])
    checked = fits.check(folder)
    assert (
        checked["relative_error"] == pytest.approx(0, abs=1e-3)
        and checked["params"] == written["params"]
    )
    assert len(runs.collect(folder)) == 9  # without the held-out run
    late = here("scaling", "predict", f"--config={file}", f"--workdir={folder}")
    assert (
        late.returncode == 2
        and "has been started already" in late.stderr
        and json.loads((folder / "prediction.json").read_text()) == written
    )


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "the first argument must be one of run, fit, predict, check"),
        (["fitt", "--workdir=x"], "not 'fitt'"),
        (["fit", "--workdir=nowhere"], "no such folder"),
        (["run", "--workdir=x"], "--config=... is missing"),
        (["run", "--workdir=x", "--config=configs/gpt/quickstart.py"], "describes no family"),
        (
            ["run", "--workdir=x", "--config=configs/scaling/cpu.py", "--only=18"],
            "the runs 0 to 17",
        ),
        (["predict", "--workdir=.", "--config=configs/scaling/cpu.py"], "no finished run"),
    ],
)
def test_a_mistake_costs_one_line(arguments, words):
    done = here("scaling", *arguments)
    assert (
        done.returncode == 2 and words in done.stderr and len(done.stderr.strip().splitlines()) == 1
    ), done.stderr


@pytest.mark.full
def test_a_job_array_takes_its_own_run(file, tmp_path):
    """Slurm gives the number of the run."""
    short = [
        f"--config.{key}"
        for key in (
            "train.num_steps=2",
            "train.log_every=1",
            "train.eval_every=2",
            "checkpoint.every=2",
            "optimizer.warmup_steps=1",
        )
    ]
    done = call(
        "scaling",
        "run",
        f"--config={file}",
        f"--workdir={tmp_path}/runs",
        *short,
        SLURM_ARRAY_TASK_ID="4",
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [
        "d16-1.28e5"
    ] and runs.measured(tmp_path / "runs" / "d16-1.28e5").loss > 0
