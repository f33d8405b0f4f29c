"""The description of a run, to which a config resolves, and the record of a run in its workdir."""

import dataclasses
import json
import os
import pathlib
import types
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError, WarmStart, warm_starts
from transformer_jax.data.sources import text_files
from transformer_jax.distributed import hosts
from transformer_jax.storage import buckets
from transformer_jax.storage.buckets import write_whole
from transformer_jax.training import warm_start
from transformer_jax.training.checkpoint import FORMAT, Checkpoints
from transformer_jax.training.trackers import revision
from transformer_jax.training.warm_start import Origin, Part

# ----------------------- `RunSpec`, a run that is to start; `Record`, a run that was started before

Files = Mapping[str, configs.File]
# Immutable, because it is the default of arguments.
_NONE: Files = types.MappingProxyType({})
Overrides = Mapping[str, Any] | Sequence[tuple[str, Any]]


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """A complete, validated and immutable description of a run.

    `config` is read-only and complete. If the task takes the model of an earlier run,
    `config.model` is already the model of the run in `config.init_from`, and the config of a
    fine-tuning run also names its labels. `workdir` is None for a run that is only planned.
    """

    config: FrozenConfigDict
    workdir: pathlib.Path | buckets.Path | None
    tokenizer: pathlib.Path | buckets.Path | None  # its folder; None: as `config.data` says
    origin: Origin | None  # the runs from which this one takes its initial parameters
    files: Files  # the files of classes that the user has named by a path, by section

    def task(self):
        """Returns the task that `config.task` names."""
        return _task(self.config, self.tokenizer)

    def shared_keys(self) -> dict[str, Any]:
        """Returns the values that must be equal on all hosts: keys of the config, and class files.

        Paths of data are left out, because each host may have its data in another folder.
        """
        paths = tuple(key for key in configs.MAY_CHANGE if key.startswith("data."))
        values = configs.flat(self.config).items()
        shared = {f"config.{key}": value for key, value in values if not key.startswith(paths)}
        return shared | {
            f"the file of config.{section}.name": file.digest
            for section, file in self.files.items()
        }


@dataclasses.dataclass(frozen=True)
class Record:
    """The recorded config of a run, and the fingerprints of its data and tokenizer.

    `has_head` says whether it is a fine-tuning run. It is recorded, because the class of the task,
    which would say so, may be in a file that the user has not named.
    """

    workdir: pathlib.Path | buckets.Path
    config: ConfigDict
    fingerprint: dict
    has_head: bool

    @property
    def is_converted(self) -> bool:
        """Whether the run is a converted checkpoint, whose training data is unknown."""
        return self.fingerprint["train"] == []


# ------------------------------------------------------- from a config to the run that it describes


def resolve(
    config: ConfigDict | str | os.PathLike, workdir=None, overrides: Overrides = ()
) -> RunSpec:
    """Returns the run that a config describes, after reading, completing and validating it.

    `config` is the path of a config file, or a config, which is not modified. If `workdir` holds a
    run, that run is resumed. Raises UserError for an error in the config or in the runs that it
    names.
    """
    files, overrides = configs.split_files(dict(overrides).items())
    config = _copy(config, files)
    replaces_model = takes_model(config)
    model_overrides = [
        pair for pair in overrides if replaces_model and pair[0].startswith("model.")
    ]
    for key, value in overrides:
        # Overrides of the model wait until the model of the earlier run, which they change, has
        # been read.
        if (key, value) not in model_overrides:
            configs.set_key(config, key, value)
    configs.validate(config)
    config = configs.with_base_width(config)
    files = configs.named_files(config)
    recorded = find(workdir, files)
    if not recorded:  # a recorded run of an earlier version, which did not check this, may resume
        configs.check_used(config)
    if recorded and recorded.config.task.name != config.task.name:
        raise UserError(
            f"--workdir={workdir}: holds a {recorded.config.task.name} run, "
            f"not a {config.task.name} one; take another folder"
        )
    # A resumed run needs no earlier run any more, because its own record has all that it took.
    earlier = recorded or source(config)
    if replaces_model:
        config = with_model(config, earlier, model_overrides)
        config = configs.with_base_width(_with_labels(config, recorded, earlier))
        if recorded and names_same_run(config.init_from, recorded.config.init_from):
            # Paths may be spelled differently, such as relative to another folder; the recorded
            # spelling keeps the comparison of configs from refusing the run.
            config.init_from = recorded.config.init_from
    config = with_other_models(config, recorded, earlier)
    _check_mup(config, recorded, earlier)
    if hosts.index():
        config.data.rebuild = False  # only process 0 rebuilds the data
    workdir = buckets.folder_of_run(workdir) if workdir else None
    return RunSpec(
        FrozenConfigDict(config),
        workdir,
        _tokenizer(earlier),
        origin(config, workdir),
        files,
    )


def _check_mup(config: ConfigDict, recorded: Record | None, earlier: Record | None) -> None:
    """Raises UserError if a new run and the parameters it starts from have different bases of muP.

    A task that takes the model of an earlier run also takes its `base_width`.
    """
    if recorded:
        return
    starts = [start for start in warm_starts(config.init_from) if not start.prefix]
    own = config.model.get("base_width")
    if not starts:
        if own is not None and not config.optimizer.base:
            raise UserError(
                f"config.model.base_width={own} needs config.optimizer.base, which sets it and "
                "scales the learning rates"
            )
        return
    other = earlier.config.model.get("base_width")
    if own != other:
        has = "no muP" if other is None else f"muP with the base d_model={other}"
        raise UserError(
            f"config.init_from={starts[0].run}: has {has}, and this run "
            f"{'none' if own is None else f'd_model={own}'}; set config.optimizer.base as it does"
        )
    if config.optimizer.base and fine_tunes(config):
        raise UserError(
            "config.optimizer.base: muP scales the rates of runs that start from random values; "
            "leave it out for fine-tuning, which keeps the multipliers of the earlier run"
        )


def _copy(config: ConfigDict | str | os.PathLike, files: Files) -> ConfigDict:
    """Returns a copy of a config or config file, with `files` for the classes that it names."""
    if isinstance(config, str | os.PathLike):
        with configs.replacing_names(files):
            return configs.read(config)
    if isinstance(config, ConfigDict) and {"model", "task", "source", *configs.SECTIONS} <= set(
        config
    ):
        config = ConfigDict(config).copy_and_resolve_references()
        with configs.replacing_names(files):
            return configs.experiment(**config.to_dict()) if files else config
    raise UserError(
        "train takes the path of a config file, or a config of config.load(...) or "
        f"config.experiment(...), not this {type(config).__name__}"
    )


def _with_labels(config: ConfigDict, recorded: Record | None, earlier: Record) -> ConfigDict:
    """Returns a config that names its labels: its own, the recorded ones, or those in its data."""
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

    Its tokenizer is the one of the run recorded in `workdir`, else of the run in
    `config.init_from`, else one of its own, as `config.data` says.
    """
    recorded = find(workdir, configs.named_files(config))
    earlier = recorded or source(config)
    return _task(with_other_models(config, recorded, earlier), _tokenizer(earlier))


def _tokenizer(earlier: Record | None):
    """Returns the folder of an earlier run's tokenizer, or None."""
    return earlier.workdir / "tokenizer" if earlier else None


def _task(config, tokenizer):
    config = configs.with_base_width(config)
    task = configs.named_class("task", config.task.name)
    if config.source.name and not task.reads_source:
        raise UserError(
            f"config.source.name={config.source.name!r}: config.task.name={config.task.name!r} "
            "reads config.data"
        )
    model = configs.named_class("model", config.model.name)
    if task.modality not in (None, model.modality):
        raise UserError(
            f"config.model.name={config.model.name!r}: reads {model.modality}, and "
            f"config.task.name={config.task.name!r} gives {task.modality}"
        )
    if task.reads_source:
        configs.build_source(config)  # to raise its errors before anything is compiled
    text_files.remember_in(config.data)
    configs.check_ranges(task, config.task, "task")
    if config.lora.rank is not None:
        task = warm_start.adapted(task)
    return task(config, tokenizer, **configs.options(config.task))


# ----------------------------- the record of a run, config.json, and the lines of its metrics.jsonl

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
    """Returns whether the task of a config puts a head of its own on the model of another run."""
    return configs.named_class("task", config.task.name).fine_tunes


def takes_model(config) -> bool:
    """Returns whether the task takes config.model from the run in config.init_from."""
    return configs.named_class("task", config.task.name).takes_model


def exists(workdir) -> bool:
    return (buckets.folder_of_run(workdir) / "config.json").exists()


def find(workdir, files: Files = _NONE) -> Record | None:
    """Returns the record of the run in `workdir`, or None if there is no run."""
    return read(workdir, files) if workdir and exists(workdir) else None


def read(workdir, files: Files = _NONE, needed: tuple[str, ...] = configs.NAMED_SECTIONS) -> Record:
    """Returns the record of the run in `workdir`.

    `files` are the class files that the user names, by section. A path in a record is never
    followed, because opening somebody else's run must not execute code. The classes of the sections
    `needed` must be known. Raises UserError if there is no run, or if its record can't be read.
    """
    path = buckets.folder_of_run(workdir) / "config.json"
    if not path.is_file():
        raise UserError(f"--workdir={workdir}: no run here (no config.json)")
    try:
        content = json.loads(path.read_text())
        if "model_type" in content and "checkpoint_format" not in content:
            raise UserError(
                f"{workdir}: a checkpoint of Hugging Face, not a run; convert it first, with "
                f"python -m transformer_jax.convert --from_hf={workdir} --workdir=NEW"
            )
        version, fingerprint = content["checkpoint_format"], content["fingerprint"]
        if version > FORMAT:
            raise UserError(
                f"{path}: written by a newer version (checkpoint format {version}, "
                f"this one reads up to {FORMAT})"
            )
        recorded = configs.Recorded(content.get("files", {}), files, needed)
        config = configs.from_record(content["config"], str(path), recorded)
        # Records of earlier versions lack this entry.
        has_head = content["has_head"] if "has_head" in content else fine_tunes(config)
        return Record(path.parent, config, fingerprint, has_head)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a run's record ({type(error).__name__}: {error})") from None


def check(record: Record, config, fingerprint: dict) -> None:
    """Raises UserError if a resumed run has another config, data or tokenizer than recorded.

    Keys that `MAY_CHANGE` lists may differ.
    """
    workdir = record.workdir
    if record.is_converted:
        raise UserError(
            f"{workdir} holds a converted checkpoint: start another run from it, "
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
    """Prepares the data, and then records the run in `workdir`, which the caller must hold.

    `files` are the files of `RunSpec`, by default those that the config names. Returns the config
    that was recorded before, or None for a new run. Raises UserError if the config or the data
    differ from the record in a way that a resumed run may not.
    """
    workdir = buckets.folder_of_run(workdir)
    fingerprint = plain(task.fingerprint())
    files = configs.named_files(config) if files is None else files
    earlier = find(workdir, files)
    if earlier:
        check(earlier, config, fingerprint)
    task.rows()  # before the record is written, so that an error in the data leaves none behind
    if not earlier:
        folder = workdir / "tokenizer"
        for leftover in folder.iterdir() if folder.is_dir() else ():
            leftover.unlink()  # from a run that was killed before it was recorded
        _save_tokenizer(task, folder)
    # config.json is written last, because a workdir that has it counts as a run.
    _write(config, fingerprint, workdir, files)
    return earlier.config if earlier else None


def create(workdir, task, params) -> None:
    """Writes a run at step 0 into an empty folder, with `params` that were trained elsewhere."""
    workdir = buckets.folder_of_run(workdir)
    _save_tokenizer(task, workdir / "tokenizer")
    with Checkpoints(workdir / "checkpoints", task.config.checkpoint) as checkpoints:
        checkpoints.save_params(params)
    # The training data is unknown, which `Record.is_converted` recognizes by the empty list.
    fingerprint = {"train": [], "tokenizer": tokenizer_fingerprint(task)}
    _write(task.config, fingerprint, workdir, configs.named_files(task.config))


def tokenizer_fingerprint(task):
    """Returns the fingerprint of a task's tokenizer, or None if the task has no tokenizer."""
    return None if task.tokenizer is None else plain(task.tokenizer.fingerprint())


def _save_tokenizer(task, folder: pathlib.Path | buckets.Path) -> None:
    if task.tokenizer is not None:
        task.tokenizer.save(folder)


def plain(fingerprint):
    """Returns a fingerprint as it is after a round trip through JSON, where tuples become lists."""
    return json.loads(json.dumps(fingerprint))


def _write(config, fingerprint: dict, workdir: pathlib.Path | buckets.Path, files: Files) -> None:
    has_head = fine_tunes(config)
    config = config.to_dict()
    config["data"]["rebuild"] = False  # it is a request for this start only
    content = {
        "checkpoint_format": FORMAT,
        "config": config,
        "files": {section: file.digest for section, file in files.items()},
        "fingerprint": fingerprint,
        "has_head": has_head,
        "versions": versions(),
        "revision": revision(),
    }
    write_whole(workdir / "config.json", json.dumps(content, indent=2) + "\n")


def versions() -> dict[str, str]:
    """Returns the installed versions of the libraries on which results depend."""
    return {name: metadata.version(name) for name in LIBRARIES}


def metrics(folder) -> list[dict]:
    """Returns the lines of a run's metrics.jsonl, except for a line that is still being written.

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


# ------------------------------------------------------------------------ starting from another run


def source(config) -> Record | None:
    """Returns the record of the run that `config.init_from` names, or None if it names none.

    Of several runs, it is the one without a prefix, else the first; the runs that the task names
    come last. Raises UserError if the workdir holds no run, or if a run without a prefix has a
    model of another family. Any family is accepted if the task takes the model of that run, and the
    families in `begins_with` of a model are accepted for that model.
    """
    runs = (*warm_starts(config.init_from), *_task_runs(config))
    if not runs:
        return None
    main = next((run for run in runs if not run.prefix), runs[0])
    earlier = _record(main, config)
    model = earlier.config.model.name
    may_differ = takes_model(config) and "model" not in configs.named_files(config)
    may_differ = may_differ or model in _others(config)
    if model != config.model.name and not main.prefix and not may_differ:
        raise UserError(
            f"config.init_from={main.run}: a run of config.model.name={model!r}, "
            f"not {config.model.name!r}"
        )
    return earlier


def _others(config):
    """Returns {family: its parts} of the other families from which this model may start."""
    return configs.named_class("model", config.model.name).begins_with


def _task_class(config):
    return configs.named_class("task", config.task.name)


def _task_runs(config) -> tuple[WarmStart, ...]:
    """Returns the runs that keys of config.task name. The prefix of each run is its key."""
    keys = _task_class(config).other_runs
    return tuple(WarmStart(key, config.task[key]) for key in keys if config.task[key])


def _record(start: WarmStart, config) -> Record:
    if not exists(start.run):
        key = f"task.{start.prefix}" if start in _task_runs(config) else configs.INIT_FROM
        raise UserError(f"config.{key}={start.run}: no run here (no config.json)")
    return read(start.run, configs.named_files(config), needed=("model",))


def origin(config, workdir) -> Origin | None:
    """Returns the runs from which the run in `workdir` takes its initial parameters.

    Returns None for a run that initializes its parameters itself, or resumes from a checkpoint of
    its own.
    """
    init_from = config.init_from if config.train.pretrained else None
    task = _task_class(config)
    needs_run = task.begins_with_run and config.train.pretrained
    if workdir is None or not (init_from or task.other_runs or needs_run):
        _check_adapted(config, workdir)
        return None
    checkpoints = buckets.folder_of_run(workdir) / "checkpoints"
    # A run that was killed before its first checkpoint still has to initialize its parameters.
    if checkpoints.is_dir() and Checkpoints(checkpoints, config.checkpoint, read_only=True).steps():
        return None
    for key in task.other_runs:
        if not config.task[key]:
            raise UserError(f"config.task.{key} is missing: the workdir of a run")
    if needs_run and not init_from:
        raise UserError("config.init_from is missing: the workdir of the run to train further")
    source(config)  # to raise an error for another family
    parts = []
    for start in (*warm_starts(init_from), *_task_runs(config)):
        earlier = _record(start, config)
        own = [start]
        # A mapping says itself which parts to take. For a single run of another family, the model
        # does.
        if isinstance(init_from, str) and not start.prefix:
            of_family = _others(config).get(earlier.config.model.name, {}).items()
            own = [WarmStart(prefix, start.run, **keys) for prefix, keys in of_family] or own
        parts += [Part(earlier.workdir, earlier.config, each) for each in own]
    return Origin(tuple(parts))


def _check_adapted(config, workdir) -> None:
    """Raises UserError if a run has adapters but no earlier run whose model they adapt."""
    if config.lora.rank is not None and workdir is not None and not config.init_from:
        raise UserError(
            f"config.lora.rank={config.lora.rank}: adapters need a trained model; name its run, "
            "with --config.init_from=DIR"
        )


def with_other_models(config, recorded: Record | None, earlier: Record | None):
    """Returns a config with the models of the runs that keys of its task name.

    `recorded` is the run that is resumed, if any. Its record has these models, so the other runs
    are not opened again. `earlier` is the run whose tokenizer is used. Raises UserError if one of
    the other runs has another tokenizer.
    """
    if not _task_runs(config):
        return config
    # A copy, because the config belongs to the caller.
    config = ConfigDict(config).copy_and_resolve_references()
    for start in _task_runs(config):
        key = f"{start.prefix}_model"
        if recorded:
            configs.set_key(config, f"task.{key}", recorded.config.task[key])
            continue
        other = _record(start, config)
        if other.fingerprint["tokenizer"] != earlier.fingerprint["tokenizer"]:
            raise UserError(
                f"config.task.{start.prefix}={start.run}: has another tokenizer than "
                f"{earlier.workdir}, from whose parameters the run starts"
            )
        configs.set_key(config, f"task.{key}", tuple(other.config.model.items()))
    return config


def with_model(config: ConfigDict, earlier: Record | None, overrides) -> ConfigDict:
    """Returns a config with the model of an earlier run, for tasks that take it from there.

    `earlier` is the run that is resumed, else the run in `config.init_from`. That model is changed
    by `overrides`, and by the keys of config.model that differ from their defaults. Without an
    earlier run, a fine-tuning task raises UserError, and other tasks use config.model as it is.
    """
    if earlier is None and fine_tunes(config):
        raise UserError(
            "config.init_from is missing: the run (or converted checkpoint) to fine-tune"
        )
    changes = list(overrides)
    if earlier is not None:
        # Taken before config.model is replaced. Overrides come last, so that they win over the
        # file.
        changes = [*_non_defaults(config.model), *overrides]
        # The model of the earlier run may be of another class, whose section has other keys.
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
    """Returns the keys and values of a model's section that differ from its class's defaults."""
    defaults = configs.class_options(configs.named_class("model", model.name))
    values = configs.options(model).items()
    return [(f"model.{key}", value) for key, value in values if value != defaults[key][1]]


def names_same_run(init_from: str | tuple | None, recorded: str | tuple | None) -> bool:
    """Returns whether a config names the same runs as its record, or leaves them out."""
    if not recorded:
        return False
    return not init_from or _absolutes(init_from) == _absolutes(recorded)


def _absolutes(init_from: str | tuple) -> list:
    return [
        (_absolute(start.run), dataclasses.replace(start, run=""))
        for start in warm_starts(init_from)
    ]


def _absolute(folder: str):
    if "://" in str(folder):
        return str(folder).rstrip("/")
    return buckets.path(folder).resolve()


def labels(names: list[str], config, earlier: Record | None) -> list[str]:
    """Returns the labels of a task, whose training examples have the labels `names`.

    If the head of the earlier run has all of them, its labels are taken in their order, so that its
    outputs keep their meaning.
    """
    if earlier is None or earlier.config.task.name != config.task.name:
        return names
    head_labels = [str(label) for label in earlier.config.task.labels]
    return head_labels if set(names) <= set(head_labels) else names
