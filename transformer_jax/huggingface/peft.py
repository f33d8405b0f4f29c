"""LoRA adapters in the format of PEFT: adapter_config.json and adapter_model.safetensors."""

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

# ----------------------------------------- adapters of our matrices, and PEFT's adapters of modules

# PEFT adapts modules, by lora_A (r, inputs) and lora_B (outputs, r). A module may be several
# matrices here: GPT-2 has one module for queries, keys and values, and we have three matrices. An
# adapter of rank r of the module is three adapters of ours with the same A. Conversely, three
# independent adapters of rank r become one of rank 3 r whose lora_B is block diagonal, with zeros
# for a matrix without an adapter.

# Only kernels of torch.nn.Linear and of OpenAI's Conv1D have lora_A and lora_B. PEFT names the
# adapters of other modules, such as embeddings, in another way.
_LAYOUTS = ("linear", "linear_merge", "same", "conv1d", "conv1d_merge")

Tree = dict  # of dicts of arrays
Pair = tuple[Float[np.ndarray, "r I"], Float[np.ndarray, "O r"]]


@dataclasses.dataclass(frozen=True)
class Part:
    """One of our matrices in a module, with views of its adapter in one layer, if there is one."""

    outputs: int
    a: np.ndarray | None = None  # (*inputs, r)
    b: np.ndarray | None = None  # (r, *outputs)

    @property
    def pair(self) -> Pair | None:
        """The adapter in PEFT's layout."""
        if self.a is None:
            return None
        rank = len(self.b)
        return self.a.reshape(-1, rank).T, self.b.reshape(rank, -1).T

    def fill(self, pair: Pair) -> None:
        """Fills the views with an adapter in PEFT's layout."""
        a, b = pair
        self.a[...] = a.T.reshape(self.a.shape)
        self.b[...] = b.T.reshape(self.b.shape)


@dataclasses.dataclass(frozen=True)
class Module:
    """A module with adapters. `end` is the suffix of its name that all layers of a stack share."""

    name: str
    end: str
    parts: tuple[Part, ...]

    def joined(self) -> Pair:
        """Returns the adapters of the parts as one adapter of the module."""
        pairs = [part.pair for part in self.parts]
        first, _ = next(pair for pair in pairs if pair is not None)
        # Parts with the same A keep its rank, so that adapters that come from PEFT are written as
        # they were read.
        if all(pair is not None and np.array_equal(pair[0], first) for pair in pairs):
            return first, np.concatenate([b for _, b in pairs])
        pairs = [
            pair or (np.zeros_like(first), np.zeros((part.outputs, len(first)), np.float32))
            for pair, part in zip(pairs, self.parts)
        ]
        return np.concatenate([a for a, _ in pairs]), block_diag(*(b for _, b in pairs))

    def fill(self, a: Float[np.ndarray, "R I"], b: Float[np.ndarray, "O R"]) -> None:
        """Fills the parts with the adapter of the module; the inverse of `joined`.

        Raises UserError if there are no adapters of the parts that `joined` would turn into it.
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
            own = [np.split(row, count, axis=1)[index] for index, row in enumerate(rows)]
            # Exact, because an entry outside the blocks would let a matrix read another one's A,
            # which our adapters cannot express.
            if not np.array_equal(block_diag(*own), b):
                raise UserError(
                    f"{self.name}: its adapter can't be divided into one for each matrix"
                )
            pairs = [*zip(np.split(a, count), own)]
        for part, pair in zip(self.parts, pairs):
            if part.a is not None:
                part.fill(pair)


def modules(params: Tree, table: Table, adapters: Adapters) -> Iterator[Module]:
    """Yields the modules with adapters in a tree of NumPy arrays, of which their parts are views.

    Raises UserError for an adapter of a matrix that belongs to no module of PEFT's.
    """
    left = {path for path in paths(params) if path.endswith(low_rank.A)}
    for name, (layout, *kernels) in table.items():
        adapted = {path + low_rank.A for path in kernels if path.endswith("/kernel")} & left
        if adapted and layout in _LAYOUTS and name.endswith(".weight"):
            left -= adapted
            yield from _entry_modules(params, name.removesuffix(".weight"), kernels, adapters)
    if left:
        names = tensors.listed(map(low_rank.matrix_of, left))
        raise UserError(f"config.lora.matrices: PEFT has no adapter of {names}; merge it instead")


def _entry_modules(
    params: Tree, name: str, kernels: list[str], adapters: Adapters
) -> Iterator[Module]:
    """Yields the modules of one entry of a table: one, or one for each layer with adapters.

    `kernels` are the paths of our matrices.
    """
    matrices = [at(params, path) for path in kernels]
    pairs = [
        [at(params, path + end) for end in (low_rank.A, low_rank.B)]
        if path + low_rank.A in set(paths(params))
        else None
        for path in kernels
    ]
    if not tensors.is_stack(name):
        yield Module(name, name, _parts(matrices, pairs))
        return
    # Only the chosen layers have adapters, so arrays of adapters have their own index of layers.
    for index, layer in enumerate(adapters.chosen(len(matrices[0]))):
        layer_pairs = [pair and [x[index] for x in pair] for pair in pairs]
        parts = _parts([matrix[layer] for matrix in matrices], layer_pairs)
        yield Module(tensors.layer_name(name, layer), name.rpartition("}.")[2], parts)


def _parts(matrices: list[np.ndarray], pairs: list[list[np.ndarray] | None]) -> tuple[Part, ...]:
    inputs = math.prod(next(pair[0].shape[:-1] for pair in pairs if pair))
    return tuple(Part(matrix.size // inputs, *pair or ()) for matrix, pair in zip(matrices, pairs))


def paths(params: Tree, prefix: str = "") -> Iterator[str]:
    """Yields the paths of the leaves, such as "norm/scale"."""
    for name, value in params.items():
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{name}/")
        else:
            yield prefix + name


def at(params: Tree, path: str) -> np.ndarray:
    """Returns the leaf with a path."""
    return functools.reduce(operator.getitem, path.split("/"), params)


# --------------------------------------------------------- writing and reading a folder of adapters

_CONFIG, _STEM = "adapter_config.json", "adapter_model"
_PREFIX = "base_model.model."  # of PEFT's names
# {suffix of an architecture's name: PEFT's name of the task}
_TASKS = {
    "LMHeadModel": "CAUSAL_LM",
    "ForCausalLM": "CAUSAL_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "MTModel": "SEQ_2_SEQ_LM",
}
# Keys of adapter_config.json that leave the adapted matrix at W + alpha / r A B. PEFT's other keys,
# and those that later versions add, stand for variants with another rule (DoRA, rank-stabilized
# LoRA) or other inputs (activated LoRA, which adapts only the tokens after an invocation).
_KEYS = frozenset(
    "alpha_pattern auto_mapping base_model_name_or_path bias corda_config ensure_weight_tying "
    "eva_config exclude_modules fan_in_fan_out inference_mode init_lora_weights layers_pattern "
    "layers_to_transform loftq_config lora_alpha lora_dropout lora_ga_config megatron_config "
    "megatron_core modules_to_save peft_type peft_version qalora_group_size r rank_pattern "
    "revision runtime_config target_modules target_parameters task_type trainable_token_indices "
    # These two are allowed, because they change how adapters are trained, not what they compute.
    "monteclora_config velora_config".split()
)
# Initial values of adapters that leave the base model as it is. The others (PiSSA, OLoRA, LoftQ,
# CorDA, ...) subtract the initial adapter from it, so that A and B fit only that changed model.
_INITIAL = (None, True, False, "gaussian", "orthogonal", "eva", "mica")


def check(family: Family) -> None:
    """Raises UserError for a family that reorders parameters when it converts them."""
    # A family that overrides one of the two moves rows of a matrix, and those of its adapter would
    # have to move as well.
    if (type(family).ours, type(family).theirs) != (Family.ours, Family.theirs):
        raise UserError(
            f"{family.architecture} orders its parameters in another way, so that adapters can't "
            "be converted separately; --to_hf writes the merged model"
        )


def write(folder: pathlib.Path, params: Tree, family: Family, task) -> None:
    """Writes the adapters and all other trained parameters to a folder.

    `params` is a tree of NumPy arrays. Raises UserError for adapters that PEFT cannot express.
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
        # A joined module has a higher rank, and its alpha grows with it, so that the scale alpha /
        # r of its adapter stays the same.
        "alpha_pattern": {
            end: _whole(lora.alpha * rank / lora.rank) for end, rank in ranks.items()
        },
        "modules_to_save": sorted({name.rpartition(".")[0] for name in whole}) or None,
        # False also for the transposed kernels of Conv1D, because PEFT finds such modules by
        # itself.
        "fan_in_fan_out": False,
        "bias": "none",
        "lora_dropout": 0.0,
        "inference_mode": True,
    }
    (folder / _CONFIG).write_text(json.dumps(content, indent=2) + "\n")
    named = {_PREFIX + name: parts for name, parts in (arrays | whole).items()}
    tensors.write(folder, named, _STEM)


def _trained_whole(table: Table, task) -> Table:
    """Returns the entries of a table whose parameters are trained directly, without adapters."""

    def is_trained(path: str) -> bool:
        return task.group(tuple(path.split("/"))) is not None

    return {name: entry for name, entry in table.items() if all(map(is_trained, entry[1:]))}


def _whole(alpha: float) -> int | float:
    """Returns alpha as an integer if it is one, as PEFT writes it."""
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
        """Opens the adapters in `folder`; `model` is `config.model` of the run.

        Raises UserError for adapters of an unsupported kind.
        """
        check(family)
        content = tensors.read_json(folder / _CONFIG)
        for key, value in {"peft_type": "LORA", "bias": "none"}.items():
            if (content.get(key) or value) != value:
                raise UserError(f"{folder / _CONFIG}: {key}={content[key]}: must be {value}")
        for key, value in content.items():
            if value and key not in _KEYS:
                raise UserError(
                    f"{folder / _CONFIG}: {key}={value}: adapters of this kind are not supported; "
                    "if PEFT can merge them into their model, convert the merged model"
                )
        initial = content.get("init_lora_weights")
        if initial not in _INITIAL:
            raise UserError(
                f"{folder / _CONFIG}: init_lora_weights={initial!r}: adapters that begin so need a "
                "base model that is changed, too, and is not in this folder; save them with PEFT's "
                "save_pretrained(..., path_initial_model_for_weight_conversion=DIR), which writes "
                "adapters of the original model"
            )
        if not isinstance(content.get("r"), int) or not content.get("lora_alpha"):
            raise UserError(f"{folder / _CONFIG}: r or lora_alpha is missing")

        def short(name: str) -> str:
            return name.removeprefix(_PREFIX).removeprefix(family.prefix)

        table = {short(name): entry for name, entry in family.table(model).items()}
        stored = {short(name): source for name, source in tensors.stored(folder, _STEM).items()}
        return cls(folder, content, stored, table)

    def lora(self, params: Tree, heads: tuple[str, ...]) -> dict:
        """Returns the keys of `config.lora` for a run that has these adapters.

        `params` are the parameters without adapters. The subtrees `heads` are always trained, so
        they are not listed. Raises UserError for tensors that do not belong to these parameters.
        """
        matrices, trained, layers, left = [], [], set(), set(self.sources)
        for name, (_, *ours) in self.table.items():
            count = len(at(params, ours[0])) if tensors.is_stack(name) else 0
            names = [tensors.layer_name(name, i) for i in range(count)] or [name]
            # A tensor that is stored whole, rather than as an adapter, was trained directly, so
            # that it must be trained and saved here as well.
            if left.issuperset(names):
                left -= {*names}
                trained += [path for path in ours if path.partition("/")[0] not in heads]
            ends = [each.removesuffix(".weight") for each in names]
            numbers = [i for i, each in enumerate(ends) if f"{each}.lora_A.weight" in left]
            if numbers:
                left -= {f"{ends[i]}.lora_{side}.weight" for i in numbers for side in "AB"}
                adapted = {path for i in numbers for path in self._adapted(ends[i], ours)}
                matrices += sorted(adapted)
                layers |= {tuple(numbers) if len(numbers) < count else ()} if count else set()
        if left:
            raise UserError(f"{self.folder}: not in this model: {tensors.listed(left)}")
        if len(layers) > 1:
            raise UserError(f"{self.folder}: the matrices have adapters in different layers")
        return {
            "rank": self.content["r"],
            "alpha": float(self.content["lora_alpha"]),
            "matrices": tuple(matrices),
            "layers": ",".join(map(str, *layers)) if layers else "",
            "trained": tuple(trained),
        }

    def _adapted(self, module: str, matrices: list[str]) -> list[str]:
        """Returns which of the matrices of a module have adapters."""
        rank, alpha = self.content["r"], self.content["lora_alpha"]
        a, _ = self._pair(module)
        scale = self._alpha(module) / len(a)
        if len(a) not in (rank, len(matrices) * rank) or scale != alpha / rank:
            raise UserError(
                f"{self.folder}: {module} has rank {len(a)} and scale {scale:.4g}, not r={rank} "
                f"and {alpha / rank:.4g}; the adapters of a run have one rank and one scale"
            )
        blocks = [a] * len(matrices) if len(a) == rank else np.split(a, len(matrices))
        return [path for path, block in zip(matrices, blocks) if block.any()]

    def _alpha(self, module: str) -> float:
        """Returns the alpha of a module, by the first pattern that matches its name."""
        # The name in the file is matched, because patterns are of the names in PEFT's base model,
        # which start with the family's prefix.
        _, stored_name = self.sources[f"{module}.lora_A.weight"]
        name = stored_name.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
        for pattern, value in (self.content.get("alpha_pattern") or {}).items():
            # A pattern names whole parts of a path, as in PEFT: "q" does not match "layers.0.eq".
            if re.fullmatch(rf"(.*\.)?({pattern})", name):
                return value
        return self.content["lora_alpha"]

    def fill(self, params: Tree, adapters: Adapters) -> None:
        """Fills the adapters and the directly trained parameters in a tree of NumPy arrays."""
        for module in modules(params, self.table, adapters):
            module.fill(*self._pair(module.name))
        for name, views in tensors.views(params, self.table).items():
            if name in self.sources:
                tensors.fill(f"{self.folder}: {name}", views, *self.sources[name])

    def _pair(self, module: str) -> Pair:
        """Returns the adapter of a module in float32."""
        pair = []
        for name in (f"{module}.lora_A.weight", f"{module}.lora_B.weight"):
            if name not in self.sources:
                raise UserError(f"{self.folder}: missing from the weights: {name}")
            file, stored_name = self.sources[name]
            # float32, because adapters are trained in it, whatever dtype the file has.
            pair.append(np.empty(file.get_slice(stored_name).get_shape(), np.float32))
            tensors.fill(f"{self.folder}: {name}", pair[-1:], file, stored_name)
        return tuple(pair)
