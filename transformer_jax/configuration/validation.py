"""Faults of a config that can be found without devices or data. For the mesh: `sharding.check`."""

from ml_collections import ConfigDict

from transformer_jax.configuration import (
    classes,
    layer_numbers,
    optimizers,
    run_length,
    variants,
)
from transformer_jax.configuration.errors import UserError

_ONE = 1 - 2**-25  # float32 rounds greater numbers to 1

_AT_LEAST_ONE = (
    "data.corpus_size",
    "data.tokenizer_bytes",
    "data.min_count",
    "train.num_steps",
    "train.batch",
    "train.accumulation",
    "train.log_every",
    "checkpoint.keep",
    "decode.batch",
    "decode.beam",
    "decode.average",
    "lora.rank",
)
_SIZES_OF_MODELS = (
    "vocab_size",
    "source_vocab_size",
    "head_dim",
    "max_length",
    "unroll",
    "local_window",
    "vocab_multiple",
)
_NOT_NEGATIVE = (
    "train.seed",
    "data.seed",
    "data.readers",
    "checkpoint.minutes",
    "decode.max_extra",
    "decode.alpha",
    "decode.max_length",
    "decode.min_length",
    "decode.no_repeat_ngram",
    "train.patience",
)


def get(config: ConfigDict, key: str):
    """Returns the value of "section.key"."""
    for part in key.split("."):
        config = config[part]
    return config


def validate(config: ConfigDict) -> None:
    """Raises UserError for the first key with a value that no training can use."""
    if not config.data.cache.strip():
        raise UserError("config.data.cache is empty: name the folder that token stores are kept in")
    _check_sizes(config)
    _check_not_negative(config)
    _check_fractions(config)
    for key in ("train.eval_every", "checkpoint.every"):
        run_length.check(key, get(config, key))
    optimizers.check(config)
    _check_batch(config.train)
    _check_combinations(config)
    _check_lora(config.lora)
    if not variants.is_path(config.model.name) or isinstance(config.model.name, variants.File):
        classes.build_model(config)  # a model checks its own keys


def _check_sizes(config: ConfigDict) -> None:
    of_model = [
        f"model.{key}"
        for key in config.model
        if key.startswith(("num_", "d_")) or key in _SIZES_OF_MODELS
    ]
    for key in (*_AT_LEAST_ONE, *of_model):
        value = get(config, key)
        if value is not None and value < 1:
            raise UserError(f"config.{key}={value}: must be at least 1")
        if value is not None and value >= 2**31:
            raise UserError(f"config.{key}={value}: sizes and updates are counted up to 2^31 - 1")


def _check_not_negative(config: ConfigDict) -> None:
    of_model = [f"model.{key}" for key in config.model if key in ("init_std", "norm_epsilon")]
    for key in (*_NOT_NEGATIVE, *of_model):
        if get(config, key) < 0:
            raise UserError(f"config.{key}={get(config, key)}: must not be negative")
    grace = config.train.grace
    if not 1 <= grace <= 10**6:
        raise UserError(f"config.train.grace={grace}: must be from 1 to 1,000,000 seconds")


def _check_fractions(config: ConfigDict) -> None:
    of_model = [f"model.{key}" for key in config.model if key.endswith("dropout")]
    of_task = [f"task.{key}" for key in config.task if key.endswith("smoothing")]
    for key in (*of_model, *of_task):
        if not 0 <= get(config, key) < _ONE:
            raise UserError(f"config.{key}={get(config, key)}: must be at least 0 and below 1")


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
    decode = config.decode
    if 0 < decode.max_length < decode.min_length:
        raise UserError(
            f"config.decode.min_length={decode.min_length}: must be at most "
            f"config.decode.max_length={decode.max_length}"
        )


def _check_lora(lora: ConfigDict) -> None:
    if lora.alpha <= 0:
        raise UserError(f"config.lora.alpha={lora.alpha}: must be above 0")
    if not layer_numbers.is_valid(lora.layers):
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
