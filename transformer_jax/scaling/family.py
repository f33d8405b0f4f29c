"""A family of models and budgets, each run of which has an ordinary training config."""

import dataclasses
from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError

HELD_OUT = "held_out"  # the name of the run that is predicted first and trained last


@dataclasses.dataclass(frozen=True)
class Family:
    """A run for every size at every budget of compute or data.

    `flops` are budgets of equal compute (iso-FLOP; Hoffmann et al. 2022, section 3.2). `tokens` are
    budgets of equal data (Kaplan et al. 2020, section 4). A family has only one of the two.

    `base()` returns a config without a particular length. A size maps keys, such as
    "model.d_model", to values. The number of updates of a run follows from its budget, and the
    warmup is the share `warmup` of it. The learning rate schedule must end with the run, because
    the losses of runs that are cut off in the middle of a schedule are not comparable.
    """

    base: Callable[[], ConfigDict]
    sizes: Mapping[str, Mapping]  # by name
    flops: tuple[float, ...] = ()  # of a training run, as dry_run counts them
    tokens: tuple[float, ...] = ()  # target positions, padding included
    held_out: tuple[Mapping, float] | None = None  # a larger size and its budget
    warmup: float = 0.1
    # number of lines of metrics.jsonl with the training loss, each the mean since the line before
    lines: int = 25

    @property
    def names(self) -> list[str]:
        """The names of the runs, smallest budget first. The index of a run is its number."""
        return list(self._runs)

    @property
    def _runs(self) -> dict[str, tuple[Mapping, float]]:
        """{name of a run: (changes to the base config, budget)}."""
        budgets = self.flops or self.tokens
        # Names of folders, so without the sign and the zero of an exponent: 1e+09 becomes 1e9.
        by_name = {
            f"{budget:.3g}".replace("e+0", "e").replace("e+", "e"): budget for budget in budgets
        }
        if len(by_name) < len(budgets):
            raise UserError(
                f"budgets {', '.join(map(str, budgets))}: two of them are the same in three "
                "digits, by which runs are named"
            )
        return {
            f"{size}-{name}": (changes, budget)
            for name, budget in by_name.items()
            for size, changes in self.sizes.items()
        }

    def config(self, name: str) -> ConfigDict:
        """Returns the config of the run `name`, which may be "held_out".

        Raises UserError for an unknown name.
        """
        runs = self._runs | ({HELD_OUT: self.held_out} if self.held_out else {})
        changes, budget = configs.choice(name, runs)
        config = self.base()
        for key, value in changes.items():
            configs.set_key(config, key, value)
        self._set_length(config, budget)
        return config

    def _set_length(self, config: ConfigDict, budget: float) -> None:
        """Sets the number of updates, the warmup and the intervals for a budget of FLOPs or tokens.

        The run has one evaluation and one checkpoint, both at its end.
        """
        if bool(self.flops) == bool(self.tokens):
            raise UserError("a family has either flops (iso-FLOP) or tokens (Kaplan) as budgets")
        task = configs.named_class("task", config.task.name)(
            config, None, **configs.options(config.task)
        )
        # Formulas of the task, so that a budget can be divided before anything is compiled.
        row = task.flops(0) if self.flops else task.positions(0)
        steps = round(budget / row / config.train.batch)
        if steps < 2 * self.lines:
            raise UserError(
                f"a budget of {budget:.3g} is {steps} updates of {config.train.batch} rows: fewer "
                f"than {2 * self.lines}, which a curve of {self.lines} points needs"
            )
        values = {
            "train.num_steps": steps,
            # Rounded down, so that the curve has at least `lines` points.
            "train.log_every": steps // self.lines,
            "train.eval_every": steps,
            "checkpoint.every": steps,
            "checkpoint.keep": 1,
            # In proportion to the run, because the same warmup would take up most of a short one.
            "optimizer.warmup_steps": round(self.warmup * steps),
        }
        for key, value in values.items():
            configs.set_key(config, key, value)
