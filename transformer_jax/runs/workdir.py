"""What a run leaves behind, and how it is opened again."""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.distributed import hosts
from transformer_jax.runs import lease
from transformer_jax.storage import buckets
from transformer_jax.training import footprint, loop, state
from transformer_jax.training.checkpoint import FORMAT, Checkpoints
from transformer_jax.training.origin import Origin
from transformer_jax.training.stop import Stop

LIBRARIES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "tensorstore",
    "sentencepiece",
    "numpy",
)


def make_task(config, workdir=None):
    """The task `config.task` describes; with the tokenizer of the run recorded in `workdir`, if
    there is one, else of the run `config.init_from`.
    """
    workdir = buckets.folder_of_run(workdir) if workdir else None
    tokenizer = None
    if workdir is not None and (workdir / "config.json").exists():
        tokenizer = workdir / "tokenizer"
    elif config.init_from:
        tokenizer = _begun_from(config) / "tokenizer"
    return configs.named_class("task", config.task.name)(
        config, tokenizer, **configs.options(config.task)
    )


def _begun_from(config) -> pathlib.Path | buckets.Path:
    """The workdir `config.init_from`. Raises UserError where it holds no run of the same family."""
    folder = buckets.folder_of_run(config.init_from)
    if not (folder / "config.json").is_file():
        raise UserError(f"config.init_from={config.init_from}: no run here (no config.json)")
    model = read_config(folder)[0].model.name
    if model != config.model.name:
        raise UserError(
            f"config.init_from={config.init_from}: a run of config.model.name={model!r}, not {config.model.name!r}"
        )
    return folder


def origin_of(config, workdir) -> Origin | None:
    """The run whose parameters the run in `workdir` begins with.

    None where it begins without any, or has a checkpoint of its own, with which it goes on.
    """
    if not config.init_from or not config.train.pretrained:
        return None
    checkpoints = buckets.folder_of_run(workdir) / "checkpoints"
    if checkpoints.is_dir() and Checkpoints(checkpoints, config.checkpoint, read_only=True).steps():
        return None
    folder = _begun_from(config)
    return Origin(folder, read_config(folder)[0])


def fine_tunes(config) -> bool:
    """Whether the config's task puts a head of its own on another run's model."""
    return hasattr(configs.named_class("task", config.task.name), "head")


def settled(config, workdir, of_model=()):
    """A fine-tuning config with the model of the run it begins with, changed by the overrides
    `of_model`, and its labels by name.

    Keys of the config's own model that differ from the defaults of its kind are such overrides,
    too. A run that goes on in `workdir` needs the other no more. The argument stays as it is.
    """
    config = config.copy_and_resolve_references()
    workdir = buckets.folder_of_run(workdir)
    goes_on = (workdir / "config.json").exists()
    if not goes_on and not config.init_from:
        raise UserError(
            "config.init_from is missing: the run (or converted checkpoint) to fine-tune"
        )
    origin = workdir if goes_on else buckets.folder_of_run(config.init_from)
    if not (origin / "config.json").is_file():
        raise UserError(f"config.init_from={config.init_from}: no run here (no config.json)")
    before = read_config(origin)[0]
    if (
        goes_on
        and before.init_from
        and (not config.init_from or _same_folder(config.init_from, before.init_from))
    ):
        config.init_from = before.init_from
    defaults = configs.class_options(configs.named_class("model", config.model.name))
    own = [
        (f"model.{key}", value)
        for key, value in configs.options(config.model).items()
        if value != defaults[key][1]
    ]
    with config.ignore_type():
        config.model = before.model
    if not hasattr(configs.named_class("model", config.model.name), "pooled") and not fine_tunes(
        before
    ):
        # start, delimiter, extract
        configs.set_key(config, "model.vocab_size", config.model.vocab_size + 3)
    for key, value in (*own, *of_model):
        configs.set_key(config, key, value)
    configs.validate(config)
    if "labels" in config.task and not config.task.labels:
        configs.set_key(
            config, "task.labels", tuple(before.task.labels if goes_on else _labels(config, before))
        )
    return config


def _same_folder(one, other) -> bool:
    absolute = lambda folder: (
        buckets.path(folder).resolve() if "://" not in str(folder) else str(folder).rstrip("/")
    )
    return absolute(one) == absolute(other)


def _labels(config, before) -> list[str]:
    """Those of the training examples, in the order of the head the run begins with if that knows
    them all.
    """
    names = make_task(config).names
    known = (
        [str(label) for label in before.task.labels] if before.task.name == config.task.name else []
    )
    return known if set(names) <= set(known) else names


def train(
    config: ConfigDict | str | os.PathLike,
    workdir,
    of_model=(),
    profile: tuple[int, int] | None = None,
    *,
    overrides: Mapping[str, Any] | Sequence[tuple[str, Any]] = (),
) -> dict[str, float]:
    """The config's run, started or gone on with in `workdir`; returns its last evaluation,
    {"valid/loss": ..., ...} as plain floats.

    `config` may be the path of a config file, FILE.py or FILE.py:ARGUMENT. `overrides` change it as
    in `config.load`: {"train.num_steps": 300}. A config that is given stays as it is.

    Raises UserError for what is wrong with config, data or workdir, RunError where the run can't
    go on, Preempted after SIGTERM, Interrupted after Ctrl-C. `of_model`: overrides of a
    fine-tuned model's keys. `profile`: see `loop.run`.
    """
    config, own = _settings(config, list(dict(overrides).items()))
    with Stop(config.train.grace):
        return _train(config, workdir, (*of_model, *own), profile)


def _settings(config, overrides: list[tuple[str, Any]]) -> tuple[ConfigDict, list[tuple[str, Any]]]:
    """A config with the overrides, and apart from it those of a fine-tuned model's keys."""
    is_file = isinstance(config, str | os.PathLike)
    if is_file:
        config = configs.read(config)
    elif isinstance(config, ConfigDict) and {"model", "task", *configs.SECTIONS} <= set(config):
        config = config.copy_and_resolve_references()
    else:
        raise UserError(
            "train takes the path of a config file, or a config of config.load(...) or "
            f"config.experiment(...), not this {type(config).__name__}"
        )
    of_model = [pair for pair in overrides if pair[0].startswith("model.") and fine_tunes(config)]
    for key, value in overrides:
        if (key, value) not in of_model:
            configs.set_key(config, key, value)
    if is_file or overrides:
        configs.validate(config)
    return config, of_model


def _train(config, workdir, of_model, profile):
    if (buckets.folder_of_run(workdir) / "config.json").exists() and (
        name := read_config(workdir)[0].task.name
    ) != config.task.name:
        raise UserError(
            f"--workdir={workdir}: holds a {name} run, not a {config.task.name} one; take another folder"
        )
    if fine_tunes(config):
        config = settled(config, workdir, of_model)
    if hosts.index():
        config.data.rebuild = False  # process 0 does
    task = make_task(config, workdir)
    # refuses what does not fit this machine, before anything is read or written
    program = loop.Program.of(config, task)
    if (origin := origin_of(config, workdir)) is not None:
        origin.match(config, program)  # refuses what does not fit, too
    holding = held(workdir) if not hosts.index() else contextlib.nullcontext()
    with footprint.explained(config, program), holding:
        # places, which may differ from host to host
        own = tuple(key for key in configs.MAY_CHANGE if key.startswith("data."))
        hosts.agree(
            {
                f"config.{key}": value
                for key, value in configs.flat(config).items()
                if not key.startswith(own)
            }
            | versions()
        )
        before = None
        with hosts.first():
            if not hosts.index():
                before = record(config, task, workdir)
            elif not (buckets.folder_of_run(workdir) / "config.json").exists():
                raise UserError(
                    f"--workdir={workdir}: not the folder that process 0 has just written to; it must be on storage that all hosts share"
                )
        hosts.agree(task.fingerprint())
        return loop.run(config, task, workdir, program, profile, origin=origin, before=before)


@contextlib.contextmanager
def held(workdir):
    """Holds a workdir, made if need be, against a second run; the system frees it when the process
    ends, however it ends. In a bucket a lease does so.
    """
    workdir = buckets.folder_of_run(workdir)
    if isinstance(workdir, buckets.Path):
        with _leased(workdir):
            yield
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = open(workdir / ".lock", "w")
    except OSError as error:
        raise UserError(f"--workdir={workdir}: can't be written ({error.strerror})") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"--workdir={workdir}: another run is at work there") from None
        try:
            yield
        finally:
            if not (workdir / "config.json").exists():  # refused: leave nothing behind
                (workdir / ".lock").unlink()
                with contextlib.suppress(OSError):
                    workdir.rmdir()


@contextlib.contextmanager
def _leased(workdir: buckets.Path):
    def overtaken(line):  # in a thread, whatever the others do: nothing may be written from here on
        print(f"error: {line}", file=sys.stderr, flush=True)
        hosts.failed(line, 1)
        os._exit(1)

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lease.held(workdir / ".lock", f"--workdir={workdir}", overtaken))
        except OSError as error:
            raise UserError(f"--workdir: can't be written ({error})") from None
        yield


def record(config, task, workdir) -> ConfigDict | None:
    """Prepares the data, then records a new run in `workdir`, or the run that goes on there.

    Returns the config that was recorded before, if there was one.
    Raises UserError where config or data differ from the recorded run in what may not change.
    """
    workdir = buckets.folder_of_run(workdir)
    fingerprint, recorded = json.loads(json.dumps(task.fingerprint())), None
    if (workdir / "config.json").exists():
        recorded, was = read_config(workdir)
        if was["train"] == []:
            raise UserError(
                f"{workdir} holds a converted checkpoint: begin another run from it, with --config.init_from={workdir}"
            )
        if changed := configs.differences(recorded, config):
            raise UserError(
                f"{workdir} holds a run with another config: {'; '.join(changed)}. Use another workdir, or the recorded values"
            )
        if changed := [part for part in fingerprint if fingerprint[part] != was.get(part)]:
            raise UserError(f"{workdir}: not the {' and '.join(changed)} this run was trained with")
    task.rows()  # before anything is written: what is wrong with the data must leave no run behind
    if not (workdir / "config.json").exists():
        # by a run that was killed before it was recorded
        for left in (workdir / "tokenizer").iterdir() if (workdir / "tokenizer").is_dir() else ():
            left.unlink()
        task.tokenizer.save(workdir / "tokenizer")
    _write_record(config, fingerprint, workdir)
    return recorded


def create(workdir, task, params) -> None:
    """In an empty folder, a run at step 0 whose parameters were trained elsewhere, on what is
    unknown here.
    """
    workdir = buckets.folder_of_run(workdir)
    task.tokenizer.save(workdir / "tokenizer")
    with Checkpoints(workdir / "checkpoints", task.config.checkpoint) as checkpoints:
        checkpoints.save_params(params)
    _write_record(task.config, {"train": [], "tokenizer": task.tokenizer.fingerprint()}, workdir)


def _write_record(config, fingerprint: dict, workdir: pathlib.Path | buckets.Path) -> None:
    config = config.to_dict()
    config["data"]["rebuild"] = False  # was asked of the start
    content = {
        "checkpoint_format": FORMAT,
        "config": config,
        "fingerprint": fingerprint,
        "versions": versions(),
        "revision": _revision(),
    }
    buckets.write(workdir / "config.json", json.dumps(content, indent=2) + "\n")


def metrics(folder) -> list[dict]:
    """The lines of a run's metrics.jsonl but for a last one that is just being written. Raises
    UserError where one can't be read.
    """
    path, found = buckets.folder_of_run(folder) / "metrics.jsonl", []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        try:
            found += [json.loads(line)] if line.endswith("}") else []
        except ValueError as error:
            raise UserError(f"{path}:{number}: not JSON ({error})") from None
    return found


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in LIBRARIES}


def read_config(workdir):
    """(config, data fingerprint) of a recorded run."""
    path = buckets.folder_of_run(workdir) / "config.json"
    if not path.is_file():
        raise UserError(f"--workdir={workdir}: no run here (no config.json)")
    try:
        recorded = json.loads(path.read_text())
        version, fingerprint = recorded["checkpoint_format"], recorded["fingerprint"]
        if version > FORMAT:
            raise UserError(
                f"{path}: written by a newer version (checkpoint format {version}, this one reads up to {FORMAT})"
            )
        return configs.from_record(recorded["config"], str(path)), fingerprint
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a run's record ({type(error).__name__}: {error})") from None


def open_run(
    workdir, step: str | int = "best", overrides: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
):
    """(task, params) of a run; `step` is "best", "latest" or a number, `overrides` change the
    recorded config for this use, as in `config.load`: {"decode.beam": 1}.

    The parameters are a tree of float32 arrays, `params` of the task's methods and of
    `task.model.apply({"params": params}, ...)`; a fine-tuned run's have its head's under "head".
    Raises UserError where there is no run, no such checkpoint, or not its tokenizer. With
    `config.decode.average` = N the parameters are the mean of the N newest checkpoints up to that
    step.
    """
    workdir = buckets.folder_of_run(workdir)
    config, fingerprint = read_config(workdir)
    for key, value in dict(overrides).items():
        configs.set_key(config, key, value)
    configs.validate(config)
    task = make_task(config, workdir)
    if json.loads(json.dumps(task.tokenizer.fingerprint())) != fingerprint["tokenizer"]:
        raise UserError(f"{workdir}/tokenizer: not the tokenizer this run was trained with")
    checkpoints = Checkpoints(workdir / "checkpoints", config.checkpoint, read_only=True)
    last, count = checkpoints.pick(step), config.decode.average
    chosen = [s for s in checkpoints.steps() if s <= last][-count:]
    if len(chosen) < count:
        raise UserError(
            f"config.decode.average={count}: {workdir} has {len(chosen)} checkpoints up to step {last}; config.checkpoint.keep decides how many stay"
        )
    shapes = state.abstract_params(task)
    return task, mean(checkpoints.restore_params(shapes, s) for s in chosen)


def mean(trees: Iterable):
    """The mean of parameter trees (checkpoint averaging, Vaswani et al. 2017, section 6.1); one at
    a time in memory beside the sum.
    """
    total, count = None, 0
    for tree in trees:
        total = tree if total is None else jax.tree.map(jnp.add, total, tree)
        count += 1
    return total if count == 1 else jax.tree.map(lambda x: x / count, total)


def load(workdir, step: str | int = "best"):
    """(model, params, tokenizer) of a run: `model.apply({"params": params}, ...)` takes int32
    tokens (B, L) and gives float32 logits (B, L, V); see the class of the model. A translation's
    tokenizer has the sides .source and .target; a fine-tuned run's model comes without its head, a
    BERT also without those of pre-training: `method="hidden"` gives what it has.
    """
    task, params = open_run(workdir, step)
    return task.model, params, task.tokenizer


def _revision() -> str | None:
    """The git revision of the code, where it runs from a checkout."""
    root = pathlib.Path(__file__).parents[2]
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    return (
        subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
        ).stdout.strip()
        or None
    )
