"""Encoder-decoders that generate text. All of their tasks train the same parameters."""

import dataclasses
import pathlib

from ml_collections import ConfigDict

from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.generate_options import (
    FILE,
    decode_keys,
    forced_start,
    options_of,
    remarks,
    simplify,
    stored,
)
from transformer_jax.pictures.progress import say

__all__ = ["FILE", "EncoderDecoder", "decode_keys", "options_of", "remarks", "special_keys"]

# All of these tasks train the same parameters, so that a run of any of them can be written.
_TASKS = ("translation", "denoising", "text_to_text")
# A window may be far longer than most texts, and rows of its length would mostly be padding.
_MAX_ROW_LENGTH = 1024
_LENGTH = 512  # for a model without a maximum length


def special_keys(tokenizer) -> dict:
    """Returns the keys of config.json that name the special ids of a tokenizer."""
    return {
        "is_encoder_decoder": True,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        # transformers needs an id to pad batches with; any will do, because it masks the padding.
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
        return decode_keys(options) | {"force_start": forced_start(options)}

    def complete(self, task, hf_config: dict, folder: pathlib.Path) -> None:
        target, decode = task.tokenizer.target, task.config.decode
        simplify(task.config, target, self.vocab_size(hf_config), folder)
        start = (hf_config | stored(hf_config, folder)).get("decoder_start_token_id")
        if start not in (None, target.start_id):
            say(
                f"{folder}: decoder_start_token_id={start} of transformers' generate has no "
                f"equivalent: the decoder starts from {target.start_id}"
            )
        for i in target.never:
            if (i,) not in decode.bad_words and i not in decode.suppress:
                say(f"{folder}: {i}, the padding, is never written, although no option forbids it")

    def task_keys(self, config: ConfigDict, hf_config: dict) -> dict:
        length = min(config.model.get("max_length", _LENGTH), _MAX_ROW_LENGTH)
        return {"source_length": length, "target_length": length}

    def other_keys(self, config: ConfigDict, tokenizer) -> dict:
        return special_keys(tokenizer.target)

    def generation_config(self, task) -> dict:
        return options_of(task.config.decode, task.tokenizer.target, task.model.window)
