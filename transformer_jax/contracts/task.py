"""The contract between the training loop and a task: rows, loss and evaluations.

The loop knows neither the model nor the data. It reaches both through the three classes below, so
that a task can be added without a change to the loop.
"""

import abc
import copy
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError, build_model
from transformer_jax.layers import mup, parameters
from transformer_jax.losses import Metrics

Params = Any  # a tree of arrays
Batch = dict[str, jax.Array]
Evaluation = Callable[[Params], dict[str, float]]  # scores by name, such as bleu or f1


class EvaluationProgram(NamedTuple):
    """A compiled program that an evaluation runs during training, for an estimate of its memory.

    Attributes:
      lowered: the program, lowered for shapes.
      held: the shapes and shardings of the arrays that are on the devices beside the training state
        while the program runs, whether it reads them or not. Small arrays may be left out.
      remedy: a change to the config that lowers the memory the program needs.
    """

    lowered: jax.stages.Lowered
    held: Any
    remedy: str


class Context(NamedTuple):
    """Everything that a loss depends on besides the parameters and the rows.

    The defaults are the values for an evaluation.

    Attributes:
      rng: the PRNG key of dropout and other noise, a different one for each microbatch of each
        update; None in an evaluation.
      step: () int32, the step number, from 0; None in an evaluation.
      carry: the tree of `initial_carry`, restricted to these rows; None if the task has no carry.
      rate: () float32, the learning rate of `config.optimizer` at the update; 0 in an evaluation.
      train: whether this is the training loss, with dropout and label smoothing.
      memory: for `experience` only, the memory that the previous step returned; None if the task
        has none.
    """

    rng: jax.Array | None = None
    step: jax.Array | None = None
    carry: Any = None
    rate: jax.Array | float = 0.0
    train: bool = False
    memory: Any = None


class Loss(NamedTuple):
    """The loss of some rows.

    Sums rather than means, because the denominators are known only for the whole global batch:
    microbatches and devices hold different numbers of target tokens, so a mean of their means would
    weight these tokens unequally.

    Attributes:
      terms: {name: sum over the rows}, with the same names as `coefficients` and `weights`.
      metrics: sums and counts. "filled" is (the number of target positions that are not padding,
        the number of all target positions).
      carry: the carry after these rows, with the structure of `Context.carry`.
    """

    terms: dict[str, jax.Array]
    metrics: Metrics
    carry: Any = None


class TrainRows(Protocol):
    def row_shape(self, step: int) -> int:
        """Returns the index of the shape of the rows of update `step`, below `num_row_shapes`."""

    def size(self, step: int) -> int:
        """Returns the number of rows of update `step`."""

    def batch(self, step: int, indices: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns the rows at `indices` within the batch of update `step`.

        A host asks only for the rows that its own devices read.
        """


class EvalRows(Protocol):
    def num_batches(self, batch: int) -> int:
        """Returns the number of batches of `batch` rows."""

    def batch(self, step: int, indices: Sequence[int], batch: int) -> dict[str, np.ndarray]:
        """Returns the rows at `indices` within batch number `step` of `batch` rows.

        Indices beyond the last row give rows of weight 0, so that all batches have one shape and
        the evaluation compiles once.
        """


class Rows(Protocol):
    train: TrainRows
    eval: Mapping[str, EvalRows]  # by name, such as "valid"


class Objective(abc.ABC):
    """What is trained, and on what: the rows, their loss, and the evaluations.

    All methods are pure functions of their arguments. A method that is not abstract is optional,
    and its default is defined here.
    """

    config: ConfigDict
    coefficients: dict[str, float]  # the factor of each loss term
    # The number of shapes that rows have: one for each phase of a run, or one for each length
    # bucket. If the data decides the bucket of an update, shape 0 must have the longest rows.
    num_row_shapes: int = 1
    phase_steps: Sequence[int] | None = None  # updates of each phase; None: the run has one phase
    model: Any  # the Linen module
    tokenizer: Any = None  # has save(folder) and fingerprint(); None: the data is not text
    reads_source: bool = False  # reads the records of `config.source` instead of `config.data`
    modality: str | None = "tokens"  # of the inputs of config.model; None: of any
    # Whether the gradients of a batch are sums over its rows. If so, groups of rows are computed
    # separately, and their gradients are reduced over the devices only once per update.
    sums_over_rows: bool = True
    evaluates_rows: bool = True  # whether the mean loss of `Rows.eval` is measured
    # The metrics of `loss` that the progress line shows. metrics.jsonl holds all of them.
    progress_metrics: tuple[str, ...] = ("loss",)
    # The program, with flags, that a run names at its end; "": what its methods suggest
    program: str = ""
    attentions: tuple[str, ...] = ()  # the kinds of attention that `draw attention` can draw
    # Optional: (params, texts) -> a matplotlib figure of the results of the run, such as the
    # contacts of a protein, for `draw result`. `texts` are the values of --text, possibly none.
    result: Callable[[Params, Sequence[str]], Any] | None = None

    @abc.abstractmethod
    def fingerprint(self) -> dict:
        """Returns a JSON-compatible description of the content of the data and the tokenizer.

        A run is resumed only if its fingerprint is unchanged, because it would otherwise continue
        on other data without notice. The key "tokenizer" describes the tokenizer.
        """

    @abc.abstractmethod
    def batch_spec(self, row_shape: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes (rows, ...) of a batch of rows of that shape.

        Opens no file, so that a run can be planned on a machine without its data.
        """

    @abc.abstractmethod
    def init(self, rng: jax.Array) -> Params:
        """Returns the initial parameters, boxed with their logical axes."""

    @functools.cached_property
    def param_shapes(self) -> Params:
        """The shapes and dtypes of the parameters of `init`, boxed likewise. Computes nothing."""
        return jax.eval_shape(self.traced_init, jax.random.key(0))

    @functools.cached_property
    def traced_init(self) -> Callable[[jax.Array], Params]:
        """`init`, jitted. JAX traces it once for the shapes and for the initial parameters.

        With muP, it gives the parameters their variances.
        """
        if not self.config.optimizer.base:
            return jax.jit(self.init)
        return jax.jit(functools.partial(mup.initialized, self.init, self._base().init))

    @functools.cached_property
    def growths(self) -> Mapping[tuple[str, ...], mup.Growth]:
        """The growth of each parameter since the base of muP, by path; empty without muP."""
        if not self.config.optimizer.base:
            return {}
        base = self._base()
        mup.check_output(self.model, base.model)
        found = mup.growths(self.param_shapes, base.param_shapes)
        if base.model != self.model and not any(growth.grows for growth in found.values()):
            raise UserError(
                f"config.optimizer.base={dict(self.config.optimizer.base)}: no parameter grows"
            )
        return found

    def _base(self) -> "Objective":
        """Returns this task with a model of the widths of `config.optimizer.base`."""
        if not self.model.has_mup:
            raise UserError(
                f"config.optimizer.base: muP does not know config.model.name="
                f"{self.config.model.name!r}"
            )
        base = copy.copy(self)
        for name in ("param_shapes", "traced_init", "growths"):
            vars(base).pop(name, None)  # they are of the wide model
        base.config = ConfigDict(self.config).copy_and_resolve_references()
        widths = dict(self.config.optimizer.base)
        base.config.model.update(widths)
        with base.config.optimizer.unlocked():
            base.config.optimizer.base = ()
        base.model = self.model.clone(**widths)
        try:
            build_model(base.config)  # to raise its errors
        except UserError as error:
            raise UserError(f"config.optimizer.base={widths}: {error}") from None
        return base

    def parameter_counts(self) -> dict[str, int]:
        """Returns the number of parameters, without rows that only pad a vocabulary.

        Keys are those of the output of `dry_run`: "params", for a model with pre-training heads
        also "params_heads" and "params_encoder", and if some parameters are frozen
        "params_trained".
        """
        params = nn.unbox(self.param_shapes)
        model = getattr(self, "model", None)  # a task of one's own may compute without one
        counts = {"params": _size(params) - (model.num_padding() if model else 0)}
        if heads := [name for name in (model.heads if model else ()) if name in params]:
            counts["params_heads"] = sum(_size(params[name]) for name in heads)
            counts["params_encoder"] = counts["params"] - counts["params_heads"]
        trained, frozen = parameters.split(params, lambda path: self.group(path) is None)
        if frozen:
            counts["params_trained"] = _size(trained)
        return counts

    @abc.abstractmethod
    def rows(self) -> Rows:
        """Returns the rows of all splits. The first call builds them."""

    def words_read(self, step: int) -> float:
        """Returns how many words of the training text the updates before `step` have read.

        Raises UserError if the task reads no text.
        """
        raise UserError(
            f"config.task.name={self.config.task.name!r} reads no text whose words could be counted"
        )

    @abc.abstractmethod
    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the denominator of each loss term, summed over the whole global batch.

        It depends on the batch alone, so that it is known before the first microbatch is computed.
        """

    @abc.abstractmethod
    def loss(self, params: Params, batch: Batch, context: Context) -> Loss:
        """Returns the loss terms and the metrics of a batch, as sums over its rows."""

    def initial_carry(self, rows: int) -> Any:
        """Returns the carry of `rows` rows at the start of their streams, arrays (rows, ...).

        A carry is passed from each update to the next. It is part of the training state, and hence
        of checkpoints. None: the task has no carry.
        """
        return None

    def group(self, path: tuple[str, ...]) -> str | None:
        """Returns the optimizer group of the parameter at this path.

        "" is `config.optimizer` itself, and any other name is one of `config.optimizer.groups`.
        None freezes the parameter, so that no update changes it. The default is the model's group,
        or None for embeddings that `config.train.freeze_vectors` freezes.
        """
        if self.config.train.freeze_vectors and "/".join(path) == self.model.word_table:
            return None
        return self.model.group(path) if self.config.optimizer.groups else ""

    def depth(self, path: tuple[str, ...]) -> int | None:
        """Returns the depth of a parameter's layer, for `config.optimizer.layer_decay`.

        The default is the model's depth: see `Model.depth`.
        """
        return self.model.depth(path)

    def derived(self, name: str, means: Mapping[str, float]) -> dict[str, float]:
        """Returns scores computed from the mean metrics of the evaluation set `name`."""
        return {}

    def evaluations(self) -> Mapping[str, Evaluation]:
        """Returns further evaluations during training, by the name of the evaluation set.

        They are called on all processes, with the parameters as they are sharded in training. Each
        process must run the same programs in the same order, through `distributed.hosts.run`,
        because a program with collectives waits for all processes.
        """
        return {}

    def evaluation_programs(self, params: Params) -> Mapping[str, EvaluationProgram]:
        """Returns the programs of `evaluations` that need the most memory, by name.

        `params` holds the shapes, dtypes and shardings of the parameters in the training state.
        Opens no file.
        """
        return {}

    @abc.abstractmethod
    def evaluate(self, params: Params, split: str) -> dict[str, float | str]:
        """Returns all scores of a split ("valid" or "test") of a finished run."""

    @abc.abstractmethod
    def flops(self, row_shape: int) -> float:
        """Returns the FLOPs of a step per row: forward and backward pass, padding included."""

    @abc.abstractmethod
    def positions(self, row_shape: int) -> int:
        """Returns the number of target positions of a row, padding included."""


def _size(tree: Params) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


# --------------------------------------------------------------------------------------------------
# On-policy learning: the model learns from rollouts that it generates within the training step.
#
# This is done within the step, so that the rollouts come from the current parameters, which need
# not leave their mesh.


class OnPolicy:
    """The part of a task that learns from rollouts of its own model. By default, there are none."""

    # (epochs, minibatches) over the batch of a step, with one optimizer update per minibatch. The
    # rows are shuffled in each epoch.
    passes: tuple[int, int] = (1, 1)
    # Optional: (params, batch, context) -> (batch, memory). It runs once per step, on the whole
    # global batch. `weights` and `loss` receive the batch that it returns, such as rollouts with
    # their rewards, and the experience of the next step receives the memory.
    experience: Callable[[Params, Batch, Context], tuple[Batch, Any]] | None = None
    # Optional: (params, batch, context) -> rollouts, arrays (rows, ...), for rewards that are
    # computed in Python. A step then consists of two compiled programs, between which each host
    # calls `scored` with its own rollouts, because a reward in plain Python can't be compiled. This
    # function is the first program. In the second, `experience` receives all rollouts with
    # "rewards" (rows,).
    rollouts: Callable[[Params, Batch, Context], Batch] | None = None

    def scored(self, rollouts: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the rewards (rows,) of rollouts, for a task that has `rollouts`.

        It must be a pure function, so that a resumed run computes the same rewards again.
        """
        raise NotImplementedError

    def initial_memory(self) -> Any:
        """Returns the memory that the first `experience` receives: a tree of small arrays.

        The memory is part of the training state and replicated on all devices. None: the task has
        no memory.
        """
        return None


# --------------------------------------------------------------------------------------------------
# Warm starts: the earlier runs from which the parameters are initialized.
#
# A task declares them and does not load them, because the keys of its config depend on those runs
# before any parameters exist.


class Pretrained:
    """The part of a task that starts from earlier runs. By default, a run starts from none."""

    # config.model is that of the run in config.init_from, with the keys that the config changes
    takes_model: bool = False
    fine_tunes: bool = False  # puts a head of its own on that model
    # Another task as whose Hugging Face checkpoints the runs of this task are written: see
    # huggingface/
    written_as: str = ""
    # Parts of the parameters that the task adds to a model, such as "head". They are trained in
    # full where `config.lora` trains adapters of the model, because they have no pre-trained values
    # that an adapter could correct.
    heads: tuple[str, ...] = ()
    # Keys of config.task that name further runs, such as "teacher". The subtree "teacher" of the
    # parameters then holds the parameters of that run, and config.task.teacher_model the keys of
    # its config.model.
    other_runs: tuple[str, ...] = ()
    # Whether config.init_from must name a run, besides `other_runs`
    begins_with_run: bool = False
    # Optional: params -> params. It runs before each evaluation, on all processes, and fills in the
    # parameters that are measured over data instead of learned, such as a mean of outputs. These
    # must belong to `heads`, and no training loss may depend on them.
    calibrated: Callable[[Params], Params] | None = None

    @classmethod
    def new_tokens(cls, config: ConfigDict, earlier: Any) -> int:
        """Returns the number of tokens that this task adds to the vocabulary of a run.

        It is called for tasks with `takes_model`. `earlier` is the record (runs/spec.py) of the run
        that this run starts from or resumes, and `config` holds the model of that run.
        """
        return 0

    def merged(self, params: Params) -> Params:
        """Returns the parameters with which a trained run is used, given those of a checkpoint.

        They are the same, except that adapters are merged into their matrices. The parameters are
        arrays on a mesh, and all processes call this method.
        """
        return params


class Task(Pretrained, OnPolicy, Objective):
    """A task of `config.task`: an objective, its rollouts, and the runs that it starts from.

    The training loop, the evaluations and the programs use a task through these three contracts
    only.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Otherwise the decorator of a dataclass would define one that prints the whole config.
        if "__repr__" not in vars(cls):
            cls.__repr__ = Task.__repr__

    def __repr__(self) -> str:
        """Returns a few lines: the task, its model with its size, its tokenizer and its uses."""
        config, tokenizer = self.config, self.tokenizer
        lines = [
            f"task       {config.task.name} ({type(self).__name__})",
            f"model      {config.model.name}, {self.parameter_counts()['params']:,} parameters",
        ]
        if tokenizer is not None:
            lines.append(f"tokenizer  {type(tokenizer).__name__}, {tokenizer.vocab_size:,} tokens")
        uses = [name for name in dir(type(self)) if self._is_use(name)]
        text = f"methods    {', '.join(uses)}"
        return "\n".join([*lines, *textwrap.wrap(text, 100, subsequent_indent=" " * 11)])

    def _is_use(self, name: str) -> bool:
        """Whether a method is for those who use a trained run, `method(params, ...)`."""
        # That of the class is looked at first, so that no property is computed.
        method = None if name.startswith("_") else getattr(type(self), name)
        if hasattr(Task, name) or not (
            inspect.isfunction(method) and callable(getattr(self, name))
        ):
            return False
        return [*inspect.signature(method).parameters][1:2] == ["params"]

    @classmethod
    def missing(cls) -> list[str]:
        """Returns the methods of the contract that a task does not define."""
        return sorted(cls.__abstractmethods__)


def check_class(cls: type, file: str) -> None:
    """Raises UserError for a class that is not a task or lacks a method of the contract."""
    if not issubclass(cls, Task):
        raise UserError(
            f"{file}: the class {cls.__name__} must derive from BaseTask "
            "(transformer_jax.objectives.texts) or FineTuning (transformer_jax.finetuning.base)"
        )
    if missing := cls.missing():
        raise UserError(
            f"{file}: the class {cls.__name__} is a task and lacks the method {missing[0]!r}"
        )
