"""Weights in Hugging Face's folders. Safetensors only: nothing that is read can run code."""

import functools
import json
import operator
import pathlib
import re

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transformer_jax.config import UserError
from transformer_jax.storage import errors

# One layer's array of ours -> Hugging Face's. Each is a view, so that what is written to it stands
# in ours.
LAYOUTS = {
    "same": lambda x: x,
    "vector": lambda x: x.reshape(-1),  # bias (H, D) -> (H * D,)
    # kernel (M, ...) -> (outputs, M), as torch keeps it
    "linear": lambda x: x.reshape(len(x), -1).T,
    "linear_merge": lambda x: x.reshape(-1, x.shape[-1]).T,  # kernel (H, D, M) -> (M, H * D)
    # kernel (M, H, D) -> (M, H * D): OpenAI's Conv1D is (inputs, outputs), as ours
    "conv1d": lambda x: x.reshape(len(x), -1),
    "conv1d_merge": lambda x: x.reshape(-1, x.shape[-1]),  # kernel (H, D, M) -> (H * D, M)
}
_DTYPES = ("F32", "F16", "BF16")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


def views(
    params, table: dict[str, tuple[str, ...]], num_layers: int
) -> dict[str, list[np.ndarray]]:
    """{Hugging Face's name: views of our arrays, side by side on its last axis}.

    The table gives a layout and our paths for each name; "{}" in it is the layer, by which our
    arrays are stacked.
    """
    found = {}
    for name, (layout, *paths) in table.items():
        arrays = [functools.reduce(operator.getitem, path.split("/"), params) for path in paths]
        if "{}" in name:
            found |= {
                name.format(i): [LAYOUTS[layout](array[i]) for array in arrays]
                for i in range(num_layers)
            }
        else:
            found[name] = [LAYOUTS[layout](array) for array in arrays]
    return found


def read(
    folder: pathlib.Path, wanted: dict[str, list[np.ndarray]], prefix: str, ignored: tuple[str, ...]
) -> None:
    """Fills the views with the folder's tensors, one in memory at a time. Names there may lack
    `prefix`; those that end in `ignored` may be there.

    Raises UserError where tensors are missing, unknown, of another shape or dtype than floats of 16
    or 32 bits, or not finite.
    """
    wanted = {name.removeprefix(prefix): parts for name, parts in wanted.items()}
    there = {name.removeprefix(prefix): found for name, found in stored(folder).items()}
    unknown = sorted(name for name in there.keys() - wanted.keys() if not name.endswith(ignored))
    for names, what in (
        (sorted(wanted.keys() - there.keys()), "missing from the weights"),
        (unknown, "in the weights, but not in this architecture"),
    ):
        if names:
            raise UserError(
                f"{folder}: {what}: {', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''}"
            )
    for name, parts in wanted.items():
        file, its_name = there[name]
        about, (*lead, last) = file.get_slice(its_name), parts[0].shape
        if about.get_shape() != [*lead, last * len(parts)]:
            raise UserError(
                f"{folder}: {its_name} has shape {tuple(about.get_shape())}, config.json makes it {(*lead, last * len(parts))}"
            )
        if about.get_dtype() not in _DTYPES:
            raise UserError(
                f"{folder}: {its_name} is of dtype {about.get_dtype()}, not of {', '.join(_DTYPES)}"
            )
        for part, piece in zip(parts, np.split(file.get_tensor(its_name), len(parts), axis=-1)):
            part[...] = piece
            if not np.isfinite(part).all():
                raise UserError(f"{folder}: {its_name} holds numbers that are not finite")


def stored(folder: pathlib.Path) -> dict[str, tuple]:
    """{tensor: (the open file it is in, its name there)}; names as they are written today."""
    found = {}
    for path in _files(folder):
        try:
            file = safe_open(path, "np")  # it reads bfloat16 where ml_dtypes, jax's, is imported
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: can't be read as safetensors ({error})") from None
        # of TensorFlow's time
        found |= {
            re.sub(
                r"LayerNorm\.gamma$",
                "LayerNorm.weight",
                re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name),
            ): (file, name)
            for name in file.keys()
        }
    return found


def write(folder: pathlib.Path, found: dict[str, list[np.ndarray]]) -> None:
    """The views as model.safetensors."""
    tensors = {
        name: np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1))
        for name, parts in found.items()
    }
    try:
        # without it transformers refuses the file
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{folder}: can't be written ({error})") from None


def read_json(path: pathlib.Path) -> dict:
    """Raises UserError where there is no such file, or it holds no JSON object."""
    try:
        with errors.reading(path):
            content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object")
    return content


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The folder's safetensors files: one, or the shards its index lists."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(
            isinstance(name, str) for name in shards.values()
        ):
            raise UserError(f"{index}: no weight_map of tensors to files")
        return [folder / name for name in sorted(set(shards.values()))]
    if pickled := sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLED):
        raise UserError(
            f"{folder}: {pickled[0]} is pickled, which can run code, and is not read; save it as safetensors: "
            "transformers' save_pretrained does"
        )
    raise UserError(f"{folder}: no model.safetensors and no {index.name}")
