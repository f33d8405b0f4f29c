"""A family of Hugging Face's architectures, and the list of all: one file of this folder each.

A file of this folder defines `FAMILIES`, the architectures that it converts. Nothing else names
them.
"""

import dataclasses
import importlib
import pathlib
import pkgutil
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.huggingface import heads, tensors
from transformer_jax.huggingface.keys import Keys
from transformer_jax.huggingface.tensors import Table
from transformer_jax.pictures.progress import say

_PACKAGE = __name__.rpartition(".")[0]
# Modules of this folder that define no family.
_SHARED = ("encoder_decoder", "family", "generation", "heads", "keys", "tensors")
_SHARED += ("peft", "peft_modules")


@dataclasses.dataclass(frozen=True)
class Family:
    """An architecture with one of its heads, and the runs that equal it.

    A subclass names the model and fills in the methods whose default does not fit.
    """

    model: ClassVar[str]  # config.model.name
    prefix: ClassVar[str] = ""  # names in a checkpoint may lack it
    ignored: ClassVar[tuple[str, ...]] = ()  # endings of names that are not read

    architecture: str  # the name in the list "architectures" of config.json
    model_type: str
    keys: Keys
    tensors: Table
    task: str  # config.task.name

    def matches(self, config: ConfigDict) -> bool:
        """Returns whether a run with this config is of the family."""
        written_as = configs.named_class("task", config.task.name).written_as
        return config.model.name == self.model and self.task in (config.task.name, written_as)

    def table(self, model: ConfigDict) -> Table:
        """Returns the names and layouts of the tensors of a model with these keys."""
        return self.tensors

    def constants(self, model: ConfigDict) -> dict[str, np.ndarray]:
        """Returns the tensors with values that no run changes. A checkpoint may lack them."""
        return {}

    def model_keys(self, hf_config: dict) -> dict:
        """Returns the keys of config.model for the content of config.json.

        Raises UserError for a model that ours does not compute.
        """
        return self.keys.read(hf_config)

    def sections(self, folder: pathlib.Path) -> dict[str, dict]:
        """Returns the sections that say where the data come from.

        A section "task" has the keys of config.task that the files in `folder` give.
        """
        return {"data": {"tokenizer_files": str(folder)}}

    def decode_keys(self, hf_config: dict, folder: pathlib.Path) -> dict:
        """Returns the keys of config.decode that the checkpoint in `folder` gives."""
        return {}

    def task_keys(self, config: ConfigDict, hf_config: dict) -> dict:
        """Returns the keys of config.task; config has all other sections."""
        return {}

    def remarks(self, hf_config: dict) -> Iterator[str]:
        """Yields the differences of the run from the checkpoint."""
        return iter(())

    def read_config(self, hf_config: dict, folder: pathlib.Path) -> ConfigDict:
        """Returns the config of a run that starts from the weights in `folder`.

        Raises UserError for a model that ours does not compute.
        """
        path = folder / "config.json"
        try:
            sections = dict(self.sections(folder))
            config = configs.experiment(
                model=dict(name=self.model, **self.model_keys(hf_config)),
                task=dict(name=self.task, **sections.pop("task", {})),
                decode=dict(batch=8, **self.decode_keys(hf_config, folder)),
                **sections,
            )
            for key, value in self.task_keys(config, hf_config).items():
                configs.set_key(config, f"task.{key}", value)
            configs.validate(config)
            configs.build_model(config)  # checks the keys of the family
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        for remark in self.remarks(hf_config):
            say(f"{path}: {remark}")
        return config

    def check(self, config: ConfigDict) -> None:
        """Raises UserError for a run that Hugging Face's model does not compute."""
        heads.check(config.task)
        self.keys.check(config.model, self.architecture)

    def written(self, config: ConfigDict) -> ConfigDict:
        """Returns the config of the model to write: the run's, or that of a part of its model."""
        return config

    def other_keys(self, config: ConfigDict, tokenizer) -> dict:
        """Returns the keys of config.json that `keys` does not hold."""
        return {}

    def write_config(self, config: ConfigDict, tokenizer) -> dict:
        """Returns the content of config.json. Raises UserError as `check` does."""
        self.check(config)
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "dtype": "float32",
            **self.keys.write(config.model),
            **self.other_keys(config, tokenizer),
        }

    def vocab_size(self, hf_config: dict) -> int:
        """Returns the number of rows of the tensors that grow with the vocabulary."""
        return hf_config["vocab_size"]

    def ours(self, params, task):
        """Returns the parameters of our model, from arrays in the order of the checkpoint's."""
        return params

    def theirs(self, params, task):
        """Returns arrays in the order of the checkpoint's, from the parameters of our model."""
        return params

    def generation_config(self, task) -> dict:
        """Returns the content of generation_config.json; none where the family has no such file."""
        return {}

    def tokenizer_files(self, task) -> dict[str, bytes]:
        """Returns the files of the tokenizer; none where transformers has no such tokenizer."""
        return {} if task.tokenizer is None else task.tokenizer.hf_files()


def families() -> list[Family]:
    """Returns the families of all files in this folder."""
    folder = importlib.import_module(_PACKAGE).__path__
    names = sorted(m.name for m in pkgutil.iter_modules(folder) if m.name not in _SHARED)
    modules = [importlib.import_module(f"{_PACKAGE}.{name}") for name in names]
    return [family for module in modules for family in _defined(module)]


def _defined(module) -> list[Family]:
    """Returns the families of a file. Raises UserError where it defines none."""
    defined = vars(module).get("FAMILIES", [])
    if not defined or not all(isinstance(family, Family) for family in defined):
        raise UserError(f"{module.__file__}: must define FAMILIES, a list of its architectures")
    return defined


def of_checkpoint(folder: pathlib.Path, hf_config: dict) -> Family:
    """Returns the family of the checkpoint in `folder`. Raises UserError for an unknown one."""
    by_name = {family.architecture: family for family in families()}
    architectures = hf_config.get("architectures")
    if (
        not isinstance(architectures, list)
        or len(architectures) != 1
        or str(architectures[0]) not in by_name
    ):
        raise UserError(
            f"{folder / 'config.json'}: architectures={architectures}: "
            f"only {', '.join(by_name)} can be read"
        )
    family = by_name[architectures[0]]
    names = tensors.stored(folder).keys()
    # Published BERTs name one of their two heads. Take the family with all heads in the file.
    for other in by_name.values():
        same = (other.model_type, other.task) == (family.model_type, family.task)
        additional = other.tensors.keys() - family.tensors.keys()
        contains = other.tensors.keys() > family.tensors.keys()
        if same and contains and additional <= names:
            family = other
    return family


def of_run(config: ConfigDict, architecture: str | None = None) -> Family:
    """Returns the family that can hold a run with this config: the first, or the named one.

    Raises UserError where there is none.
    """
    for family in families():
        if family.matches(config) and architecture in (None, family.architecture):
            return family
    supported = ", ".join(family.architecture for family in families())
    raise UserError(
        f"config.model.name={config.model.name!r} with "
        f"config.task.name={config.task.name!r}{f' as {architecture}' if architecture else ''}: "
        f"only {supported} can be written"
    )
