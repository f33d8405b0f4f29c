"""Converts published checkpoints to workdirs, and runs to what Hugging Face's transformers load; a
folder appears whole or not at all.

python -m transformer_jax.convert --from_hf=DIR --workdir=NEW      (config.json, *.safetensors and the tokenizer's files, of GPT, GPT-2 or BERT)
python -m transformer_jax.convert --workdir=DIR --to_hf=NEW

Fine-tuned heads, too. What config.json does not say of their task is set beside --from_hf:
--config.task.pair=2 --config.task.label=3 (there are two texts),
--config.task.choices='("2", "3", "4", "5")' --config.task.label=6 (four choices).
"""

import contextlib
import json

from absl import flags

from transformer_jax import config as configs
from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError
from transformer_jax.pictures.progress import say


def define_flags() -> None:
    cli.define_workdir()
    cli.define_step()
    flags.DEFINE_string(
        "from_hf", None, "Folder of a Hugging Face checkpoint; --workdir is made from it."
    )
    flags.DEFINE_string("to_hf", None, "Folder to make, with the checkpoint of --workdir.")


def main() -> None:
    options = cli.FLAGS
    if bool(options.from_hf) == bool(options.to_hf):
        raise UserError("give --from_hf=DIR or --to_hf=DIR, one of them")
    if options.from_hf and options["step"].present:
        raise UserError("--step goes with --to_hf")
    if options.from_hf:
        from_hf(
            options.from_hf,
            options.workdir,
            cli.overrides(allowed=("model.vocab_multiple", "task.")),
        )
    else:
        to_hf(
            options.workdir, options.to_hf, options.step, cli.overrides(allowed=("decode.average",))
        )


def from_hf(folder, target, overrides=()) -> None:
    """Makes the workdir `target` of a Hugging Face checkpoint: a run at step 0. `overrides` may set
    config.model.vocab_multiple and config.task's keys.
    """
    import jax
    import numpy as np

    from transformer_jax.huggingface import heads, tensors
    from transformer_jax.runs import record
    from transformer_jax.runs.resolve import make_task
    from transformer_jax.storage import buckets
    from transformer_jax.training import state

    folder = buckets.path(folder)
    theirs = tensors.read_json(folder / "config.json")
    families = {family.architecture: family for family in _families()}
    named = theirs.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or str(named[0]) not in families:
        raise UserError(
            f"{folder / 'config.json'}: architectures={named}: only {', '.join(families)} can be read"
        )
    family, there = families[named[0]], tensors.stored(folder).keys()
    for fuller in families.values():  # published BERTs name themselves after one of their two heads
        if (
            fuller.task == family.task
            and fuller.table.keys() > family.table.keys()
            and fuller.table.keys() - family.table.keys() <= there
        ):
            family = fuller
    with _appearing(target) as half:
        config = family.to_ours(theirs, folder)
        for key, value in overrides:
            configs.set_key(config, key, value)
        configs.validate(config)
        if not family.holds(config):
            raise UserError(
                f"{folder}: with these overrides of config.task it is no {family.architecture}"
            )
        heads.check(config.task)
        task = make_task(config)
        # ids added for fine-tuning are no text's
        if task.tokenizer.vocab_size > theirs["vocab_size"]:
            raise UserError(
                f"{folder}: the tokenizer has {task.tokenizer.vocab_size:,} tokens: more than vocab_size={theirs['vocab_size']:,} of config.json"
            )
        # what the checkpoint lacks begins as it would anew
        params = jax.tree.map(np.array, jax.device_get(state.init_params(task)))
        # a view: zeros that fill up the vocabulary, and tokens it has grown by, stay
        vectors = params["token_embed"]["embedding"][: theirs["vocab_size"]]
        filled = {**params, "token_embed": {"embedding": vectors}}
        tensors.read(
            folder,
            tensors.views(filled, family.table, task.model.num_layers),
            family.prefix,
            family.ignored,
        )
        record.create(half, task, params)


def to_hf(run, target, step="best", overrides=()) -> None:
    """Makes the Hugging Face folder `target` of a run's checkpoint."""
    import jax

    from transformer_jax.huggingface import gpt, tensors
    from transformer_jax.runs.open import open_run

    if "://" in str(target):
        raise UserError(f"--to_hf={target}: must be a folder on a disk")
    task, params = open_run(run, step, overrides)
    family = next((family for family in _families() if family.holds(task.config)), None)
    if family is None:
        raise UserError(
            f"--workdir={run}: config.model.name={task.config.model.name!r} with config.task.name={task.config.task.name!r}: "
            f"only {', '.join(family.architecture for family in _families())} can be written"
        )
    content = family.to_theirs(task.config, task.tokenizer.eos_id)
    params = jax.device_get(params)
    # without config.model.vocab_multiple's rows
    params["token_embed"]["embedding"] = params["token_embed"]["embedding"][: task.model.vocab_size]
    with _appearing(target) as half:
        (half / "config.json").write_text(json.dumps(content, indent=2) + "\n")
        tensors.write(half, tensors.views(params, family.table, task.model.num_layers))
        files = task.tokenizer.hf_files() if hasattr(task.tokenizer, "hf_files") else {}
        if files and content.get(gpt.MARKS):
            files |= task.tokenizer.hf_marked(task.encoder.marks(task.tokenizer))
        for name, data in files.items():
            (half / name).write_bytes(data)
    if not files:
        say(
            f"{target}: no tokenizer written, for transformers has none like {type(task.tokenizer).__name__}; {run}/tokenizer holds it"
        )


def _families() -> list:
    from transformer_jax.huggingface import bert, gpt

    return [*gpt.FAMILIES, *bert.FAMILIES]


@contextlib.contextmanager
def _appearing(folder):
    """A folder to fill, which is `folder` once the context is left without an error. Raises
    UserError where there is something already.
    """
    from transformer_jax.storage import buckets, errors, whole

    if "://" in str(folder):
        with _appearing_in_bucket(buckets.folder_of_run(folder)) as there:
            yield there
        return
    folder = buckets.path(folder).resolve()
    with errors.writing(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder}: there is something already; name a new folder")
    with whole.appearing(folder) as temporary:
        with errors.writing(folder):
            temporary.mkdir(parents=True)
        yield temporary


@contextlib.contextmanager
def _appearing_in_bucket(folder):
    """`_appearing` where nothing can be renamed: a run is there once its config.json is, which is
    written last.
    """
    if folder.exists():
        raise UserError(f"{folder}: there is something already; name a new folder")
    try:
        yield folder
    except BaseException:
        folder.rmtree(missing_ok=True)
        raise


if __name__ == "__main__":
    process.run(main, define_flags)
