"""Every config resolves in its tiny variant, and its update lowers; with --full it trains.

tests/snapshots/configs.json holds the values of every config, and lowered.json the digests of the
StableHLO of each tiny variant's update. This writes both again: python -m tests.test_configs
"""

import collections
import functools
import hashlib
import json
import pathlib
import tempfile

import jax
import numpy as np
import pytest

from tests import examples
from tests.examples import CONFIGS
from tests.training import test_guests
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.runs import spec
from transformer_jax.runs.spec import resolve
from transformer_jax.training.step import Program, init_params
from transformer_jax.training.trainer import run

FILES = [str(path.relative_to(CONFIGS)) for path in sorted(CONFIGS.rglob("*.py"))]
# The arguments to test. The tiny variants of other arguments are the same.
ARGUMENTS = {
    "bart/functions.py": ["pretrain", "summarise"],
    "wmt/base.py": ["en-de", "en-fr"],
    "wmt/big.py": ["en-de", "en-fr"],
    "gpt/shakespeare_char.py": ["gpu", "cpu"],
    "gpt/gpt2.py": ["124m"],
    "gpt/gpt3.py": ["175b"],
    "gpt/imdb.py": ["cpu", "tiny"],
    "bart/multi30k.py": ["pretrain", "translate"],
    "bert/small.py": ["mini"],
    "bert/imdb.py": ["cpu", "gpu"],
    "decoder/llama2.py": ["7b"],
    "electra/electra.py": ["small"],
    "t5/t5.py": ["11b"],
    "t5/v1_1.py": ["xxl"],
    "transformer_xl/wikitext103.py": ["base", "large"],
    "unilm/functions.py": ["pretrain", "summarise"],
    "vit/vit.py": ["b16"],
    "vit/mae.py": ["l16", "digits"],
    "recurrent/multi30k.py": ["luong", "bahdanau", "hybrid"],
    "finetune/glue.py": ["cola", "mrpc", "mrpc,gpt", "stsb", "mnli"],
    "finetune/sentiment.py": ["imdb", "olid"],
    "finetune/squad.py": ["1.1", "2.0"],
    "finetune/inference.py": ["pretrain", "pairs"],
    "finetune/ner.py": ["conll2003", "wikiann-cpu,features=last"],
    "preferences/dpo.py": ["dialogue"],
    "preferences/grpo.py": ["math"],
    "preferences/ppo.py": ["instructgpt"],
    "preferences/reward.py": ["instructgpt"],
    "wav2vec2/base.py": ["pretrain", "ctc"],
    "wav2vec2/large.py": ["pretrain", "ctc"],
    "wav2vec2/quickstart.py": ["pretrain", "ctc", "scratch"],
}


CASES = [
    case
    for name in FILES
    for case in [f"{name}:{argument}" for argument in ARGUMENTS.get(name, [])] or [name]
]


def use_examples(config, folder):
    """Replaces the config's data by small files."""
    no_other_data = {"data.corpus": "", "data.mixture": (), "data.tfds_name": None}
    files = examples.write(config, folder / "examples")
    for key, value in (no_other_data | files | {"data.cache": str(folder / "cache")}).items():
        configs.set_key(config, key, value)


@functools.cache
def pretraining_config(model):
    """Returns the first config of its own that trains the model from scratch.

    That of a GPT is a chat model, whose tokenizer also has a form for conversations.
    """
    for name in FILES:
        if name == "babylm/pretrain.py":  # one file for models of every family
            continue
        config = configs.tiny(CONFIGS / name)
        if config.model.name == model and not spec.fine_tunes(config):
            return config
    raise ValueError(f"no config pre-trains the model {model}")


def pretrained(config, folder, values):
    """Returns the workdir of a run of a tiny config, at step 0, with parameters of `values`."""
    config = config.copy_and_resolve_references()
    use_examples(config, folder)
    task = resolve(config).task()
    workdir = folder / "run"
    workdir.mkdir()
    spec.create(workdir, task, values(task))
    return workdir


def other_run(config, key, folder, values):
    """Returns the workdir of a run that the task of a config names, at step 0."""
    model = dict(config.task[f"{key}_model"])["name"]
    run = pretrained(pretraining_config(model), folder, values)
    if key == "reward":
        rewards = configs.tiny(CONFIGS / "preferences/reward.py:imdb")
        configs.set_key(rewards, "init_from", str(run))
        run = pretrained(rewards, folder / key, values)
    return run


def resolved(case, folder, values):
    """Returns the run of a config, with example data and the runs it begins with, in `folder`."""
    config = configs.tiny(CONFIGS / case)
    use_examples(config, folder)
    task = configs.named_class("task", config.task.name)
    begins = spec.fine_tunes(config) or task.begins_with_run
    if begins or config.lora.rank is not None:
        earlier = pretraining_config(config.model.name) if begins else config
        earlier = earlier.copy_and_resolve_references()
        configs.set_key(earlier, "lora.rank", None)
        origin = pretrained(earlier, folder / "pretraining", values)
        configs.set_key(config, "init_from", str(origin))
    for key in task.other_runs:
        other = other_run(config, key, folder / key, values)
        configs.set_key(config, f"task.{key}", str(other))
    return resolve(config, folder / "run")


def zeros(task):
    """Returns parameters of zeros, which need no compiled program."""
    shapes = jax.eval_shape(lambda: init_params(task))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


SNAPSHOTS = CONFIGS.parent / "tests/snapshots"


def digest(run, num_devices):
    """Returns the digest of a lowered update, without the locations in the source."""
    program = Program.of(run.config, run.task(), jax.devices()[:num_devices])
    text = program.train_step.lower(program.state, program.batch).as_text()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Pairs of a model and a task: those that the suite trains, and later those traced here.
traced = {
    (test_guests.MODELS[family]["name"], task["name"])
    for family, (_, task) in test_guests.TASKS.items()
    if family not in test_guests.FULL
}


@pytest.mark.parametrize("case", CASES)
def test_the_update_lowers(case, tmp_path, request):
    """Keys, data, shapes and dtypes fit together. Nothing is compiled.

    Without --full, the update is only traced, and only where no other config of its model and task
    is, nor trained by tests/training/test_guests.py. The others only resolve. With it, the programs
    for one and two devices must be those of the snapshot. Another release of jax may have other
    words for them.
    """
    run = resolved(case, tmp_path, zeros)
    if request.config.getoption("--full"):
        digests = [digest(run, number) for number in (1, 2)]
        snapshot = json.loads((SNAPSHOTS / "lowered.json").read_text())
        expected = snapshot["updates"].get(case, digests)  # a config may be new
        assert digests == expected or snapshot["jax"] != jax.__version__
    elif (pair := (run.config.model.name, run.config.task.name)) not in traced:
        traced.add(pair)
        program = Program.of(run.config, run.task(), jax.devices()[:1])
        program.train_step.eval_shape(program.state, program.batch)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_two_steps(case, tmp_path):
    """On eight virtual devices."""
    resolution = resolved(case, tmp_path, init_params)
    config = resolution.config
    metrics = run(config, resolution.task(), resolution.workdir, origin=resolution.origin)
    # A policy has rewards instead of a loss, and a task may sum over many frames or pixels.
    assert 0 < metrics.get("valid/loss", 1) < 100
    assert config.checkpoint.best_metric in metrics


@pytest.mark.parametrize("name", FILES)
def test_every_config_has_a_tiny_variant(name):
    tiny = configs.tiny(CONFIGS / name)
    assert tiny.train.num_steps == 2 and tiny.train.batch == 8


TINY_FILE = """
from transformer_jax.config import experiment

def TINY(size="small"):
    return dict(model=dict(d_model={"small": 12, "large": 24}[size]))

def get_config(size="small"):
    return experiment(model=dict(name="gpt"), task=dict(name="causal_lm"))
"""


def test_tiny_may_be_a_function_of_the_argument(tmp_path):
    (tmp_path / "mine.py").write_text(TINY_FILE)
    assert configs.tiny(tmp_path / "mine.py").model.d_model == 12
    assert configs.tiny(f"{tmp_path}/mine.py:large").model.d_model == 24


def test_a_config_without_tiny_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(TINY_FILE.replace("TINY", "OTHER"))
    with pytest.raises(UserError, match=r"mine.py has no TINY: add TINY = dict\(model="):
        configs.tiny(tmp_path / "mine.py")


def values_of(case):
    """Returns the values of a config as its run records them, by key."""
    config = configs.load(CONFIGS / case)
    return json.loads(json.dumps(configs.flat(config)))


@functools.cache
def values_of_all():
    return json.loads((SNAPSHOTS / "configs.json").read_text())


@pytest.mark.parametrize("case", CASES)
def test_a_config_has_the_values_of_the_snapshot(case):
    snapshot = values_of_all()
    if case not in snapshot["configs"]:
        pytest.skip("new: `python -m tests.test_configs` adds it to the snapshot")
    assert values_of(case) == snapshot["most"] | snapshot["configs"][case]


LENGTHS = json.loads((CONFIGS.parent / "tests/snapshots/updates.json").read_text())


def test_all_configs_with_a_recorded_length_are_there():
    assert {case.partition(":")[0] for case in LENGTHS} <= set(FILES)


@pytest.mark.parametrize("case, expected", LENGTHS.items(), ids=LENGTHS)
def test_fractions_give_the_updates_of_the_full_length(case, expected):
    config = configs.load(CONFIGS / case)
    num_steps = config.train.num_steps
    decay_steps = config.optimizer.decay_steps
    eval_every, save_every = configs.intervals(config.train, config.checkpoint)
    assert expected == {
        "train.num_steps": num_steps,
        "optimizer.warmup_steps": configs.span(config.optimizer.warmup_steps, num_steps),
        "optimizer.decay_steps": decay_steps and configs.span(decay_steps, num_steps),
        "train.eval_every": eval_every,
        "checkpoint.every": save_every,
    }
    assert (
        not configs.saves_at_evaluations(config.train, config.checkpoint)
        or eval_every == save_every == num_steps
    )


def warnings(config):
    return configs.interval_warnings(config.train, config.checkpoint, config.optimizer)


def test_a_shortened_run_keeps_its_proportions():
    config = configs.load(CONFIGS / "bert/imdb.py:cpu", {"train.num_steps": 1500})
    assert configs.intervals(config.train, config.checkpoint) == (750, 750) and not warnings(config)
    assert configs.span(config.optimizer.warmup_steps, 1500) == 94


def test_a_shortened_run_with_whole_numbers_of_updates_is_warned_of():
    config = configs.load(CONFIGS / "bert/base.py", {"train.num_steps": 1500})
    intervals, warmup = warnings(config)
    assert intervals == (
        "warning: the run of 1500 updates is evaluated at its end alone "
        "(config.train.eval_every=10000) and is saved at its end and every 15 minutes "
        "(config.checkpoint.every=10000); "
        "--config.train.eval_every=0.1 --config.checkpoint.every=0.1 means every tenth of the run"
    )
    assert "config.optimizer.warmup_steps=10000" in warmup and "warmup_steps=0.1 means" in warmup
    configs.set_key(config, "checkpoint.minutes", "0")
    assert "saved at its end alone (" in warnings(config)[0]


@pytest.mark.parametrize("name", FILES)
def test_the_header_gives_the_command(name):
    assert "python -m transformer_jax." in configs.load_module(CONFIGS / name).__doc__


def write(name, content):
    (SNAPSHOTS / name).write_text(json.dumps(content, indent=0) + "\n")


def write_configs():
    """`most` has the commonest value of each key that all configs have, and `configs` the rest."""
    values = {case: values_of(case) for case in CASES}
    most = {}
    for key in set.intersection(*map(set, values.values())):
        counts = collections.Counter(json.dumps(each[key]) for each in values.values())
        most[key] = json.loads(max(sorted(counts), key=counts.get))
    rest = {
        case: {key: value for key, value in each.items() if key not in most or most[key] != value}
        for case, each in values.items()
    }
    write("configs.json", {"most": dict(sorted(most.items())), "configs": rest})


def write_lowered():
    updates = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            run = resolved(case, pathlib.Path(folder), zeros)
            updates[case] = [digest(run, number) for number in (1, 2)]
    write("lowered.json", {"jax": jax.__version__, "updates": updates})


if __name__ == "__main__":
    write_configs()
    write_lowered()
