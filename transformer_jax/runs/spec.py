"""The description of a run, which its config resolves to, and the record of it in its workdir."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import types
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.configuration import classes, sections
from transformer_jax.configuration.sections import Beginning, beginnings
from transformer_jax.data.sources import text_files
from transformer_jax.distributed import hosts
from transformer_jax.storage import buckets
from transformer_jax.storage.buckets import write_whole
from transformer_jax.training import warm_start
from transformer_jax.training.checkpoint import FORMAT, Checkpoints
from transformer_jax.training.warm_start import Origin, Part

# --------------------------------------------------------------------------------------------------
# What a run is: `RunSpec` describes one that begins or continues, and `Record` is what the workdir
# of one that was begun holds.

Files = Mapping[str, classes.File]
_NONE: Files = types.MappingProxyType({})
Overrides = Mapping[str, Any] | Sequence[tuple[str, Any]]


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """A complete and validated description of a run. Nothing changes it.

    `config` is read-only. That of a task that takes it has the model of the run in
    `config.init_from`; that of a fine-tuning also has its labels by name. `workdir` is None for a
    run that is only planned.
    """

    config: FrozenConfigDict
    workdir: pathlib.Path | buckets.Path | None
    tokenizer: pathlib.Path | buckets.Path | None  # its folder; None: `config.data` says
    origin: Origin | None  # the run whose parameters this one begins with
    files: Files  # those of the classes that the user has named by a path, by section

    def task(self):
        """Returns the task that `config.task` names."""
        return _task(self.config, self.tokenizer)

    def shared_keys(self) -> dict[str, Any]:
        """Returns what is equal on all hosts: the keys but for the places of the data, and files.

        A host may have its data elsewhere.
        """
        places = tuple(key for key in configs.MAY_CHANGE if key.startswith("data."))
        values = configs.flat(self.config).items()
        shared = {f"config.{key}": value for key, value in values if not key.startswith(places)}
        return shared | {
            f"the file of config.{section}.name": file.digest
            for section, file in self.files.items()
        }


@dataclasses.dataclass(frozen=True)
class Record:
    """The recorded config of a run, and the fingerprints of its data and tokenizer.

    `has_head` says whether the run is a fine-tuning, also where the class of its task is not known.
    """

    workdir: pathlib.Path | buckets.Path
    config: ConfigDict
    fingerprint: dict
    has_head: bool

    @property
    def is_converted(self) -> bool:
        """Whether the run is a converted checkpoint, whose training data is not known."""
        return self.fingerprint["train"] == []


# --------------------------------------------------------------------------------------------------
# From a config to the run that it describes.


def resolve(
    config: ConfigDict | str | os.PathLike, workdir=None, overrides: Overrides = ()
) -> RunSpec:
    """Returns the run that a config describes: read, completed and validated.

    `config` is the path of a config file, or a config, which stays as it is. A run that was begun
    in `workdir` continues. Raises UserError for a fault in the config or the runs that it names.
    """
    files, overrides = classes.split(dict(overrides).items())
    config = _copy(config, files)
    has_its_model = takes_model(config)
    of_model = [pair for pair in overrides if has_its_model and pair[0].startswith("model.")]
    for key, value in overrides:
        if (key, value) not in of_model:  # the model of the earlier run is not known yet
            configs.set_key(config, key, value)
    configs.validate(config)
    files = classes.in_config(config)
    recorded = find(workdir, files)
    if not recorded:  # a run of an earlier version continues as it is
        sections.check_used(config)
    if recorded and recorded.config.task.name != config.task.name:
        raise UserError(
            f"--workdir={workdir}: holds a {recorded.config.task.name} run, "
            f"not a {config.task.name} one; take another folder"
        )
    earlier = recorded or source(config)
    if has_its_model:
        config = with_model(config, earlier, of_model)
        config = _with_labels(config, recorded, earlier)
        if recorded and names_same_run(config.init_from, recorded.config.init_from):
            config.init_from = recorded.config.init_from
    config = with_other_models(config, recorded, earlier)
    if hosts.index():
        config.data.rebuild = False  # process 0 rebuilds the data
    workdir = buckets.folder_of_run(workdir) if workdir else None
    return RunSpec(
        FrozenConfigDict(config),
        workdir,
        _tokenizer(earlier),
        origin(config, workdir),
        files,
    )


def _copy(config: ConfigDict | str | os.PathLike, files: Files) -> ConfigDict:
    """Returns a config, or that of a file, with `files` in place of the classes that it names."""
    if isinstance(config, str | os.PathLike):
        with classes.in_place_of_names(files):
            return configs.read(config)
    if isinstance(config, ConfigDict) and {"model", "task", "source", *configs.SECTIONS} <= set(
        config
    ):
        config = ConfigDict(config).copy_and_resolve_references()
        with classes.in_place_of_names(files):
            return configs.experiment(**config.to_dict()) if files else config
    raise UserError(
        "train takes the path of a config file, or a config of config.load(...) or "
        f"config.experiment(...), not this {type(config).__name__}"
    )


def _with_labels(config: ConfigDict, recorded: Record | None, earlier: Record) -> ConfigDict:
    """Returns a config with its labels by name: its own, recorded, or in its data."""
    if "labels" not in config.task or config.task.labels:
        return config
    if recorded:
        found = recorded.config.task.labels
    else:
        found = labels(_task(config, _tokenizer(earlier)).names, config, earlier)
    configs.set_key(config, "task.labels", tuple(found))
    return config


def make_task(config, workdir=None):
    """Returns the task that `config.task` names.

    It has the tokenizer of the run recorded in `workdir`, else that of `config.init_from`, else one
    of its own, as `config.data` says.
    """
    recorded = find(workdir, classes.in_config(config))
    earlier = recorded or source(config)
    return _task(with_other_models(config, recorded, earlier), _tokenizer(earlier))


def _tokenizer(earlier: Record | None):
    """Returns the folder of an earlier run's tokenizer."""
    return earlier.workdir / "tokenizer" if earlier else None


def _task(config, tokenizer):
    task = configs.named_class("task", config.task.name)
    if config.source.name and not task.reads_source:
        raise UserError(
            f"config.source.name={config.source.name!r}: config.task.name={config.task.name!r} "
            "reads config.data"
        )
    model = configs.named_class("model", config.model.name)
    if model.modality != task.modality:
        raise UserError(
            f"config.model.name={config.model.name!r}: reads {model.modality}, and "
            f"config.task.name={config.task.name!r} gives {task.modality}"
        )
    if task.reads_source:
        configs.build_source(config)  # raises its errors before anything is compiled
    text_files.remember_in(config.data)
    classes.check_ranges(task, config.task, "task")
    if config.lora.rank is not None:
        task = warm_start.adapted(task)
    return task(config, tokenizer, **configs.options(config.task))


# --------------------------------------------------------------------------------------------------
# The record of a run, which is config.json in its workdir, and the lines of its metrics.jsonl.

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


def fine_tunes(config) -> bool:
    """Returns whether the task of a config puts its own head on the model of another run."""
    return configs.named_class("task", config.task.name).fine_tunes


def takes_model(config) -> bool:
    """Returns whether config.model is that of the run in config.init_from."""
    return configs.named_class("task", config.task.name).takes_model


def exists(workdir) -> bool:
    return (buckets.folder_of_run(workdir) / "config.json").exists()


def find(workdir, files: Files = _NONE) -> Record | None:
    """Returns the record of the run in `workdir`; None where there is no run."""
    return read(workdir, files) if workdir and exists(workdir) else None


def read(workdir, files: Files = _NONE, needed: tuple[str, ...] = classes.SECTIONS) -> Record:
    """Returns the record of the run in `workdir`.

    `files` are those that the user names, by section: a recorded path is not followed. The classes
    of the sections `needed` must be known. Raises UserError where there is no run, or its record
    cannot be read.
    """
    path = buckets.folder_of_run(workdir) / "config.json"
    if not path.is_file():
        raise UserError(f"--workdir={workdir}: no run here (no config.json)")
    try:
        content = json.loads(path.read_text())
        version, fingerprint = content["checkpoint_format"], content["fingerprint"]
        if version > FORMAT:
            raise UserError(
                f"{path}: written by a newer version (checkpoint format {version}, "
                f"this one reads up to {FORMAT})"
            )
        recorded = classes.Recorded(content.get("files", {}), files, needed)
        config = configs.from_record(content["config"], str(path), recorded)
        has_head = content["has_head"] if "has_head" in content else fine_tunes(config)
        return Record(path.parent, config, fingerprint, has_head)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a run's record ({type(error).__name__}: {error})") from None


def check(record: Record, config, fingerprint: dict) -> None:
    """Raises UserError where a resumed run changes what it may not: config, data or tokenizer."""
    workdir = record.workdir
    if record.is_converted:
        raise UserError(
            f"{workdir} holds a converted checkpoint: begin another run from it, "
            f"with --config.init_from={workdir}"
        )
    if changed := configs.differences(record.config, config):
        raise UserError(
            f"{workdir} holds a run with another config: {'; '.join(changed)}. "
            "Use another workdir, or the recorded values"
        )
    if changed := [
        part for part in fingerprint if fingerprint[part] != record.fingerprint.get(part)
    ]:
        raise UserError(f"{workdir}: not the {' and '.join(changed)} this run was trained with")


def begin(config, task, workdir, files: Files | None = None) -> ConfigDict | None:
    """Prepares the data, then records the run in `workdir`, which the caller holds.

    `files` are those of `RunSpec`; None: those that the config names. Returns the config of an
    earlier record; None for a new run. Raises UserError where config or data differ from that
    record in what may not change.
    """
    workdir = buckets.folder_of_run(workdir)
    fingerprint = plain(task.fingerprint())
    files = classes.in_config(config) if files is None else files
    earlier = find(workdir, files)
    if earlier:
        check(earlier, config, fingerprint)
    task.rows()  # first: a fault in the data must leave no record behind
    if not earlier:
        folder = workdir / "tokenizer"
        for leftover in folder.iterdir() if folder.is_dir() else ():
            leftover.unlink()  # of a run that was killed before it was recorded
        _save_tokenizer(task, folder)
    _write(config, fingerprint, workdir, files)
    return earlier.config if earlier else None


def create(workdir, task, params) -> None:
    """Writes a run at step 0 into an empty folder; `params` were trained elsewhere."""
    workdir = buckets.folder_of_run(workdir)
    _save_tokenizer(task, workdir / "tokenizer")
    with Checkpoints(workdir / "checkpoints", task.config.checkpoint) as checkpoints:
        checkpoints.save_params(params)
    fingerprint = {"train": [], "tokenizer": tokenizer_fingerprint(task)}
    _write(task.config, fingerprint, workdir, classes.in_config(task.config))


def tokenizer_fingerprint(task):
    """Returns the fingerprint of a task's tokenizer; None where the task has no tokenizer."""
    return None if task.tokenizer is None else plain(task.tokenizer.fingerprint())


def _save_tokenizer(task, folder: pathlib.Path | buckets.Path) -> None:
    if task.tokenizer is not None:
        task.tokenizer.save(folder)


def plain(fingerprint):
    """Returns a fingerprint as JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(fingerprint))


def _write(config, fingerprint: dict, workdir: pathlib.Path | buckets.Path, files: Files) -> None:
    has_head = fine_tunes(config)
    config = config.to_dict()
    config["data"]["rebuild"] = False  # holds for one start only
    content = {
        "checkpoint_format": FORMAT,
        "config": config,
        "files": {section: file.digest for section, file in files.items()},
        "fingerprint": fingerprint,
        "has_head": has_head,
        "versions": versions(),
        "revision": _revision(),
    }
    write_whole(workdir / "config.json", json.dumps(content, indent=2) + "\n")


def versions() -> dict[str, str]:
    """Returns the installed version of each library that a result depends on."""
    return {name: metadata.version(name) for name in LIBRARIES}


def _revision() -> str | None:
    """Returns the git revision of the code; None outside a checkout."""
    root = pathlib.Path(__file__).parents[2]
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


def metrics(folder) -> list[dict]:
    """Returns the lines of a run's metrics.jsonl, without a last line that is still being written.

    Raises UserError for a line that is not JSON.
    """
    path = buckets.folder_of_run(folder) / "metrics.jsonl"
    lines = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if not line.endswith("}"):
            continue
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}:{number}: not JSON ({error})") from None
    return lines


# --------------------------------------------------------------------------------------------------
# Beginning with another run: `config.init_from` gives parameters, tokenizer and, to a task that
# takes it, the shape of the model.


def source(config) -> Record | None:
    """Returns the record of the run that `config.init_from` names; None where it names none.

    Of several runs it is the one without a prefix, else the first. Those that the task names come
    last. Raises UserError where that workdir holds no run, or where a run without a prefix is of
    another model family. A task that takes the model of that run takes any family, and a model
    takes those of its `begins_with`.
    """
    runs = (*beginnings(config.init_from), *_of_task(config))
    if not runs:
        return None
    main = next((run for run in runs if not run.prefix), runs[0])
    earlier = _record(main, config)
    model = earlier.config.model.name
    may_differ = takes_model(config) and "model" not in classes.in_config(config)
    may_differ = may_differ or model in _others(config)
    if model != config.model.name and not main.prefix and not may_differ:
        raise UserError(
            f"config.init_from={main.run}: a run of config.model.name={model!r}, "
            f"not {config.model.name!r}"
        )
    return earlier


def _others(config):
    """Returns the other families that a run of this model may begin with, and their parts."""
    return configs.named_class("model", config.model.name).begins_with


def _task_class(config):
    return configs.named_class("task", config.task.name)


def _of_task(config) -> tuple[Beginning, ...]:
    """Returns the runs that keys of config.task name. The prefix of each is its key."""
    keys = _task_class(config).other_runs
    return tuple(Beginning(key, config.task[key]) for key in keys if config.task[key])


def _record(beginning: Beginning, config) -> Record:
    if not exists(beginning.run):
        key = f"task.{beginning.prefix}" if beginning in _of_task(config) else configs.INIT_FROM
        raise UserError(f"config.{key}={beginning.run}: no run here (no config.json)")
    return read(beginning.run, classes.in_config(config), needed=("model",))


def origin(config, workdir) -> Origin | None:
    """Returns the runs whose parameters the run in `workdir` begins with.

    None for a run that initializes its parameters, or continues from a checkpoint of its own.
    """
    init_from = config.init_from if config.train.pretrained else None
    task = _task_class(config)
    needs_run = task.begins_with_run and config.train.pretrained
    if workdir is None or not (init_from or task.other_runs or needs_run):
        _check_adapted(config, workdir)
        return None
    checkpoints = buckets.folder_of_run(workdir) / "checkpoints"
    if checkpoints.is_dir() and Checkpoints(checkpoints, config.checkpoint, read_only=True).steps():
        return None
    for key in task.other_runs:
        if not config.task[key]:
            raise UserError(f"config.task.{key} is missing: the workdir of a run")
    if needs_run and not init_from:
        raise UserError("config.init_from is missing: the workdir of the run to train further")
    source(config)  # raises for another family
    parts = []
    for beginning in (*beginnings(init_from), *_of_task(config)):
        earlier = _record(beginning, config)
        own = [beginning]
        if isinstance(init_from, str) and not beginning.prefix:
            of_family = _others(config).get(earlier.config.model.name, {}).items()
            own = [Beginning(prefix, beginning.run, **keys) for prefix, keys in of_family] or own
        parts += [Part(earlier.workdir, earlier.config, each) for each in own]
    return Origin(tuple(parts))


def _check_adapted(config, workdir) -> None:
    """Raises UserError where a run has adapters, but names no model that they adapt."""
    if config.lora.rank is not None and workdir is not None and not config.init_from:
        raise UserError(
            f"config.lora.rank={config.lora.rank}: adapters need a trained model; name its run, "
            "with --config.init_from=DIR"
        )


def with_other_models(config, recorded: Record | None, earlier: Record | None):
    """Returns a config with the models of the runs that its task names.

    `recorded` is the run that it continues; it knows these models. `earlier` gives the tokenizer.
    Raises UserError where one of these runs has another tokenizer.
    """
    if not _of_task(config):
        return config
    config = ConfigDict(config).copy_and_resolve_references()
    for beginning in _of_task(config):
        key = f"{beginning.prefix}_model"
        if recorded:
            configs.set_key(config, f"task.{key}", recorded.config.task[key])
            continue
        other = _record(beginning, config)
        if other.fingerprint["tokenizer"] != earlier.fingerprint["tokenizer"]:
            raise UserError(
                f"config.task.{beginning.prefix}={beginning.run}: has another tokenizer than "
                f"{earlier.workdir}, with whose parameters the run begins"
            )
        configs.set_key(config, f"task.{key}", tuple(other.config.model.items()))
    return config


def with_model(config: ConfigDict, earlier: Record | None, overrides) -> ConfigDict:
    """Returns a config with the model of an earlier run, for a task that takes it.

    `earlier` is the run that it continues, else the run that it begins with. The keys of
    config.model that differ from their defaults, and `overrides`, change that model. Raises
    UserError where a fine-tuning has no such run; other tasks then begin anew.
    """
    if earlier is None and fine_tunes(config):
        raise UserError(
            "config.init_from is missing: the run (or converted checkpoint) to fine-tune"
        )
    changes = list(overrides)
    if earlier is not None:
        changes = [*_non_defaults(config.model), *overrides]
        with config.ignore_type():
            config.model = earlier.config.model
        if new_tokens := _task_class(config).new_tokens(config, earlier):
            size = config.model.vocab_size + new_tokens
            configs.set_key(config, "model.vocab_size", size)
    for key, value in changes:
        configs.set_key(config, key, value)
    configs.validate(config)
    return config


def _non_defaults(model: ConfigDict) -> list[tuple[str, object]]:
    """Returns the keys of a model's section that differ from the defaults of its class."""
    defaults = configs.class_options(configs.named_class("model", model.name))
    values = configs.options(model).items()
    return [(f"model.{key}", value) for key, value in values if value != defaults[key][1]]


def names_same_run(init_from: str | tuple | None, recorded: str | tuple | None) -> bool:
    """Returns whether a config names the runs that its record names, or leaves them out."""
    if not recorded:
        return False
    return not init_from or _absolutes(init_from) == _absolutes(recorded)


def _absolutes(init_from: str | tuple) -> list:
    return [
        (_absolute(beginning.run), dataclasses.replace(beginning, run=""))
        for beginning in beginnings(init_from)
    ]


def _absolute(folder: str):
    if "://" in str(folder):
        return str(folder).rstrip("/")
    return buckets.path(folder).resolve()


def labels(names: list[str], config, earlier: Record | None) -> list[str]:
    """Returns the labels of a task, `names` in its training examples.

    They keep the order of the earlier run's head where that head has all of them.
    """
    if earlier is None or earlier.config.task.name != config.task.name:
        return names
    of_head = [str(label) for label in earlier.config.task.labels]
    return of_head if set(names) <= set(of_head) else names
