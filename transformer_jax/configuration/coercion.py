"""Conversion of values to the declared types of keys, ranges, and suggestions for wrong names."""

import ast
import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from transformer_jax.configuration.errors import UserError

# --------------------------------------------------------------------------------------------------
# Conversion of strings on the command line, and of values in config files, to the declared types.

_UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def coerce(key: str, value: Any, kind: Any) -> Any:
    """Returns `value` as the type `kind`. A string is parsed as on a command line.

    Raises UserError for a value of another type.
    """
    refusal = UserError(f"config.{key}={value!r} is not {describe(kind)}")
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if type(None) in args and (value is None or str(value).lower() == "none"):
            return None
        if int in args and float in args:
            return _as_updates(value, refusal)
        return coerce(key, value, next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        if value not in args:
            raise UserError(f"{refusal}{near(str(value), [str(arg) for arg in args])}")
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


# --------------------------------------------------------------------------------------------------
# The range of a numeric key, which is part of the annotation of its field, as in
# Annotated[int, Range(2)], or one of the types below.

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


# --------------------------------------------------------------------------------------------------
# Suggestions for a wrong name: close spellings, and our name for a name from another codebase.


def near(word: str, choices: Iterable[str]) -> str:
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
    alternatives = TABLE.get(last_part, ())
    return next((option for option in alternatives if names.issuperset(option)), ())


def key(word: str, keys: Iterable[str], meaning: Callable[[str], str]) -> str:
    """Returns '; did you mean ...?' for a key, explained if the word is from another codebase."""
    keys = list(keys)
    if word.rpartition(".")[2] in {one.rpartition(".")[2] for one in keys}:
        return near(word, keys)  # the key exists, in another section
    names = known_elsewhere(word, [*keys, "--workdir", "--config"])
    if not names:
        return near(word, keys)
    explained = [f"{name} ({text})" if (text := meaning(name)) else name for name in names]
    return f"; did you mean {' and '.join(explained)}?"


def choice(argument: str, choices):
    """Returns `choices[argument]`, for config files with an argument.

    Raises UserError for an unknown argument.
    """
    if argument not in choices:
        raise UserError(
            f"no {argument!r}{near(argument, [*choices])}; there are: {', '.join(choices)}"
        )
    return choices[argument]


# --------------------------------------------------------------------------------------------------
# What Hugging Face, fairseq, nanoGPT, t5x and other codebases call our keys and flags.
#
# Each line has our name, a colon, and the names that others use. Our names may be alternatives,
# separated by "|", of which the first one whose keys all exist is suggested. A name that starts
# with "--" is a flag.

_TABLE = """
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
mesh.sequence: sp sequence_parallel context_parallel_size cp context_parallel
decode.beam: beam_size num_beams beam_width beams
decode.alpha: length_penalty lenpen lp_alpha
decode.no_repeat_ngram: no_repeat_ngram_size
decode.min_length: min_len minlen min_new_tokens min_decoding_length
decode.max_length: val_max_target_length max_decoding_length max_len_b
decode.force_end: forced_eos_token_id
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


TABLE = _read(_TABLE)  # {their name: alternatives, each a tuple of our names}
