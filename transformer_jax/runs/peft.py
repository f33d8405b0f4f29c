"""Conversion of a run's adapters from and to the format of Hugging Face PEFT."""

import jax
import numpy as np

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.huggingface import family as families
from transformer_jax.huggingface import peft, tensors
from transformer_jax.layers import parameters
from transformer_jax.layers.low_rank import Adapters
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.storage import hub
from transformer_jax.training import step


def read(folder, workdir, base, architecture: str | None = None) -> None:
    """Writes a run at step 0 into an empty folder: the run `base` with the adapters in `folder`.

    `folder` may also be the name of adapters on the Hugging Face Hub. Raises UserError if the
    adapters are for another model.
    """
    if not base:
        raise UserError("--from_peft needs --config.init_from=RUN, the run that the adapters adapt")
    # One device, because the adapters of a folder are whole arrays in the memory of the host.
    task, params = open_run(base, devices=jax.local_devices()[:1])
    # Writable copies, because `stored.fill` writes into views of these arrays.
    params = jax.tree.map(np.array, jax.device_get(params))
    config = task.config
    family = families.run_family(config, architecture)
    stored = peft.Stored.open(hub.folder(folder, hub.ADAPTERS), family, config.model)
    configs.set_key(config, configs.INIT_FROM, str(base))
    for key, value in stored.lora(params, task.heads).items():
        configs.set_key(config, f"lora.{key}", value)
    configs.validate(config)
    task = make_task(config)
    # The tree of the adapted task tells which adapters there are, and their shapes. They only have
    # to exist: `stored.fill` gives them their values.
    shapes, _ = parameters.split(step.abstract_params(task), parameters.paths(params).__contains__)
    adapters = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    params = parameters.merged(params, adapters)
    stored.fill(_without_padding_rows(params, task), Adapters.of(config.lora))
    spec.create(workdir, task, params)


def write(run, folder, step="best", architecture: str | None = None) -> None:
    """Writes the adapters of a run to an empty folder.

    Raises UserError if the run has no adapters, or if PEFT can't represent them.
    """
    task, params = open_run(run, step, merged=False, devices=jax.local_devices()[:1])
    if task.config.lora.rank is None:
        raise UserError(f"--workdir={run}: has no adapters, config.lora.rank is none")
    family = families.run_family(task.config, architecture)
    peft.write(folder, _without_padding_rows(jax.device_get(params), task), family, task)


def _without_padding_rows(params, task):
    """Returns views of parameters without the rows that pad the vocabulary to a multiple.

    `config.model.vocab_multiple` adds these rows, and other libraries do not know them.
    """
    return tensors.first_rows(params, task.model.vocabulary, task.model.vocab_size)
