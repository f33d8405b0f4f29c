"""The package as it is installed: one command for all programs, and configs by their names."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.programs import call
from transformer_jax import __main__ as command
from transformer_jax import config as configs
from transformer_jax.config import UserError

ROOT = pathlib.Path(__file__).parent.parent


def test_all_programs_are_listed_with_their_purpose(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["transformer-jax"])
    command.main()
    listed = capsys.readouterr().out
    programs = command._programs()
    assert {"train", "train_wmt", "train_gpt", "train_bert", "generate", "scaling"} <= {*programs}
    assert not {"config", "losses", "hardware", "xla_guard", "__main__"} & {*programs}
    lines = {line.split()[0]: line for line in listed.splitlines() if line.startswith("  ")}
    assert all(len(lines[name].split()) > 1 and len(lines[name]) < 130 for name in programs)


def test_a_program_is_run_with_its_flags(monkeypatch, capsys):
    own = [sys.executable, "-m", "transformer_jax", "new"]
    names = subprocess.run(own, capture_output=True, text=True, check=True).stdout.split()
    assert names == [*configs.config_names()] and "gpt/quickstart" in names
    monkeypatch.setattr(sys, "argv", ["transformer-jax", "trian"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert capsys.readouterr().err == "error: no program trian; did you mean train?\n"


@pytest.mark.parametrize("name", ["gpt/quickstart", "bert/large", "realformer/base", "vit/mae"])
def test_a_config_is_found_by_its_name_anywhere(name, tmp_path, monkeypatch):
    expected = configs.read(ROOT / "configs" / f"{name}.py")
    monkeypatch.chdir(tmp_path)
    assert configs.read(name) == expected
    assert configs.read(f"configs/{name}.py") == expected
    # A file of the user has precedence.
    (tmp_path / f"{name}.py").parent.mkdir(parents=True)
    (tmp_path / f"{name}.py").write_text("def get_config():\n    return 1\n")
    with pytest.raises(UserError, match="returns int"):
        configs.read(f"{name}.py")


def test_an_argument_and_a_wrong_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert configs.read("gpt/gpt2:124m") == configs.read(ROOT / "configs/gpt/gpt2.py:124m")
    with pytest.raises(UserError, match="no such file gpt/quickstrat; did you mean gpt/quickstart"):
        configs.read("gpt/quickstrat")
    with pytest.raises(UserError, match=r"no such file \.\./setup"):
        configs.read("../setup")


def test_a_config_is_copied_to_begin_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("new", "mine.py", "--from=bert/large", current_folder=str(tmp_path))
    assert done.returncode == 0 and done.stdout == "mine.py: a copy of bert/large\n", done.stderr
    assert configs.read("mine.py") == configs.read("bert/large")
    for arguments, message in (
        (["mine.py", "--from=bert/large"], "mine.py: exists already"),
        (["other.py"], "--from=NAME is missing"),
        (["other.txt", "--from=bert/large"], "name one file"),
        (["other.py", "--from=bert/lrage"], "did you mean bert/large"),
        (["nowhere/other.py", "--from=bert/large"], "nowhere/other.py: can't be written"),
    ):
        done = call("new", *arguments, current_folder=str(tmp_path))
        assert done.returncode == 2 and message in done.stderr, done.stderr


@pytest.mark.full
def test_a_wheel_trains_in_an_empty_folder(tmp_path):
    """Its libraries are those of this environment."""
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    wheels, site, empty = (tmp_path / name for name in ("wheels", "site", "empty"))
    made = [*pip, "wheel", str(ROOT), "--no-deps", f"--wheel-dir={wheels}"]
    done = subprocess.run(made, capture_output=True, text=True)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("no setuptools to build with, and no network")
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.iterdir()
    subprocess.run([*pip, "install", "--no-deps", f"--target={site}", str(wheel)], check=True)
    empty.mkdir()
    keys = ("train.num_steps=2", "train.eval_every=2", "checkpoint.every=2", "model.d_model=48")
    done = subprocess.run(
        [
            *(sys.executable, str(site / "bin/transformer-jax"), "train"),
            *("--config=gpt/quickstart", "--workdir=run"),
            *(f"--config.{key}" for key in keys),
        ],
        capture_output=True,
        text=True,
        cwd=empty,
        env=os.environ | {"PYTHONPATH": str(site)},
    )
    assert done.returncode == 0, done.stderr
    assert (empty / "run/checkpoints/2").is_dir()
    assert (site / "transformer_jax/py.typed").exists()
