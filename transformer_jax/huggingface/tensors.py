"""Mappings between Hugging Face checkpoints and runs: keys of configs, and names of tensors."""

import dataclasses
import functools
import json
import operator
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace

import jax
import numpy as np
from ml_collections import ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transformer_jax.config import UserError
from transformer_jax.storage import buckets

# ----------------------------------- the keys of config.json, and their equivalents in config.model


@dataclasses.dataclass(frozen=True)
class Keys:
    """The keys of one architecture's config.json."""

    # {key: key of config.model}, for keys that config.json must have
    required: dict[str, str]
    # {key: (key of config.model, default)}
    optional: dict[str, tuple[str, float]]
    # {key: the values that our model supports, the default first}
    allowed: dict[str, tuple]
    # {key of config.model: its meaning}, for keys that must be None because the architecture has
    # nothing like them
    absent: dict[str, str] = dataclasses.field(default_factory=dict)

    def changed(self, **additions: dict) -> "Keys":
        """Returns a copy with additions to its fields, which replace entries of the same name."""
        changes = {name: getattr(self, name) | added for name, added in additions.items()}
        return dataclasses.replace(self, **changes)

    def read(self, hf_config: dict) -> dict:
        """Returns the keys of config.model for the content of config.json.

        Raises UserError for a missing key, and for a value that our model does not support.
        """
        missing = [key for key in self.required if key not in hf_config]
        if missing:
            raise UserError(f"no {' and no '.join(missing)}")
        for key, values in self.allowed.items():
            value = hf_config.get(key, values[0])
            if value not in values:
                supported = " or ".join(repr(value) for value in values if value is not None)
                raise UserError(f"{key}={value!r}: only {supported} is supported")
        model = {name: hf_config[key] for key, name in self.required.items()}
        for key, (name, default) in self.optional.items():
            model[name] = hf_config.get(key, default)
        return model

    def check(self, model: ConfigDict, architecture: str) -> None:
        """Raises UserError for a value in config.model that the architecture cannot express."""
        for key, meaning in self.absent.items():
            if model[key] is not None:
                raise UserError(f"config.model.{key}={model[key]}: {architecture} has no {meaning}")

    def write(self, model: ConfigDict) -> dict:
        """Returns the keys of config.json for config.model, including those in `allowed`."""
        content = {key: model[name] for key, name in self.required.items()}
        for key, (name, _) in self.optional.items():
            content[key] = model[name]
        return content | {key: values[0] for key, values in self.allowed.items()}


def check_head_dim(model: ConfigDict, architecture: str) -> None:
    """Raises UserError unless config.model.head_dim is d_model / num_heads."""
    if model.head_dim not in (None, model.d_model / model.num_heads):
        raise UserError(
            f"config.model.head_dim={model.head_dim}: {architecture} has only d_model / num_heads"
        )


# ---------------------------------------------------- layouts of tensors, and tables of their names


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _vector(x: np.ndarray) -> np.ndarray:
    """Bias (H, D) -> (H D,)."""
    return x.reshape(-1)


def _row(x: np.ndarray) -> np.ndarray:
    """Bias (V,) -> (1, V)."""
    return x.reshape(1, -1)


def _first_side(x: np.ndarray) -> np.ndarray:
    """Table (N, M) -> (N, 1, M)."""
    return x[:, None]


def _second_side(x: np.ndarray) -> np.ndarray:
    """Table (N, M) -> (1, N, M)."""
    return x[None]


def _third_side(x: np.ndarray) -> np.ndarray:
    """Vector (K,) -> (1, 1, K)."""
    return x[None, None]


def _time_convolution(x: np.ndarray) -> np.ndarray:
    """Kernel (K, inputs, outputs) -> (outputs, inputs, K)."""
    return x.T


def _linear(x: np.ndarray) -> np.ndarray:
    """Kernel (M, ...) -> (outputs, M)."""
    return x.reshape(len(x), -1).T


def _linear_merge(x: np.ndarray) -> np.ndarray:
    """Kernel (H, D, M) -> (M, H D)."""
    return x.reshape(-1, x.shape[-1]).T


def _outputs_first(x: np.ndarray) -> np.ndarray:
    """Kernel (H, D, M) -> (M, H, D)."""
    return np.moveaxis(x, -1, 0)


def _conv1d(x: np.ndarray) -> np.ndarray:
    """Kernel (M, H, D) -> (M, H D)."""
    return x.reshape(len(x), -1)


def _conv1d_merge(x: np.ndarray) -> np.ndarray:
    """Kernel (H, D, M) -> (H D, M)."""
    return x.reshape(-1, x.shape[-1])


def _convolution(x: np.ndarray) -> np.ndarray:
    """Kernel of patches (P, P, C, M) -> (M, C, P, P)."""
    return x.transpose(3, 2, 0, 1)


# Functions from an array of one of our layers to Hugging Face's layout. They return views, so that
# the same table serves for both directions: a checkpoint is read by writing to the views. The
# kernel of torch.nn.Linear is (outputs, inputs), and OpenAI's Conv1D has (inputs, outputs).
LAYOUTS = {
    "same": _same,
    "vector": _vector,
    "row": _row,
    "first_side": _first_side,
    "second_side": _second_side,
    "third_side": _third_side,
    "time_convolution": _time_convolution,
    "linear": _linear,
    "linear_merge": _linear_merge,
    "outputs_first": _outputs_first,
    "conv1d": _conv1d,
    "conv1d_merge": _conv1d_merge,
    "convolution": _convolution,
}
# {Hugging Face's name: (layout, path in our parameters, ...)}. If there are several paths, our
# arrays are concatenated on the last axis, as for queries, keys and values in one matrix. "{}" in a
# name is the number of a layer; our arrays then hold all layers of a stack on the first axis, and
# each stack may have its own number of layers. "{1:3}" means the layers 1, 4, 7 and so on, which
# are those of one block in a repeated pattern of three. A second "{}" is the number of an expert,
# and our arrays then hold the experts of a layer on the next axis.
Table = dict[str, tuple[str, ...]]
_NUMBER = re.compile(r"\{(?:(\d+):(\d+))?\}")


def linear(name: str, path: str, layout: str = "linear") -> Table:
    """Returns the entries of a torch.nn.Linear with a bias."""
    return {
        f"{name}.weight": (layout, f"{path}/kernel"),
        f"{name}.bias": ("vector", f"{path}/bias"),
    }


def norm(name: str, path: str) -> Table:
    """Returns the entries of a torch.nn.LayerNorm."""
    return {
        f"{name}.weight": ("same", f"{path}/scale"),
        f"{name}.bias": ("same", f"{path}/bias"),
    }


def layers(name: str, path: str, layer: Table) -> Table:
    """Returns the entries of a stack of layers, each of which has the entries of `layer`.

    `name` and `path` are prefixes of the names and paths; `name` contains "{}" or "{first:step}".
    """
    return {
        f"{name}{suffix}": (layout, *(f"{path}{ours}" for ours in suffixes))
        for suffix, (layout, *suffixes) in layer.items()
    }


def views(params, table: Table) -> dict[str, list[np.ndarray]]:
    """Returns {Hugging Face's name: views of our arrays, to be concatenated on the last axis}."""
    arrays_of = {}
    for name, (layout, *paths) in table.items():
        arrays = [functools.reduce(operator.getitem, path.split("/"), params) for path in paths]
        for single, parts in _singles(name, arrays):
            arrays_of[single] = [LAYOUTS[layout](part) for part in parts]
    return arrays_of


def _singles(name: str, arrays: Sequence) -> Iterator[tuple[str, Sequence]]:
    """Yields the name and the parts of arrays for each layer of a stack, or for each expert of it.

    A name without numbers has the arrays themselves.
    """
    if not is_stack(name):
        yield name, arrays
        return
    # strict, because arrays of one matrix with different numbers of layers mean a wrong table.
    for repeat, parts in enumerate(zip(*arrays, strict=True)):
        yield from _singles(layer_name(name, repeat), parts)


def is_stack(name: str) -> bool:
    """Returns whether a name in a table names a tensor in each layer of a stack."""
    return _NUMBER.search(name) is not None


def layer_name(name: str, repeat: int) -> str:
    """Returns the name of the tensor in one layer, the index of which in our stack is `repeat`."""
    number = _NUMBER.search(name)
    return _NUMBER.sub(str(int(number[1] or 0) + int(number[2] or 1) * repeat), name, count=1)


def first_rows(params, names: tuple[str, ...], count: int):
    """Returns the tree, in which the arrays `names` are views of their first `count` rows."""

    def cut(path, array):
        is_named = "/".join(key.key for key in path) in names
        return array[:count] if is_named else array

    return jax.tree_util.tree_map_with_path(cut, params)


# -------------------------------------------------------------- the weights in Hugging Face folders

# A pickled file can run code when it is loaded. Therefore only safetensors are read, and files of
# torch where torch is installed, whose own reader takes tensors and nothing else.

# {suffix of a name in an early checkpoint: suffix today}. Early checkpoints are renamed, because
# they are still published and transformers does so, too.
_RENAMED = {
    r"LayerNorm\.gamma": "LayerNorm.weight",
    r"LayerNorm\.beta": "LayerNorm.bias",
    "weight_g": "parametrizations.weight.original0",
    "weight_v": "parametrizations.weight.original1",
}
# Other dtypes are refused, because tensors of quantized checkpoints are not weights by themselves.
_DTYPES = ("F32", "F16", "BF16")
_TORCH_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_MAX_NAMES = 8  # tensor names in an error message, which would otherwise list a whole checkpoint


def read(
    folder: pathlib.Path,
    targets: dict[str, list[np.ndarray]],
    prefix: str,
    ignored: tuple[str, ...],
    *,
    constants: Mapping[str, np.ndarray] = MappingProxyType({}),
    tied: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> None:
    """Fills the views `targets` with the folder's tensors, one tensor in memory at a time.

    Names in the folder may lack `prefix`. Tensors whose names end in `ignored` are not read, but
    those in `tied` must equal the first tensor whose name ends in one of their suffixes there.

    Raises UserError for a tensor that is missing, unknown or of another shape, for values that are
    not finite, for a dtype other than 16- or 32-bit floats, and for a tensor whose values differ
    from `constants` or from the tensor that it is tied to.
    """
    targets = {name.removeprefix(prefix): parts for name, parts in targets.items()}
    tensors = {name.removeprefix(prefix): source for name, source in stored(folder).items()}
    missing = targets.keys() - tensors.keys()
    others = tensors.keys() - targets.keys() - constants.keys()
    unknown = {name for name in others if not name.endswith(ignored)}
    if missing:
        raise UserError(f"{folder}: missing from the weights: {listed(missing)}")
    if unknown:
        raise UserError(
            f"{folder}: in the weights, but not in this architecture: {listed(unknown)}"
        )
    for name, parts in targets.items():
        file, stored_name = tensors[name]
        fill(f"{folder}: {stored_name}", parts, file, stored_name)
    # A checkpoint may leave constants out, but other values than ours would make it another model.
    for name in constants.keys() & tensors.keys():
        values = np.empty_like(constants[name])
        fill(f"{folder}: {name}", [values], *tensors[name])
        if not np.array_equal(values, constants[name]):
            raise UserError(f"{folder}: {name} has values for which our model has no parameter")

    # A copy of a tied tensor is not read, but if its values differ, it is no copy, and the model
    # would silently lose one of the two.
    for name in sorted(others):
        suffixes = next((tied[end] for end in tied if name.endswith(end)), ())
        source = next((each for end in suffixes for each in targets if each.endswith(end)), None)
        if source is not None:
            _check_tied(folder, tensors[name], targets[source], tensors[source][1])


def _check_tied(folder: pathlib.Path, tensor: tuple, parts: list[np.ndarray], name: str) -> None:
    """Raises UserError if a tensor differs from the views that were filled with tensor `name`."""
    file, stored_name = tensor
    (part,) = parts
    shape = tuple(file.get_slice(stored_name).get_shape())
    if shape[1:] != part.shape[1:]:
        return  # of another width, so it is not this model's output
    copy = np.empty_like(part)
    if shape == part.shape:
        fill(f"{folder}: {stored_name}", [copy], file, stored_name)
    if shape != part.shape or not np.array_equal(copy, part):
        raise UserError(
            f"{folder}: {stored_name} differs from {name}, to which it is tied by config.json "
            "(tie_word_embeddings is true or left out); if they are two matrices, "
            "tie_word_embeddings must be false, and else only one of them belongs in the file"
        )


def listed(names: Iterable[str]) -> str:
    """Returns the names, separated by commas; at most _MAX_NAMES are listed."""
    ordered = sorted(names)
    more = len(ordered) - _MAX_NAMES
    return ", ".join(ordered[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def fill(source: str, parts: list[np.ndarray], file, name: str) -> None:
    """Fills the views with one tensor of a safetensors file, split along its last axis."""
    # A slice reads only the header, so that a wrong shape or dtype is refused before gigabytes are
    # loaded.
    header = file.get_slice(name)
    *leading, last = parts[0].shape
    shape = (*leading, last * len(parts))
    if tuple(header.get_shape()) != shape:
        raise UserError(
            f"{source} has shape {tuple(header.get_shape())}: by config.json it must be {shape}"
        )
    if header.get_dtype() not in _DTYPES:
        raise UserError(f"{source} has dtype {header.get_dtype()}: not one of {', '.join(_DTYPES)}")
    for part, piece in zip(parts, np.split(file.get_tensor(name), len(parts), axis=-1)):
        part[...] = piece
        # Otherwise it would only show up later, as a loss that is NaN.
        if not np.isfinite(part).all():
            raise UserError(f"{source} has values that are not finite")


def stored(folder: pathlib.Path, stem: str = "model") -> dict[str, tuple]:
    """Returns {current name of a tensor: (open file, name in the file)} of <stem>.safetensors.

    Early BERT checkpoints call the parameters of a norm gamma and beta, as TensorFlow does. The
    parameters of a weight norm (wav2vec 2.0) used to end in _g and _v.
    """
    tensors = {}
    for path in _files(folder, stem):
        file = _opened(path)
        for name in file.keys():
            new_name = name
            for old, new in _RENAMED.items():
                new_name = re.sub(rf"\.{old}$", f".{new}", new_name)
            tensors[new_name] = (file, name)
    return tensors


def _opened(path: pathlib.Path):
    """Opens a file of weights. Raises UserError for other content."""
    if path.suffix == ".bin":
        return _TorchFile(path)
    try:
        # safetensors can read bfloat16 into NumPy because jax has imported ml_dtypes.
        return safe_open(path, "np")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: can't be read as safetensors ({error})") from None


class _TorchFile:
    """A pytorch_model.bin, with the methods of an open safetensors file."""

    def __init__(self, path: pathlib.Path):
        import torch

        # `weights_only` refuses everything that is no tensor, before anything is executed. The
        # errors of a damaged file are of many classes.
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"{path}: is not read, because it holds more than tensors or is damaged ({reason})"
            ) from None
        if not isinstance(content, dict) or not all(map(torch.is_tensor, content.values())):
            raise UserError(f"{path}: must be a dictionary of tensors")
        self._tensors = content

    def keys(self) -> Iterable[str]:
        return self._tensors.keys()

    def get_slice(self, name: str) -> SimpleNamespace:
        tensor = self._tensors[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        return SimpleNamespace(
            get_shape=lambda: list(tensor.shape),
            get_dtype=lambda: _TORCH_DTYPES.get(dtype, dtype),
        )

    def get_tensor(self, name: str) -> np.ndarray:
        return self._tensors[name].detach().float().numpy()  # NumPy itself has no bfloat16


def write(
    folder: pathlib.Path, arrays_of: dict[str, list[np.ndarray]], stem: str = "model"
) -> None:
    """Writes arrays in the form that `views` returns as <stem>.safetensors.

    Raises OSError if that fails.
    """
    tensors = {}
    for name, parts in arrays_of.items():
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        tensors[name] = np.ascontiguousarray(joined)
    try:
        # With this metadata, because transformers refuses a file without it.
        save_file(tensors, folder / f"{stem}.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{folder}: can't be written ({error})") from None


def read_json(path: pathlib.Path) -> dict:
    """Returns the JSON object in a file. Raises UserError if the content is anything else."""
    try:
        with buckets.reading(path):
            content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object")
    return content


def _files(folder: pathlib.Path, stem: str) -> list[pathlib.Path]:
    """Returns the folder's files of weights: a single one, or the shards listed in its index.

    Those of torch are `pytorch_<stem>.bin`, of which only a model's are read.
    """
    from transformer_jax.storage import hub  # for checkpoints alone

    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    candidates = [(single, index)]
    if stem == "model" and hub.reads_torch_files():
        candidates.append((folder / "pytorch_model.bin", folder / "pytorch_model.bin.index.json"))
    for file, shards in candidates:
        if file.exists():
            return [file]
        if shards.exists():
            return [folder / name for name in _shards(shards)]
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLED)
    if pickled:
        raise UserError(
            f"{folder}: {pickled[0]} is pickled: it can run code and is not read. Save it as "
            "safetensors with transformers' save_pretrained, or install torch 2.6 or newer, which "
            "reads the tensors of a pytorch_model.bin without running code"
        )
    raise UserError(f"{folder}: no {single.name} and no {index.name}")


def _shards(index: pathlib.Path) -> list[str]:
    """Returns the names of the files that an index lists."""
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(x, str) for x in shards.values()):
        raise UserError(f"{index}: has no weight_map from tensors to files")
    return sorted(set(shards.values()))
