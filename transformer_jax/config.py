"""The configuration: every key outside `model` and `task`, once, with its default and its meaning.

`model` and `task` take their keys, types and defaults from the class that `config.model.name` and
`config.task.name` name (see `named_class`), so a wrong key is refused in the same way everywhere. A
config file defines `get_config()` or `get_config(arg)` and returns `experiment(section={key:
value})`, a delta over this schema. `load` reads such a file, applies command-line overrides and
validates.
"""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import os
import pathlib
import pkgutil
import sys
import traceback
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ml_collections import ConfigDict

from transformer_jax.configuration import meanings, run_length, suggestions

Updates = int | float  # whole updates, or a fraction of config.train.num_steps (run_length.py)
_ONE = 1 - 2**-25  # what float32 rounds to 1


class UserError(Exception):
    """A mistake its user can mend. The command line prints it as one line and exits with 2."""


class RunError(Exception):
    """A run that can't go on through no wrong input. The command line prints it as one line and
    exits with 1.
    """


class Preempted(Exception):
    """The run was asked to stop and has saved its state: the same command goes on from there."""

    code = 75  # of the program


class Interrupted(KeyboardInterrupt):
    """As Preempted, by Ctrl-C."""

    code = 130


@dataclasses.dataclass
class Data:
    cache: str = "~/.cache/transformer_jax/data"  # token stores and trained tokenizers
    rebuild: bool = False  # discard this run's token stores and build them again (damaged data)
    seed: int = 0  # order of the rows, and everything drawn inside a row
    # a built-in corpus instead of files: sentence pairs, the standard library's sources, their
    # documentation
    corpus: Literal["", "grammar", "python", "pydoc"] = ""
    corpus_size: int = 30_000  # training pairs drawn from the built-in grammar
    # running text: paths (or gs://..., s3://...) and patterns, separated by commas; *.jsonl: JSON
    # objects, one a line
    train_files: str | None = None
    valid_files: str | None = None  # as train_files, for the evaluations of the run
    test_files: str | None = None  # as train_files, for --set=test
    # instead of train_files: ((files, weight), ...), whole weights of how many rows come from each
    mixture: tuple = ()
    # what ends a document in a text file
    split_on: Literal["blank_line", "line", "file"] = "blank_line"
    text_field: str = "text"  # where the text is in JSON lines and TFDS sets
    # sentence pairs become documents SOURCE marker TARGET of a language model, e.g. "<to-de>" or
    # "<summarize>"
    marker: str = ""
    sentences: Literal["line", "punctuation"] = "line"  # where the sentences of a document end
    # no attention across documents in a row, and positions count from each one's start
    mask_documents: bool = False
    # text files, one sentence a line; line n of source and target belong together
    train_source: str | None = None
    train_target: str | None = None  # the translation of train_source
    valid_source: str | None = None  # as train_source, for the evaluations of the run
    valid_target: str | None = None  # the translation of valid_source
    test_source: str | None = None  # as train_source, for --set=test
    test_target: str | None = None  # the translation of test_source
    tfds_name: str | None = None  # a prepared TFDS set, e.g. "wmt14_translate/de-en"
    tfds_dir: str | None = None  # the data_dir it was prepared in
    # the TFDS set's names of its splits; None: train, validation, test
    train_split: str | None = None
    valid_split: str | None = None  # as train_split, for the evaluations
    test_split: str | None = None  # as train_split, for --set=test
    source_language: str = "en"  # features of the TFDS set
    target_language: str = "de"  # the other feature of the TFDS set
    # what is trained on the text; the first two are SentencePiece
    tokenizer: Literal["unigram", "bpe", "byte_bpe", "characters", "wordpiece"] = "unigram"
    cased: bool = False  # wordpiece: keep case and accents
    # instead of training: a folder with encoder.json and vocab.bpe, vocab.json and merges.txt, or
    # vocab.txt (BERT)
    tokenizer_files: str | None = None


@dataclasses.dataclass
class Train:
    num_steps: int = 1000  # updates in the whole run
    batch: int = 64  # rows per update over all hosts, after accumulation
    # rows of the first update, where the batch grows (Brown et al. 2020, appendix B); 0: it does
    # not
    first_batch: int = 0
    ramp_steps: int = 0  # updates it takes to grow to config.train.batch
    accumulation: int = 1  # microbatches an update is computed in
    seed: int = 0  # initial parameters and dropout
    # updates between progress lines; but for these, evaluations and checkpoints the host never
    # waits for the devices
    log_every: int = 50
    eval_every: Updates = 500  # updates between evaluations; the end is always evaluated
    patience: int = 0  # evaluations in a row without a better best_metric that end the run; 0: off
    # begin with the parameters of config.init_from; false: with its tokenizer alone (and,
    # fine-tuning, its model's shape)
    pretrained: bool = True
    # a non-finite loss or gradient: stop the run, or skip the update
    nonfinite: Literal["stop", "skip"] = "stop"
    grace: float = 60.0  # seconds for a step to end after SIGTERM or Ctrl-C; else the run exits


@dataclasses.dataclass
class Optimizer:
    name: Literal["adam", "adamw", "lamb"] = "adamw"  # adamw: weight decay apart from the gradient
    learning_rate: float = 1e-3  # peak
    # after a linear warm-up
    schedule: Literal["constant", "inverse_sqrt", "linear", "cosine"] = "constant"
    warmup_steps: Updates = 0  # updates of the linear warm-up
    decay_steps: Updates | None = None  # where linear and cosine end; None: at the end of the run
    final_fraction: float = 0.0  # of the peak, where linear and cosine end
    b1: float = 0.9  # decay of the mean of gradients
    b2: float = 0.999  # decay of the mean of squared gradients
    eps: float = 1e-8  # added to the root of the mean square
    weight_decay: float = 0.0  # on kernels and embeddings; not with adam
    # each layer learns so much less than the one above it, the embeddings least (Howard & Ruder
    # 2018, section 3.2)
    layer_decay: float = 1.0
    clip_norm: float = 0.0  # global gradient norm; 0: no clipping


@dataclasses.dataclass
class Checkpoint:
    every: Updates = 1000  # updates between checkpoints; the end is always saved
    minutes: float = 15.0  # a checkpoint at least so often, beside every; 0: by updates alone
    keep: int = 3  # newest checkpoints kept, beside the best
    best_metric: str = "valid/loss"  # "" : keep no best
    best_mode: Literal["min", "max"] = "min"  # whether a low or a high best_metric is good


@dataclasses.dataclass
class Mesh:
    data: int = -1  # -1: what the other axes leave of the devices
    fsdp: int = 1  # devices that parameters and optimizer state are split over
    tensor: int = 1  # devices that heads, MLP width and vocabulary are split over
    sequence: int = 1  # devices that the positions of a row are split over
    rules: tuple = ()  # overrides of sharding.RULES, e.g. (("vocab", ("tensor", "fsdp")),)


@dataclasses.dataclass
class Decode:
    batch: int = 64  # sentences decoded together
    beam: int = 4  # open hypotheses; 1: greedy
    alpha: float = 0.6  # length penalty: scores are divided by ((5 + length) / 6)^alpha
    max_extra: int = 50  # an output may be this much longer than its input, in tokens
    # positions of a window that evaluating a language model predicts, the rest being context; 0:
    # half of them
    stride: int = 0
    average: int = 1  # decode with the mean of this many checkpoints, up to the chosen one


INIT_FROM = "init_from"  # the one key in no section
INIT_FROM_MEANING = "a workdir whose parameters (and tokenizer) a new run begins with"

SECTIONS = {
    "data": Data,
    "train": Train,
    "optimizer": Optimizer,
    "checkpoint": Checkpoint,
    "mesh": Mesh,
    "decode": Decode,
}

# What a resumed run may change. A path may change because the fingerprint of the data decides, not
# its place.
MAY_CHANGE = (
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
    "data.tokenizer_files",
    "data.mixture",
    "data.train_",
    "data.valid_",
    "data.test_",
    "data.tfds_dir",
)


def named_class(section: Literal["model", "task"], name: str) -> type:
    """The one public dataclass (Linen modules are) that `transformer_jax/{models,tasks}/<name>.py`
    defines.
    """
    package, names = f"transformer_jax.{section}s", _names(section)
    if name not in names:
        raise UserError(
            f"config.{section}.name={name!r}: no such {section}"
            f"{suggestions.near(name, names)}; there are: {', '.join(names)}"
        )
    module = importlib.import_module(f"{package}.{name}")
    classes = [
        c
        for c in vars(module).values()
        if inspect.isclass(c)
        and c.__module__ == module.__name__
        and dataclasses.is_dataclass(c)
        and not c.__name__.startswith("_")
    ]
    if len(classes) != 1:
        raise UserError(
            f"{module.__file__} must define exactly one public {section} class, not {[c.__name__ for c in classes]}"
        )
    return classes[0]


def _names(section: str) -> list[str]:
    """The models, or tasks, that there are: their files."""
    folders = importlib.import_module(f"transformer_jax.{section}s").__path__
    return sorted(m.name for m in pkgutil.iter_modules(folders) if m.name != "task")


def class_options(cls: type) -> dict[str, tuple[Any, Any]]:
    """{key: (type, default)}: the dataclass fields of a model or task that have a default, Linen's
    own aside.
    """
    hints = typing.get_type_hints(cls)
    own = ("parent", "name") if hasattr(cls, "apply") else ()
    return {
        f.name: (hints[f.name], f.default)
        for f in dataclasses.fields(cls)
        if f.default is not dataclasses.MISSING and f.name not in own
    }


def options(section: ConfigDict) -> dict[str, Any]:
    """The keyword arguments of the class a section names."""
    return {key: value for key, value in section.items() if key != "name"}


def build_model(config: ConfigDict):
    """The Linen module `config.model` describes."""
    return named_class("model", config.model.name)(**options(config.model))


def schema(model: str, task: str) -> dict[str, tuple[Any, Any]]:
    """{"section.key": (type, default)} for the run of `task` with `model`; `init_from` stands in no
    section.
    """
    keys = {INIT_FROM: (str | None, None)}
    for section, name in (("model", model), ("task", task)):
        keys[f"{section}.name"] = (str, name)
        keys |= {f"{section}.{k}": v for k, v in class_options(named_class(section, name)).items()}
    for section, cls in SECTIONS.items():
        keys |= {f"{section}.{k}": v for k, v in class_options(cls).items()}
    return keys


def all_keys(path: str | None = None) -> list[str]:
    """The keys of the config file `path`; if that is none, those of every model and task."""
    try:
        config = load(path or "")
        return [*schema(config.model.name, config.task.name)]
    except UserError:
        names = {section: _names(section) for section in ("model", "task")}
        pairs = itertools.zip_longest(names["model"], names["task"])
        keys = [
            schema(model or names["model"][0], task or names["task"][0]) for model, task in pairs
        ]
        return [*dict.fromkeys(itertools.chain.from_iterable(keys))]


def experiment(**delta: Any) -> ConfigDict:
    """A full config from what differs from the defaults; `model` and `task` need at least a name.

    Example: `experiment(model={"name": "encoder_decoder"}, task={"name": "translation"},
    train={"batch": 96})`. Raises UserError for an unknown key or a value of the wrong type.
    """
    for section in ("model", "task"):
        if not isinstance(delta.get(section), dict) or "name" not in delta[section]:
            raise UserError(
                f"config.{section}.name is missing: it names a file in transformer_jax/{section}s/"
            )
    config = ConfigDict()
    for key, (_, default) in schema(delta["model"]["name"], delta["task"]["name"]).items():
        _put(config, key, default)
    for section, value in delta.items():
        if section in (*SECTIONS, "model", "task"):
            if not isinstance(value, dict):
                raise UserError(f"config.{section}={value!r} must be a dict of its keys")
            for key, entry in value.items():
                set_key(config, f"{section}.{key}", entry)
        elif section == INIT_FROM:
            set_key(config, section, value)
        else:
            near = suggestions.near(section, [*SECTIONS, "model", "task"])
            keys = schema(delta["model"]["name"], delta["task"]["name"])
            near = near or _meant(config, section, keys)
            raise UserError(f"config has no section {section!r}{near}")
    return config


def meaning(key: str, model: str, task: str) -> str:
    """The meaning of a key of `schema(model, task)`: the comment behind its field."""
    if key == INIT_FROM:
        return INIT_FROM_MEANING
    section, _, name = key.partition(".")
    named = {"model": model, "task": task}
    cls = named_class(section, named[section]) if section in named else SECTIONS[section]
    if key in ("model.name", "task.name"):
        return " ".join(inspect.getdoc(cls).partition("\n\n")[0].split())
    return meanings.of(cls)[name]


def _meant(config: ConfigDict, key: str, keys) -> str:
    """'; did you mean ...?' for an unknown key."""
    model, task = config.model.name, config.task.name

    def explained(name: str) -> str:
        return "" if name.startswith("--") else meaning(name, model, task)

    return suggestions.key(key, keys, explained)


def set_key(config: ConfigDict, key: str, value: Any) -> None:
    """Sets `section.key`, converting a command-line string to the key's type."""
    keys = schema(config.model.name, config.task.name)
    if key not in keys:
        raise UserError(f"unknown key config.{key}{_meant(config, key, keys)}")
    if key in ("model.name", "task.name") and value != keys[key][1]:
        raise UserError(f"config.{key} decides which keys exist: set it in the config file")
    _put(config, key, _coerce(key, value, keys[key][0]))


def load(
    path: str | os.PathLike, overrides: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
) -> ConfigDict:
    """The config of `file.py` or `file.py:arg` with overrides, validated: {"train.batch": 32}, or
    pairs with values as a command line gives them, ("train.batch", "32").

    Raises UserError for what is wrong with the file, a key or a value.
    """
    config = read(path)
    for key, value in dict(overrides).items():
        set_key(config, key, value)
    validate(config)
    return config


def read(path: str | os.PathLike) -> ConfigDict:
    """The config of `file.py` or `file.py:arg` as it stands there. Raises UserError as `load`."""
    path = os.fspath(path)
    file, _, arg = path.partition(":")
    if not pathlib.Path(file).is_file():
        raise UserError(f"--config={path}: no such file {file}")
    if not file.endswith(".py"):
        raise UserError(
            f"--config={path}: a config is a Python file, *.py; a run goes on by its --workdir"
        )
    try:
        module = load_module(file)
        if not hasattr(module, "get_config"):
            raise UserError("defines no get_config()")
        takes_arg = bool(inspect.signature(module.get_config).parameters)
        if arg and not takes_arg:
            raise UserError(f"--config={path}: {file} takes no argument")
        config = module.get_config(*([arg] if takes_arg and arg else []))
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    # the file is the user's own: say where it failed, in one line
    except (Exception, SystemExit) as error:
        lines = [
            f.lineno
            for f in traceback.extract_tb(error.__traceback__)
            if os.path.abspath(f.filename) == os.path.abspath(file)
        ]
        line = (error.lineno or 1) if isinstance(error, SyntaxError) else lines[-1] if lines else 1
        raise UserError(
            f"{file}:{line}: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"{file}: get_config() returns {type(config).__name__}, not a config made by experiment(...)"
        )
    return config


def load_module(file: str | pathlib.Path) -> types.ModuleType:
    """A config file as a module, for `load` and for config files that vary another."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def choice(argument: str, choices):
    """`choices[argument]`, for config files that take an argument."""
    if argument not in choices:
        raise UserError(
            f"no {argument!r}{suggestions.near(argument, [*choices])}; "
            f"there are: {', '.join(choices)}"
        )
    return choices[argument]


def validate(config: ConfigDict) -> None:
    """Refuses what can be known to be wrong without devices or data. Mesh and shapes:
    `sharding.check`.
    """
    model, train = config.model, config.train
    sizes = (
        "vocab_size",
        "source_vocab_size",
        "head_dim",
        "max_length",
        "unroll",
        "local_window",
        "vocab_multiple",
    )
    if not config.data.cache.strip():
        raise UserError("config.data.cache is empty: name the folder that token stores are kept in")
    of_model = [f"model.{key}" for key in model if key.startswith(("num_", "d_")) or key in sizes]
    for key in (
        "data.corpus_size",
        "train.num_steps",
        "train.batch",
        "train.accumulation",
        "train.log_every",
        "checkpoint.keep",
        "decode.batch",
        "decode.beam",
        "decode.average",
        *of_model,
    ):
        if get(config, key) is not None and get(config, key) < 1:
            raise UserError(f"config.{key}={get(config, key)}: must be at least 1")
        if (get(config, key) or 0) >= 2**31:
            raise UserError(
                f"config.{key}={get(config, key)}: sizes and updates are counted up to 2^31 - 1"
            )
    for key in (
        "train.seed",
        "data.seed",
        "checkpoint.minutes",
        "optimizer.clip_norm",
        "optimizer.weight_decay",
        "optimizer.learning_rate",
        "optimizer.eps",
        "decode.max_extra",
        "decode.alpha",
        "train.patience",
        *(f"model.{key}" for key in model if key in ("init_std", "norm_epsilon")),
    ):
        if get(config, key) < 0:
            raise UserError(f"config.{key}={get(config, key)}: must not be negative")
    if not 1 <= train.grace <= 10**6:
        raise UserError(f"config.train.grace={train.grace}: must be from 1 to 1,000,000 seconds")
    _validate_updates(config)
    fractions = [f"model.{k}" for k in model if k.endswith("dropout")] + [
        f"task.{k}" for k in config.task if k.endswith("smoothing")
    ]
    for key in (*fractions, "optimizer.b1", "optimizer.b2"):
        if not 0 <= get(config, key) < _ONE:
            raise UserError(f"config.{key}={get(config, key)}: must be at least 0 and below 1")
    if not 0 < config.optimizer.layer_decay <= 1:
        raise UserError(
            f"config.optimizer.layer_decay={config.optimizer.layer_decay}: must be above 0 and at most 1"
        )
    if not 0 <= config.optimizer.final_fraction <= 1:
        raise UserError(
            f"config.optimizer.final_fraction={config.optimizer.final_fraction}: must be from 0 to 1"
        )
    if model.get("head_dim") is None and "num_heads" in model and model.d_model % model.num_heads:
        raise UserError(
            f"config.model.num_heads={model.num_heads} does not divide config.model.d_model={model.d_model}"
        )
    if (
        bool(train.first_batch) != bool(train.ramp_steps)
        or not 0 <= train.first_batch <= train.batch
        or train.ramp_steps < 0
    ):
        raise UserError(
            f"config.train.first_batch={train.first_batch} and config.train.ramp_steps={train.ramp_steps}: both 0, or a growing batch "
            f"from first_batch, at most config.train.batch={train.batch}, over ramp_steps updates"
        )
    if train.first_batch % train.accumulation:
        raise UserError(
            f"config.train.accumulation={train.accumulation} does not divide config.train.first_batch={train.first_batch}"
        )
    if train.batch % train.accumulation:
        raise UserError(
            f"config.train.accumulation={train.accumulation} does not divide config.train.batch={train.batch}"
        )
    if config.optimizer.name == "adam" and config.optimizer.weight_decay:
        raise UserError("config.optimizer.weight_decay needs config.optimizer.name=adamw or lamb")
    if train.patience and not config.checkpoint.best_metric:
        raise UserError(
            f"config.train.patience={train.patience} needs "
            "config.checkpoint.best_metric, the score that must improve"
        )


def _validate_updates(config: ConfigDict) -> None:
    """Refuses intervals below 1 and a decay that ends within the warm-up."""
    for key in (
        "train.eval_every",
        "checkpoint.every",
        "optimizer.decay_steps",
        "optimizer.warmup_steps",
    ):
        value, least = get(config, key), int(key != "optimizer.warmup_steps")
        if value is not None and value < least and not 0 < value < 1:
            bound = "be at least 1" if least else "not be negative"
            raise UserError(
                f"config.{key}={value}: must {bound}, or a fraction of the run between 0 and 1"
            )
        if value is not None and value >= 2**31:
            raise UserError(f"config.{key}={value}: sizes and updates are counted up to 2^31 - 1")
    if config.optimizer.decay_steps is not None:
        decay, warmup = (
            run_length.span(config.optimizer[key], config.train.num_steps)
            for key in ("decay_steps", "warmup_steps")
        )
        if decay <= warmup:
            raise UserError(
                f"config.optimizer.decay_steps={decay}: must be more than "
                f"config.optimizer.warmup_steps={warmup}, or the rate falls to its "
                "end at once"
            )


def get(config: ConfigDict, key: str) -> Any:
    """The value at "section.key"."""
    for part in key.split("."):
        config = config[part]
    return config


def from_record(values: dict, where: str) -> ConfigDict:
    """The config whose `to_dict()` was kept as JSON; keys added to the schema since then take their
    defaults.
    """
    try:
        return experiment(**values)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def flat(config: ConfigDict) -> dict[str, Any]:
    """{"section.key": value}."""
    return {
        **{
            f"{name}.{key}": value
            for name, section in config.items()
            if name != INIT_FROM
            for key, value in section.items()
        },
        INIT_FROM: config[INIT_FROM],
    }


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """What a run resumed with `new` changes that it may not, as "key: old -> new"."""
    keys = {*schema(old.model.name, old.task.name), *schema(new.model.name, new.task.name)}
    was, now = _at_length(old, old.train.num_steps), _at_length(new, old.train.num_steps)
    return [
        f"{key}: {was.get(key)} -> {now.get(key)}"
        for key in sorted(keys)
        if not key.startswith(MAY_CHANGE) and was.get(key) != now.get(key)
    ]


def _at_length(config: ConfigDict, num_steps: int) -> dict[str, Any]:
    """`flat`, with the schedule's keys in updates: 0.1 and 100 are the same in a run of 1,000."""
    values = flat(config)
    for key in ("optimizer.warmup_steps", "optimizer.decay_steps"):
        if values[key] is not None:
            values[key] = run_length.span(values[key], num_steps)
    return values


def _put(config: ConfigDict, key: str, value: Any) -> None:
    section, _, name = key.rpartition(".")
    if section and section not in config:
        config[section] = ConfigDict()
    place = config[section] if section else config
    with place.ignore_type():
        place[name] = value


def _coerce(key: str, value: Any, kind: Any) -> Any:
    """`value` as the declared type; a string is read as a command line gives it."""
    refuse = UserError(f"config.{key}={value!r} is not {describe(kind)}")
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if type(None) in args and (value is None or str(value).lower() == "none"):
            return None
        if int in args and float in args:
            return _as_updates(value, refuse)
        return _coerce(key, value, next(a for a in args if a is not type(None)))
    if origin is Literal:
        if value not in args:
            raise UserError(f"{refuse}{suggestions.near(str(value), [str(a) for a in args])}")
        return value
    if kind is str:
        if not isinstance(value, str):
            raise refuse
        return value
    if isinstance(value, str):
        try:
            value = (
                {"true": True, "false": False}.get(value.lower(), None)
                if kind is bool
                else ast.literal_eval(value)
            )
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise refuse from None
    if kind is float and type(value) in (int, float):
        if not abs(value) <= sys.float_info.max:  # nor is it nan
            raise refuse
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)  # 1e5 is a count, too
    if (kind is tuple or origin is tuple) and isinstance(value, (list, tuple)):
        return _as_tuple(value)
    if type(value) is not kind or (kind is int and abs(value) > 2**63 - 1):
        raise refuse
    return value


def _as_updates(value: Any, refuse: UserError) -> int | float:
    """A whole number of updates (1e5 is one, too), or a fraction of the run as a float."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise refuse from None
    if type(value) is float and 0 < value < 1:
        return value
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or abs(value) > 2**63 - 1:
        raise refuse
    return value


def _as_tuple(value):
    return tuple(_as_tuple(v) for v in value) if isinstance(value, (list, tuple)) else value


def describe(kind: Any) -> str:
    args = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(a) for a in args)
    if int in args and float in args:
        return "a whole number of updates or a fraction of the run"
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join("none" if a is type(None) else describe(a) for a in args)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return names.get(kind, "a tuple")
