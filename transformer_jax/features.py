"""Hidden states of texts, one a line of stdin, as arrays: python -m transformer_jax.features
--workdir=DIR --output=FILE.npz < texts

--output=FILE.safetensors writes that format. Text n (from 0) is the array text_n (layers, tokens, d_model), [CLS] and [SEP] among its tokens, which
stdout gives: one JSON array a text. An empty line has [CLS] and [SEP] alone.
"""

import json
import os
import pathlib

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_string("output", None, "File to write, *.npz or *.safetensors.")
    flags.DEFINE_enum(
        "long",
        "truncate",
        ["truncate", "skip", "refuse"],
        "A text too long for the model: cut it, give it no tokens, or refuse it.",
    )
    flags.DEFINE_list(
        "layers", ["-1"], "Layers: 0 the embeddings, 1 the first layer's output, -1 the last's."
    )


def main() -> None:
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    from transformer_jax.data.sources.pairs import text_lines
    from transformer_jax.runs.open import open_run

    options = cli.FLAGS
    path = pathlib.Path(options.output or "")
    if path.suffix not in (".npz", ".safetensors"):
        raise UserError(f"--output={options.output or ''}: must be a file *.npz or *.safetensors")
    cli.check_output("output")
    try:
        layers = tuple(int(layer) for layer in options.layers)
    except ValueError:
        raise UserError(f"--layers={','.join(options.layers)}: must be whole numbers") from None
    if not layers:
        raise UserError("--layers=: numbers of layers are asked for, as in --layers=0,-1")
    task, params = open_run(options.workdir, options.step, cli.overrides(allowed=("decode.",)))
    if not callable(getattr(task, "features", None)):
        raise UserError(
            f"--workdir={options.workdir}: a {task.config.task.name} run, not one that gives features"
        )
    found = {}
    features = task.features(params, text_lines("-"), layers, long=options.long)
    for number, (pieces, states) in enumerate(features):
        found[f"text_{number}"] = np.ascontiguousarray(states)
        print(json.dumps(pieces, ensure_ascii=False))
    half = path.with_name(f".{path.stem}.half{path.suffix}")
    try:
        np.savez(half, **found) if path.suffix == ".npz" else save_file(found, half)
        os.replace(half, path)
    except SafetensorError as error:
        raise OSError(f"{path}: can't be written ({error})") from None
    finally:
        half.unlink(missing_ok=True)


if __name__ == "__main__":
    process.run(main, define_flags)
