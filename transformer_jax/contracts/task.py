"""The contract between the training loop and a task: rows, loss and evaluations.

The loop knows neither the model nor the data.
"""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.metrics import Metrics

Params = Any  # a tree of arrays
Batch = dict[str, jax.Array]
Evaluation = Callable[[Params], dict[str, float]]  # scores by name, such as bleu or f1


class EvaluationProgram(NamedTuple):
    """A program of an evaluation during training, for an estimate of its memory.

    Attributes:
      lowered: the program, lowered for shapes.
      held: the arrays on the devices beside the training state, shapes with shardings: those that
        the program reads, and others that wait for it. Small ones may be left out.
      remedy: a change of the config with which it needs less memory.
    """

    lowered: jax.stages.Lowered
    held: Any
    remedy: str


class Context(NamedTuple):
    """All that a loss depends on beside parameters and rows. By default that of an evaluation.

    Attributes:
      rng: the key of dropout and other noise, one for each microbatch of each update; None in an
        evaluation.
      step: () int32, the number of the step, from 0; None in an evaluation.
      carry: the rows' part of `initial_carry`'s tree; None where the task has none.
      rate: () float32, the learning rate of `config.optimizer` at the update; 0 in an evaluation.
      train: whether the loss is that of training, with dropout and label smoothing.
      memory: for `experience` alone, as the step before left it; None where the task has none.
    """

    rng: jax.Array | None = None
    step: jax.Array | None = None
    carry: Any = None
    rate: jax.Array | float = 0.0
    train: bool = False
    memory: Any = None


class Loss(NamedTuple):
    """The loss of some rows.

    Attributes:
      terms: {name: sum over the rows}. `coefficients` and `weights` have the same names.
      metrics: sums and counts. "filled" is (target positions without padding, all of them).
      carry: as in the context, after these rows.
    """

    terms: dict[str, jax.Array]
    metrics: Metrics
    carry: Any = None


class TrainRows(Protocol):
    def row_shape(self, step: int) -> int:
        """Returns the number of the shape of update `step`'s rows, below `num_row_shapes`."""

    def size(self, step: int) -> int:
        """Returns the number of rows of update `step`."""

    def batch(self, step: int, places: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns the rows at `places` of the batch of update `step`."""


class EvalRows(Protocol):
    def num_batches(self, batch: int) -> int:
        """Returns the number of batches of `batch` rows."""

    def batch(self, step: int, places: Sequence[int], batch: int) -> dict[str, np.ndarray]:
        """Returns the rows at `places` of the batch number `step` of `batch` rows.

        Places beyond the last row hold rows of weight 0.
        """


class Rows(Protocol):
    train: TrainRows
    eval: Mapping[str, EvalRows]  # by name, such as "valid"


class Objective(abc.ABC):
    """What is trained, and on what: rows, their loss, and evaluations.

    All methods are pure functions of their arguments. One that is not abstract is optional; here is
    its default.
    """

    config: ConfigDict
    coefficients: dict[str, float]  # factor of each loss term
    # The number of shapes that rows have: one for each phase of a run, or for each bucket of
    # lengths. Where the data decides the bucket of an update, shape 0 has the longest rows.
    num_row_shapes: int = 1
    phase_steps: Sequence[int] | None = None  # updates of each phase; None: the run has one phase
    model: Any  # the Linen module
    tokenizer: Any = None  # has save(folder) and fingerprint(); None: the data are no text
    reads_source: bool = False  # reads the records of `config.source`, else `config.data`
    modality: Literal["tokens", "images", "sound"] = "tokens"  # of the inputs of config.model
    # Whether the gradients of a batch are sums over its rows. Parts of the batch are then computed
    # separately, and their gradients added.
    sums_over_rows: bool = True
    evaluates_rows: bool = True  # the mean loss of `Rows.eval` is measured, where there are such
    # Optional: (params, texts) -> a figure of matplotlib, for `draw result`. `texts` are those
    # of --text, or none. It shows the results of the run, such as the contacts of a protein.
    result: Callable[[Params, Sequence[str]], Any] | None = None

    @abc.abstractmethod
    def fingerprint(self) -> dict:
        """Returns a description of the content of data and tokenizer, for JSON.

        A run continues only with an equal fingerprint. The key "tokenizer" describes the tokenizer.
        """

    @abc.abstractmethod
    def batch_spec(self, row_shape: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes (rows, ...) of a batch of rows of that shape. Opens no file."""

    @abc.abstractmethod
    def init(self, rng: jax.Array) -> Params:
        """Returns initial parameters, boxed with their logical axes."""

    @functools.cached_property
    def param_shapes(self) -> Params:
        """The shapes and dtypes of `init`'s parameters, boxed alike. Computes nothing."""
        return jax.eval_shape(self.init, jax.random.key(0))

    @abc.abstractmethod
    def rows(self) -> Rows:
        """Returns the data. The first call builds it."""

    @abc.abstractmethod
    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns the denominator of each loss term, summed over the whole global batch."""

    @abc.abstractmethod
    def loss(self, params: Params, batch: Batch, context: Context) -> Loss:
        """Returns the sums of the loss terms and the metrics over the rows of a batch."""

    def initial_carry(self, rows: int) -> Any:
        """Returns the carry of `rows` rows where their streams begin, arrays (rows, ...).

        A carry passes from each update to the next, and lies in the state. None: the task has none.
        """
        return None

    def group(self, path: tuple[str, ...]) -> str | None:
        """Returns the group of the parameter at this path, which decides its optimizer.

        "" is `config.optimizer` itself, a name one of `config.optimizer.groups`. None freezes the
        parameter: no update changes it. The default is the model's group, and None for embeddings
        that `config.train.freeze_vectors` freezes.
        """
        if self.config.train.freeze_vectors and "/".join(path) == self.model.word_table:
            return None
        return self.model.group(path) if self.config.optimizer.groups else ""

    def depth(self, path: tuple[str, ...]) -> int | None:
        """Returns the place of a parameter's layer, for `config.optimizer.layer_decay`.

        The default is the model's: see `Model.depth`.
        """
        return self.model.depth(path)

    def derived(self, name: str, means: Mapping[str, float]) -> dict[str, float]:
        """Returns scores that follow from the mean metrics of the evaluation set `name`."""
        return {}

    def evaluations(self) -> Mapping[str, Evaluation]:
        """Returns further evaluations during training, by the name of the evaluation set.

        They get the parameters as they are sharded in training, on all processes. Each process runs
        the same programs in the same order, through `distributed.hosts.run`.
        """
        return {}

    def evaluation_programs(self, params: Params) -> Mapping[str, EvaluationProgram]:
        """Returns the programs of `evaluations` that need the most memory, by name.

        `params` has the shapes, dtypes and shardings of the training state's. Opens no file.
        """
        return {}

    @abc.abstractmethod
    def evaluate(self, params: Params, split: str) -> dict[str, float | str]:
        """Returns all scores of a split ("valid" or "test") of a finished run."""

    @abc.abstractmethod
    def flops(self, row_shape: int) -> float:
        """Returns the FLOPs of a step per row: forward and backward, padding included."""

    @abc.abstractmethod
    def positions(self, row_shape: int) -> int:
        """Returns the number of target positions of a row, padding included."""


# --------------------------------------------------------------------------------------------------
# What the model learns from: rollouts that it writes itself, in the compiled step.


class OnPolicy:
    """The part of a task whose model learns from its own rollouts. By default there are none."""

    # (epochs, minibatches) over the batch of a step, each with an update of the optimizer. The rows
    # of each epoch are shuffled.
    passes: tuple[int, int] = (1, 1)
    # Optional: (params, batch, context) -> (batch, memory). It runs once a step, on the whole
    # global batch. `weights` and `loss` get the batch that it returns, such as rollouts with their
    # rewards. The memory is for the experience of the next step.
    experience: Callable[[Params, Batch, Context], tuple[Batch, Any]] | None = None
    # Optional: (params, batch, context) -> rollouts, arrays (rows, ...), where the rewards are
    # computed by Python. A step is then two compiled programs. The first one is this function. Each
    # host calls `scored` with its rollouts. `experience` gets them all, with "rewards" (rows,).
    rollouts: Callable[[Params, Batch, Context], Batch] | None = None

    def scored(self, rollouts: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the rewards (rows,) of rollouts, for a task that has these. A pure function."""
        raise NotImplementedError

    def initial_memory(self) -> Any:
        """Returns what the first `experience` gets of the step before: a tree of small arrays.

        It lies in the state, whole on each device. None: the task has none.
        """
        return None


# --------------------------------------------------------------------------------------------------
# What the model begins with: the runs before this one.


class Pretrained:
    """The part of a task that begins with earlier runs. By default, a run begins with none."""

    # config.model is that of the run in config.init_from, with the keys that the config changes
    takes_model: bool = False
    fine_tunes: bool = False  # puts a head of its own on that model
    # A task whose checkpoints of Hugging Face hold the runs of this one, too: see huggingface/
    written_as: str = ""
    # Parts of the parameters that the task puts on a model, such as "head". They are trained whole
    # where `config.lora` trains adapters of the model.
    heads: tuple[str, ...] = ()
    # Keys of config.task that name further runs, such as "teacher". The parameters below "teacher"
    # are those of that run. config.task.teacher_model holds the keys of its config.model.
    other_runs: tuple[str, ...] = ()
    # Whether config.init_from must name a run, besides `other_runs`
    begins_with_run: bool = False
    # Optional: params -> params. It runs before each evaluation, on all processes. It returns the
    # parameters with those that are measured over data, not learned, such as a mean of outputs.
    # These belong to `heads`, and no training loss may depend on them.
    calibrated: Callable[[Params], Params] | None = None

    @classmethod
    def new_tokens(cls, config: ConfigDict, earlier: Any) -> int:
        """Returns the number of tokens that this task adds to the vocabulary of a run.

        For tasks with `takes_model`. `earlier` is the record of the run that the task begins with,
        or continues (runs/spec.py). `config` has the model of that run.
        """
        return 0

    def merged(self, params: Params) -> Params:
        """Returns the parameters that a use of the run reads, from those of a checkpoint.

        They are the same, but for adapters, which are merged into their matrices. The parameters
        are arrays on a mesh, and all processes call it.
        """
        return params


class Task(Pretrained, OnPolicy, Objective):
    """A task of `config.task`: an objective, its rollouts, and the runs that it begins with.

    The training loop, evaluations and the programs know a task by these three alone.
    """

    @classmethod
    def missing(cls) -> list[str]:
        """Returns the methods of the contract that a task does not define."""
        return sorted(cls.__abstractmethods__)


def check_class(cls: type, file: str) -> None:
    """Raises UserError for a class that is no task, or that lacks a method of the contract."""
    if not issubclass(cls, Task):
        raise UserError(
            f"{file}: the class {cls.__name__} must derive from BaseTask "
            "(transformer_jax.objectives.texts) or FineTuning (transformer_jax.finetuning.base)"
        )
    if missing := cls.missing():
        raise UserError(
            f"{file}: the class {cls.__name__} is a task and lacks the method {missing[0]!r}"
        )
