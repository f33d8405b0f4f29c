"""The sections of a config: their keys with defaults, meanings and ranges."""

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
# The sections of a config other than `model`, `task` and `source`. The comment at a key is its
# meaning, and users read it in the help: `classes.of` takes it from this file.

# Whole updates, or a fraction of config.train.num_steps (see `span`): from 0, and from 1.
Updates = Annotated[int | float, Range(least=0, counts=True, or_fraction=True)]
Interval = Annotated[int | float, Range(least=1, counts=True, or_fraction=True)]


@dataclasses.dataclass
class Data:
    # folder of token stores and trained tokenizers; TRANSFORMER_JAX_STORES_GB limits its size
    cache: str = "~/.cache/transformer_jax/data"
    rebuild: bool = False  # delete this run's token stores and build them again (damaged data)
    seed: NonNegativeInt = 0  # of the order of the rows, and of the random choices inside a row
    # processes that read the rows of training on each host; 0: the training process reads them.
    # Results do not change
    readers: NonNegativeInt = 0
    # a built-in corpus instead of files: grammar (sentence pairs, or conversations about them),
    # python (sources of the standard library), pydoc (its documentation), functions (its functions
    # and their summaries) or inference (labelled pairs of the grammar's English)
    corpus: Literal["", "grammar", "python", "pydoc", "functions", "inference"] = ""
    # training pairs, or conversations, drawn from the built-in grammar (grammar, inference)
    corpus_size: PositiveInt = 30_000
    # text files: paths (or gs://..., s3://...) and patterns, separated by commas; *.jsonl holds
    # JSON objects, one a line
    train_files: str | None = None
    valid_files: str | None = None  # as train_files, for the evaluations of the run
    test_files: str | None = None  # as train_files, for --set=test
    # instead of train_files: ((files, weight), ...); the rows of each are drawn in proportion to
    # its whole weight
    mixture: tuple = ()
    # the end of a document in a text file
    split_on: Literal["blank_line", "line", "file"] = "blank_line"
    text_field: str = "text"  # field of the text in JSON lines and TFDS sets
    # makes documents SOURCE marker TARGET of sentence pairs, for a language model, e.g. "<to-de>"
    # or "<summarize>"
    marker: str = ""
    sentences: Literal["line", "punctuation"] = "line"  # the end of a sentence in a document
    # no attention between the documents of a row, and positions that begin anew with each
    mask_documents: bool = False
    # text files of one sentence a line; line n of the source belongs to line n of the target
    train_source: str | None = None
    train_target: str | None = None  # the translation of train_source
    valid_source: str | None = None  # as train_source, for the evaluations of the run
    valid_target: str | None = None  # the translation of valid_source
    test_source: str | None = None  # as train_source, for --set=test
    test_target: str | None = None  # the translation of test_source
    tfds_name: str | None = None  # a prepared TFDS set, e.g. "wmt14_translate/de-en"
    tfds_dir: str | None = None  # the data_dir in which the TFDS set was prepared
    train_split: str | None = None  # split of the TFDS set; None: train
    valid_split: str | None = None  # as train_split, for the evaluations; None: validation
    test_split: str | None = None  # as train_split, for --set=test; None: test
    source_language: str = "en"  # feature of the TFDS set that is the source
    target_language: str = "de"  # feature of the TFDS set that is the target
    # kind of tokenizer to train on the text; unigram and bpe are SentencePiece's, roberta_bpe is
    # byte_bpe with RoBERTa's special tokens, a mask among them
    tokenizer: Literal[
        "unigram", "bpe", "byte_bpe", "roberta_bpe", "characters", "wordpiece", "words"
    ] = "unigram"
    cased: bool = False  # wordpiece and words: keep case; wordpiece: accents, too
    min_count: PositiveInt = 1  # words: the least occurrences of a word in the training text
    # a larger text trains its tokenizer on a sample of so many bytes; characters reads all
    tokenizer_bytes: PositiveInt = 50_000_000
    # a folder with a trained tokenizer: encoder.json and vocab.bpe, vocab.json and merges.txt,
    # vocab.txt (BERT), tokenizer.json (Llama, Qwen2, T5), spiece.model (T5), or source.spm,
    # target.spm and vocab.json (Marian)
    tokenizer_files: str | None = None


@dataclasses.dataclass
class Train:
    num_steps: PositiveInt = 1000  # updates in the whole run
    batch: PositiveInt = 64  # rows of an update, over all hosts and microbatches
    # rows of the first update, for a growing batch (Brown et al. 2020, appendix B); 0: a constant
    # batch
    first_batch: NonNegativeInt = 0
    ramp_steps: NonNegativeInt = 0  # updates in which the batch grows to config.train.batch
    accumulation: PositiveInt = 1  # microbatches of an update
    seed: NonNegativeInt = 0  # of the initial parameters and of dropout
    # updates between progress lines; except for these, evaluations and checkpoints, the host does
    # not wait for the devices
    log_every: PositiveInt = 50
    eval_every: Interval = 500  # updates between evaluations; the end is always evaluated
    patience: NonNegativeInt = (
        0  # evaluations in a row without a better best_metric that end the run; 0: off
    )
    # begin with the parameters of config.init_from; false: with its tokenizer alone (a fine-tuning:
    # and the shape of its model)
    pretrained: bool = True
    # a file of word vectors, as word2vec or GloVe writes it, for the embeddings that the model
    # reads; the vectors of words that it lacks are as initialised
    init_vectors: str | None = None
    freeze_vectors: bool = False  # do not train these embeddings
    # a non-finite loss or gradient: stop the run, or skip the update
    nonfinite: Literal["stop", "skip"] = "stop"
    grace: Annotated[float, Range(least=1, most=10**6)] = (
        60.0  # seconds for a step to end after SIGTERM or Ctrl-C; else the run exits
    )


# The keys of an optimizer that not all of them use.
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
# The keys of a schedule, likewise.
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
    # weight decay is apart from the gradient; adam has none. muon is for the matrices of layers,
    # and adamw for the other parameters beside it
    name: Literal[*OPTIMIZERS] = "adamw"
    learning_rate: NonNegativeFloat = 1e-3  # the peak of the schedule
    # course of the learning rate after a linear warm-up
    schedule: Literal[*SCHEDULES] = "constant"
    # updates of the linear warm-up; of truncated_inverse_sqrt: updates with the peak
    warmup_steps: Updates = 0
    decay_steps: Interval | None = None  # end of a schedule that falls; None: the end of the run
    final_fraction: Share = 0.0  # fraction of the peak at which a schedule ends
    power: PositiveFloat = 2.0  # of polynomial: exponent of the part of the run that is left
    cooldown_steps: Updates = 0.1  # updates of the linear fall that ends warmup_stable_decay
    # of slanted_triangular: the peak over the rate at the start and the end (Howard & Ruder 2018,
    # section 3.2)
    ratio: Annotated[float, Range(least=1)] = 32.0
    # decay of the mean of gradients; of lion and schedule_free: part of the mean in a mixture
    b1: Fraction = 0.9
    # decay of the mean of squared gradients; of lion: of the mean of gradients
    b2: Fraction = 0.999
    eps: NonNegativeFloat = (
        1e-8  # added to the root of the mean square; adagrad, adadelta: to the square
    )
    initial_sum: float = 0.0  # of adagrad: the sum of squared gradients before the first update
    momentum: Fraction = 0.9  # of sgd: decay of the sum of gradients; 0: none
    muon_momentum: Fraction = 0.95  # of muon: decay of the mean of a matrix's gradients
    decay_exponent: PositiveFloat = (
        0.8  # of adafactor: the decay of update t is 1 - t^-decay_exponent
    )
    weight_decay: NonNegativeFloat = 0.0  # of kernels and embeddings; adam has none
    # factor of a layer's learning rate over that of the layer above; the embeddings are lowest
    # (Howard & Ruder 2018, section 3.2)
    layer_decay: Annotated[float, Range(above=0, most=1)] = 1.0
    clip_norm: NonNegativeFloat = 0.0  # largest global norm of the gradient; 0: no clipping
    # of a group: the update from which it learns, with a schedule for the rest of the run
    begin: Updates = 0
    # differences of the optimizer of a group of parameters that the task names:
    # ((group, ((key, value), ...)), ...); clip_norm is then that of the group's gradient
    groups: tuple = ()


@dataclasses.dataclass
class Checkpoint:
    every: Interval = 1000  # updates between checkpoints; the end is always saved
    minutes: NonNegativeFloat = (
        15.0  # most minutes between checkpoints, beside every; 0: by updates alone
    )
    keep: PositiveInt = 3  # number of newest checkpoints kept, beside the best
    best_metric: str = "valid/loss"  # score that decides which checkpoint is the best; "": none
    best_mode: Literal["min", "max"] = "min"  # whether a low or a high best_metric is good


@dataclasses.dataclass
class Mesh:
    data: int = -1  # devices that the batch is split over; -1: all that the other axes leave
    fsdp: int = 1  # devices that parameters and optimizer state are split over
    tensor: int = 1  # devices that heads, MLP width and vocabulary are split over
    # devices that the positions of a row are split over, with ring attention (Liu et al. 2023)
    sequence: int = 1
    rules: tuple = ()  # overrides of sharding.RULES, e.g. (("vocab", ("tensor", "fsdp")),)


@dataclasses.dataclass
class Decode:
    batch: PositiveInt = 64  # sentences decoded together
    beam: PositiveInt = 4  # open hypotheses of beam search; 1: greedy
    alpha: NonNegativeFloat = (
        0.6  # length penalty: log-probabilities are divided by it, see penalty
    )
    # length penalty of an output: gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016); length:
    # length^alpha, as in transformers
    penalty: Literal["gnmt", "length"] = "gnmt"
    max_extra: NonNegativeInt = 50  # tokens by which an output may be longer than its input
    # most tokens of an output of an encoder-decoder, its end included; 0: those of its input and
    # max_extra
    max_length: NonNegativeInt = 0
    min_length: NonNegativeInt = 0  # fewest tokens of an output, its end included
    no_repeat_ngram: NonNegativeInt = (
        0  # no output has a sequence of so many tokens twice; 0: it may
    )
    force_end: bool = False  # an output with the most tokens has the end as its last
    # the probabilities of the tokens that these rules leave sum to 1
    renormalize: bool = False
    # when an input is done: exact: no open hypothesis can come among the n best. As in
    # transformers: never: none can come among the best `beam`; estimate (False there): none could
    # with its present length; first (True there): `beam` outputs have ended
    early_stopping: Literal["exact", "never", "estimate", "first"] = "exact"
    # positions of a window that an evaluation of a language model predicts; the others are context;
    # 0: half of them
    stride: int = 0
    average: PositiveInt = 1  # decode with the mean of this many checkpoints, up to the chosen one


@dataclasses.dataclass
class Lora:
    # the rank r of the adapters (Hu et al. 2021): a matrix W is W + alpha / r A B, and of these A
    # and B alone are trained; None: no adapters, W is trained
    rank: PositiveInt | None = None
    alpha: PositiveFloat = 16.0  # factor of A B, over the rank
    # matrices with adapters: patterns of the names of parameters, or of their ends, such as
    # "mlp/*/kernel"; "*/kernel": all matrices of layers
    matrices: tuple = ("query/kernel", "value/kernel")
    # layers of each stack with adapters, from 0: "0,2,4", or a slice such as "6:"; empty: all
    layers: str = ""
    # parameters that are trained whole, beside the task's own head: patterns as in matrices
    trained: tuple = ()


INIT_FROM = "init_from"  # the only key without a section
INIT_FROM_MEANING = (
    "workdir of the run whose parameters and tokenizer a new run begins with; or "
    "{prefix: workdir}, for the parameters whose names begin with each prefix"
)
SOURCE_NAME_MEANING = (
    "file in transformer_jax/records/ that gives records which are not text; "
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

# The keys that a resumed run may change. A path may change because the fingerprint of the data
# decides, not its place.
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
# Keys that count updates as a whole number or as a fraction of the run. Both become updates here.
#
# A fraction is a number between 0 and 1, such as 0.1 for a tenth of config.train.num_steps. A whole
# number, 5.0 included, counts updates.

_ROUNDING = 1e-6  # 0.1 * 30 is a little more than 3


def span(value: float, num_steps: int) -> int:
    """Returns a number of updates, such as that of a warm-up."""
    return round(value * num_steps) if 0 < value < 1 else int(value)


def interval(value: float, num_steps: int) -> int:
    """Returns the number of updates between two events.

    A third of 1,000 gives 334, not 333: the third event is then the end, not one update before it.
    """
    return max(math.ceil(value * num_steps - _ROUNDING), 1) if 0 < value < 1 else int(value)


def intervals(train, checkpoint) -> tuple[int, int]:
    """Returns the updates between evaluations, and between checkpoints."""
    return (
        interval(train.eval_every, train.num_steps),
        interval(checkpoint.every, train.num_steps),
    )


def saves_at_evaluations(train, checkpoint) -> bool:
    """Returns whether each evaluation saves a checkpoint, beside those of config.checkpoint.every.

    The best checkpoint must be one that was evaluated. Where neither interval is a multiple of the
    other, or no regular checkpoint precedes the end, evaluations therefore save one.
    """
    evaluated, saved = intervals(train, checkpoint)
    if not checkpoint.best_metric:
        return False
    return saved >= train.num_steps or bool(saved % evaluated and evaluated % saved)


def warnings(train, checkpoint, optimizer) -> list[str]:
    """Returns lines about a run that is too short for its intervals or warm-up, with remedies."""
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
# Layers of a stack, named by their numbers from 0, as in "0,2,4", or by a slice such as "::2". An
# empty text names all of them.

_NUMBERS = re.compile(r"\d+(,\d+)*|-?\d*:-?\d*(:-?[1-9]\d*)?")


def is_valid(layers: str) -> bool:
    """Returns whether a text names layers."""
    return not layers or _NUMBERS.fullmatch(layers) is not None


def chosen(layers: str, num_layers: int) -> list[int]:
    """Returns the numbers of the layers, in a stack of `num_layers`. The largest may be too large.

    A negative limit of a slice counts from the top.
    """
    if not layers:
        return list(range(num_layers))
    if ":" not in layers:
        return [int(number) for number in layers.split(",")]
    limits = (int(limit) if limit else None for limit in layers.split(":"))
    return list(range(num_layers)[slice(*limits)])


# --------------------------------------------------------------------------------------------------
# The sections of the optimizers: one for each group of parameters, and checks of their values.

_KEYS = {"name": OPTIMIZERS, "schedule": SCHEDULES}


def optimizer_sections(config) -> dict[str, Any]:
    """Returns {group: its section}; the group "" is `config.optimizer` itself.

    The section of another group is `config.optimizer` with the differences that
    `config.optimizer.groups` gives. Keys that the optimizer or schedule of the group does not use
    are not taken over. Raises UserError for a group that is malformed.
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
    """Raises UserError for the first value of an optimizer's section that can't be used."""
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
    """Raises UserError for a key that is set, and that the optimizer or schedule does not use.

    A run that is recorded is not checked, so that each run of an earlier version opens.
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
    """Returns the keys of the table `keys` that the chosen entry does not list."""
    return {key for used in keys.values() for key in used} - {*keys[section[chooser]]}


def _check_used(section, chooser: str, keys: Mapping[str, tuple[str, ...]]) -> None:
    """Raises UserError for a key that is set, and that the chosen entry does not use."""
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
# The runs whose parameters a new run begins with: `config.init_from`.
#
# It is the workdir of a run, or a mapping from prefixes of the new run's parameters: {"student":
# DIR} gives student/x the parameter x of DIR. A value may hold more keys, as in {"student": {"run":
# DIR, "part": "teacher", "layers": "::2"}}: student/x is then teacher/x of DIR, and the stacks have
# every second layer of the stacks there.


@dataclasses.dataclass(frozen=True)
class Beginning:
    """A run that gives the parameters whose names begin with a prefix."""

    prefix: str  # "": all parameters without another prefix
    run: str  # the workdir
    part: str = ""  # the prefix of these parameters in that run
    layers: str = ""  # the layers to take of each stack, such as "0,2,4" or "::2"; "": all

    def chosen(self, num_layers: int) -> list[int]:
        """Returns the numbers of the layers to take of a stack of `num_layers`."""
        return chosen(self.layers, num_layers)


def canonical(value: Any) -> str | tuple | None:
    """Returns a value of `config.init_from` as a workdir, or ((prefix, ((key, value), ...)), ...).

    Raises UserError for a value of another form.
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
    """Returns the items of a mapping, or of its form in a record."""
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
# The values of a config by key, and the changes that a resumed run may not make.


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
    """Returns the changes that a resumed run may not make, each as "key: old -> new"."""
    num_steps = old.train.num_steps
    old_values = _at_length(old, num_steps)
    new_values = _at_length(new, num_steps)
    return [
        f"{key}: {old_values.get(key)} -> {new_values.get(key)}"
        for key in sorted({*old_values, *new_values})
        if not key.startswith(MAY_CHANGE) and old_values.get(key) != new_values.get(key)
    ]


def _at_length(config: ConfigDict, num_steps: int) -> dict[str, Any]:
    """Returns `flat` with the schedule in updates: 0.1 and 100 are equal in a run of 1,000."""
    values = flat(config)
    for key in ("optimizer.warmup_steps", "optimizer.decay_steps", "optimizer.cooldown_steps"):
        if values[key] is not None:
            values[key] = span(values[key], num_steps)
    return values


# --------------------------------------------------------------------------------------------------
# Faults of a config that can be found without devices or data. `distributed.sharding` finds those
# of the mesh.


def get(config: ConfigDict, key: str):
    """Returns the value of "section.key"."""
    for part in key.split("."):
        config = config[part]
    return config


def validate(config: ConfigDict) -> None:
    """Raises UserError for the first key with a value that no training can use."""
    if not config.data.cache.strip():
        raise UserError("config.data.cache is empty: name the folder that token stores are kept in")
    for section, cls in SECTIONS.items():
        if cls is not Optimizer:  # its groups have ranges, too
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
