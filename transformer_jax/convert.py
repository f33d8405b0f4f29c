"""Converts Hugging Face checkpoints to workdirs, and runs to Hugging Face checkpoints.

python -m transformer_jax.convert --from_hf=NAME --workdir=NEW
python -m transformer_jax.convert --workdir=DIR --to_hf=NEW [--architecture=CLASS]
python -m transformer_jax.convert --from_peft=DIR --config.init_from=RUN --workdir=NEW
python -m transformer_jax.convert --workdir=DIR --to_peft=NEW
python -m transformer_jax.convert --workdir=DIR --to_vectors=FILE

NAME is a folder with config.json, *.safetensors and the files of the tokenizer, or the name of a
model on the Hugging Face Hub, such as distilbert-base-uncased, of which these files are downloaded.
NAME@REVISION is a branch, a tag or a commit of it. The architecture must be one that a file in
transformer_jax/families/ converts. If a conversion fails, no new folder is left behind.

--to_hf writes a run with adapters (config.lora) as one model, into which they are merged. --to_peft
writes the adapters without their base model, in the format of PEFT. --from_peft reads such adapters
for the model of RUN.

--to_vectors writes the word vectors of a run, or the input embeddings of its model, in the format
of word2vec: binary if FILE ends in .bin, otherwise text.

Fine-tuned heads are converted too. What config.json does not say about their task is set by flags
beside --from_hf:
    two texts:     --config.task.pair=2 --config.task.label=3
    four choices:  --config.task.choices='("2", "3", "4", "5")' --config.task.label=6
"""

import contextlib
import json

from absl import flags

from transformer_jax import cli
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.pictures.progress import say

_DIRECTIONS = ("from_hf", "to_hf", "from_peft", "to_peft", "to_vectors")


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_string(
        "from_hf",
        None,
        "Folder of a Hugging Face checkpoint, or NAME or NAME@REVISION on the Hub, to convert to "
        "--workdir.",
    )
    flags.DEFINE_string(
        "to_hf", None, "New folder for the checkpoint of --workdir in Hugging Face's format."
    )
    flags.DEFINE_string(
        "from_peft", None, "Folder of PEFT's adapters of --config.init_from, or a name on the Hub."
    )
    flags.DEFINE_string("to_peft", None, "New folder for the adapters of --workdir.")
    flags.DEFINE_string("to_vectors", None, "File for the word vectors of --workdir.")
    flags.DEFINE_string(
        "architecture",
        None,
        "The class of transformers that --to_hf writes if a run fits more than one, or that PEFT's "
        "adapters belong to.",
    )


def main() -> None:
    options = cli.FLAGS
    directions = [name for name in _DIRECTIONS if options[name].value]
    if len(directions) != 1:
        raise UserError(f"give one of {', '.join(f'--{name}' for name in _DIRECTIONS)}")
    if directions[0].startswith("from_") and options["step"].present:
        raise UserError(f"--step can't be given with --{directions[0]}")
    if directions[0] in ("from_hf", "to_vectors") and options.architecture:
        raise UserError(f"--architecture can't be given with --{directions[0]}")
    if options.from_peft:
        base = dict(cli.overrides(allowed=(configs.INIT_FROM,))).get(configs.INIT_FROM)
        from_peft(options.from_peft, options.workdir, base, options.architecture)
    elif options.to_peft:
        to_peft(options.workdir, options.to_peft, options.step, options.architecture)
    elif options.from_hf:
        overrides = cli.overrides(allowed=("model.vocab_multiple", "task."))
        from_hf(options.from_hf, options.workdir, overrides)
    elif options.to_vectors:
        cli.check_output("to_vectors")
        overrides = cli.overrides(allowed=("decode.average",))
        to_vectors(options.workdir, options.to_vectors, options.step, overrides)
    else:
        overrides = cli.overrides(allowed=("decode.average",))
        to_hf(options.workdir, options.to_hf, options.step, overrides, options.architecture)


def from_hf(folder, target, overrides=()) -> None:
    """Converts the Hugging Face checkpoint in `folder` to the workdir `target`, a run at step 0.

    See `read` for `folder`, `overrides` and errors.
    """
    from transformer_jax.runs import spec

    with _new_folder(target) as unfinished:
        spec.create(unfinished, *read(folder, overrides))


def opened(folder, overrides=()) -> tuple:
    """Returns the task and the parameters of a checkpoint, as `read`, on the first local device.

    Examples:
      >>> task, params = transformer_jax.from_hf("bert-folder")  # or a name on the Hub
      >>> [vector] = task.embed(params, ["the cat sat"])
      >>> vector.shape
      (32,)
    """
    import jax

    task, params = read(folder, overrides)
    return task, jax.device_put(params, jax.local_devices()[0])


def read(folder, overrides=()) -> tuple:
    """Returns the task and the parameters of the Hugging Face checkpoint in `folder`.

    `folder` may also be NAME or NAME@REVISION of a model on the Hugging Face Hub. `overrides` are
    pairs of a key and a value, for config.model.vocab_multiple and the keys of config.task. The
    parameters are NumPy arrays. Raises UserError for a checkpoint that cannot be converted.
    """
    import jax
    import numpy as np

    from transformer_jax.huggingface import family as families
    from transformer_jax.huggingface import tensors
    from transformer_jax.runs.spec import make_task
    from transformer_jax.storage import hub
    from transformer_jax.training import step

    # config.json first, so that an architecture that can't be read is refused before its weights
    # are downloaded.
    path = hub.folder(folder, hub.CONFIG) / "config.json"
    hf_config = tensors.read_json(path)
    families.named_family(path, hf_config)
    folder = hub.folder(folder, hub.MODEL)
    family = families.checkpoint_family(folder, hf_config)
    config = family.read_config(hf_config, folder)
    for key, value in dict(overrides).items():
        configs.set_key(config, key, value)
    configs.validate(config)
    if not family.matches(config):
        raise UserError(
            f"{folder}: with these values of config.task it is not a {family.architecture}"
        )
    # A run that cannot be written back is refused here, before it is trained.
    family.check(config)
    task = make_task(config)
    # Parameters that the checkpoint lacks keep their initial values. The arrays are copied, because
    # the others are written to, and device_get may return read-only views.
    params = jax.tree.map(np.array, jax.device_get(step.init_params(task)))
    targets = params
    if task.tokenizer is not None:
        # Only the first rows are read, because the model may have more than the checkpoint: for
        # special tokens that fine-tuning adds, and for padding of the vocabulary.
        vocab_size = family.vocab_size(hf_config)
        _check_tokenizer(folder, task.tokenizer, vocab_size)
        family.complete(task, hf_config, folder)
        targets = tensors.first_rows(params, task.model.vocabulary, vocab_size)
    tensors.read(
        folder,
        tensors.views(targets, family.table(config.model)),
        family.prefix,
        family.ignored,
        constants=family.constants(config.model),
        tied=family.tied,
    )
    return task, family.ours(params, task)


def _check_tokenizer(folder, tokenizer, vocab_size: int) -> None:
    """Raises UserError if the tokenizer has more tokens than the model."""
    # Such ids would read beyond the embedding table, where JAX returns NaN.
    if tokenizer.vocab_size > vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size:,} tokens: must be at most "
            f"vocab_size={vocab_size:,} of config.json"
        )


def to_hf(run, target, step="best", overrides=(), architecture=None) -> None:
    """Writes a checkpoint of the workdir `run` to the new folder `target` in Hugging Face's format.

    `step` is a number, "best" or "latest". See `write` for `architecture` and errors.
    """
    import jax

    from transformer_jax.runs.open import open_run

    _check_on_disk("to_hf", target)
    # All parameters are copied to the host, so loading them onto more devices would be a waste.
    task, params = open_run(run, step, overrides, devices=jax.local_devices()[:1])
    if not write(task, params, target, architecture):
        say(f"the tokenizer of the run is in {run}/tokenizer")


def write(task, params, target, architecture=None) -> bool:
    """Writes a model to the new folder `target` in Hugging Face's format.

    `architecture` is the class of transformers; None means the first that fits the task. Returns
    whether a tokenizer was written, if the task has one: transformers lacks some kinds. Raises
    UserError for a task without an equivalent there.

    Examples:
      >>> task, params = transformer_jax.open_run("runs/bert")
      >>> is_whole = transformer_jax.to_hf(task, params, "bert-folder")
      >>> sorted(path.name for path in pathlib.Path("bert-folder").iterdir())[:2]
      ['config.json', 'model.safetensors']
    """
    import jax

    from transformer_jax.huggingface import family as families
    from transformer_jax.huggingface import tensors

    _check_on_disk("to_hf", target)
    config = task.config
    if config.model.get("base_width") not in (None, config.model.get("d_model")):
        raise UserError(
            f"config.model.base_width={config.model.base_width}: Hugging Face's classes have none "
            "of muP's factors"
        )
    family = families.run_family(config, architecture)
    config = family.written(config)
    content = family.write_config(config, task.tokenizer)
    params = jax.device_get(params)
    if task.tokenizer is not None:
        # The rows that config.model.vocab_multiple adds belong to no token, and vocab_size of
        # config.json does not count them.
        params = tensors.first_rows(params, task.model.vocabulary, task.model.vocab_size)
    files = family.tokenizer_files(task)
    options = family.generation_config(task)
    with _new_folder(target) as unfinished:
        (unfinished / "config.json").write_text(json.dumps(content, indent=2) + "\n")
        if options:
            path = unfinished / "generation_config.json"
            path.write_text(json.dumps(options, indent=2) + "\n")
        params = family.theirs(params, task)
        arrays = tensors.views(params, family.table(config.model))
        arrays |= {name: [values] for name, values in family.constants(config.model).items()}
        tensors.write(unfinished, arrays)
        for name, data in files.items():
            (unfinished / name).write_bytes(data)
    has_tokenizer = task.tokenizer is None or bool(files)
    if not has_tokenizer:
        say(
            f"{target}: no tokenizer written: transformers has no {type(task.tokenizer).__name__} "
            "tokenizer"
        )
    return has_tokenizer


def _check_on_disk(flag: str, target) -> None:
    if "://" in str(target):
        raise UserError(f"--{flag}={target}: must be a folder on a disk")


def from_peft(folder, target, base, architecture=None) -> None:
    """Converts PEFT's adapters in `folder` to the workdir `target`, a run at step 0.

    They adapt the run `base`, whose parameters are copied into the new run. Raises UserError for
    adapters of another model.
    """
    from transformer_jax.runs import peft

    with _new_folder(target) as unfinished:
        peft.read(folder, unfinished, base, architecture)


def to_peft(run, target, step="best", architecture=None) -> None:
    """Writes the adapters of the workdir `run` to the new folder `target` in PEFT's format.

    Raises UserError for a run without adapters, and for adapters that PEFT cannot express.
    """
    from transformer_jax.runs import peft

    _check_on_disk("to_peft", target)
    with _new_folder(target) as unfinished:
        peft.write(run, unfinished, step, architecture)


def to_vectors(run, path, step="best", overrides=()) -> None:
    """Writes the word vectors of the workdir `run`, or the input embeddings of its model.

    The file has the binary format of word2vec if `path` ends in ".bin", otherwise the text format.
    """
    from transformer_jax.data import array_files
    from transformer_jax.inference.static_vectors import StaticVectors
    from transformer_jax.runs.open import open_run

    task, params = open_run(run, step, overrides)
    words, vectors = StaticVectors.from_run(task, params).words()
    array_files.write(path, words, vectors)
    say(f"{path}: {len(words):,} vectors of {vectors.shape[1]} numbers")


@contextlib.contextmanager
def _new_folder(target):
    """Yields a folder to fill, which is renamed to `target` if the context ends without an error.

    Raises UserError if `target` exists and is not an empty folder.
    """
    from transformer_jax.storage import buckets

    if "://" in str(target):
        with _new_folder_in_bucket(buckets.folder_of_run(target)) as folder:
            yield folder
        return
    target = buckets.path(target).resolve()
    with buckets.writing(target):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UserError(f"{target}: exists already; name a new folder")
    with buckets.appearing(target) as unfinished:
        with buckets.writing(target):
            unfinished.mkdir(parents=True)
        yield unfinished


@contextlib.contextmanager
def _new_folder_in_bucket(target):
    """Like `_new_folder`, but in a bucket, where folders cannot be renamed.

    An unfinished folder does not count as a run, because config.json is written last.
    """
    if target.exists():
        raise UserError(f"{target}: exists already; name a new folder")
    try:
        yield target
    # BaseException, so that an interrupted conversion leaves nothing behind either.
    except BaseException:
        target.rmtree(missing_ok=True)
        raise


if __name__ == "__main__":
    cli.run(main, define_flags)
