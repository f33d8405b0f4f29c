"""The record of a run, config.json in its workdir, and the lines of its metrics.jsonl."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import types
from collections.abc import Mapping
from importlib import metadata

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.configuration import variants
from transformer_jax.storage import buckets
from transformer_jax.storage.whole import write_whole
from transformer_jax.training.checkpoint import FORMAT, Checkpoints

Files = Mapping[str, variants.File]
_NONE: Files = types.MappingProxyType({})
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


def read(workdir, files: Files = _NONE, needed: tuple[str, ...] = variants.SECTIONS) -> Record:
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
        recorded = variants.Recorded(content.get("files", {}), files, needed)
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


def begin(config, task, workdir) -> ConfigDict | None:
    """Prepares the data, then records the run in `workdir`, which the caller holds.

    Returns the config of an earlier record; None for a new run. Raises UserError where config or
    data differ from that record in what may not change.
    """
    workdir = buckets.folder_of_run(workdir)
    fingerprint = plain(task.fingerprint())
    earlier = find(workdir, variants.in_config(config))
    if earlier:
        check(earlier, config, fingerprint)
    task.rows()  # first: a fault in the data must leave no record behind
    if not earlier:
        folder = workdir / "tokenizer"
        for leftover in folder.iterdir() if folder.is_dir() else ():
            leftover.unlink()  # of a run that was killed before it was recorded
        _save_tokenizer(task, folder)
    _write(config, fingerprint, workdir)
    return earlier.config if earlier else None


def create(workdir, task, params) -> None:
    """Writes a run at step 0 into an empty folder; `params` were trained elsewhere."""
    workdir = buckets.folder_of_run(workdir)
    _save_tokenizer(task, workdir / "tokenizer")
    with Checkpoints(workdir / "checkpoints", task.config.checkpoint) as checkpoints:
        checkpoints.save_params(params)
    _write(task.config, {"train": [], "tokenizer": of_tokenizer(task)}, workdir)


def of_tokenizer(task):
    """Returns the fingerprint of a task's tokenizer; None where the task has no tokenizer."""
    return None if task.tokenizer is None else plain(task.tokenizer.fingerprint())


def _save_tokenizer(task, folder: pathlib.Path | buckets.Path) -> None:
    if task.tokenizer is not None:
        task.tokenizer.save(folder)


def plain(fingerprint):
    """Returns a fingerprint as JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(fingerprint))


def _write(config, fingerprint: dict, workdir: pathlib.Path | buckets.Path) -> None:
    files, has_head = variants.in_config(config), fine_tunes(config)
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
