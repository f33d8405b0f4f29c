"""Models and tasks in files outside the package: they train, and no recorded path is executed."""

import hashlib
import json
import shutil

import pytest

import transformer_jax
from tests.conftest import build_gpt
from tests.few_devices import few_devices  # noqa: F401
from tests.finetuning import examples
from tests.programs import call, fork
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data import rows
from transformer_jax.runs import spec
from transformer_jax.runs.spec import resolve
from transformer_jax.runs.train import train

MODEL = '''
import flax.linen as nn
import pathlib
from transformer_jax.families.gpt import GPT

with (pathlib.Path({folder!r}) / "executed").open("a") as file:
    file.write("model ")


class Scale(nn.Module):
    """A helper class."""

    factor: float = 1.0

    def __call__(self, x):
        return self.factor * x


class ScaledGPT(GPT):
    """A GPT with scaled logits."""

    factor: float = 2.0  # of the logits

    def setup(self):
        super().setup()
        self.scale_logits = Scale(self.factor)

    def logits(self, hidden):
        return self.scale_logits(super().logits(hidden))
'''
TASK = '''
import dataclasses
import pathlib
from transformer_jax.tasks.causal_lm import CausalLM

with (pathlib.Path({folder!r}) / "executed").open("a") as file:
    file.write("task ")


@dataclasses.dataclass
class Weighted(CausalLM):
    """A language model whose head has an optimizer of its own."""

    factor: float = 0.5  # of the loss

    def __post_init__(self):
        super().__post_init__()
        self.coefficients = {{"loss": self.factor}}

    def group(self, path):
        return "table" if "embedding" in path else ""
'''
CONFIG = """
from transformer_jax.config import experiment


def get_config():
    return experiment(**{sections!r})
"""


def executed(folder):
    """Returns the files of a folder that were executed since the last call, in any process."""
    trace = folder / "executed"
    names = trace.read_text().split() if trace.exists() else []
    trace.unlink(missing_ok=True)
    return names


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns the folder of a model, a task and a config that names both."""
    folder = tmp_path_factory.mktemp("variants")
    (folder / "my_model.py").write_text(MODEL.format(folder=str(folder)))
    (folder / "my_task.py").write_text(TASK.format(folder=str(folder)))
    config = build_gpt(
        folder,
        train__num_steps=2,
        train__eval_every=2,
        checkpoint__every=1,
        model__d_model=16,
        model__num_layers=1,
    )
    sections = config.to_dict()
    sections["model"] |= {"name": f"{folder}/my_model.py", "factor": 1.5}
    sections["task"] |= {"name": f"{folder}/my_task.py"}
    sections["optimizer"]["groups"] = (("table", (("name", "sgd"),)),)
    sections = {name: keys for name, keys in sections.items() if keys is not None}
    (folder / "config.py").write_text(CONFIG.format(sections=sections))
    return folder


@pytest.fixture(scope="module")
def trained(files):
    scores = train(files / "config.py", files / "run")
    assert scores["valid/loss"] > 0
    assert set(executed(files)) == {"model", "task"}
    return files / "run"


def named(files):
    return [f"--config.model.name={files}/my_model.py", f"--config.task.name={files}/my_task.py"]


@pytest.mark.full
def test_a_model_and_a_task_of_a_folder_train_and_open(files, trained):
    content = json.loads((trained / "config.json").read_text())
    assert content["config"]["model"]["name"] == f"{files}/my_model.py"
    assert content["config"]["model"]["factor"] == 1.5
    digests = {
        name: hashlib.sha256((files / f"my_{name}.py").read_bytes()).hexdigest()
        for name in ("model", "task")
    }
    assert content["files"] == digests
    task, params = transformer_jax.open_run(
        trained, model_file=files / "my_model.py", task_file=files / "my_task.py"
    )
    assert type(task).__name__ == "Weighted" and type(task.model).__name__ == "ScaledGPT"
    assert task.model.factor == 1.5
    [one] = task.generate(params, ["the cat"], max_tokens=2)
    assert one.tokens > 0
    meaning = configs.meaning("model.factor", *configs.chosen(task.config))
    assert meaning == "of the logits"


@pytest.mark.full
def test_a_finished_run_opens_where_its_files_are_named(files, trained):
    done = fork("evaluate", f"--workdir={trained}", *named(files))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["perplexity"] > 0
    assert set(executed(files)) == {"model", "task"}


@pytest.mark.parametrize(
    "program, arguments",
    [
        ("generate", ["--workdir={run}", "--prompt=the"]),
        ("evaluate", ["--workdir={run}"]),
        ("draw", ["attention", "--workdir={run}", "--text=the cat"]),
        ("convert", ["--workdir={run}", "--to_hf={run}-hf"]),
        ("predict", ["--workdir={run}", "--text=a"]),
        ("train", ["--config={plain}", "--workdir={run}-2", "--config.init_from={run}"]),
        ("train", ["--config={plain}", "--workdir={run}"]),
    ],
    ids=["generate", "evaluate", "draw", "convert", "predict", "init_from", "resume"],
)
def test_a_recorded_path_is_not_executed(program, arguments, files, trained, tmp_path):
    """The variant lies in the workdir, beside it, in the current folder, and at its path."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    for folder in (run, tmp_path, tmp_path / "current"):
        folder.mkdir(exist_ok=True)
        for name in ("my_model.py", "my_task.py"):
            shutil.copy(files / name, folder)
    sections = build_gpt(tmp_path, model__d_model=16, model__num_layers=1).to_dict()
    (tmp_path / "plain.py").write_text(CONFIG.format(sections=sections))
    arguments = [argument.format(run=run, plain=tmp_path / "plain.py") for argument in arguments]
    executed(files)
    done = call(program, *arguments, current_folder=tmp_path / "current")
    assert done.returncode == 2, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    digest = json.loads((run / "config.json").read_text())["files"]["model"]
    assert f"{files}/my_model.py" in line and digest in line
    assert "--config.model.name=FILE" in line
    assert executed(files) == []


def test_a_file_of_another_content_is_refused(files, trained, tmp_path):
    other = tmp_path / "my_model.py"
    other.write_text((files / "my_model.py").read_text() + "\n# changed\n")
    executed(files)
    done = call("evaluate", f"--workdir={trained}", named(files)[1], f"--config.model.name={other}")
    assert done.returncode == 2 and f"{other} is another file (SHA-256 " in done.stderr
    with pytest.raises(UserError, match="is another file"):  # for a resumed run as well
        resolve(files / "config.py", trained, {"model.name": str(other)})
    assert executed(files).count("task") <= 1


def test_a_run_goes_on_and_begins_another_where_the_config_names_the_file(files, trained, tmp_path):
    moved = tmp_path / "moved.py"  # equal content at another path
    shutil.copy(files / "my_model.py", moved)
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    overrides = {"train.num_steps": 3, "model.name": str(moved)}
    assert train(files / "config.py", run, overrides=overrides)["valid/loss"] > 0
    assert spec.read(
        run,
        {
            "model": configs.named_file("model", moved),
            "task": configs.named_file("task", files / "my_task.py"),
        },
    ).config.model.name == str(moved)
    # The task of the earlier run is not needed, and its path stays unused.
    plain = build_gpt(tmp_path / "data", init_from=str(trained), model__d_model=16)
    resolved = resolve(plain, tmp_path / "new", {"model.name": str(moved)})
    assert resolved.origin and resolved.config.task.name == "causal_lm"
    assert resolved.config.model.name == str(moved)


def test_a_fine_tuning_begins_with_the_model_of_a_file(files, trained, tmp_path):
    sections = examples.build(tmp_path, "classification", trained).to_dict()
    sections["model"] = {"name": "bert"}
    (tmp_path / "tuned.py").write_text(CONFIG.format(sections=sections))
    model = {"model.name": str(files / "my_model.py")}
    run = resolve(tmp_path / "tuned.py", tmp_path / "tuned", model)
    assert run.config.model.factor == 1.5 and run.config.model.vocab_size == 303
    assert type(run.task().model).__name__ == "ScaledGPT"
    with pytest.raises(UserError, match="a recorded file is not executed by itself"):
        resolve(tmp_path / "tuned.py", tmp_path / "tuned")


def test_a_file_given_by_a_flag_decides_which_keys_exist(files, tmp_path):
    (tmp_path / "plain.py").write_text(
        CONFIG.format(
            sections=dict(model=dict(name="gpt", d_model=48), task=dict(name="causal_lm"))
        )
    )
    overrides = [("model.factor", "3"), ("model.name", str(files / "my_model.py"))]
    config = configs.load(tmp_path / "plain.py", overrides)
    assert (config.model.factor, config.model.d_model) == (3.0, 48)
    flags = [f"--config.{key}={value}" for key, value in overrides]
    done = call("train", f"--config={tmp_path}/plain.py", *flags, "--help_config")
    assert "model.factor=2 (a number): of the logits" in done.stdout, done.stderr
    plain = "tests/fixtures/format_1"
    with pytest.raises(UserError, match="is a run of config.model.name='.*'; leave it out"):
        transformer_jax.open_run(plain, model_file=files / "my_model.py")


KIND = "from transformer_jax.contracts.model import Causal\n"


@pytest.mark.parametrize(
    "section, text, words",
    [
        ("model", KIND + "class A(Causal):\n    pass\n", "class A is a model .* method 'flops'"),
        (
            "model",
            "import flax.linen as nn\nclass A(nn.Module):\n    pass\n",
            "class A must derive from one of Encoder, Causal",
        ),
        (
            "model",
            "from transformer_jax.families.gpt import GPT\n"
            "class A(GPT):\n    pass\nclass B(GPT):\n    pass\n",
            "exactly one public model class, not .'A', 'B'.",
        ),
        ("model", "x = 1\ny = 1 / 0\n", r"mine.py:2: ZeroDivisionError: division by zero"),
        ("model", "x = (\n", "mine.py:1: SyntaxError"),
        ("model", None, "mine.py: No such file"),
        (
            "task",
            "import dataclasses\nfrom transformer_jax.objectives.texts import BaseTask\n"
            "@dataclasses.dataclass\nclass A(BaseTask):\n    pass\n",
            "class A is a task and lacks the method 'batch_spec'",
        ),
        (
            "source",
            "import dataclasses\nfrom transformer_jax.contracts.source import Source\n"
            "@dataclasses.dataclass\nclass A(Source):\n    pass\n",
            "class A is a source and lacks the method 'fingerprint'",
        ),
    ],
)
def test_a_file_that_does_not_satisfy_its_kind_is_refused(tmp_path, section, text, words):
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    sections = {"model": {"name": "gpt"}, "task": {"name": "causal_lm"}}
    with pytest.raises(UserError, match=words) as error:
        configs.experiment(**sections | {section: {"name": str(tmp_path / "mine.py")}})
    assert "\n" not in str(error.value)


@pytest.mark.full
def test_reader_processes_execute_the_files_of_the_run(tmp_path):
    (tmp_path / "mine.py").write_text("def read(step, indices):\n    return {'step': step}\n")
    module = configs.file_module("task", configs.named_file("task", tmp_path / "mine.py"))
    with rows.started(module.read, 1) as started:
        assert list(started.batches(range(2), [0])) == [{"step": 0}, {"step": 1}]
