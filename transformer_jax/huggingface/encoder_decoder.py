"""Encoder-decoders that generate text, and their options for transformers' `generate`.

All of their tasks train the same parameters. A checkpoint has the options in
generation_config.json, or in config.json if it is an older one. Lengths in transformers include the
start token that the decoder reads first, whereas ours count only the tokens of the output.
"""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.huggingface import tensors
from transformer_jax.huggingface.family import Family
from transformer_jax.pictures.progress import say

FILE = "generation_config.json"
_EARLY_STOPPING = {False: "estimate", True: "first", "never": "never"}
# {option that we do not have: the values with which it has no effect}
_WITHOUT_EFFECT = {
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "diversity_penalty": (None, 0.0),
    "do_sample": (None, False),
    "suppress_tokens": (None,),
    "begin_suppress_tokens": (None,),
    "exponential_decay_length_penalty": (None,),
}
_WHOLE = (
    "num_beams",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
)
_MAX_LENGTH = 512  # written for runs without decode.max_length, unless the window is shorter


def stored(hf_config: dict, folder: pathlib.Path) -> dict:
    """Returns the options for `generate` of the checkpoint in `folder`."""
    path = folder / FILE
    return tensors.read_json(path) if path.exists() else hf_config


def decode_keys(options: dict) -> dict:
    """Returns the keys of config.decode for options of `generate`.

    An option that is absent or null has the default of transformers, except for the maximum length:
    transformers would stop after 20 tokens, and ours is set by config.decode.max_extra.
    """
    options = {key: value for key, value in options.items() if value is not None}
    for key in _WHOLE:
        if type(options.get(key, 0)) is not int:
            raise UserError(f"{key}={options[key]!r}: must be a whole number")
    early_stopping = options.get("early_stopping", False)
    if early_stopping not in _EARLY_STOPPING:
        raise UserError(f"early_stopping={early_stopping!r}: must be true, false or 'never'")
    min_length = options.get("min_length", 0)
    if options.get("min_new_tokens"):
        min_length = options["min_new_tokens"] + 1  # which does not count the end token
    return dict(
        beam=options.get("num_beams", 1),
        alpha=options.get("length_penalty", 1.0),
        penalty="length",
        max_length=options.get("max_new_tokens", options.get("max_length", 1) - 1),
        min_length=min_length,
        no_repeat_ngram=options.get("no_repeat_ngram_size", 0),
        force_end="forced_eos_token_id" in options,
        renormalize=options.get("renormalize_logits", False),
        early_stopping=_EARLY_STOPPING[early_stopping],
    )


def remarks(options: dict, hf_config: dict) -> Iterator[str]:
    """Yields messages about options without an equivalent, and the flags for each task that
    config.json lists.
    """
    for key, values in _WITHOUT_EFFECT.items():
        if options.get(key) not in values:
            yield f"{key}={options[key]!r} of transformers' generate has no equivalent"
    for task, others in (hf_config.get("task_specific_params") or {}).items():
        keys = decode_keys(options | others)
        changed = {
            key: keys[key] for key, value in decode_keys(options).items() if keys[key] != value
        }
        flags = " ".join(f"--config.decode.{key}={value}" for key, value in changed.items())
        prefix = f"; its inputs begin with {others['prefix']!r}" if others.get("prefix") else ""
        yield f"task {task}: {flags or 'no other values of config.decode'}{prefix}"


def options_of(decode: Any, tokenizer: Tokenizer, window: int) -> dict:
    """Returns the content of generation_config.json for config.decode.

    `tokenizer` is the tokenizer of the outputs, and `window` the model's maximum length.
    """
    first = tokenizer.framed([])[:-1]
    early_stopping = {ours: hf for hf, ours in _EARLY_STOPPING.items()} | {"exact": "never"}
    content = {
        "num_beams": decode.beam,
        "length_penalty": decode.alpha,
        "max_length": decode.max_length + 1 if decode.max_length else min(window, _MAX_LENGTH),
        "min_length": decode.min_length,
        "no_repeat_ngram_size": decode.no_repeat_ngram,
        "early_stopping": early_stopping[decode.early_stopping],
        "bad_words_ids": [[i] for i in tokenizer.never] or None,
        "forced_bos_token_id": first[0] if first else None,
        "forced_eos_token_id": tokenizer.eos_id if decode.force_end else None,
        "renormalize_logits": decode.renormalize or None,
        "decoder_start_token_id": tokenizer.start_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }
    return {key: value for key, value in content.items() if value is not None}


# The tasks whose models map text to text.
_TASKS = ("translation", "denoising", "text_to_text")
# Maximum number of tokens of a source or target in a row of such a task.
_MAX_ROW_LENGTH = 1024
_LENGTH = 512  # for a model without a maximum length


def special_keys(tokenizer) -> dict:
    """Returns the keys of config.json that name the special ids of a tokenizer."""
    return {
        "is_encoder_decoder": True,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.eos_id if tokenizer.pad_id is None else tokenizer.pad_id,
        "decoder_start_token_id": tokenizer.start_id,
    }


@dataclasses.dataclass(frozen=True)
class EncoderDecoder(Family):
    """A family whose checkpoints have options for transformers' `generate`."""

    def matches(self, config: ConfigDict) -> bool:
        return config.model.name == self.model and config.task.name in _TASKS

    def decode_keys(self, hf_config: dict, folder: pathlib.Path) -> dict:
        options = stored(hf_config, folder)
        for remark in remarks(options, hf_config):
            say(f"{folder}: {remark}")
        # The first tokens of an output come from the tokenizer, so the option may only agree.
        first = options.get("forced_bos_token_id")
        if first not in (None, hf_config.get("bos_token_id")):
            raise UserError(f"forced_bos_token_id={first}: only bos_token_id is supported")
        return decode_keys(options)

    def task_keys(self, config: ConfigDict, hf_config: dict) -> dict:
        length = min(config.model.get("max_length", _LENGTH), _MAX_ROW_LENGTH)
        return {"source_length": length, "target_length": length}

    def other_keys(self, config: ConfigDict, tokenizer) -> dict:
        return special_keys(tokenizer.target)

    def generation_config(self, task) -> dict:
        return options_of(task.config.decode, task.tokenizer.target, task.model.window)
