"""Adapters in the format of PEFT: adapter_config.json and adapter_model.safetensors."""

import dataclasses
import functools
import json
import math
import operator
import pathlib
import re
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float
from scipy.linalg import block_diag

from transformer_jax.config import UserError
from transformer_jax.huggingface import tensors
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.tensors import Table
from transformer_jax.layers import low_rank
from transformer_jax.layers.low_rank import Adapters

# --------------------------------------------------------------------------------------------------
# Adapters of our matrices as PEFT's adapters of modules, lora_A (r, inputs), lora_B (outputs, r).
#
# GPT-2's module for queries, keys and values is three matrices here. Its adapter of rank r is three
# adapters with the same A. Three adapters of their own are one of rank 3 r, whose lora_B is block
# diagonal. There, a matrix without an adapter has zeros.

# The layouts of torch.nn.Linear and of OpenAI's Conv1D.
_LAYOUTS = ("linear", "linear_merge", "same", "conv1d", "conv1d_merge")

Tree = dict  # of dicts of arrays
Pair = tuple[Float[np.ndarray, "r I"], Float[np.ndarray, "O r"]]


@dataclasses.dataclass(frozen=True)
class Part:
    """One of our matrices in a module, with views of its adapter in one layer, if it has one."""

    outputs: int
    a: np.ndarray | None = None  # (*inputs, r)
    b: np.ndarray | None = None  # (r, *outputs)

    @property
    def pair(self) -> Pair | None:
        """The adapter as PEFT has it."""
        if self.a is None:
            return None
        rank = len(self.b)
        return self.a.reshape(-1, rank).T, self.b.reshape(rank, -1).T

    def fill(self, pair: Pair) -> None:
        """Fills the views with an adapter as PEFT has it."""
        a, b = pair
        self.a[...] = a.T.reshape(self.a.shape)
        self.b[...] = b.T.reshape(self.b.shape)


@dataclasses.dataclass(frozen=True)
class Module:
    """A module with adapters. `end` is the part of its name that all layers of a stack share."""

    name: str
    end: str
    parts: tuple[Part, ...]

    def joined(self) -> Pair:
        """Returns the adapter of the module."""
        pairs = [part.pair for part in self.parts]
        first, _ = next(pair for pair in pairs if pair is not None)
        if all(pair is not None and np.array_equal(pair[0], first) for pair in pairs):
            return first, np.concatenate([b for _, b in pairs])
        pairs = [
            pair or (np.zeros_like(first), np.zeros((part.outputs, len(first)), np.float32))
            for pair, part in zip(pairs, self.parts)
        ]
        return np.concatenate([a for a, _ in pairs]), block_diag(*(b for _, b in pairs))

    def fill(self, a: Float[np.ndarray, "R I"], b: Float[np.ndarray, "O R"]) -> None:
        """Fills the parts with the adapter of the module.

        Raises UserError where it is not the `joined` one of any parts.
        """
        rank = next(len(part.b) for part in self.parts if part.a is not None)
        inputs = next(part.a.size // rank for part in self.parts if part.a is not None)
        outputs = [part.outputs for part in self.parts]
        if a.shape[1] != inputs or len(b) != sum(outputs):
            raise UserError(
                f"{self.name}: has {a.shape[1]} inputs and {len(b)} outputs in the adapter, "
                f"{inputs} and {sum(outputs)} in the model"
            )
        rows = np.split(b, np.cumsum(outputs)[:-1])
        pairs = [(a, row) for row in rows]
        if len(a) != rank:
            count = len(rows)
            own = [np.split(row, count, axis=1)[place] for place, row in enumerate(rows)]
            if not np.array_equal(block_diag(*own), b):
                raise UserError(f"{self.name}: its adapter is none of each matrix by itself")
            pairs = [*zip(np.split(a, count), own)]
        for part, pair in zip(self.parts, pairs):
            if part.a is not None:
                part.fill(pair)


def modules(params: Tree, table: Table, adapters: Adapters) -> Iterator[Module]:
    """Yields the modules of the adapters in a tree of NumPy arrays; their parts are views.

    Raises UserError for an adapter of what is no module.
    """
    left = {path for path in paths(params) if path.endswith(low_rank.A)}
    for name, (layout, *of_name) in table.items():
        adapted = {path + low_rank.A for path in of_name if path.endswith("/kernel")} & left
        if adapted and layout in _LAYOUTS and name.endswith(".weight"):
            left -= adapted
            yield from _of_entry(params, name.removesuffix(".weight"), of_name, adapters)
    if left:
        names = tensors.listed(map(low_rank.matrix_of, left))
        raise UserError(f"config.lora.matrices: PEFT has no adapter of {names}; merge it instead")


def _of_entry(params: Tree, name: str, of_name: list[str], adapters: Adapters) -> Iterator[Module]:
    """Yields the modules of an entry of a table: one, or one for each layer with adapters."""
    matrices = [at(params, path) for path in of_name]
    pairs = [
        [at(params, path + end) for end in (low_rank.A, low_rank.B)]
        if path + low_rank.A in set(paths(params))
        else None
        for path in of_name
    ]
    if not tensors.is_stack(name):
        yield Module(name, name, _parts(matrices, pairs))
        return
    for place, layer in enumerate(adapters.chosen(len(matrices[0]))):
        of_layer = [pair and [x[place] for x in pair] for pair in pairs]
        parts = _parts([matrix[layer] for matrix in matrices], of_layer)
        yield Module(tensors.layer_name(name, layer), name.rpartition("}.")[2], parts)


def _parts(matrices: list[np.ndarray], pairs: list[list[np.ndarray] | None]) -> tuple[Part, ...]:
    inputs = math.prod(next(pair[0].shape[:-1] for pair in pairs if pair))
    return tuple(Part(matrix.size // inputs, *pair or ()) for matrix, pair in zip(matrices, pairs))


def paths(params: Tree, prefix: str = "") -> Iterator[str]:
    """Yields the names of the leaves, such as "norm/scale"."""
    for name, value in params.items():
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{name}/")
        else:
            yield prefix + name


def at(params: Tree, path: str) -> np.ndarray:
    """Returns the leaf of a name."""
    return functools.reduce(operator.getitem, path.split("/"), params)


# --------------------------------------------------------------------------------------------------
# A folder of adapters: how it is written, and how a run reads it.

_CONFIG, _STEM = "adapter_config.json", "adapter_model"
_PREFIX = "base_model.model."  # of PEFT's names
# PEFT's name of a task, by the end of an architecture's.
_TASKS = {
    "LMHeadModel": "CAUSAL_LM",
    "ForCausalLM": "CAUSAL_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "MTModel": "SEQ_2_SEQ_LM",
}
# Keys of adapters that are not W + alpha / r A B.
_OTHER_KINDS = ("use_rslora", "use_dora", "use_qalora", "lora_bias", "layer_replication")


def check(family: Family) -> None:
    """Raises UserError for a family whose checkpoints have other parts or orders than ours."""
    if (type(family).ours, type(family).theirs) != (Family.ours, Family.theirs):
        raise UserError(
            f"{family.architecture} orders its parameters in another way, so that adapters can't "
            "be converted apart; --to_hf writes the merged model"
        )


def write(folder: pathlib.Path, params: Tree, family: Family, task) -> None:
    """Writes the adapters among parameters, and all else that is trained, to a folder.

    The parameters are NumPy arrays. Raises UserError where PEFT has no such adapter.
    """
    check(family)
    table, lora = family.table(task.config.model), task.config.lora
    arrays, ranks, names = {}, {}, []
    for module in modules(params, table, Adapters.of(lora)):
        a, b = module.joined()
        arrays |= {f"{module.name}.lora_A.weight": [a], f"{module.name}.lora_B.weight": [b]}
        names.append(module.name)
        if len(a) != lora.rank:
            ranks[module.end] = len(a)
    whole = tensors.views(params, _trained_whole(table, task))
    content = {
        "peft_type": "LORA",
        "task_type": _task_type(family.architecture),
        "base_model_name_or_path": None,
        "r": lora.rank,
        "lora_alpha": _whole(lora.alpha),
        "target_modules": names,
        "rank_pattern": ranks,
        "alpha_pattern": {
            end: _whole(lora.alpha * rank / lora.rank) for end, rank in ranks.items()
        },
        "modules_to_save": sorted({name.rpartition(".")[0] for name in whole}) or None,
        # PEFT finds out by itself which modules are Conv1D.
        "fan_in_fan_out": False,
        "bias": "none",
        "lora_dropout": 0.0,
        "inference_mode": True,
    }
    (folder / _CONFIG).write_text(json.dumps(content, indent=2) + "\n")
    named = {_PREFIX + name: parts for name, parts in (arrays | whole).items()}
    tensors.write(folder, named, _STEM)


def _trained_whole(table: Table, task) -> Table:
    """Returns the part of a table whose parameters are trained whole."""

    def is_trained(path: str) -> bool:
        return task.group(tuple(path.split("/"))) is not None

    return {name: entry for name, entry in table.items() if all(map(is_trained, entry[1:]))}


def _whole(alpha: float) -> int | float:
    """Returns a whole number as PEFT has it."""
    return int(alpha) if alpha.is_integer() else alpha


def _task_type(architecture: str) -> str | None:
    return next((task for end, task in _TASKS.items() if architecture.endswith(end)), None)


@dataclasses.dataclass(frozen=True)
class Stored:
    """The adapters in a folder, for a run of a family.

    Attributes:
      folder: the folder.
      content: the content of adapter_config.json.
      sources: {name in Hugging Face's model: (open file, name in the file)}.
      table: the table of the family.
    """

    folder: pathlib.Path
    content: dict
    sources: Mapping[str, tuple]
    table: Table

    @classmethod
    def open(cls, folder: pathlib.Path, family: Family, model) -> "Stored":
        """Returns the adapters of a model with the section `config.model`.

        Raises UserError for adapters of another kind.
        """
        check(family)
        content = tensors.read_json(folder / _CONFIG)
        expected = {"peft_type": "LORA", "bias": "none"} | dict.fromkeys(_OTHER_KINDS)
        for key, value in expected.items():
            if (content.get(key) or value) != value:
                raise UserError(
                    f"{folder / _CONFIG}: {key}={content[key]}: must be {value or 'left out'}"
                )
        if not isinstance(content.get("r"), int) or not content.get("lora_alpha"):
            raise UserError(f"{folder / _CONFIG}: r or lora_alpha is missing")

        def short(name: str) -> str:
            return name.removeprefix(_PREFIX).removeprefix(family.prefix)

        table = {short(name): entry for name, entry in family.table(model).items()}
        stored = {short(name): source for name, source in tensors.stored(folder, _STEM).items()}
        return cls(folder, content, stored, table)

    def lora(self, params: Tree, heads: tuple[str, ...]) -> dict:
        """Returns the keys of `config.lora` of a run that has these adapters.

        `params` are the parameters without adapters; the parts `heads` are trained whole anyway.
        Raises UserError for tensors that are no adapters of these parameters.
        """
        matrices, trained, layers, left = [], [], set(), set(self.sources)
        for name, (_, *of_name) in self.table.items():
            count = len(at(params, of_name[0])) if tensors.is_stack(name) else 0
            names = [tensors.layer_name(name, i) for i in range(count)] or [name]
            if left.issuperset(names):
                left -= {*names}
                trained += [path for path in of_name if path.partition("/")[0] not in heads]
            ends = [each.removesuffix(".weight") for each in names]
            numbers = [i for i, each in enumerate(ends) if f"{each}.lora_A.weight" in left]
            if numbers:
                left -= {f"{ends[i]}.lora_{side}.weight" for i in numbers for side in "AB"}
                adapted = {path for i in numbers for path in self._adapted(ends[i], of_name)}
                matrices += sorted(adapted)
                layers |= {tuple(numbers) if len(numbers) < count else ()} if count else set()
        if left:
            raise UserError(f"{self.folder}: not of this model: {tensors.listed(left)}")
        if len(layers) > 1:
            raise UserError(f"{self.folder}: the matrices have adapters in different layers")
        return {
            "rank": self.content["r"],
            "alpha": float(self.content["lora_alpha"]),
            "matrices": tuple(matrices),
            "layers": ",".join(map(str, *layers)) if layers else "",
            "trained": tuple(trained),
        }

    def _adapted(self, module: str, of_name: list[str]) -> list[str]:
        """Returns which of the matrices of a module have adapters."""
        rank, alpha = self.content["r"], self.content["lora_alpha"]
        a, _ = self._pair(module)
        scale = self._alpha(module) / len(a)
        if len(a) not in (rank, len(of_name) * rank) or scale != alpha / rank:
            raise UserError(
                f"{self.folder}: {module} has rank {len(a)} and scale {scale:.4g}, not r={rank} "
                f"and {alpha / rank:.4g}; the adapters of a run have one rank and one scale"
            )
        blocks = [a] * len(of_name) if len(a) == rank else np.split(a, len(of_name))
        return [path for path, block in zip(of_name, blocks) if block.any()]

    def _alpha(self, module: str) -> float:
        """Returns the alpha of a module: that of the first pattern that fits its name."""
        for pattern, value in (self.content.get("alpha_pattern") or {}).items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return value
        return self.content["lora_alpha"]

    def fill(self, params: Tree, adapters: Adapters) -> None:
        """Fills the adapters, and what is trained whole, in a tree of NumPy arrays."""
        for module in modules(params, self.table, adapters):
            module.fill(*self._pair(module.name))
        for name, views in tensors.views(params, self.table).items():
            if name in self.sources:
                tensors.fill(f"{self.folder}: {name}", views, *self.sources[name])

    def _pair(self, module: str) -> Pair:
        """Returns the adapter of a module, float32."""
        pair = []
        for name in (f"{module}.lora_A.weight", f"{module}.lora_B.weight"):
            if name not in self.sources:
                raise UserError(f"{self.folder}: missing from the weights: {name}")
            file, stored_name = self.sources[name]
            pair.append(np.empty(file.get_slice(stored_name).get_shape(), np.float32))
            tensors.fill(f"{self.folder}: {name}", pair[-1:], file, stored_name)
        return tuple(pair)
