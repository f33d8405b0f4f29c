"""The options for transformers' `generate` of a checkpoint, and their equivalents in config.decode.

A checkpoint has them in generation_config.json, or in config.json if it is an older one. Lengths of
an encoder-decoder in transformers include the start token that the decoder reads first, whereas
ours count only the tokens of the output. Each option is either obeyed or named in a message.
"""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.huggingface import tensors
from transformer_jax.huggingface.family import Family
from transformer_jax.pictures.progress import say

FILE = "generation_config.json"
_EARLY_STOPPING = {False: "estimate", True: "first", "never": "never"}
# {option that we do not have: the values with which it has no effect}. Any other value is named in
# a message, because the texts would silently differ from transformers'.
_WITHOUT_EFFECT = {
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "diversity_penalty": (None, 0.0),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0.0),
    "dola_layers": (None,),
    "do_sample": (None, False),
    "sequence_bias": (None,),
    "guidance_scale": (None, 1.0),
    "exponential_decay_length_penalty": (None,),
    "watermarking_config": (None,),
    "force_words_ids": (None,),
    "constraints": (None,),
    "stop_strings": (None,),
    "max_time": (None,),
    "token_healing": (None, False),
    "num_return_sequences": (None, 1),
}
# {option of a call of `generate` rather than of the run: (flag of our program, value without
# effect)}, for a decoder without an encoder. The last ones are listed apart, because they only
# matter if tokens are sampled.
_FLAGS = {
    "max_new_tokens": ("max_tokens", None),
    "repetition_penalty": ("repetition_penalty", 1.0),
    "num_return_sequences": ("num_samples", 1),
    "stop_strings": ("stop", None),
}
_SAMPLING_FLAGS = {
    "temperature": ("temperature", 1.0),
    "top_k": ("top_k", 0),
    "top_p": ("top_p", 1.0),
}
# Options that choose among sampled tokens, for which there is no flag. They are listed apart,
# because without do_sample they have no effect, whatever their values.
_SAMPLING = {
    "min_p": (None,),
    "top_h": (None,),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
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
    """Returns the options for `generate` of the checkpoint in `folder` that are not null."""
    path = folder / FILE
    options = tensors.read_json(path) if path.exists() else hf_config
    if options.get("eos_token_id") is None:
        options = options | {"eos_token_id": hf_config.get("eos_token_id")}
    return {key: value for key, value in options.items() if value is not None}


def decode_keys(options: dict) -> dict:
    """Returns the keys of config.decode for options of an encoder-decoder.

    An option that is absent or null has the default of transformers, except for the maximum length:
    transformers would stop after 20 tokens, and ours is set by config.decode.max_extra.
    """
    options = {key: value for key, value in options.items() if value is not None}
    constraints = _constraints(options)
    min_length = options.get("min_length", 0)
    if options.get("min_new_tokens"):  # which replaces min_length, and does not count the end token
        min_length = options["min_new_tokens"] + 1
    beams = _beams(options)
    early_stopping = beams.pop("early_stopping")  # so that it is the last flag in a message
    return dict(
        **beams,
        # max_length counts the start token of the decoder. Without both options the result is 0, by
        # which config.decode.max_extra sets the limit.
        max_length=options.get("max_new_tokens", options.get("max_length", 1) - 1),
        min_length=min_length,
        **constraints,
        early_stopping=early_stopping,
    )


def causal_keys(options: dict) -> dict:
    """Returns the keys of config.decode for options of a decoder without an encoder.

    Without beams in the options, the keys of a beam search keep our defaults.
    """
    options = {key: value for key, value in options.items() if value is not None}
    constraints = _constraints(options)
    neutral = dict(no_repeat_ngram=0, force_end=False, renormalize=False)
    keys = {key: value for key, value in constraints.items() if neutral.get(key) != value}
    if options.get("min_new_tokens"):
        # 1 more, because our minimum counts the end token.
        keys["min_length"] = options["min_new_tokens"] + 1
    return keys | (_beams(options) if options.get("num_beams", 1) > 1 else {})


def _beams(options: dict) -> dict:
    early_stopping = options.get("early_stopping", False)
    if early_stopping not in _EARLY_STOPPING:
        raise UserError(f"early_stopping={early_stopping!r}: must be true, false or 'never'")
    return dict(
        beam=options.get("num_beams", 1),
        alpha=options.get("length_penalty", 1.0),
        penalty="length",
        early_stopping=_EARLY_STOPPING[early_stopping],
    )


def _constraints(options: dict) -> dict:
    """Returns the keys of config.decode that constrain the tokens of an output.

    Raises UserError for a value of another type.
    """
    for key in _WHOLE:
        # `isinstance` would take true and false for whole numbers.
        if type(options.get(key, 0)) is not int:
            raise UserError(f"{key}={options[key]!r}: must be a whole number")
    ends = _ids(options, "eos_token_id")
    forced = _ids(options, "forced_eos_token_id")
    # A forced end comes first, because that is the one which `force_end` of config.decode takes.
    ends = (*(i for i in ends if i in forced), *(i for i in ends if i not in forced))
    words = options.get("bad_words_ids", ())
    if not isinstance(words, list | tuple) or not all(words):
        raise UserError(f"bad_words_ids={words!r}: must be a list of lists of ids")
    lists = {
        "ends": ends,
        "bad_words": tuple(_ids({"bad_words_ids": word}, "bad_words_ids") for word in words),
        "suppress": _ids(options, "suppress_tokens"),
        "begin_suppress": _ids(options, "begin_suppress_tokens"),
    }
    return dict(
        no_repeat_ngram=options.get("no_repeat_ngram_size", 0),
        force_end=bool(forced) and (not ends or forced[0] in ends),
        renormalize=options.get("renormalize_logits", False),
        **{key: ids for key, ids in lists.items() if ids},
    )


def _ids(options: dict, key: str) -> tuple[int, ...]:
    """Returns the ids of an option, which is a single one or a list; () if it is absent."""
    ids = options.get(key, ())
    ids = tuple(ids) if isinstance(ids, list | tuple) else (ids,)
    if not all(type(i) is int for i in ids):
        raise UserError(f"{key}={options[key]!r}: must be an id or a list of ids")
    # Negative ids are left out, because some checkpoints write -1 for "none".
    return tuple(dict.fromkeys(i for i in ids if i >= 0))


def forced_start(options: dict) -> tuple[int, ...]:
    """Returns the first token that the options of an encoder-decoder force, () if they do not."""
    return _ids(options, "forced_bos_token_id")


def remarks(options: dict, hf_config: dict) -> Iterator[str]:
    """Yields messages about options of an encoder-decoder without an equivalent, and the flags for
    each task that config.json lists.
    """
    yield from _without_equivalent(options)
    for task, others in (hf_config.get("task_specific_params") or {}).items():
        keys = decode_keys(options | others)
        changed = {
            key: keys[key] for key, value in decode_keys(options).items() if keys[key] != value
        }
        flags = " ".join(f"--config.decode.{key}={value}" for key, value in changed.items())
        prefix = f"; its inputs begin with {others['prefix']!r}" if others.get("prefix") else ""
        yield f"task {task}: {flags or 'no other values of config.decode'}{prefix}"


def causal_remarks(options: dict) -> Iterator[str]:
    """Yields messages about options of a decoder without an encoder that its run does not follow
    by itself.
    """
    flags = _FLAGS | (_SAMPLING_FLAGS if options.get("do_sample") else {})
    for key, (flag, neutral) in flags.items():
        value = options.get(key)
        if value not in (None, neutral):
            yield f"{key}={value!r} is an option of each call: give --{flag}={_flag_value(value)}"
    if options.get("num_beams", 1) > 1:
        beams = options["num_beams"]
        yield f"num_beams={beams} is an option of each call: give --beam={beams}"
    if options.get("max_length") and "max_new_tokens" not in options:
        yield (
            f"max_length={options['max_length']} counts the prompt: it has no equivalent; give "
            "--max_tokens=N"
        )
    if options.get("min_length") and not options.get("min_new_tokens"):
        yield (
            f"min_length={options['min_length']} counts the prompt: it has no equivalent; give "
            "--config.decode.min_length=N, which does not"
        )
    if "forced_bos_token_id" in options:
        yield (
            f"forced_bos_token_id={options['forced_bos_token_id']!r} of transformers' generate has "
            "no equivalent: an output continues its prompt"
        )
    yield from _without_equivalent(options, *flags, "do_sample")


def _flag_value(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _without_equivalent(options: dict, *others: str) -> Iterator[str]:
    """Yields messages about options that are not obeyed, except for `others`."""
    sampling = _SAMPLING if options.get("do_sample") else {}
    for key, values in (_WITHOUT_EFFECT | sampling).items():
        if key not in others and options.get(key) not in values:
            yield f"{key}={options[key]!r} of transformers' generate has no equivalent"
    ends = _ids(options, "eos_token_id")
    forced = _ids(options, "forced_eos_token_id")
    if ends and not set(forced) <= set(ends):
        yield (
            f"forced_eos_token_id={options['forced_eos_token_id']!r} of transformers' generate has "
            f"no equivalent: it is not the end, eos_token_id={options['eos_token_id']!r}"
        )


def simplify(config: ConfigDict, tokenizer: Tokenizer, vocab_size: int, folder) -> None:
    """Leaves out of config.decode what the tokenizer of the outputs says anyway.

    Raises UserError for ids that are not in the vocabulary of the model.
    """
    decode = config.decode
    named = {
        "eos_token_id": decode.ends,
        "bad_words_ids": sum(decode.bad_words, ()),
        "forced_bos_token_id": decode.force_start or (),
    }
    for key, ids in named.items():
        if beyond := [i for i in ids if i >= vocab_size]:
            raise UserError(
                f"{folder}: {key}: {beyond[0]} is beyond the vocabulary of {vocab_size:,} tokens"
            )
    if decode.ends == (tokenizer.eos_id,):
        configs.set_key(config, "decode.ends", ())
    if decode.force_start == tuple(tokenizer.framed([])[:-1]):
        configs.set_key(config, "decode.force_start", None)


def options_of(decode: Any, tokenizer: Tokenizer, window: int) -> dict:
    """Returns the content of generation_config.json for config.decode of an encoder-decoder.

    `tokenizer` is the tokenizer of the outputs, and `window` the model's maximum length.
    """
    first = tokenizer.framed([])[:-1] if decode.force_start is None else decode.force_start
    # "exact" has no counterpart; "never" is the one that also waits for the best output.
    early_stopping = {ours: hf for hf, ours in _EARLY_STOPPING.items()} | {"exact": "never"}
    content = {
        "num_beams": decode.beam,
        "length_penalty": decode.alpha,
        # Always written, because without a limit transformers stops after 20 tokens.
        "max_length": decode.max_length + 1 if decode.max_length else min(window, _MAX_LENGTH),
        "min_length": decode.min_length,
        "early_stopping": early_stopping[decode.early_stopping],
        "forced_bos_token_id": first[0] if first else None,
        "decoder_start_token_id": tokenizer.start_id,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
        **_constraint_options(decode, tokenizer),
        "no_repeat_ngram_size": decode.no_repeat_ngram,
    }
    return {key: value for key, value in content.items() if value is not None}


def causal_options(decode: Any, tokenizer: Tokenizer) -> dict:
    """Returns the content of generation_config.json for a decoder without an encoder.

    It is empty if config.decode has no constraints, because config.json then says all.
    """
    constraints = {
        key: value for key, value in _constraint_options(decode, tokenizer).items() if value
    }
    if decode.min_length > 1:
        constraints["min_new_tokens"] = decode.min_length - 1
    if not constraints:
        return {}
    # If this file exists, transformers does not look for the end in config.json.
    constraints.setdefault("eos_token_id", tokenizer.hf_end)
    return constraints | ({} if tokenizer.bos_id is None else {"bos_token_id": tokenizer.bos_id})


def _constraint_options(decode: Any, tokenizer: Tokenizer) -> dict:
    words = dict.fromkeys([*((i,) for i in tokenizer.never), *map(tuple, decode.bad_words)])
    ends = list(decode.ends)
    options = {
        "no_repeat_ngram_size": decode.no_repeat_ngram or None,
        "bad_words_ids": [list(word) for word in words] or None,
        "suppress_tokens": list(decode.suppress) or None,
        "begin_suppress_tokens": list(decode.begin_suppress) or None,
        "forced_eos_token_id": (ends or [tokenizer.eos_id])[0] if decode.force_end else None,
        "renormalize_logits": decode.renormalize or None,
    }
    return options | ({"eos_token_id": ends if len(ends) > 1 else ends[0]} if ends else {})


_CAUSAL_TASKS = ("causal_lm", "permuted_lm")


@dataclasses.dataclass(frozen=True)
class Causal(Family):
    """A family of decoders without an encoder; its fine-tuned heads do not generate text."""

    def decode_keys(self, hf_config: dict, folder: pathlib.Path) -> dict:
        if self.task not in _CAUSAL_TASKS:
            return {}
        options = stored(hf_config, folder)
        for remark in causal_remarks(options):
            say(f"{folder}: {remark}")
        return causal_keys(options)

    def complete(self, task, hf_config: dict, folder: pathlib.Path) -> None:
        if self.task in _CAUSAL_TASKS:
            simplify(task.config, task.tokenizer, self.vocab_size(hf_config), folder)
            frame = tokenizers.published_frame(folder, task.tokenizer)
            task.tokenizer.prefix, after = frame
            if after:
                pieces = " ".join(task.tokenizer.pieces(list(after)))
                say(f"{folder}: the tokenizer puts {pieces} behind a text: a prompt has none there")

    def write_config(self, config: ConfigDict, tokenizer) -> dict:
        content = super().write_config(config, tokenizer)
        ends = list(config.decode.ends) if self.task in _CAUSAL_TASKS else []
        return content | ({"eos_token_id": ends if len(ends) > 1 else ends[0]} if ends else {})

    def generation_config(self, task) -> dict:
        if self.task not in _CAUSAL_TASKS:
            return {}
        return causal_options(task.config.decode, task.tokenizer)
