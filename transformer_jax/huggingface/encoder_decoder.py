"""The encoder-decoders that write texts: all their tasks train the same parameters."""

import dataclasses
import pathlib

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.huggingface import generation
from transformer_jax.huggingface.family import Family
from transformer_jax.pictures.progress import say

# The tasks whose models write a text for a text.
_TASKS = ("translation", "denoising", "text_to_text")
# Tokens of a source or target in the rows of such a task.
_MAX_LENGTH = 1024
_LENGTH = 512  # for a model without a limit


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
    """A family whose checkpoints have options of transformers' `generate`."""

    def matches(self, config: ConfigDict) -> bool:
        return config.model.name == self.model and config.task.name in _TASKS

    def decode_keys(self, hf_config: dict, folder: pathlib.Path) -> dict:
        options = generation.stored(hf_config, folder)
        for remark in generation.remarks(options, hf_config):
            say(f"{folder}: {remark}")
        # The tokenizer says what a whole text begins with.
        first = options.get("forced_bos_token_id")
        if first not in (None, hf_config.get("bos_token_id")):
            raise UserError(f"forced_bos_token_id={first}: only bos_token_id is supported")
        return generation.decode_keys(options)

    def task_keys(self, config: ConfigDict, hf_config: dict) -> dict:
        length = min(config.model.get("max_length", _LENGTH), _MAX_LENGTH)
        return {"source_length": length, "target_length": length}

    def other_keys(self, config: ConfigDict, tokenizer) -> dict:
        return special_keys(tokenizer.target)

    def generation_config(self, task) -> dict:
        return generation.options_of(task.config.decode, task.tokenizer.target, task.model.window)
