"""Base class of Hugging Face architectures, which convert checkpoints to runs and back."""

import dataclasses
import pathlib
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.huggingface import tensors
from transformer_jax.huggingface.tensors import Keys, Table
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------- fine-tuned heads


def read_keys(config: ConfigDict, hf_config: dict, dropout: float) -> dict:
    """Returns the keys of `config.task` for the content of config.json.

    In `config`, the name of the task and the sizes of the model are already set. `dropout` is the
    rate in front of the head. Raises UserError for a head that our tasks do not have.
    """
    max_length = config.model.get("max_length", 512)
    if config.task.name == "span":
        # config.json has neither the length of a row nor those of its window and question. These
        # are the defaults of BERT's run_squad.py, or the same proportions of a shorter row. The
        # head has no dropout.
        length = min(max_length, 384)
        return {
            "length": length,
            "stride": min(128, length // 3),
            "max_question": min(64, length // 6),
        }
    keys = {"length": min(max_length, 512), "head_dropout": dropout}
    if config.task.name == "choice":
        # The number of choices is assumed to be two, because the head scores one choice at a time,
        # so that config.json does not tell it.
        return keys | {"choices": ("2", "3"), "label": "4"}
    labels = read_labels(hf_config)
    if config.task.name == "tagging":
        return keys | {"labels": labels}
    # Inferred as transformers does, because many checkpoints lack problem_type.
    inferred = "regression" if len(labels) == 1 else "single_label_classification"
    problem = hf_config.get("problem_type") or inferred
    if problem != inferred:
        raise UserError(
            f"problem_type={problem!r} with {len(labels)} labels: only regression with 1 label, "
            "and single_label_classification with 2 or more, are supported"
        )
    return keys | ({"regression": True} if problem == "regression" else {"labels": labels})


def check(task: ConfigDict) -> None:
    """Raises UserError for a task for which transformers has no equivalent head."""
    if task.get("symmetric"):
        raise UserError(
            "config.task.symmetric=True: Hugging Face's models read one row of each example, not "
            "both orders of its texts"
        )
    if task.get("head_kind", "linear") != "linear":
        raise UserError(
            f"config.task.head_kind={task.head_kind!r}: Hugging Face's models have a linear head"
        )
    if task.get("features"):
        raise UserError(
            f"config.task.features={task.features!r}: Hugging Face's models have no LSTM head"
        )


def write_keys(task: ConfigDict) -> dict:
    """Returns the keys of config.json for `config.task`. Raises UserError as `check` does."""
    check(task)
    if task.get("regression"):
        return label_maps(("LABEL_0",)) | {"problem_type": "regression"}
    return label_maps(task.labels) if "labels" in task else {}


PREPROCESSOR = "preprocessor_config.json"


class FineTuned:
    """Mixin for architectures with a fine-tuned head, combined with the family of their encoder."""

    tied = {}  # the head of pre-training is replaced, so a copy of the embeddings may differ

    @property
    def dropout_key(self) -> str:
        """The key of the dropout in front of the head; "" if the head has no key of its own."""
        return "" if self.task == "span" else "classifier_dropout"

    def default_dropout(self, config: ConfigDict) -> float:
        """Returns the dropout in front of the head for a checkpoint without `dropout_key`."""
        return config.model.dropout

    def task_keys(self, config: ConfigDict, hf_config: dict) -> dict:
        dropout = hf_config.get(self.dropout_key)
        if dropout is None:
            dropout = self.default_dropout(config)
        return read_keys(config, hf_config, dropout)

    def other_keys(self, config: ConfigDict, tokenizer) -> dict:
        keys = super().other_keys(config, tokenizer) | write_keys(config.task)
        return keys | ({self.dropout_key: config.task.head_dropout} if self.dropout_key else {})


def label_maps(labels) -> dict:
    """Returns the keys of config.json for the names of labels."""
    labels = [str(label) for label in labels]
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def read_labels(hf_config: dict) -> tuple[str, ...]:
    """Returns the labels in the order of their ids.

    Without id2label there are `num_labels` labels, by default two, with the names that transformers
    gives them. Raises UserError for keys that are not valid.
    """
    id2label = hf_config.get("id2label")
    if id2label is None:
        count = hf_config.get("num_labels", 2)
        if not isinstance(count, int) or count < 1:
            raise UserError(f"num_labels={count!r}: must be a whole number from 1")
        return tuple(f"LABEL_{number}" for number in range(count))
    if not isinstance(id2label, dict) or not id2label:
        raise UserError("id2label: must be an object that names the labels 0, 1, 2, ...")
    # As strings, because the keys of a JSON object are strings.
    numbers = [str(number) for number in range(len(id2label))]
    if id2label.keys() != set(numbers):
        raise UserError("id2label: must name the labels 0, 1, 2, ... without a gap")
    labels = tuple(str(id2label[number]) for number in numbers)
    # Refused, because config.task.labels and the files of a task know labels by their names.
    duplicates = [label for number, label in enumerate(labels) if label in labels[:number]]
    if duplicates:
        raise UserError(f"id2label: two labels have the name {duplicates[0]!r}")
    return labels


def read_processor(folder: pathlib.Path, part: str) -> dict:
    """Returns how a checkpoint's images or audio are prepared; empty if it has no such file.

    `part` is "image_processor" or "feature_extractor". It is looked for in processor_config.json,
    as transformers 5 writes it, and then in preprocessor_config.json, which has one part only.
    """
    for name in ("processor_config.json", PREPROCESSOR):
        content = tensors.read_json(folder / name) if (folder / name).is_file() else {}
        if name == PREPROCESSOR or part in content:
            break
    content = content.get(part, content)
    if not isinstance(content, dict):
        raise UserError(f"{folder / name}: {part} must be an object")
    return content


# --------------------------------- architectures, and how the one of a checkpoint or a run is found

# A file of transformer_jax/families may define `ARCHITECTURES`, a list of the architectures that it
# converts. There is no other list of them, so that a new family changes no other file.


_HEAD = re.compile(r"(For[A-Z]\w*|LMHeadModel)$")


@dataclasses.dataclass(frozen=True)
class Family:
    """An architecture of transformers with one of its heads, and its equivalent runs.

    A subclass names the model, and overrides the methods whose default does not fit.
    """

    model: ClassVar[str]  # config.model.name
    prefix: ClassVar[str] = ""  # of names; those in a checkpoint may lack it
    body: ClassVar[tuple[str, ...]] = ()  # how the names of the tensors below the head begin
    ignored: ClassVar[tuple[str, ...]] = ()  # suffixes of the names of tensors that are not read
    # {one of these suffixes: suffixes of the tensor, the first in the table, that it is tied to}
    tied: ClassVar[dict[str, tuple[str, ...]]] = {}

    architecture: str  # class of transformers, listed as "architectures" in config.json
    model_type: str
    keys: Keys
    tensors: Table
    task: str  # config.task.name

    @property
    def headless(self) -> str:
        """The class of transformers without a head, such as BertModel."""
        return _HEAD.sub("Model", self.architecture)

    def matches(self, config: ConfigDict) -> bool:
        """Returns whether a run with this config can be written as this architecture."""
        written_as = configs.named_class("task", config.task.name).written_as
        return config.model.name == self.model and self.task in (config.task.name, written_as)

    def table(self, model: ConfigDict) -> Table:
        """Returns the names and layouts of the tensors; `model` is `config.model`."""
        return self.tensors

    def constants(self, model: ConfigDict) -> dict[str, np.ndarray]:
        """Returns the tensors whose values are fixed. A checkpoint may lack them."""
        return {}

    def model_keys(self, hf_config: dict) -> dict:
        """Returns the keys of config.model for the content of config.json.

        Raises UserError for a variant that our model does not support.
        """
        return self.keys.read(hf_config)

    def sections(self, folder: pathlib.Path) -> dict[str, dict]:
        """Returns the sections of the config that describe the data, such as the tokenizer's files.

        A section "task" has the keys of config.task that follow from the files in `folder`.
        """
        return {"data": {"tokenizer_files": str(folder)}}

    def decode_keys(self, hf_config: dict, folder: pathlib.Path) -> dict:
        """Returns the keys of config.decode that the checkpoint in `folder` sets."""
        return {}

    def complete(self, task, hf_config: dict, folder: pathlib.Path) -> None:
        """Completes a task that has been made from the config of the checkpoint in `folder`.

        It may change the task's tokenizer and config.decode. Raises UserError for what does not
        agree with the tokenizer.
        """

    def task_keys(self, config: ConfigDict, hf_config: dict) -> dict:
        """Returns the keys of config.task; `config` has all other sections."""
        return {}

    def remarks(self, hf_config: dict) -> Iterator[str]:
        """Yields messages to the user about how the run will differ from the checkpoint."""
        return iter(())

    def read_config(self, hf_config: dict, folder: pathlib.Path) -> ConfigDict:
        """Returns the config of a run that starts from the weights in `folder`.

        Raises UserError for a variant that our model does not support.
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
            configs.build_model(config)  # raises the errors of the model's own keys
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        for remark in self.remarks(hf_config):
            say(f"{path}: {remark}")
        return config

    def check(self, config: ConfigDict) -> None:
        """Raises UserError for a run that the architecture of transformers cannot express."""
        check(config.task)
        self.keys.check(config.model, self.architecture)

    def written(self, config: ConfigDict) -> ConfigDict:
        """Returns the config of the model to write, which may be a part of the run's model."""
        return config

    def other_keys(self, config: ConfigDict, tokenizer) -> dict:
        """Returns further keys of config.json, besides those of `keys`."""
        return {}

    def write_config(self, config: ConfigDict, tokenizer) -> dict:
        """Returns the content of config.json. Raises UserError as `check` does."""
        self.check(config)
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            # Parameters are float32, whatever dtype the model computes in.
            "dtype": "float32",
            **self.keys.write(config.model),
            **self.other_keys(config, tokenizer),
        }

    def vocab_size(self, hf_config: dict) -> int:
        """Returns the number of rows of the embedding tables in the checkpoint."""
        return hf_config["vocab_size"]

    def ours(self, params, task):
        """Reorders parameters within arrays, from the checkpoint's order to our model's."""
        return params

    def theirs(self, params, task):
        """Reorders parameters within arrays, from our model's order to the checkpoint's."""
        return params

    def generation_config(self, task) -> dict:
        """Returns the content of generation_config.json; empty if the family has no such file."""
        return {}

    def tokenizer_files(self, task) -> dict[str, bytes]:
        """Returns the files of the tokenizer; empty if transformers has no such tokenizer."""
        return {} if task.tokenizer is None else task.tokenizer.hf_files()


@dataclasses.dataclass(frozen=True)
class Headless(Family):
    """The model of a family without its head, such as BertModel: a run of the task `features`."""

    whole: Family  # an architecture of the family with a head
    # Tensors of a layer that only some heads read, such as BERT's pooler. A checkpoint may lack it,
    # so that there is an architecture with it and one without.
    pooler: Table

    @property
    def model(self):
        return self.whole.model

    @property
    def prefix(self):
        return self.whole.prefix or (self.whole.body[0] if len(self.whole.body) == 1 else "")

    def matches(self, config):
        return super().matches(config) and config.task.pooled == bool(self.pooler)

    @property
    def ignored(self):
        return tuple(name.removeprefix(self.prefix) for name in self.whole.ignored)

    def table(self, model):
        return _starting(self.whole.table(model), self.whole.body) | self.pooler

    def constants(self, model):
        return _starting(self.whole.constants(model), self.whole.body)

    def read_config(self, hf_config, folder):
        config = self.whole.read_config(hf_config, folder)
        task = dict(name=self.task, pooled=bool(self.pooler))
        return configs.experiment(model=dict(config.model), task=task, data=dict(config.data))

    def complete(self, task, hf_config, folder):
        # The tokens around a text that an encoder reads belong to the model, see `text_frame`.
        if task.model.kind == "causal":
            task.tokenizer.prefix, _ = tokenizers.published_frame(folder, task.tokenizer)

    def check(self, config):
        self.whole.check(self._with_head(config))

    def other_keys(self, config, tokenizer):
        return self.whole.other_keys(self._with_head(config), tokenizer)

    def tokenizer_files(self, task):
        config = self._with_head(task.config)
        whole = types.SimpleNamespace(model=task.model, config=config, tokenizer=task.tokenizer)
        return self.whole.tokenizer_files(whole)

    def _with_head(self, config: ConfigDict) -> ConfigDict:
        """Returns the config of a run with a head, whose keys have their defaults."""
        return configs.experiment(model=dict(config.model), task=dict(name=self.whole.task))

    def vocab_size(self, hf_config):
        return self.whole.vocab_size(hf_config)

    def ours(self, params, task):
        return self.whole.ours(params, task)

    def theirs(self, params, task):
        return self.whole.theirs(params, task)


def _starting(table: Mapping[str, Any], prefixes: tuple[str, ...]) -> dict:
    return {name: entry for name, entry in table.items() if name.startswith(prefixes)}


def _headless(group: list[Family]) -> list[Headless]:
    """Returns the architecture without a head of a family, given those with its heads."""
    whole = group[0]
    if not whole.body:
        return []
    bodies = [_starting(family.tensors, whole.body) for family in group]
    entries = [item for body in bodies for item in body.items()]
    pooler = {name: entry for name, entry in entries if entry[1].startswith("pooler/")}
    body = {name: entry for name, entry in bodies[0].items() if name not in pooler}
    return [
        Headless(whole.headless, whole.model_type, whole.keys, body, "features", whole, each)
        for each in ([pooler, {}] if pooler else [{}])
    ]


def families() -> list[Family]:
    """Returns the architectures that the files of transformer_jax/families convert.

    Those without a head come last.
    """
    modules = [configs.class_module("model", name) for name in configs.class_names("model")]
    found = [family for module in modules for family in _defined(module)]
    groups = {}
    for family in found:
        groups.setdefault(family.model_type, []).append(family)
    return found + [each for group in groups.values() for each in _headless(group)]


def _defined(module) -> list[Family]:
    """Returns the architectures of a file. Raises UserError if one is not a `Family`."""
    defined = vars(module).get("ARCHITECTURES", [])
    if not all(isinstance(family, Family) for family in defined):
        raise UserError(f"{module.__file__}: ARCHITECTURES must be a list of `Family`")
    return defined


def named_family(path: pathlib.Path, hf_config: dict) -> Family:
    """Returns the family that a config.json names. Raises UserError for an unknown one."""
    by_name = {family.architecture: family for family in families()}
    architectures = hf_config.get("architectures")
    if (
        not isinstance(architectures, list)
        or len(architectures) != 1
        or str(architectures[0]) not in by_name
    ):
        raise UserError(
            f"{path}: architectures={architectures}: only {', '.join(by_name)} can be read"
        )
    return by_name[architectures[0]]


def checkpoint_family(folder: pathlib.Path, hf_config: dict) -> Family:
    """Returns the family of the checkpoint in `folder`. Raises UserError for an unknown one."""
    family = named_family(folder / "config.json", hf_config)
    names = tensors.stored(folder).keys()
    if isinstance(family, Headless):
        return _with_stored_parts(family, hf_config, folder, names)
    # The largest family of which the file has all tensors, because published BERT checkpoints have
    # two heads, of which "architectures" names only one.
    for other in families():
        same = (other.model_type, other.task) == (family.model_type, family.task)
        additional = other.tensors.keys() - family.tensors.keys()
        contains = other.tensors.keys() > family.tensors.keys()
        if same and contains and additional <= names:
            family = other
    return family


def _with_stored_parts(
    family: Headless, hf_config: dict, folder: pathlib.Path, names: Iterable[str]
) -> Family:
    """Returns the architecture for the tensors that a checkpoint without a head has.

    It is the one with a head if the head is tied to the embeddings, as GPT-2's.
    """
    stored = {name.removeprefix(family.prefix) for name in names}

    def has(table: Table) -> bool:
        # Of a stack of layers, the first one tells.
        first = (tensors.layer_name(n, 0) if tensors.is_stack(n) else n for n in table)
        return stored >= {name.removeprefix(family.prefix) for name in first}

    if has(family.whole.table(family.read_config(hf_config, folder).model)):
        return family.whole
    # The one with the pooler comes first. Missing tensors are named when they are read.
    same = [other for other in families() if other.architecture == family.architecture]
    return next((other for other in same if has(other.pooler)), same[-1])


def run_family(config: ConfigDict, architecture: str | None = None) -> Family:
    """Returns the family as which a run with this config can be written.

    It is the first that matches, or the one with the name `architecture`. Raises UserError if there
    is none.
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
