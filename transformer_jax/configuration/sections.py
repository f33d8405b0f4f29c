"""The sections of a config: their keys, with defaults, meanings and ranges."""

import ast
import dataclasses
import math
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict

from transformer_jax.configuration import classes, coercion
from transformer_jax.configuration.coercion import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    Share,
    coerce,
)
from transformer_jax.configuration.errors import UserError

# --------------------------------------------------------------------------------------------------
# The sections of a config other than `model`, `task` and `source`. The comment at a field is the
# meaning of its key in the help of the programs, where `classes.of` takes it from this file.

# A number of updates, or a fraction of config.train.num_steps (see `span`). An interval is at least
# one update.
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
    # python (sources of the standard library), pydoc (its documentation), functions (its functions
    # and their summaries) or inference (labeled pairs of English sentences from the grammar)
    corpus: Literal["", "grammar", "python", "pydoc", "functions", "inference"] = ""
    # training pairs, or conversations, drawn from the built-in grammar (grammar, inference)
    corpus_size: PositiveInt = 30_000
    # text files: paths (or gs://..., s3://...) and patterns, separated by commas; *.jsonl files
    # hold one JSON object per line
    train_files: str | None = None
    valid_files: str | None = None  # as train_files, for the evaluations of the run
    test_files: str | None = None  # as train_files, for --set=test
    # instead of train_files: ((files, weight), ...), with whole weights; rows are drawn from each
    # in proportion to its weight
    mixture: tuple = ()
    # what ends a document in a text file
    split_on: Literal["blank_line", "line", "file"] = "blank_line"
    text_field: str = "text"  # name of the field with the text in JSON lines and TFDS data sets
    # turn sentence pairs into documents SOURCE marker TARGET for a language model, e.g. with
    # "<to-de>" or "<summarize>"
    marker: str = ""
    sentences: Literal["line", "punctuation"] = "line"  # what ends a sentence in a document
    # no attention between the documents in a row, and positions that start from 0 in each of them
    mask_documents: bool = False
    # text files with one sentence per line; line n of the source belongs to line n of the target
    train_source: str | None = None
    train_target: str | None = None  # the translation of train_source
    valid_source: str | None = None  # as train_source, for the evaluations of the run
    valid_target: str | None = None  # the translation of valid_source
    test_source: str | None = None  # as train_source, for --set=test
    test_target: str | None = None  # the translation of test_source
    tfds_name: str | None = None  # a prepared TFDS data set, e.g. "wmt14_translate/de-en"
    tfds_dir: str | None = None  # the data_dir in which the TFDS data set was prepared
    train_split: str | None = None  # split of the TFDS data set; None: train
    valid_split: str | None = None  # as train_split, for the evaluations; None: validation
    test_split: str | None = None  # as train_split, for --set=test; None: test
    source_language: str = "en"  # feature of the TFDS data set that is the source
    target_language: str = "de"  # feature of the TFDS data set that is the target
    # kind of tokenizer to train on the text; unigram and bpe are SentencePiece's, roberta_bpe is
    # byte_bpe with RoBERTa's special tokens, which include a mask
    tokenizer: Literal[
        "unigram", "bpe", "byte_bpe", "roberta_bpe", "characters", "wordpiece", "words"
    ] = "unigram"
    cased: bool = False  # for wordpiece and words: keep case; for wordpiece also keep accents
    min_count: PositiveInt = 1  # for words: a word must occur this often in the training text
    # bytes of text to train the tokenizer on, a sample of a larger text; characters reads all text
    tokenizer_bytes: PositiveInt = 50_000_000
    # a folder with a trained tokenizer: encoder.json and vocab.bpe, vocab.json and merges.txt,
    # vocab.txt (BERT), tokenizer.json (Llama, Qwen2, T5), spiece.model (T5), or source.spm,
    # target.spm and vocab.json (Marian)
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


# {optimizer: the keys that it uses, of those that not all optimizers use}
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
# {schedule: the keys that it uses, of those that not all schedules use}
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
    # optimizers of groups of parameters that the task names, as differences from this section:
    # ((group, ((key, value), ...)), ...); clip_norm then applies to the gradient of each group
    groups: tuple = ()


@dataclasses.dataclass
class Checkpoint:
    every: Interval = 1000  # updates between checkpoints; the end is always saved
    # most minutes between checkpoints, in addition to every; 0: by updates only
    minutes: NonNegativeFloat = 15.0
    keep: PositiveInt = 3  # number of newest checkpoints to keep, in addition to the best
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


INIT_FROM = "init_from"  # the only key without a section
INIT_FROM_MEANING = (
    "workdir of the run from which a new run takes its parameters and tokenizer; or "
    "{prefix: workdir}, for the parameters whose names start with each prefix"
)
SOURCE_NAME_MEANING = (
    "file in transformer_jax/records/ that defines a source of records other than text; "
    "empty: config.data names the texts"
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


# --------------------------------------------------------------------------------------------------
# Keys that count updates, which may be whole numbers or fractions of the run, converted to updates.
#
# A number between 0 and 1 is a fraction, such as 0.1 for a tenth of config.train.num_steps. Any
# other number, including 5.0, is a number of updates.

_ROUNDING = 1e-6  # in floating point, 0.1 * 30 is a little more than 3


def span(value: float, num_steps: int) -> int:
    """Returns the length of a part of the run, such as a warm-up, in updates."""
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


def warnings(train, checkpoint, optimizer) -> list[str]:
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


# --------------------------------------------------------------------------------------------------
# Choices of layers in a stack: numbers from 0, as in "0,2,4", or a slice such as "::2". An empty
# string means all layers.

_NUMBERS = re.compile(r"\d+(,\d+)*|-?\d*:-?\d*(:-?[1-9]\d*)?")


def is_valid(layers: str) -> bool:
    """Returns whether a string is a well-formed choice of layers."""
    return not layers or _NUMBERS.fullmatch(layers) is not None


def chosen(layers: str, num_layers: int) -> list[int]:
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


# --------------------------------------------------------------------------------------------------
# The sections of optimizers, one for each group of parameters, and checks of their values.

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
            if key not in types or key == "groups":
                near = coercion.near(key, [*types])
                raise _refusal(name, f"config.optimizer has no key {key!r} for a group{near}")
            with section.ignore_type():
                section[key] = coerce(f"optimizer.groups, {name}: {key}", value, types[key])
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
            classes.check_ranges(Optimizer, section, "optimizer")
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


# --------------------------------------------------------------------------------------------------
# The runs from which a new run takes its initial parameters: `config.init_from`.
#
# It is the workdir of a run, or a mapping from prefixes of the new run's parameters to workdirs:
# with {"student": DIR}, the parameter student/x is initialized from the parameter x of DIR. A value
# may have further keys: with {"student": {"run": DIR, "part": "teacher", "layers": "::2"}},
# student/x is initialized from teacher/x of DIR, and of each stack every second layer is taken.


@dataclasses.dataclass(frozen=True)
class Beginning:
    """A run from which the parameters whose names start with a prefix are initialized."""

    prefix: str  # "": all parameters without another prefix
    run: str  # the workdir
    part: str = ""  # the prefix of these parameters in that run
    layers: str = ""  # the layers to take from each stack, such as "0,2,4" or "::2"; "": all

    def chosen(self, num_layers: int) -> list[int]:
        """Returns the numbers of the layers to take from a stack of `num_layers`."""
        return chosen(self.layers, num_layers)


def canonical(value: Any) -> str | tuple | None:
    """Returns a value of `config.init_from` as a workdir, or ((prefix, ((key, value), ...)), ...).

    Raises UserError for a malformed value.
    """
    if isinstance(value, str) and value[:1] in ("{", "("):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise _bad_beginning(value) from None
    if value is None or value == "None" or value == "none":
        return None
    if isinstance(value, str):
        return value
    runs = tuple(_canonical_of(value, prefix, run) for prefix, run in _pairs(value, value))
    if not runs or len({prefix for prefix, _ in runs}) < len(runs):
        raise _bad_beginning(value)
    alone = dict(runs[0][1])
    return alone["run"] if len(runs) == 1 and runs[0][0] == "" and len(alone) == 1 else runs


def beginnings(value: str | tuple | None) -> tuple[Beginning, ...]:
    """Returns the runs that a canonical value of `config.init_from` names."""
    if not value:
        return ()
    if isinstance(value, str):
        return (Beginning("", value),)
    return tuple(Beginning(prefix, **dict(keys)) for prefix, keys in value)


def _canonical_of(value, prefix, run) -> tuple[str, tuple]:
    keys = {"run": run} if isinstance(run, str) else dict(_pairs(value, run))
    known = [field.name for field in dataclasses.fields(Beginning)][1:]
    for key in keys:
        if key not in known:
            near = coercion.near(str(key), known)
            raise UserError(f"config.init_from: {prefix!r} has no key {key!r}{near}")
    if not isinstance(prefix, str) or not keys.get("run"):
        raise _bad_beginning(value)
    if not all(isinstance(entry, str) for entry in keys.values()):
        raise _bad_beginning(value)
    if not is_valid(keys.get("layers", "")):
        raise UserError(
            f"config.init_from: {prefix!r} has layers={keys['layers']!r}, no numbers such as "
            "'0,2,4' and no slice such as '::2'"
        )
    return prefix.strip("/"), tuple((key, keys[key]) for key in known if keys.get(key))


def _pairs(value, mapping) -> list:
    """Returns the items of a mapping, or of the pairs as which a record holds it."""
    if isinstance(mapping, Mapping):
        return list(mapping.items())
    is_list = isinstance(mapping, (list, tuple))
    if is_list and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in mapping):
        return list(mapping)
    raise _bad_beginning(value)


def _bad_beginning(value) -> UserError:
    return UserError(
        f"config.init_from={value!r}: must be a workdir, or a mapping from prefixes of parameters "
        "to workdirs such as {'teacher': 'runs/a', 'student': {'run': 'runs/a', 'layers': '::2'}}"
    )


# --------------------------------------------------------------------------------------------------
# The values of a config by key, and the differences that keep a run from resuming.


def flat(config: ConfigDict) -> dict[str, Any]:
    """Returns {"section.key": value}."""
    values = {
        f"{name}.{key}": value
        for name, section in config.items()
        if name != INIT_FROM
        for key, value in section.items()
    }
    return {**values, INIT_FROM: config[INIT_FROM]}


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """Returns the changes that a resumed run may not make, each as "key: old -> new".

    Fractions of the run are compared at the old length, because num_steps itself may change.
    """
    num_steps = old.train.num_steps
    old_values = _at_length(old, num_steps)
    new_values = _at_length(new, num_steps)
    return [
        f"{key}: {old_values.get(key)} -> {new_values.get(key)}"
        for key in sorted({*old_values, *new_values})
        if not key.startswith(MAY_CHANGE) and old_values.get(key) != new_values.get(key)
    ]


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
            classes.check_ranges(cls, config[section], section)
    check_optimizers(config)
    _check_batch(config.train)
    _check_combinations(config)
    _check_lora(config.lora)
    if not classes.is_path(config.model.name) or isinstance(config.model.name, classes.File):
        classes.build_model(config)  # a model checks its own keys


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
    if not is_valid(lora.layers):
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
