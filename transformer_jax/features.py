"""Writes the hidden states of texts as arrays: python -m transformer_jax.features --workdir=DIR
--output=FILE.npz < texts

The texts are the lines of stdin. The file is written as NumPy's .npz, or as safetensors for
--output=FILE.safetensors. Text n, counted from 0, has the array text_n (layers, tokens, d_model).
The tokens of each text, including [CLS] and [SEP], go to stdout as a JSON array. An empty line has
only [CLS] and [SEP]. A translation run reads the texts as sources: layer 0 is their embeddings, and
layer 1 the output of the encoder.

With --pooling=mean, the file has one array instead, vectors (texts, d_model), and nothing goes to
stdout: the mean of the last hidden states of each text, special tokens included, as in
sentence-transformers. --pooling may also be max, cls or last, and --normalize divides each vector
by its length.
"""

import json
import pathlib

from absl import flags

from transformer_jax import cli
from transformer_jax.config import UserError


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_string("output", None, "File to write, *.npz or *.safetensors.")
    flags.DEFINE_enum(
        "long",
        "truncate",
        ["truncate", "skip", "refuse"],
        "What to do with a text too long for the model: truncate it, give it no tokens, or refuse "
        "it.",
    )
    flags.DEFINE_list(
        "layers",
        ["-1"],
        "Layers to write: 0 is the embeddings, 1 the output of the first layer, -1 of the last.",
    )

    flags.DEFINE_enum(
        "pooling",
        None,
        ["mean", "max", "cls", "last"],
        "Write one vector of each text, pooled from the last hidden states of its tokens.",
    )
    flags.DEFINE_bool("normalize", False, "Divide each vector of --pooling by its length.")


def main() -> None:
    import numpy as np

    from transformer_jax.data.sources.text_files import text_lines

    options = cli.FLAGS
    path = pathlib.Path(options.output or "")
    if path.suffix not in (".npz", ".safetensors"):
        raise UserError(f"--output={options.output or ''}: must be a file *.npz or *.safetensors")
    cli.check_output("output")
    if options["layers"].present and options.pooling:
        raise UserError("--layers can't be given with --pooling, which reads the last layer")
    if options.normalize and not options.pooling:
        raise UserError("--normalize needs --pooling")
    layers = _layers(options.layers)
    task, params = cli.open_run("features", "gives features")
    if options.pooling:
        normalize, long = options.normalize, options.long
        texts = text_lines("-")
        vectors = [*task.embed(params, texts, options.pooling, normalize=normalize, long=long)]
        _write({"vectors": np.array(vectors, np.float32)}, path)
        return
    arrays = {}
    features = task.features(params, text_lines("-"), layers, long=options.long)
    for number, (pieces, states) in enumerate(features):
        # A view would keep the arrays of its whole batch, padding included.
        arrays[f"text_{number}"] = np.ascontiguousarray(states)
        print(json.dumps(pieces, ensure_ascii=False))
    _write(arrays, path)


def _layers(numbers: list[str]) -> tuple[int, ...]:
    if not numbers:
        raise UserError("--layers=: must be numbers of layers, as in --layers=0,-1")
    try:
        return tuple(int(number) for number in numbers)
    except ValueError:
        raise UserError(f"--layers={','.join(numbers)}: must be whole numbers") from None


def _write(arrays: dict, path: pathlib.Path) -> None:
    """Writes the arrays to `path`, which appears as a whole or not at all."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    from transformer_jax.storage import buckets

    with buckets.appearing(path) as temporary:
        if path.suffix == ".npz":
            np.savez(temporary, **arrays)
            return
        try:
            save_file(arrays, temporary)
        except SafetensorError as error:
            raise OSError(f"{path}: can't be written ({error})") from None


if __name__ == "__main__":
    cli.run(main, define_flags)
