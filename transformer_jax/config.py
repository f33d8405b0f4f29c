"""Configs: their keys, types and ranges, their files, and overrides.

The keys, types and defaults of the sections `model`, `task` and `source` come from the classes that
`config.model.name`, `config.task.name` and `config.source.name` name (`named_class`). The other
sections are the dataclasses in `SECTIONS`. A config file defines `get_config()` or
`get_config(arg)`, which returns `experiment(section={key: value})` with the differences from the
defaults. `load` reads such a file, applies overrides and validates the result.
"""

import ast
import contextlib
import contextvars
import dataclasses
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import io
import itertools
import math
import os
import pathlib
import re
import sys
import textwrap
import tokenize
import traceback
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict

__all__ = [
    "Share",
    "Range",
    "PositiveInt",
    "PositiveFloat",
    "NonNegativeInt",
    "NonNegativeFloat",
    "Fraction",
    "INIT_FROM",
    "MAY_CHANGE",
    "SECTIONS",
    "Checkpoint",
    "Data",
    "Decode",
    "Interrupted",
    "Lora",
    "Mesh",
    "Optimizer",
    "Preempted",
    "RunError",
    "Train",
    "UserError",
    "all_keys",
    "build_model",
    "build_source",
    "chosen",
    "choice",
    "class_options",
    "config_file",
    "config_names",
    "describe",
    "differences",
    "experiment",
    "flat",
    "from_record",
    "get",
    "load",
    "load_module",
    "meaning",
    "named_class",
    "options",
    "read",
    "schema",
    "set_key",
    "tiny",
    "validate",
]

# ------------------------------ errors, and early ends of a run, that a program reports in one line


class UserError(Exception):
    """A mistake that the user can correct. A program prints it as one line and exits with 2."""


class RunError(Exception):
    """A run can't continue although its input is valid. A program prints it and exits with 1."""


class Preempted(Exception):
    """SIGTERM stopped the run after its state was saved, so that the same command continues it."""

    code = 75  # exit code of the program, EX_TEMPFAIL in sysexits.h


class Interrupted(KeyboardInterrupt):
    """Ctrl-C stopped the run after its state was saved, so that the same command continues it."""

    code = 130  # as a shell reports the end by SIGINT, 128 + 2


# ------------------------ conversion of strings and of values in config files to the declared types

# What `ast.literal_eval` raises; the last two are for text that is nested too deeply.
_UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def shown(value: Any, most: int = 80) -> str:
    """Returns a value as an error message shows it: not more than its start."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def coerce(key: str, value: Any, kind: Any) -> Any:
    """Returns `value` as the type `kind`. A string is parsed as on a command line.

    Raises UserError for a value of another type.
    """
    remedy = ""
    if key.endswith("_files") and isinstance(value, list | tuple):
        remedy = "; separate paths by commas, or give rows to train(..., data={'train': rows})"
    refusal = UserError(f"config.{key}={shown(value)} is not {describe(kind)}{remedy}")
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if type(None) in args and (value is None or str(value).lower() == "none"):
            return None
        # Only numbers of updates have both types, see `Updates`.
        if int in args and float in args:
            return _as_updates(value, refusal)
        return coerce(key, value, next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        if value not in args:
            raise UserError(f"{refusal}{did_you_mean(str(value), [str(arg) for arg in args])}")
        return value
    if kind is str:
        if not isinstance(value, str):
            raise refusal
        return value
    if isinstance(value, str):
        value = _literal(value, kind, refusal)
    if kind is float and type(value) in (int, float):
        if not abs(value) <= sys.float_info.max:  # false for nan, too
            raise refusal
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)  # 1e5 is a float in Python, but a whole number to its user
    if key == "optimizer.base" and isinstance(value, (dict, ConfigDict)):
        value = tuple(sorted(value.items()))
    if (kind is tuple or origin is tuple) and isinstance(value, (list, tuple)):
        return _as_tuple(value)
    if type(value) is not kind or (kind is int and abs(value) > 2**63 - 1):
        raise refusal
    return value


def _literal(text: str, kind: Any, refusal: UserError) -> Any:
    """Returns the Python value of a string; for a bool, None if it is neither true nor false."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    try:
        return ast.literal_eval(text)
    except _UNREADABLE:
        raise refusal from None


def _as_updates(value: Any, refusal: UserError) -> int | float:
    """Returns a number of updates as an int, or a fraction of the run as a float."""
    if isinstance(value, str):
        value = _literal(value, float, refusal)
    if type(value) is float and 0 < value < 1:
        return value
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or abs(value) > 2**63 - 1:
        raise refusal
    return value


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(v) for v in value) if isinstance(value, (list, tuple)) else value


def describe(kind: Any) -> str:
    """Returns a type in words, such as "a whole number or none"."""
    args = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if int in args and float in args:
        return "a whole number of updates or a fraction of the run"
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join("none" if arg is type(None) else describe(arg) for arg in args)
    in_words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return in_words.get(kind, "a tuple")


# --------------------------------- the ranges of numeric keys, which are parts of their annotations

# A bound that the value must stay below is tested with this factor, because float32 rounds
# 1 - 2^-25 to 1, and the program would then compute with the bound itself.
_ROUNDED = 1 - 2**-25


@dataclasses.dataclass(frozen=True)
class Range:
    """The bounds of a number, each of which may be None.

    Attributes:
      least, most: the inclusive bounds.
      above, below: the exclusive bounds.
      counts: whether the number is a size or a number of updates, which the programs hold in int32.
      or_fraction: whether it may also be a fraction of the run, between 0 and 1.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    counts: bool = False
    or_fraction: bool = False

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"from {self.least} to {self.most:,}"
        bounds = {
            "at least": self.least,
            "above": self.above,
            "at most": self.most,
            "below": self.below,
        }
        in_words = [f"{word} {bound}" for word, bound in bounds.items() if bound is not None]
        fraction = ", or a fraction of the run between 0 and 1" if self.or_fraction else ""
        return " and ".join(in_words) + fraction

    def check(self, key: str, value: float | None) -> None:
        """Raises UserError if a value of `config.<key>` is outside of the range."""
        if value is None or (self.or_fraction and 0 < value < 1):
            return
        is_inside = (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below * _ROUNDED)
        )
        if not is_inside:
            raise UserError(f"config.{key}={value}: must be {self}")
        if self.counts and value >= 2**31:
            raise UserError(f"config.{key}={value}: sizes and updates are counted up to 2^31 - 1")


PositiveInt = Annotated[int, Range(least=1, counts=True)]
NonNegativeInt = Annotated[int, Range(least=0)]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegativeFloat = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(least=0, most=1)]
Fraction = Annotated[float, Range(least=0, below=1)]  # a share that can't be the whole


def ranges(kind: Any) -> list[Range]:
    """Returns the ranges in the annotation of a field, such as `PositiveInt | None`."""
    found = [each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Range)]
    return found + [each for part in typing.get_args(kind) for each in ranges(part)]


# --------------------------------------------------------------------- suggestions for a wrong name


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Returns '; did you mean ...?' for a close spelling of the word, or of its last part."""
    choices = list(choices)
    matches = difflib.get_close_matches(word, choices, n=1, cutoff=0.75)
    if not matches:
        by_last_part = {choice.rpartition(".")[2]: choice for choice in choices}
        last_part = word.rpartition(".")[2]
        close = difflib.get_close_matches(last_part, by_last_part, n=1, cutoff=0.8)
        matches = [by_last_part[part] for part in close]
    return f"; did you mean {matches[0]}?" if matches else ""


def known_elsewhere(word: str, names: Iterable[str]) -> tuple[str, ...]:
    """Returns those of `names`, keys or flags ("--..."), that other codebases call `word`."""
    names = set(names)
    last_part = word.rpartition(".")[2].lower().replace("-", "_")
    alternatives = NAMES_ELSEWHERE.get(last_part, ())
    return next((option for option in alternatives if names.issuperset(option)), ())


def did_you_mean_key(word: str, keys: Iterable[str], meaning: Callable[[str], str]) -> str:
    """Returns '; did you mean ...?' for a key, explained if the word is from another codebase."""
    keys = list(keys)
    if word.rpartition(".")[2] in {one.rpartition(".")[2] for one in keys}:
        return did_you_mean(word, keys)  # the key exists, in another section
    names = known_elsewhere(word, [*keys, "--workdir", "--config"])
    if not names:
        return did_you_mean(word, keys)
    explained = [f"{name} ({text})" if (text := meaning(name)) else name for name in names]
    return f"; did you mean {' and '.join(explained)}?"


def choice(argument: str, choices):
    """Returns `choices[argument]`, for config files with an argument.

    Raises UserError for an unknown argument.
    """
    if argument not in choices:
        raise UserError(
            f"no {argument!r}{did_you_mean(argument, [*choices])}; there are: {', '.join(choices)}"
        )
    return choices[argument]


# --------------------------------------------------------------------------------------------------
# What Hugging Face, fairseq, nanoGPT, t5x and other codebases call our keys and flags, because that
# is what people try first.
#
# Each line has our name, a colon, and the names that others use. Our names may be alternatives,
# separated by "|", of which the first one whose keys all exist is suggested. A name that starts
# with "--" is a flag.

_NAMES_ELSEWHERE = """
optimizer.learning_rate: lr base_lr max_lr peak_lr init_lr initial_learning_rate adam_lr
optimizer.schedule: lr_scheduler lr_scheduler_type scheduler lr_schedule lr_decay_style
optimizer.schedule: scheduler_type
optimizer.warmup_steps: warmup num_warmup_steps warmup_iters warmup_updates warmup_ratio
optimizer.warmup_steps: warmup_epochs
optimizer.warmup_steps: warmup_fraction warmup_proportion lr_warmup_steps n_warmup_steps lr_warmup
optimizer.decay_steps: lr_decay_iters lr_decay_steps decay_iters
optimizer.final_fraction: min_lr min_lr_ratio end_lr lr_end final_lr min_learning_rate lr_min
optimizer.b1: beta1 adam_beta1 beta_1 adam_b1
optimizer.b2: beta2 adam_beta2 beta_2 adam_b2
optimizer.b1 optimizer.b2: betas adam_betas
optimizer.momentum: sgd_momentum
optimizer.power: lr_power poly_power
optimizer.cooldown_steps: num_decay_steps cooldown
optimizer.eps: epsilon adam_epsilon adam_eps
optimizer.weight_decay: wd l2 l2_reg
optimizer.clip_norm: grad_clip max_grad_norm clip gradient_clip_val clip_grad_norm gradient_clipping
optimizer.clip_norm: grad_clip_norm max_norm clip_grad gradient_clip clip_gradients
optimizer.layer_decay: llrd layerwise_lr_decay layer_wise_lr_decay lr_layer_decay
optimizer.name: optim optimizer opt optimizer_type optimizer_name
train.num_steps: max_steps total_steps steps max_iters iters train_steps num_train_steps max_update
train.num_steps: max_updates train_iters num_updates training_steps n_steps num_iterations epochs
train.num_steps: num_epochs num_train_epochs max_epochs n_epochs max_epoch epoch num_training_steps
train.batch|decode.batch: batch_size train_batch_size global_batch_size per_device_train_batch_size
train.batch|decode.batch: bs
train.batch|decode.batch: micro_batch_size per_gpu_train_batch_size total_batch_size batchsize
decode.batch: per_device_eval_batch_size eval_batch_size
train.accumulation: grad_accum gradient_accumulation_steps accumulate_grad_batches update_freq
train.accumulation: grad_accumulation gradient_accumulation accum_steps accumulation_steps accum
train.accumulation: grad_accum_steps num_microbatches microbatches
train.eval_every: eval_steps eval_interval eval_freq validate_every val_check_interval
train.eval_every: evaluation_steps validation_interval validate_interval test_interval eval_period
train.log_every: logging_steps log_interval log_freq print_every log_steps logging_interval
train.log_every: log_every_n_steps report_interval log_every_steps
train.seed: seed random_seed rng_seed
data.seed: data_seed shuffle_seed
checkpoint.every: save_steps save_interval save_every checkpoint_every checkpoint_interval save_freq
checkpoint.every: ckpt_every save_interval_updates checkpoint_freq save_period
checkpoint.keep: save_total_limit keep_last keep_checkpoints max_to_keep keep_last_n
checkpoint.keep: keep_last_epochs
checkpoint.best_metric: metric_for_best_model best_checkpoint_metric early_stopping_metric monitor
checkpoint.best_mode: greater_is_better maximize_best_checkpoint_metric
model.num_layers|model.num_encoder_layers model.num_decoder_layers: n_layer n_layers layers nlayers
model.num_layers|model.num_encoder_layers model.num_decoder_layers: num_hidden_layers depth
model.num_layers|model.num_encoder_layers model.num_decoder_layers: num_layers
model.num_layers|model.num_encoder_layers model.num_decoder_layers: num_blocks n_blocks
model.num_encoder_layers: encoder_layers enc_layers n_encoder_layers
model.num_decoder_layers: decoder_layers dec_layers n_decoder_layers
model.num_heads: n_head n_heads heads num_attention_heads nhead attention_heads nheads
model.num_heads: encoder_attention_heads decoder_attention_heads
model.d_model: hidden_size n_embd embed_dim dim hidden_dim width embedding_dim emb_dim model_dim
model.d_model: n_embed
model.d_model: d_embed dmodel embedding_size encoder_embed_dim decoder_embed_dim hidden embd
model.d_ff: intermediate_size ffn_dim d_inner n_inner ffn_hidden_size feedforward_dim
model.d_ff: dim_feedforward
model.d_ff: mlp_dim ff_dim filter_size d_hidden dff ffn_size encoder_ffn_dim decoder_ffn_dim
model.d_ff: encoder_ffn_embed_dim decoder_ffn_embed_dim mlp_ratio
model.head_dim: d_head d_kv dim_head kv_channels head_size d_k d_v
model.dropout: dropout_rate hidden_dropout hidden_dropout_prob resid_pdrop embd_pdrop p_drop
model.dropout: resid_dropout residual_dropout drop_rate dropout_prob dropout_p
model.attention_dropout: attn_dropout attention_probs_dropout_prob attn_pdrop attention_dropout_rate
task.head_dropout: classifier_dropout cls_dropout seq_classif_dropout
model.vocab_size: vocab n_vocab num_tokens vocabulary_size padded_vocab_size ntoken vocabulary
model.source_vocab_size: src_vocab_size source_vocab
model.max_length: max_position_embeddings n_positions n_ctx max_len max_source_positions
task.length model.max_length|task.source_length task.target_length|task.phases: seq_len seq_length
task.length model.max_length|task.source_length task.target_length|task.phases: block_size seqlen
task.length model.max_length|task.source_length task.target_length|task.phases: max_seq_length
task.length model.max_length|task.source_length task.target_length|task.phases: max_seq_len
task.length model.max_length|task.source_length task.target_length|task.phases: sequence_length
task.length model.max_length|task.source_length task.target_length|task.phases: context_length
task.length model.max_length|task.source_length task.target_length|task.phases: context_size
task.length model.max_length|task.source_length task.target_length|task.phases: tokens_per_sample
task.source_length: src_len src_length max_source_length
task.target_length: tgt_len tgt_length max_target_length
model.norm_epsilon: layer_norm_eps layer_norm_epsilon norm_eps layernorm_epsilon ln_eps rms_norm_eps
model.init_std: initializer_range init_scale weight_init_std
model.norm_position: norm_first pre_norm normalize_before pre_ln prenorm encoder_normalize_before
model.num_token_types: type_vocab_size
model.tie_output: tie_word_embeddings share_embeddings tie_embeddings tie_weights
model.tie_output: share_decoder_input_output_embed
model.dtype: fp16 bf16 precision mixed_precision amp compute_dtype use_bf16 half torch_dtype float16
model.dtype: bfloat16 use_amp
model.remat: gradient_checkpointing activation_checkpointing checkpoint_activations recompute
model.remat: grad_checkpointing remat_policy recompute_granularity
model.unroll: scan_layers scan_unroll
model.local_window: sliding_window window_size attention_window
task.label_smoothing: label_smoothing_factor smoothing label_smooth
task.phases: mlm_probability mask_prob masked_lm_prob max_predictions_per_seq
task.next_sentence: nsp use_nsp nsp_weight
task.labels: num_labels label_list num_classes n_classes
task.frozen: freeze freeze_encoder freeze_backbone freeze_base
data.train_files: train_file train_data train_path data_path dataset dataset_path dataset_name
data.train_files: data_dir
data.valid_files: validation_file valid_data eval_file val_data dev_file valid_file eval_data
data.test_files: test_file test_data predict_file
data.source_language: src source_lang src_lang
data.target_language: tgt target_lang tgt_lang
data.tokenizer_files: tokenizer_name tokenizer_path vocab_file merges_file tokenizer_dir vocab_path
data.cased: do_lower_case lowercase uncased lower_case do_lower
data.text_field: text_column text_column_name text_key
data.cache: cache_dir
data.mask_documents: reset_attention_mask document_mask
init_from: init_checkpoint model_name_or_path pretrained_model from_pretrained init_weights
init_from: load_from
init_from: finetune_from_model restore_file pretrained_path pretrained_model_name_or_path
mesh.tensor: tp tensor_parallel tensor_parallel_size tensor_model_parallel_size model_parallel
mesh.data: dp data_parallel data_parallel_size num_gpus n_gpus gpus num_devices
mesh.fsdp: zero zero_stage fsdp_size sharded
mesh.pipeline: pp pipeline_parallel pipeline_model_parallel_size num_stages stages
mesh.expert: ep expert_parallel expert_parallel_size expert_model_parallel_size
mesh.sequence: sp sequence_parallel context_parallel_size cp context_parallel
decode.beam: beam_size num_beams beam_width beams
decode.alpha: length_penalty lenpen lp_alpha
decode.no_repeat_ngram: no_repeat_ngram_size
decode.min_length: min_len minlen min_new_tokens min_decoding_length
decode.max_length: val_max_target_length max_decoding_length max_len_b
decode.force_end: forced_eos_token_id
decode.force_start: forced_bos_token_id
decode.ends: eos_token_id eos_token_ids
decode.bad_words: bad_words_ids
decode.suppress: suppress_tokens
decode.begin_suppress: begin_suppress_tokens
decode.renormalize: renormalize_logits
decode.average: average_checkpoints num_avg_checkpoints checkpoint_average
--workdir: output_dir out_dir save_dir model_dir checkpoint_dir ckpt_dir run_dir logdir log_dir
--workdir: outdir
--workdir: exp_dir output resume resume_from_checkpoint load_checkpoint model_path
--config: config_file cfg config_name config_path
--num_processes: num_nodes nnodes world_size num_hosts
--process_id: rank node_rank host_id
--coordinator: master_addr coordinator_address rdzv_endpoint
--max_tokens: max_new_tokens max_gen_len num_tokens_to_generate max_length_generate
"""


def _read(table: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    names = {}
    for line in table.strip().splitlines():
        ours, theirs = line.split(":")
        for name in theirs.split():
            names[name] = tuple(tuple(option.split()) for option in ours.split("|"))
    return names


NAMES_ELSEWHERE = _read(_NAMES_ELSEWHERE)  # {their name: alternatives, each a tuple of our names}


# --------------------------------------------------------------------------------------------------
# Names that models, tasks and keys of a config had in earlier versions.
#
# The configs of recorded runs contain these names, and so may config files and commands. If the
# values of a key changed as well, the table maps each old value to the new one.

# {section: {old name: new name}}
OLD_NAMES = {
    "model": {"lstm": "recurrent", "vq_autoencoder": "vqvae"},
    "task": {"code_lm": "image_token_lm", "image_codes": "vqvae"},
}
# {section: {name: {old key: new key, or (new key, {old value: new value})}}}
OLD_KEYS = {
    "model": {
        "esm": {"zero_masks": "token_dropout"},
        "wav2vec2": {"stable": ("norm_position", {False: "post", True: "pre"})},
    },
    "task": {
        "chat": {"marks": "special_tokens"},
        "masked_patches": {"normalise_pixels": "normalize_pixels"},
        "ctc": {"silent": "feature_mask", "silent_span": "feature_mask_span"},
    },
}


def current_name(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section with the current names and values of its keys, "name" included."""
    name = values.get("name")
    name = OLD_NAMES.get(section, {}).get(name, name)
    renamed = {}
    for key, value in values.items():
        new_key, new_value = current_key(section, name, key, value)
        renamed[new_key] = new_value
    return renamed | ({"name": name} if "name" in values else {})


class Renamed:
    """A method or attribute under the name that it had in earlier versions, whose use warns.

    `answer = Renamed("answer", "completion")` in a class makes `answer` stand for `completion`.
    """

    def __init__(self, old: str, new: str):
        # Both are given, because __set_name__ is not called in a NamedTuple before Python 3.13.
        self._old, self._new = old, new

    def __get__(self, instance, owner):
        if instance is None:
            return getattr(owner, self._new)
        message = f"{type(instance).__name__}.{self._old} is now {self._new}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(instance, self._new)


def renamed_in(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module that answers to {old name: new name} with a warning."""

    def __getattr__(name):
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{module}.{name} is now {names[name]}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return __getattr__


def current_key(section: str, name: str, key: str, value: Any) -> tuple[str, Any]:
    """Returns the current name and value of a key, for the class `name` of a section."""
    new = OLD_KEYS.get(section, {}).get(name, {}).get(key, key)
    if isinstance(new, str):
        return new, value
    new, values = new
    # Compare as strings, because a value from the command line is a string.
    by_text = {str(old).lower(): each for old, each in values.items()}
    return new, by_text.get(str(value).lower(), value)


# ---------------------------------- config files, which are Python files with a function get_config


def read(path: str | os.PathLike) -> ConfigDict:
    """Returns the config of `file.py` or `file.py:arg`, without validating it.

    The path may also be the name of a config of this package, as for `config_file`. Raises
    UserError if the file does not exist, or has an error in it.

    Examples:
      >>> config.read("gpt/gpt2:124m").model.num_layers
      12
    """
    path = os.fspath(path)
    file, _, arg = path.partition(":")
    file = config_file(file)
    if not file.endswith(".py"):
        raise UserError(
            f"--config={path}: a config is a Python file, *.py; continue a run by its --workdir"
        )
    with naming_the_file(file):
        config = _call(file, arg, path)
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"{file}: get_config() returns {type(config).__name__}, "
            "not a config made by experiment(...)"
        )
    return config


# The folder of an installed package, and that of a checkout.
_CONFIG_FOLDERS = [
    parent / "configs" for parent in itertools.islice(pathlib.Path(__file__).parents, 2)
]


def config_file(name: str, flag: str = "--config") -> str:
    """Returns the path of a config file: `name` itself, or that of a config of this package.

    Such a config is named without the folder and the ending, as in "gpt/quickstart", or with both,
    as in "configs/gpt/quickstart.py". Raises UserError, which names `flag`, if there is none.

    Examples:
      >>> config.config_file("gpt/quickstart").endswith("configs/gpt/quickstart.py")
      True
    """
    if pathlib.Path(name).is_file():
        return name
    short = name.removeprefix("configs/").removesuffix(".py")
    names = config_names()
    if short in names:
        return str(names[short])
    raise UserError(f"{flag}={name}: no such file {name}{did_you_mean(short, [*names])}")


def config_names() -> dict[str, pathlib.Path]:
    """Returns {name: file} of the configs of this package.

    Examples:
      >>> "bert/base" in config.config_names()
      True
    """
    folder = next((each for each in _CONFIG_FOLDERS if each.is_dir()), None)
    files = sorted(folder.rglob("*.py")) if folder else []
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def _call(file: str, arg: str, path: str) -> Any:
    """Calls get_config of a config file, and returns its result."""
    module = load_module(file)
    if not hasattr(module, "get_config"):
        raise UserError("defines no get_config()")
    takes_arg = bool(inspect.signature(module.get_config).parameters)
    if arg and not takes_arg:
        raise UserError(f"--config={path}: {file} takes no argument")
    return module.get_config(*([arg] if arg else []))


@contextlib.contextmanager
def naming_the_file(file: str):
    """Turns an error in the user's `file` into a one-line UserError with the number of the line."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    # SystemExit, because a config file may call sys.exit, which would end the program silently.
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        line = _line_in(file, error)
        raise UserError(f"{file}:{line}: {type(error).__name__}: {message}") from None


def _line_in(file: str, error: BaseException) -> int:
    """Returns the number of the line in `file` where an error was raised."""
    if isinstance(error, SyntaxError):
        return error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if os.path.abspath(f.filename) == os.path.abspath(file)]
    return lines[-1] if lines else 1


def load_module(file: str | pathlib.Path) -> types.ModuleType:
    """Returns a config file as a module, for `read` and for config files that vary another.

    Such a file names a config of this package as in load_module("bert/base").
    """
    file = config_file(str(file))
    spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --------------------------------------------------------------------------------------------------
# Classes in files outside the package: `config.model.name="path/to/my_variant.py"`.
#
# Such a file is executed only if the user has named it in the command or in the config file of the
# command, in which case its path is a `File`. A path from the record of a run is a plain string and
# is never followed, because opening somebody else's run must not execute code.

MODULE_PREFIX = "transformer_jax_variant_"  # by which `field_comments` knows such files
# The sections whose key `name` names a class. Its fields are the other keys, so that a section
# can't be read before its name.
NAMED_SECTIONS = ("model", "task", "source")


class File(str):
    """The absolute path of a Python file that the user has named.

    The content is read once, so that what is executed is also what is hashed and recorded.
    """

    content: bytes

    @property
    def digest(self) -> str:
        """The SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()


_executed: list[File] = []
# The files that replace the names in a config file while it is being read. They can't be passed as
# an argument, because the file calls `experiment` itself.
_chosen = contextvars.ContextVar("chosen", default=types.MappingProxyType({}))


def is_path(name: Any) -> bool:
    """Returns whether the name of a class is the path of a file."""
    return isinstance(name, str) and name.endswith(".py")


def named_file(section: str, path: str | os.PathLike) -> File:
    """Returns the `File` for a path that the user names. Raises UserError if it can't be read."""
    if isinstance(path, File):
        return path
    path = os.path.abspath(os.path.expanduser(os.fspath(path)))
    if not is_path(path):
        raise UserError(f"config.{section}.name={path}: must be a Python file, *.py")
    file = File(path)
    try:
        file.content = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"config.{section}.name={path}: {error.strerror}") from None
    return file


def named_files(config: Mapping[str, Any]) -> dict[str, File]:
    """Returns {section: file} of the files that the user has named in a config."""
    names = {section: config[section].name for section in NAMED_SECTIONS}
    return {section: name for section, name in names.items() if isinstance(name, File)}


def split_files(
    overrides: Iterable[tuple[str, Any]],
) -> tuple[dict[str, File], list[tuple[str, Any]]]:
    """Returns {section: file} of the files that overrides name, and the other overrides."""
    overrides = list(overrides)
    files = {
        key.removesuffix(".name"): value
        for key, value in overrides
        if key.removesuffix(".name") in NAMED_SECTIONS and is_path(value)
    }
    others = [(key, value) for key, value in overrides if key.removesuffix(".name") not in files]
    return {section: named_file(section, path) for section, path in files.items()}, others


@contextlib.contextmanager
def replacing_names(files: Mapping[str, File]):
    """In the context, config files use these classes instead of those that they name.

    This can't wait until a file has been read, because the class decides which keys exist.
    """
    token = _chosen.set({**_chosen.get(), **files})
    try:
        yield
    finally:
        _chosen.reset(token)


def with_files(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config's differences from the defaults, with each path of a file as a `File`."""
    delta = dict(delta)
    for section in NAMED_SECTIONS:
        keys = delta.get(section, {})
        if not isinstance(keys, dict):
            continue
        name = _chosen.get().get(section) or keys.get("name")
        if is_path(name):
            delta[section] = {**keys, "name": named_file(section, name)}
    return delta


def executed_files() -> list[File]:
    """Returns the files that this process has executed, so that a worker can execute them, too."""
    return [*_executed]


def file_module(section: str, name: str) -> types.ModuleType:
    """Returns the module of a file, which is executed only once.

    Raises UserError for a path that is not a `File`, and for an error in the file.
    """
    if not isinstance(name, File):
        raise UserError(
            f"config.{section}.name={name}: a recorded path is not followed; name the file, "
            f"with --config.{section}.name=FILE"
        )
    # The content is part of the name: a file that has changed in this process is a new module.
    key = hashlib.sha256(name.encode() + name.content).hexdigest()[:16]
    module_name = MODULE_PREFIX + f"{pathlib.Path(name).stem}_{key}"
    if module_name not in sys.modules:
        new_module = types.ModuleType(module_name)
        new_module.__file__ = str(name)
        sys.modules[module_name] = new_module  # where dataclasses and type hints look names up
        try:
            with naming_the_file(name):
                # `exec_module` would read the file again, which may have changed meanwhile.
                exec(compile(name.content, name, "exec"), vars(new_module))
        except UserError:
            # As after any failed import, no half-executed module stays behind.
            del sys.modules[module_name]
            raise
        _executed.append(name)
    return sys.modules[module_name]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The class files of a recorded config, and the files that the user names for them.

    Attributes:
      digests: {section: SHA-256 of the recorded file}.
      files: {section: file that the user names}.
      needed: the sections whose classes will be used. In other sections a path may stay unresolved.
    """

    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, File] = dataclasses.field(default_factory=dict)
    needed: tuple[str, ...] = NAMED_SECTIONS

    def resolved(self, values: dict) -> tuple[dict, dict]:
        """Returns the recorded sections, and separately the sections whose class is unknown.

        Raises UserError if a needed file is not named, or has another content.
        """
        known, others = dict(values), {}
        for section in NAMED_SECTIONS:
            path = values.get(section, {}).get("name")
            if is_path(path) and self._is_unknown(section):
                others[section] = values[section]
                known[section] = {"name": ""}
            elif is_path(path):
                known[section] = {**values[section], "name": self._file(section, path)}
        return known, others

    def _is_unknown(self, section: str) -> bool:
        file = self.files.get(section)
        is_same = file is not None and file.digest == self.digests.get(section)
        return section not in self.needed and not is_same

    def _file(self, section: str, path: str) -> File:
        file, digest = self.files.get(section), self.digests.get(section)
        recorded = f"config.{section}.name={path} (SHA-256 {digest})"
        remedy = f"name it with --config.{section}.name=FILE (in Python: {section}_file=FILE)"
        if file is None:
            raise UserError(f"{recorded}: a recorded file is not executed by itself; {remedy}")
        if file.digest != digest:
            raise UserError(f"{recorded}: {file} is another file (SHA-256 {file.digest}); {remedy}")
        return file


# -------------------------- the classes that `config.{model,task,source}.name` name, and their keys

# The name of a class is the name of its file, which lies in one of these places. No registry is
# needed, and the other files are not imported. In a place, a file whose name starts with "_" is
# none of the classes, and neither is a folder, except for the folder of a model, whose
# `__init__.py` is the model. What several tasks or sources share lies elsewhere.
_PLACES = {
    "model": ("families/*.py", "families/*/__init__.py"),
    "task": ("tasks/*.py", "tasks/*/*.py", "families/*/tasks/*.py"),
    "source": ("records/*.py", "corpora/sources/*.py", "families/*/sources/*.py"),
}


def section_folder(section: str) -> str:
    """Returns the folder that holds most of the models, tasks or sources, for a message."""
    return f"transformer_jax/{_PLACES[section][0].partition('/')[0]}/"


def class_names(section: str) -> list[str]:
    """Returns the names of all models, tasks or sources, which are the names of their files."""
    return sorted(_modules(section))


def class_module(section: Literal["model", "task", "source"], name: str) -> types.ModuleType:
    """Returns the module of a model, task or source in the package, which alone is imported.

    Raises UserError for an unknown name, and for one that two files have.
    """
    modules = _modules(section)
    if name not in modules:
        known = ", ".join(modules) or "none"
        raise UserError(
            f"config.{section}.name={name!r}: no such {section}{did_you_mean(name, modules)}; "
            f"there are: {known}; or a file, FILE.py"
        )
    if len(modules[name]) > 1:
        raise UserError(
            f"config.{section}.name={name!r}: {' and '.join(modules[name])} have this name; rename "
            "one of them"
        )
    [module] = modules[name].values()
    return importlib.import_module(module)


def _modules(section: str) -> dict[str, dict[str, str]]:
    """Returns {name: {file: its module}} for the places of a section, sorted by name."""
    tops = dict.fromkeys(place.partition("/")[0] for place in _PLACES[section])
    packages = {top: importlib.import_module(f"transformer_jax.{top}") for top in tops}
    return _modules_in(section, *((top, *packages[top].__path__) for top in tops))


@functools.cache
def _modules_in(section: str, *tops: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Returns what `_modules` does, for `tops` of (package, *its folders).

    The folders are arguments, so that the cache is not used where a package has another folder.
    """
    folders = {top: [pathlib.Path(path) for path in paths] for top, *paths in tops}
    found = {}
    for place in _PLACES[section]:
        top, _, pattern = place.partition("/")
        for folder in folders[top]:
            for file in folder.glob(pattern):
                inner = file.relative_to(folder).with_suffix("")
                inner = inner.parent if pattern.endswith("/__init__.py") else inner
                if not inner.name.startswith("_"):
                    module = ".".join(("transformer_jax", top, *inner.parts))
                    found.setdefault(inner.name, {})[str(file)] = module
    return dict(sorted(found.items()))


def named_class(section: Literal["model", "task", "source"], name: str) -> type:
    """Returns the public model, task or source that `name` names.

    `name` is the name of a file in one of the `_PLACES`, or the path of a file that the user has
    named. Raises UserError for an unknown name, for a path that the user has not named, and for a
    file that does not define exactly one such class.
    """
    defining = file_module(section, name) if is_path(name) else class_module(section, name)
    classes = _public_classes(section, defining)
    if len(classes) != 1:
        raise UserError(
            f"{defining.__file__} must define exactly one public {section} class, "
            f"not {[cls.__name__ for cls in classes]}"
        )
    _contract(section).check_class(classes[0], defining.__file__)
    return classes[0]


def _contract(section: str):
    return importlib.import_module(f"transformer_jax.contracts.{section}")


def _public_classes(section: str, module) -> list[type]:
    """Returns the public classes of a section, such as models, that a module defines.

    Other classes in the module are helpers. If a model's or task's module has no such class, all
    its public dataclasses are returned, which Linen modules are, too, so that the check of the
    class can say what it lacks.
    """
    base = getattr(_contract(section), section.capitalize())
    public = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        # A class that the file merely imports belongs to another file.
        and value.__module__ == module.__name__
        and dataclasses.is_dataclass(value)
        and not value.__name__.startswith("_")
        and value is not base
    ]
    derived = [cls for cls in public if issubclass(cls, base)]
    return derived if derived or section == "source" else public


@functools.cache
def class_options(cls: type) -> dict[str, tuple[Any, Any]]:
    """Returns {key: (type, default)} for the fields of a class that have a default."""
    hints = typing.get_type_hints(cls)
    # `Model.limited_to` sets the first, and Linen adds the others to each module; the stand-ins of
    # docs/hooks.py have none of Linen's.
    others = ("num_pieces", *(("parent", "name") if hasattr(cls, "apply") else ()))
    return {
        field.name: (hints[field.name], field.default)
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING and field.name not in others
    }


@functools.cache
def _ranges(cls: type) -> dict[str, list[Range]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {key: ranges(hints[key]) for key in class_options(cls)}


def check_ranges(cls: type, section: Mapping[str, Any], prefix: str) -> None:
    """Raises UserError for the first number of a section that is outside of its field's range.

    `prefix` is the prefix of the keys in messages, such as "train".
    """
    for key, value in section.items():
        for each in _ranges(cls).get(key, ()):
            each.check(f"{prefix}.{key}", value)


def options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section as keyword arguments of the class that it names."""
    return {key: value for key, value in section.items() if key != "name"}


def build_model(config: ConfigDict):
    """Returns the Linen module that `config.model` describes.

    Raises UserError for an invalid key; the model itself checks combinations of keys.
    """
    # A task may have recorded the config of another run's model under earlier names.
    section = current_name("model", config.model)
    cls = named_class("model", section["name"])
    check_ranges(cls, section, "model")
    model = cls(**options(section))
    model.check()
    return model


def build_source(config: ConfigDict):
    """Returns the source that `config.source` describes. Raises UserError if it names none."""
    if not config.source.name:
        there_are = ", ".join(class_names("source")) or "none"
        raise UserError(
            f"config.source.name is missing: config.task.name={config.task.name} reads records "
            f"that are not text; there are: {there_are}"
        )
    cls = named_class("source", config.source.name)
    check_ranges(cls, config.source, "source")
    return cls(config.data, **options(config.source))


# ------------------------------------------ the meaning of a key, which is the comment at its field


@functools.lru_cache
def field_comments(cls: type) -> dict[str, str]:
    """Returns {field: its comment, or ""} of a dataclass and its base classes."""
    comments = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith(("transformer_jax.", MODULE_PREFIX)):
            for name, comment in _comments(textwrap.dedent(inspect.getsource(base))).items():
                # A subclass may change a default without repeating the comment.
                comments[name] = comment or comments.get(name, "")
    return comments


def _comments(source: str) -> dict[str, str]:
    """Returns {name: comment} for the annotated names in the body of a class.

    The comment follows the field on the same line, or is on the lines directly above it.
    """
    comments, depth, statement, above = {}, 0, [], []
    # `tokenize`, because `ast` drops comments.
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            depth += 1 if token.type == tokenize.INDENT else -1
        elif token.type == tokenize.NEWLINE:
            behind = [token for token in statement if token.startswith("#")] or above
            if depth == 1 and statement[1:2] == [":"] and statement[0].isidentifier():
                comments[statement[0]] = " ".join(line.lstrip("# ").strip() for line in behind)
            statement, above = [], []
        elif token.type == tokenize.COMMENT and not statement:
            above.append(token.string)
        elif token.type == tokenize.NL and not statement:
            above = above if source.splitlines()[token.start[0] - 1].strip() else []
        elif token.type != tokenize.NL:
            statement.append(token.string)
    return comments


# --------------------------------------------------------------------------------------------------
# The sections of a config other than `model`, `task` and `source`. The comment at a field is the
# meaning of its key in the help of the programs, where `field_comments` takes it from this file.

# A number of updates, or a fraction of config.train.num_steps (see `span`). An interval can't be 0,
# because events come at its multiples.
Updates = Annotated[int | float, Range(least=0, counts=True, or_fraction=True)]
Interval = Annotated[int | float, Range(least=1, counts=True, or_fraction=True)]


@dataclasses.dataclass
class Data:
    # folder of token stores and trained tokenizers; TRANSFORMER_JAX_STORES_GB limits its size
    cache: str = "~/.cache/transformer_jax/data"
    rebuild: bool = False  # delete this run's token stores and build them again (damaged data)
    seed: NonNegativeInt = 0  # seed of the order of rows, and of the random choices within a row
    # processes on each host that read training rows; 0: the training process reads them itself;
    # results do not depend on it
    readers: NonNegativeInt = 0
    # a built-in corpus instead of files: grammar (sentence pairs, or conversations about them),
    # ambiguity (its sentence pairs, most with a word that only its context translates),
    # python (sources of the standard library), pydoc (its documentation), functions (its functions
    # and their summaries) or inference (labeled pairs of English sentences from the grammar)
    corpus: Literal["", "grammar", "ambiguity", "python", "pydoc", "functions", "inference"] = ""
    # training pairs, or conversations, drawn from the built-in grammar
    corpus_size: PositiveInt = 30_000
    # files of documents, examples or conversations, or with both sides of sentence pairs: paths (or
    # gs://..., s3://...) and patterns, separated by commas; the ending tells the format
    train_files: str | None = None
    valid_files: str | None = None  # as train_files, for the evaluations of the run
    test_files: str | None = None  # as train_files, for --set=test
    # instead of train_files: ((files, weight), ...), with whole weights; rows are drawn from each
    # in proportion to its weight
    mixture: tuple = ()
    # mixed: the rows of an update are drawn from all parts of the mixture; in_turn: the run reads
    # one part after the other, each for its share of all rows
    mixture_order: Literal["mixed", "in_turn"] = "mixed"
    # what ends a document in a text file
    split_on: Literal["blank_line", "line", "file"] = "blank_line"
    text_field: str = "text"  # name of the field with the text in JSON lines and TFDS data sets
    # turn sentence pairs into documents SOURCE marker TARGET for a language model, e.g. with
    # "<to-de>" or "<summarize>"
    marker: str = ""
    sentences: Literal["line", "punctuation"] = "line"  # what ends a sentence in a document
    # no attention between the documents in a row, and positions that start from 0 in each of them
    mask_documents: bool = False
    # text files with one sentence per line, or *.sgm; line n of the source belongs to line n of the
    # target
    train_source: str | None = None
    train_target: str | None = None  # the translation of train_source
    valid_source: str | None = None  # as train_source, for the evaluations of the run
    valid_target: str | None = None  # the translation of valid_source
    test_source: str | None = None  # as train_source, for --set=test
    test_target: str | None = None  # the translation of test_source
    tfds_name: str | None = None  # a prepared TFDS data set, e.g. "wmt14_translate/de-en"
    # the data_dir in which the TFDS data set was prepared, also in gs:// or s3://; None: there are
    # only the stores that were built from it
    tfds_dir: str | None = None
    # split of the TFDS data set, or a slice such as train[:95%]; None: train
    train_split: str | None = None
    valid_split: str | None = None  # as train_split, for the evaluations; None: validation
    test_split: str | None = None  # as train_split, for --set=test; None: test
    # feature of the TFDS data set that is the source; for the grammar en or de
    source_language: str = "en"
    target_language: str = "de"  # as source_language, for the target
    # kind of tokenizer to train on the text; unigram and bpe are SentencePiece's, roberta_bpe is
    # byte_bpe with RoBERTa's special tokens, which include a mask
    tokenizer: Literal[
        "unigram", "bpe", "byte_bpe", "roberta_bpe", "characters", "wordpiece", "words"
    ] = "unigram"
    cased: bool = False  # for wordpiece and words: keep case; for wordpiece also keep accents
    min_count: PositiveInt = 1  # for words: a word must occur this often in the training text
    # bytes of text to train the tokenizer on, a sample of a larger text; characters reads all text
    tokenizer_bytes: PositiveInt = 50_000_000
    # a folder with a trained tokenizer, or the name of a model on the Hugging Face Hub, whose files
    # are encoder.json and vocab.bpe, vocab.json and merges.txt, vocab.txt (BERT), tokenizer.json
    # (Llama, Qwen2, T5), spiece.model (T5), or source.spm, target.spm and vocab.json (Marian)
    tokenizer_files: str | None = None


@dataclasses.dataclass
class Train:
    num_steps: PositiveInt = 1000  # updates in the whole run
    batch: PositiveInt = 64  # rows in the batch of an update, over all hosts and microbatches
    # rows in the first batch, if the batch grows (Brown et al. 2020, appendix B); 0: it is constant
    first_batch: NonNegativeInt = 0
    ramp_steps: NonNegativeInt = 0  # updates during which the batch grows to config.train.batch
    accumulation: PositiveInt = 1  # microbatches over which an update accumulates gradients
    seed: NonNegativeInt = 0  # seed of the initial parameters and of dropout
    # seed of dropout, and of what a model writes for itself to learn from; None: config.train.seed
    dropout_seed: NonNegativeInt | None = None
    # updates between progress lines; the host waits for the devices only at these lines, at
    # evaluations and at checkpoints
    log_every: PositiveInt = 50
    eval_every: Interval = 500  # updates between evaluations; the end is always evaluated
    # end the run after this many evaluations without a better best_metric; 0: never
    patience: NonNegativeInt = 0
    # start from the parameters of config.init_from; false: take only its tokenizer (and, for a
    # fine-tuning, the shape of its model)
    pretrained: bool = True
    # a file of word vectors in the format of word2vec or GloVe, for the embeddings that the model
    # reads; words that are not in the file keep their random initial vectors
    init_vectors: str | None = None
    freeze_vectors: bool = False  # do not train these embeddings
    # what to do if a loss or gradient is not finite: stop the run, or skip the update
    nonfinite: Literal["stop", "skip"] = "stop"
    # seconds that a step may take to end after SIGTERM or Ctrl-C before the run exits
    grace: Annotated[float, Range(least=1, most=10**6)] = 60.0


# {optimizer: the keys that it uses, of those that not all optimizers use}. A key that would have no
# effect is refused, because people would believe in it.
OPTIMIZERS = {
    "adam": ("b1", "b2", "eps"),
    "adamw": ("b1", "b2", "eps", "weight_decay"),
    "lamb": ("b1", "b2", "eps", "weight_decay"),
    "adafactor": ("decay_exponent", "weight_decay"),
    "sgd": ("momentum", "weight_decay"),
    "rmsprop": ("b2", "eps", "weight_decay"),
    "adagrad": ("eps", "initial_sum", "weight_decay"),
    "adadelta": ("b2", "eps", "weight_decay"),
    "lion": ("b1", "b2", "weight_decay"),
    "muon": ("muon_momentum", "b1", "b2", "eps", "weight_decay"),
    "schedule_free": ("b1", "b2", "eps", "weight_decay"),
}
MUP = ("sgd", "adam", "adamw", "muon")  # the optimizers whose rates muP knows
# {schedule: the keys that it uses, of those that not all schedules use}, for the same reason.
SCHEDULES = {
    "constant": (),
    "inverse_sqrt": (),
    "truncated_inverse_sqrt": (),
    "linear": ("decay_steps", "final_fraction"),
    "cosine": ("decay_steps", "final_fraction"),
    "polynomial": ("decay_steps", "final_fraction", "power"),
    "warmup_stable_decay": ("decay_steps", "final_fraction", "cooldown_steps"),
    "slanted_triangular": ("decay_steps", "ratio"),
}


@dataclasses.dataclass
class Optimizer:
    # optimization algorithm; weight decay is decoupled from the gradient, and adam has none; muon
    # updates the matrices of layers, with adamw for all other parameters
    name: Literal[*OPTIMIZERS] = "adamw"
    learning_rate: NonNegativeFloat = 1e-3  # the peak of the schedule
    # shape of the learning rate after a linear warm-up
    schedule: Literal[*SCHEDULES] = "constant"
    # updates of the linear warm-up; for truncated_inverse_sqrt: updates at the peak
    warmup_steps: Updates = 0
    decay_steps: Interval | None = None  # update at which the decay ends; None: the end of the run
    final_fraction: Share = 0.0  # fraction of the peak at which the decay ends
    power: PositiveFloat = 2.0  # for polynomial: exponent of the remaining fraction of the run
    cooldown_steps: Updates = 0.1  # updates of the linear decay at the end of warmup_stable_decay
    # for slanted_triangular: ratio of the peak to the rate at the start and end (Howard & Ruder
    # 2018, section 3.2)
    ratio: Annotated[float, Range(least=1)] = 32.0
    # decay of the mean of gradients; for lion and schedule_free: weight of the mean when it is
    # mixed with the current value
    b1: Fraction = 0.9
    # decay of the mean of squared gradients; for lion: of the mean of gradients
    b2: Fraction = 0.999
    # added to the root of the mean square; for adagrad and adadelta: to the square
    eps: NonNegativeFloat = 1e-8
    initial_sum: float = 0.0  # for adagrad: sum of squared gradients before the first update
    momentum: Fraction = 0.9  # for sgd: decay of the sum of gradients; 0: no momentum
    muon_momentum: Fraction = 0.95  # for muon: decay of the mean of a matrix's gradients
    # for adafactor: the decay at update t is 1 - t^-decay_exponent
    decay_exponent: PositiveFloat = 0.8
    weight_decay: NonNegativeFloat = 0.0  # for kernels and embeddings; adam has none
    # ratio of the learning rate of a layer to that of the layer above it, with the embeddings as
    # the lowest layer (Howard & Ruder 2018, section 3.2)
    layer_decay: Annotated[float, Range(above=0, most=1)] = 1.0
    clip_norm: NonNegativeFloat = 0.0  # largest global norm of the gradient; 0: no clipping
    # for a group: the update from which it is trained; its schedule covers the rest of the run
    begin: Updates = 0
    # muP: widths of the base from which learning rates and initial values are scaled, as keys of
    # config.model, such as dict(d_model=128); for sgd, adam, adamw and muon
    base: tuple = ()
    # optimizers of groups of parameters that the task names, as differences from this section:
    # ((group, ((key, value), ...)), ...); clip_norm then applies to the gradient of each group
    groups: tuple = ()


@dataclasses.dataclass
class Checkpoint:
    every: Interval = 1000  # updates between checkpoints; the end is always saved
    # most minutes between checkpoints, in addition to every; 0: by updates only
    minutes: NonNegativeFloat = 15.0
    keep: PositiveInt = 3  # number of newest checkpoints to keep, in addition to the best
    # numbers of words of the training text after which a checkpoint is saved and kept for good,
    # such as (1e6, 2e6); a text that is read again counts again
    at_words: tuple = ()
    # updates between checkpoints that are kept for good, with a chain of digests from which
    # `verify` can prove the training; None: none
    keep_every: Interval | None = None
    best_metric: str = "valid/loss"  # score that decides which checkpoint is the best; "": none
    best_mode: Literal["min", "max"] = "min"  # whether a low or a high best_metric is better


@dataclasses.dataclass
class Mesh:
    data: int = -1  # devices over which the batch is split; -1: all that the other axes leave
    # devices over which parameters, optimizer state and the batch are split
    fsdp: int = 1
    tensor: int = 1  # devices over which heads, MLP width and vocabulary are split
    # devices over which the positions of a row are split, with ring attention (Liu et al. 2023)
    sequence: int = 1
    # devices over which the experts of a layer are split, and the batch elsewhere (Lepikhin et al.
    # 2021)
    expert: int = 1
    # stages into which the layers are divided, each on other devices (Huang et al. 2019); the
    # microbatches of config.train.accumulation pass through them one after another
    pipeline: PositiveInt = 1
    # slices of TPUs, or other groups of devices with a slow network between them; they divide the
    # axis data
    slices: PositiveInt = 1
    # groups of devices over which the runs of --together are divided, each with the other axes
    seeds: PositiveInt = 1
    rules: tuple = ()  # overrides of sharding.RULES, e.g. (("vocab", ("tensor", "fsdp")),)


@dataclasses.dataclass
class Decode:
    batch: PositiveInt = 64  # sequences decoded together
    beam: PositiveInt = 4  # open hypotheses of beam search; 1: greedy decoding
    # exponent of the length penalty, by which log-probabilities are divided
    alpha: NonNegativeFloat = 0.6
    # length penalty of an output; gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016); length:
    # length^alpha, as in transformers
    penalty: Literal["gnmt", "length"] = "gnmt"
    max_extra: NonNegativeInt = 50  # tokens by which an output may be longer than its input
    # most tokens in an output of an encoder-decoder, its end token included; 0: the length of its
    # input plus max_extra
    max_length: NonNegativeInt = 0
    min_length: NonNegativeInt = 0  # fewest tokens in an output, its end token included
    # forbid that a sequence of this many tokens occurs twice in an output; 0: allow it
    no_repeat_ngram: NonNegativeInt = 0
    force_end: bool = False  # the last token of an output of the largest length is the end token
    # ids that an output of an encoder-decoder starts with; none: those with which its texts start
    # in training, such as BART's <s>; (): its first token is free
    force_start: tuple | None = None
    ends: tuple = ()  # ids of the tokens that end an output; empty: the tokenizer's end
    bad_words: tuple = ()  # sequences of ids that no output may have, such as ((17,), (5, 12))
    suppress: tuple = ()  # ids that no output may have, also where force_start asks for one of them
    begin_suppress: tuple = ()  # ids that an output may not begin with
    # renormalize the probabilities of the tokens that these rules allow
    renormalize: bool = False
    # when the search for an input ends; exact: when no open hypothesis can become one of the n
    # best; as in transformers, never: when none can become one of the best `beam`; estimate (False
    # there): when none could at its present length; first (True there): when `beam` outputs have
    # ended
    early_stopping: Literal["exact", "never", "estimate", "first"] = "exact"
    # positions of each window that an evaluation of a language model predicts, with the others as
    # context; 0: half of them
    stride: int = 0
    average: PositiveInt = 1  # decode with the mean of this many checkpoints, up to the chosen one


@dataclasses.dataclass
class Lora:
    # rank r of the adapters (Hu et al. 2021): W + alpha / r A B replaces a matrix W, and only A and
    # B are trained; None: no adapters, W itself is trained
    rank: PositiveInt | None = None
    alpha: PositiveFloat = 16.0  # scale of A B, which is divided by the rank
    # matrices with adapters: patterns that match the names of parameters or the ends of the names,
    # such as "mlp/*/kernel"; "*/kernel": all matrices of layers
    matrices: tuple = ("query/kernel", "value/kernel")
    # layers of each stack that have adapters, from 0: "0,2,4", or a slice such as "6:"; empty: all
    layers: str = ""
    # parameters that are trained themselves, beside the task's own head: patterns as in matrices
    trained: tuple = ()


INIT_FROM = "init_from"
# The keys without a section: {key: (type, default, meaning)}.
WITHOUT_SECTION = {
    INIT_FROM: (
        str | None,
        None,
        "workdir of the run from which a new run takes its parameters and tokenizer; or "
        "{prefix: workdir}, for the parameters whose names start with each prefix",
    ),
    "track": (
        str,
        "tensorboard",
        "trackers that receive what a run measures, separated by commas: tensorboard, wandb, "
        "trackio, mlflow; empty: metrics.jsonl alone",
    ),
}
SOURCE_NAME_MEANING = (
    "file that defines a source of records other than text, such as fasta or digits; empty: "
    "config.data names the texts"
)

SECTIONS = {
    "data": Data,
    "train": Train,
    "optimizer": Optimizer,
    "checkpoint": Checkpoint,
    "mesh": Mesh,
    "decode": Decode,
    "lora": Lora,
}

# The keys that a resumed run may change. Paths of data are among them, because the fingerprint of
# the data, and not its path, decides whether it is the same.
MAY_CHANGE = (
    "track",
    "train.num_steps",
    "train.log_every",
    "train.eval_every",
    "train.nonfinite",
    "train.patience",
    "train.grace",
    "checkpoint.",
    "mesh.",
    "decode.",
    "data.cache",
    "data.rebuild",
    "data.readers",
    "data.tokenizer_files",
    "data.mixture",
    "data.train_",
    "data.valid_",
    "data.test_",
    "data.tfds_dir",
)


# -------------------------------------------- numbers of updates, which may be fractions of the run

_ROUNDING = 1e-6  # in floating point, 0.07 * 100 is a little more than 7


def span(value: float, num_steps: int) -> int:
    """Returns the length of a part of the run, such as a warm-up, in updates.

    A value between 0 and 1 is a fraction of the run, such as 0.1 for a tenth of
    config.train.num_steps. Any other value, including 5.0, is a number of updates.
    """
    # Rounded, because 0.29 * 100 is a little less than 29 in floating point.
    return round(value * num_steps) if 0 < value < 1 else int(value)


def interval(value: float, num_steps: int) -> int:
    """Returns the number of updates between two events, such as evaluations.

    Fractions are rounded up: for a third of 1,000 updates it is 334 and not 333, because the third
    event would otherwise come one update before the end, which is an event in any case.
    """
    return max(math.ceil(value * num_steps - _ROUNDING), 1) if 0 < value < 1 else int(value)


def intervals(train, checkpoint) -> tuple[int, int]:
    """Returns the number of updates between evaluations, and between checkpoints."""
    return (
        interval(train.eval_every, train.num_steps),
        interval(checkpoint.every, train.num_steps),
    )


def saves_at_evaluations(train, checkpoint) -> bool:
    """Returns whether each evaluation saves a checkpoint, in addition to checkpoint.every.

    Only a checkpoint that was evaluated can be the best one. If neither interval is a multiple of
    the other, or if the only regular checkpoint is at the end, few or no checkpoints would have a
    score, so each evaluation saves one.
    """
    evaluated, saved = intervals(train, checkpoint)
    if not checkpoint.best_metric:
        return False
    return saved >= train.num_steps or bool(saved % evaluated and evaluated % saved)


def interval_warnings(train, checkpoint, optimizer) -> list[str]:
    """Returns warnings, with remedies, if a run is too short for its intervals or its warm-up."""
    num_steps = train.num_steps
    evaluated, saved = intervals(train, checkpoint)
    warmup = span(optimizer.warmup_steps, num_steps)
    lines, states, flags = [], [], []
    if evaluated >= num_steps:
        states.append(f"is evaluated at its end alone (config.train.eval_every={evaluated})")
        flags.append("--config.train.eval_every=0.1")
    if saved >= num_steps and (
        evaluated >= num_steps or not saves_at_evaluations(train, checkpoint)
    ):
        minutes = checkpoint.minutes
        by_time = f" and every {minutes:g} minutes" if minutes else " alone"
        states.append(f"is saved at its end{by_time} (config.checkpoint.every={saved})")
        flags.append("--config.checkpoint.every=0.1")
    if states and num_steps > 1:
        lines.append(
            f"warning: the run of {num_steps} updates {' and '.join(states)}; "
            f"{' '.join(flags)} means every tenth of the run"
        )
    if num_steps <= warmup:
        lines.append(
            f"warning: the warm-up (config.optimizer.warmup_steps={warmup}) is as long as "
            f"the run (config.train.num_steps={num_steps}) or longer, so the learning rate "
            "only rises; --config.optimizer.warmup_steps=0.1 means a tenth of the run"
        )
    return lines


# --------------------------------------------------------------------- choices of layers in a stack

_NUMBERS = re.compile(r"\d+(,\d+)*|-?\d*:-?\d*(:-?[1-9]\d*)?")


def is_choice_of_layers(layers: str) -> bool:
    """Returns whether a string is a well-formed choice of layers.

    It is numbers from 0, as in "0,2,4", or a slice such as "::2". An empty string means all layers.
    """
    return not layers or _NUMBERS.fullmatch(layers) is not None


def chosen_layers(layers: str, num_layers: int) -> list[int]:
    """Returns the numbers of the chosen layers in a stack of `num_layers`.

    Numbers beyond the stack are returned as they are. A negative limit of a slice counts from the
    top.
    """
    if not layers:
        return list(range(num_layers))
    if ":" not in layers:
        return [int(number) for number in layers.split(",")]
    limits = (int(limit) if limit else None for limit in layers.split(":"))
    return list(range(num_layers)[slice(*limits)])


# ------------------------------- the optimizers of groups of parameters, and checks of their values

_KEYS = {"name": OPTIMIZERS, "schedule": SCHEDULES}


def optimizer_sections(config) -> dict[str, Any]:
    """Returns {group: its section}, where the group "" is `config.optimizer` itself.

    The section of any other group is `config.optimizer` with the differences in
    `config.optimizer.groups`. Keys that the optimizer or the schedule of the group does not use
    have their defaults there. Raises UserError for a malformed group.
    """
    by_group = {"": config}
    types = typing.get_type_hints(Optimizer)
    for entry in config.groups:
        name, changes = _entry(entry)
        if name in by_group:
            raise _refusal(name, "named twice" if name else "the name is empty")
        section = ConfigDict(dict(config)).copy_and_resolve_references()
        for key, value in changes.items():
            if key not in types or key in ("groups", "base"):
                meant = did_you_mean(key, [*types])
                raise _refusal(name, f"config.optimizer has no key {key!r} for a group{meant}")
            with section.ignore_type():
                section[key] = coerce(f"optimizer.groups, {name}: {key}", value, types[key])
        # Otherwise a group with another optimizer would be refused for keys that it inherits.
        for chooser, keys in _KEYS.items():
            for key in _unused(section, chooser, keys) - changes.keys():
                with section.ignore_type():
                    section[key] = getattr(Optimizer, key)
        by_group[name] = section
    return by_group


def _entry(entry: Any) -> tuple[str, Mapping[str, Any]]:
    try:
        name, changes = entry
        changes = dict(changes)
    except (TypeError, ValueError):
        name, changes = None, {}
    if not isinstance(name, str) or not all(isinstance(key, str) for key in changes):
        raise UserError(
            f"config.optimizer.groups: {entry!r} is no group; "
            'one is (name, ((key, value), ...)), such as ("head", (("learning_rate", 1e-3),))'
        )
    return name, changes


def _refusal(group: str, reason: str) -> UserError:
    return UserError(f"config.optimizer.groups, {group!r}: {reason}")


def check_optimizers(config: ConfigDict) -> None:
    """Raises UserError for the first invalid value in an optimizer's section."""
    if config.optimizer.begin:
        raise UserError(
            f"config.optimizer.begin={config.optimizer.begin}: is a key of a group; set it in "
            "config.optimizer.groups"
        )
    for group, section in optimizer_sections(config.optimizer).items():
        try:
            check_ranges(Optimizer, section, "optimizer")
            if section.base and section.name not in MUP:
                raise UserError(
                    f"config.optimizer.base: muP knows the optimizers {', '.join(MUP)}, "
                    f"not {section.name}"
                )
            if section.name == "schedule_free" and not section.b1:
                raise UserError(
                    "config.optimizer.b1=0: schedule_free divides by it; must be above 0"
                )
            _check_updates(section, config.train.num_steps)
        except UserError as error:
            raise _refusal(group, str(error)) if group else error from None


def check_used(config: ConfigDict) -> None:
    """Raises UserError for a key that is set although the optimizer or schedule does not use it.

    Recorded runs are not checked, so that runs of earlier versions, which allowed this, still open.
    """
    for group, section in optimizer_sections(config.optimizer).items():
        try:
            for chooser, keys in _KEYS.items():
                _check_used(section, chooser, keys)
        except UserError as error:
            raise _refusal(group, str(error)) if group else error from None
        if section.name == "schedule_free" and section.schedule != "constant":
            raise UserError(
                f"config.optimizer.schedule={section.schedule}: "
                "config.optimizer.name=schedule_free needs the schedule constant"
            )


def _unused(section, chooser: str, keys: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Returns those keys in the table `keys` that its chosen entry does not use."""
    return {key for used in keys.values() for key in used} - {*keys[section[chooser]]}


def _check_used(section, chooser: str, keys: Mapping[str, tuple[str, ...]]) -> None:
    """Raises UserError for a key that is set although the chosen entry does not use it."""
    chosen = section[chooser]
    for key in sorted(_unused(section, chooser, keys)):
        if section[key] != getattr(Optimizer, key):
            users = ", ".join(name for name, used in keys.items() if key in used)
            raise UserError(
                f"config.optimizer.{key}={section[key]}: config.optimizer.{chooser}={chosen} "
                f"does not use it; leave it out, or take one of {users}"
            )


def _check_updates(section, num_steps: int) -> None:
    begin = span(section.begin, num_steps)
    if begin >= num_steps:
        raise UserError(
            f"config.optimizer.begin={begin}: must be below config.train.num_steps={num_steps}"
        )
    num_steps -= begin
    warmup = span(section.warmup_steps, num_steps)
    if section.decay_steps is not None:
        decay = span(section.decay_steps, num_steps)
        if decay <= warmup:
            raise UserError(
                f"config.optimizer.decay_steps={decay}: must be more than "
                f"config.optimizer.warmup_steps={warmup}, or the rate falls to its end at once"
            )


# -------------------------- the runs that give a new run its initial parameters: `config.init_from`


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """A run from which the parameters whose names start with a prefix are initialized."""

    prefix: str  # "": all parameters without another prefix
    run: str  # the workdir
    part: str = ""  # the prefix of these parameters in that run
    layers: str = ""  # the layers to take from each stack, such as "0,2,4" or "::2"; "": all

    def chosen(self, num_layers: int) -> list[int]:
        """Returns the numbers of the layers to take from a stack of `num_layers`."""
        return chosen_layers(self.layers, num_layers)


def canonical_warm_starts(value: Any) -> str | tuple | None:
    """Returns a value of `config.init_from` as a workdir, or ((prefix, ((key, value), ...)), ...).

    The value is the workdir of a run, or a mapping from prefixes of the new run's parameters to
    workdirs: with {"student": DIR}, the parameter student/x is initialized from the parameter x of
    DIR. A value of the mapping may have further keys: with {"student": {"run": DIR, "part":
    "teacher", "layers": "::2"}}, student/x is initialized from teacher/x of DIR, and of each stack
    every second layer is taken. Raises UserError for a malformed value.
    """
    if isinstance(value, str) and value[:1] in ("{", "("):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise _bad_warm_start(value) from None
    # A command line can only say None as a string.
    if value is None or value == "None" or value == "none":
        return None
    if isinstance(value, str):
        return value
    runs = tuple(_canonical_of(value, prefix, run) for prefix, run in _pairs(value, value))
    if not runs or len({prefix for prefix, _ in runs}) < len(runs):
        raise _bad_warm_start(value)
    alone = dict(runs[0][1])
    # A single run without further keys is written in one way, so that configs compare as equal.
    return alone["run"] if len(runs) == 1 and runs[0][0] == "" and len(alone) == 1 else runs


def warm_starts(value: str | tuple | None) -> tuple[WarmStart, ...]:
    """Returns the runs that a canonical value of `config.init_from` names."""
    if not value:
        return ()
    if isinstance(value, str):
        return (WarmStart("", value),)
    return tuple(WarmStart(prefix, **dict(keys)) for prefix, keys in value)


def _canonical_of(value, prefix, run) -> tuple[str, tuple]:
    keys = {"run": run} if isinstance(run, str) else dict(_pairs(value, run))
    known = [field.name for field in dataclasses.fields(WarmStart)][1:]
    for key in keys:
        if key not in known:
            meant = did_you_mean(str(key), known)
            raise UserError(f"config.init_from: {prefix!r} has no key {key!r}{meant}")
    if not isinstance(prefix, str) or not keys.get("run"):
        raise _bad_warm_start(value)
    if not all(isinstance(entry, str) for entry in keys.values()):
        raise _bad_warm_start(value)
    if not is_choice_of_layers(keys.get("layers", "")):
        raise UserError(
            f"config.init_from: {prefix!r} has layers={keys['layers']!r}, no numbers such as "
            "'0,2,4' and no slice such as '::2'"
        )
    # In a fixed order, so that equal values give equal records.
    return prefix.strip("/"), tuple((key, keys[key]) for key in known if keys.get(key))


def _pairs(value, mapping) -> list:
    """Returns the items of a mapping, or of the pairs as which a record holds it."""
    if isinstance(mapping, Mapping):
        return list(mapping.items())
    is_list = isinstance(mapping, (list, tuple))
    if is_list and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in mapping):
        return list(mapping)
    raise _bad_warm_start(value)


def _bad_warm_start(value) -> UserError:
    return UserError(
        f"config.init_from={value!r}: must be a workdir, or a mapping from prefixes of parameters "
        "to workdirs such as {'teacher': 'runs/a', 'student': {'run': 'runs/a', 'layers': '::2'}}"
    )


# ----------------- the values of a config by key, and the differences that keep a run from resuming


def flat(config: ConfigDict) -> dict[str, Any]:
    """Returns {"section.key": value}."""
    values = {
        f"{name}.{key}": value
        for name, section in config.items()
        if name not in WITHOUT_SECTION
        for key, value in section.items()
    }
    return values | {key: config[key] for key in WITHOUT_SECTION}


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """Returns the changes that a resumed run may not make, each as "key: old -> new".

    Fractions of the run are compared at the old length, because num_steps itself may change.
    """
    num_steps = old.train.num_steps
    old_values = _at_length(old, num_steps)
    new_values = _at_length(new, num_steps)
    return [
        f"{key}: {_visible(old_values.get(key))} -> {_visible(new_values.get(key))}"
        for key in sorted({*old_values, *new_values})
        if not key.startswith(MAY_CHANGE) and old_values.get(key) != new_values.get(key)
    ]


def _visible(value: Any) -> Any:
    return "''" if value == "" else value


def _at_length(config: ConfigDict, num_steps: int) -> dict[str, Any]:
    """Returns `flat` with the schedule in updates, so that 0.1 equals 100 in a run of 1,000."""
    values = flat(config)
    for key in ("optimizer.warmup_steps", "optimizer.decay_steps", "optimizer.cooldown_steps"):
        if values[key] is not None:
            values[key] = span(values[key], num_steps)
    return values


# --------------------------------------------------------------------------------------------------
# Errors in a config that can be found without devices or data. `distributed.sharding` finds errors
# in the mesh, because they depend on the devices.


def get(config: ConfigDict, key: str):
    """Returns the value of "section.key"."""
    for part in key.split("."):
        config = config[part]
    return config


def validate(config: ConfigDict) -> None:
    """Raises UserError for the first key with an invalid value."""
    if not config.data.cache.strip():
        raise UserError("config.data.cache is empty: name the folder that token stores are kept in")
    for section, cls in SECTIONS.items():
        if cls is not Optimizer:  # `check_optimizers` checks its ranges, for each group
            check_ranges(cls, config[section], section)
    check_optimizers(config)
    _check_batch(config.train)
    _check_combinations(config)
    _check_lora(config.lora)
    _check_base(config)
    # A recorded path is not followed, and so can't be built.
    if not is_path(config.model.name) or isinstance(config.model.name, File):
        build_model(config)  # a model checks its own keys


def _check_batch(train: ConfigDict) -> None:
    grows = bool(train.first_batch) and bool(train.ramp_steps)
    constant = not train.first_batch and not train.ramp_steps
    in_range = 0 <= train.first_batch <= train.batch and train.ramp_steps >= 0
    if not (grows or constant) or not in_range:
        raise UserError(
            f"config.train.first_batch={train.first_batch} and "
            f"config.train.ramp_steps={train.ramp_steps}: must both be 0, or make a growing batch: "
            f"first_batch from 1 to config.train.batch={train.batch}, ramp_steps at least 1"
        )
    for key in ("first_batch", "batch"):
        if train[key] % train.accumulation:
            raise UserError(
                f"config.train.accumulation={train.accumulation} does not divide "
                f"config.train.{key}={train[key]}"
            )


def _check_combinations(config: ConfigDict) -> None:
    if config.train.patience and not config.checkpoint.best_metric:
        raise UserError(
            f"config.train.patience={config.train.patience} needs "
            "config.checkpoint.best_metric, the score that must improve"
        )
    if config.data.mixture_order != "mixed" and not config.data.mixture:
        raise UserError(
            f"config.data.mixture_order={config.data.mixture_order!r}: needs config.data.mixture, "
            "whose parts take turns"
        )
    decode = config.decode
    if 0 < decode.max_length < decode.min_length:
        raise UserError(
            f"config.decode.min_length={decode.min_length}: must be at most "
            f"config.decode.max_length={decode.max_length}"
        )
    lists = {key: decode[key] or () for key in ("force_start", "ends", "suppress")}
    lists |= {"begin_suppress": decode.begin_suppress}
    for key, ids in lists.items():
        if not _are_ids(ids):
            raise UserError(f"config.decode.{key}={ids}: must hold ids of tokens, such as (5, 12)")
    words = decode.bad_words
    if not all(isinstance(word, tuple) and word and _are_ids(word) for word in words):
        raise UserError(
            f"config.decode.bad_words={words}: must hold sequences of ids, such as ((17,), (5, 12))"
        )


def _are_ids(ids: tuple) -> bool:
    return all(type(i) is int and i >= 0 for i in ids)


def _check_base(config: ConfigDict) -> None:
    """Raises UserError if muP's base holds anything else than widths of the model."""
    base = config.optimizer.base
    if not all(
        isinstance(entry, tuple) and len(entry) == 2 and type(entry[1]) is int for entry in base
    ):
        raise UserError(
            f"config.optimizer.base={base}: must hold widths, such as dict(d_model=128)"
        )
    finite = ("base_width", "max_length", "num_layers", "vocab_size")
    if named := sorted({key for key, _ in base} & {*finite}):
        raise UserError(f"config.optimizer.base: {named[0]} is no width that grows")
    if unknown := sorted({key for key, _ in base} - {*config.model}):
        meant = did_you_mean(unknown[0], [*config.model])
        raise UserError(f"config.optimizer.base: config.model has no key {unknown[0]!r}{meant}")


def with_base_width(config: ConfigDict) -> ConfigDict:
    """Returns a config whose model has the d_model of `config.optimizer.base`.

    It stands in config.model as well, because it belongs to whatever uses the parameters. Raises
    UserError if it already has another one.
    """
    _check_base(config)
    width = dict(config.optimizer.base).get("d_model")
    own = config.model.get("base_width")
    if width in (None, own):
        return config
    if own is not None:
        raise UserError(
            f"config.model.base_width={own}: config.optimizer.base has d_model={width}; leave it "
            "out of config.model"
        )
    config = ConfigDict(config).copy_and_resolve_references()
    set_key(config, "model.base_width", width)
    return config


def _check_lora(lora: ConfigDict) -> None:
    if not is_choice_of_layers(lora.layers):
        raise UserError(
            f"config.lora.layers={lora.layers!r}: no numbers such as '0,2,4', and no slice such as "
            "'6:'"
        )
    for key in ("matrices", "trained"):
        if not all(isinstance(pattern, str) for pattern in lora[key]):
            raise UserError(
                f"config.lora.{key}={lora[key]}: must hold patterns of names, such as "
                "('query/kernel',)"
            )
    if not lora.matrices:
        raise UserError("config.lora.matrices is empty: name the matrices with adapters")


# ----------------------- complete configs: their keys, overrides, and tiny variants of config files


def chosen(config: ConfigDict) -> tuple[str, str, str]:
    """Returns the names of a config's model, task and source: the arguments of `schema`."""
    return tuple(config[section].name for section in NAMED_SECTIONS)


def schema(model: str, task: str, source: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns {"section.key": (type, default)} for a run of `task` with `model`.

    `source` is "" if the task reads `config.data`.
    """
    keys = {key: (kind, default) for key, (kind, default, _) in WITHOUT_SECTION.items()}
    for section, name in zip(NAMED_SECTIONS, (model, task, source)):
        keys[f"{section}.name"] = (str, name)
        keys |= _class_keys(section, named_class(section, name)) if name else {}
    for section, cls in SECTIONS.items():
        keys |= _class_keys(section, cls)
    return keys


def _class_keys(section: str, cls: type) -> dict[str, tuple[Any, Any]]:
    return {f"{section}.{key}": value for key, value in class_options(cls).items()}


def all_keys(path: str | None = None) -> list[str]:
    """Returns the keys of the config file `path`, or, without a file, of all models and tasks."""
    try:
        config = load(path or "")
        return [*schema(*chosen(config))]
    except UserError:
        models, tasks = class_names("model"), class_names("task")
        # A section's keys depend on its own class alone, so each class occurs once, not each pair.
        triples = itertools.zip_longest(models, tasks, class_names("source"))
        keys = [
            schema(model or models[0], task or tasks[0], source or "")
            for model, task, source in triples
        ]
        return [*dict.fromkeys(itertools.chain.from_iterable(keys))]


def experiment(**delta: Any) -> ConfigDict:
    """Returns a complete config, given its differences from the defaults.

    `model` and `task` need at least a name: `experiment(model={"name": "encoder_decoder"},
    task={"name": "translation"}, train={"batch": 96})`. A name may be the path of a Python file,
    which is then executed. Raises UserError for an unknown key or a value of the wrong type.

    Examples:
      >>> settings = config.experiment(
      ...     model=dict(name="gpt", num_layers=2),
      ...     task=dict(name="causal_lm", length=128),
      ...     data=dict(corpus="python", tokenizer="byte_bpe"),
      ... )
      >>> settings.model.num_layers
      2
    """
    return _experiment(with_files(delta))


def _experiment(delta: Mapping[str, Any]) -> ConfigDict:
    """Returns the config of `experiment`. The path of a file must be a `File`."""
    for section in ("model", "task"):
        if not isinstance(delta.get(section), dict) or "name" not in delta[section]:
            raise UserError(
                f"config.{section}.name is missing: it names a file in {section_folder(section)}"
            )
    for section in ("model", "task", "source"):
        own = delta.get(section)
        name = own.get("name", "") if isinstance(own, dict) else ""
        if not isinstance(name, str | File):
            raise UserError(
                f"config.{section}.name={shown(name)}: must be a name, or the path of a Python "
                "file with the class"
            )
    delta = {
        section: current_name(section, value) if isinstance(value, dict) else value
        for section, value in delta.items()
    }
    source = delta.get("source", {})
    if not isinstance(source, dict):
        raise UserError(f"config.source={source!r} must be a dict of its keys")
    keys = schema(delta["model"]["name"], delta["task"]["name"], source.get("name", ""))
    values = {key: default for key, (_, default) in keys.items()}
    for section, value in delta.items():
        if section in WITHOUT_SECTION:
            values[section] = _value(section, value, keys)
        elif section not in (*SECTIONS, *NAMED_SECTIONS):
            meant = did_you_mean(section, [*SECTIONS, *NAMED_SECTIONS])
            meant = meant or _suggestion(section, keys)
            raise UserError(f"config has no section {section!r}{meant}")
        elif not isinstance(value, dict):
            raise UserError(f"config.{section}={value!r} must be a dict of its keys")
        else:
            named = {f"{section}.{key}": entry for key, entry in value.items()}
            values |= {key: _value(key, entry, keys) for key, entry in named.items()}
    # A ConfigDict is built from a dict, because setting its 150 keys one by one takes 14 ms.
    config = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (config.setdefault(section, {}) if section else config)[name] = value
    return ConfigDict(config)


def meaning(key: str, model: str, task: str, source: str = "") -> str:
    """Returns the meaning of a key in `schema(model, task, source)`, the comment at its field."""
    if key in WITHOUT_SECTION:
        return WITHOUT_SECTION[key][-1]
    if key == "source.name" and not source:
        return SOURCE_NAME_MEANING
    section, _, name = key.partition(".")
    names = dict(zip(NAMED_SECTIONS, (model, task, source)))
    cls = named_class(section, names[section]) if section in names else SECTIONS[section]
    if name == "name" and section in names:
        return " ".join(inspect.getdoc(cls).partition("\n\n")[0].split())
    return field_comments(cls)[name]


def _suggestion(key: str, keys: Mapping[str, tuple[Any, Any]]) -> str:
    """Returns '; did you mean ...?' for a key that is not in the schema of a config."""
    chosen = [keys[f"{section}.name"][1] for section in NAMED_SECTIONS]

    def explain(name: str) -> str:
        return "" if name.startswith("--") else meaning(name, *chosen)

    return did_you_mean_key(key, keys, explain)


def set_key(config: ConfigDict, key: str, value: Any) -> None:
    """Sets `section.key`. A string is converted to the key's type, as on a command line.

    Raises UserError for a key that does not exist, or a value of the wrong type or range.

    Examples:
      >>> settings = config.read("gpt/quickstart")
      >>> config.set_key(settings, "train.batch", "16")
      >>> settings.train.batch
      16
    """
    section, _, name = key.rpartition(".")
    if section in NAMED_SECTIONS and name != "name":
        name, value = current_key(section, config[section].name, name, value)
        key = f"{section}.{name}"
    value = _value(key, value, schema(*chosen(config)))
    parent = config[section] if section else config
    # `_value` has checked the declared type, where ConfigDict compares with the present value.
    with parent.ignore_type():
        parent[name] = value


def _value(key: str, value: Any, keys: Mapping[str, tuple[Any, Any]]) -> Any:
    """Returns a value converted to the type of its key in `keys`, the schema of the config."""
    if key not in keys:
        raise UserError(f"unknown key config.{key}{_suggestion(key, keys)}")
    kind, default = keys[key]
    if key.removesuffix(".name") in NAMED_SECTIONS:
        if value != default:
            raise UserError(f"config.{key} decides which keys exist: set it in the config file")
        return default
    return canonical_warm_starts(value) if key == INIT_FROM else coerce(key, value, kind)


def load(
    path: str | os.PathLike, overrides: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
) -> ConfigDict:
    """Returns the validated config of `file.py` or `file.py:arg`, with overrides.

    Overrides are a mapping such as {"train.batch": 32}, or pairs with strings as on a command line,
    such as ("train.batch", "32"). Raises UserError for an error in the file, a key or a value.

    Examples:
      >>> settings = config.load("gpt/quickstart", {"train.num_steps": 300})
      >>> settings.train.num_steps
      300
    """
    files, others = split_files(dict(overrides).items())
    with replacing_names(files):
        config = read(path)
    for key, value in others:
        set_key(config, key, value)
    return _checked(config)


def _checked(config: ConfigDict) -> ConfigDict:
    validate(config)
    check_used(config)
    return config


def tiny(path: str | os.PathLike) -> ConfigDict:
    """Returns the tiny variant of `file.py` or `file.py:arg`, which trains in seconds on a CPU.

    `TINY` in the file holds the keys to change, in the form that `experiment` takes. If it is a
    function, it is called like `get_config`. Raises UserError if the file has no `TINY`, or for a
    wrong key or value.

    Examples:
      >>> config.tiny(config.config_file("bert/base")).train.num_steps
      2
    """
    config = read(path)
    file, _, arg = os.fspath(path).partition(":")
    changes = getattr(load_module(file), "TINY", None)
    if changes is None:
        raise UserError(
            f"{file} has no TINY: add TINY = dict(model=dict(...), task=dict(...), "
            "train=dict(batch=8, num_steps=2)), the keys that make the config small"
        )
    if callable(changes):
        changes = changes(*([arg] if arg else []))
    for section, values in changes.items():
        for key, value in values.items():
            set_key(config, f"{section}.{key}", value)
    return _checked(config)


def from_record(values: dict, source: str, files: Recorded | None = None) -> ConfigDict:
    """Returns the config whose `to_dict()` a run has recorded as JSON.

    Keys that have been added to the schema since then have their defaults. `source` is the name of
    the record in error messages. `files` decides which recorded paths of class files are used.
    """
    try:
        known, others = (files or Recorded()).resolved(values)
        config = _experiment(known)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    for section, keys in others.items():
        config[section] = ConfigDict(keys)
    return config
