"""A family of models and budgets, described once, as ordinary training configs."""

import dataclasses
from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError

HELD_OUT = "held_out"  # name of the run that is predicted before it is trained


@dataclasses.dataclass(frozen=True)
class Family:
    """Every size at every budget: at equal compute (`flops`: iso-FLOP, Hoffmann et al. 2022,
    section 3.2) or at equal data (`tokens`: Kaplan et al. 2020, section 4).

    `base()` gives what the runs share: the config of a run of any length. A size is what it changes
    there, by key ("model.d_model"). The length of a run follows from its budget; its warm-up is
    `warmup` of it, and its schedule, as in every config, ends with it (without that the losses
    would not compare).
    """

    base: Callable[[], ConfigDict]
    sizes: Mapping[str, Mapping]  # by name
    flops: tuple[float, ...] = ()  # of a training: the model's own, as dry_run counts them
    tokens: tuple[float, ...] = ()  # target positions, padding included
    held_out: tuple[Mapping, float] | None = None  # a larger size and its budget
    warmup: float = 0.1
    # of a run's metrics.jsonl, on the training loss; each is the mean since the one before
    lines: int = 25

    @property
    def names(self) -> list[str]:
        """Of the runs, the smallest budget first; a run's number is its place here."""
        return list(self._runs)

    @property
    def _runs(self) -> dict[str, tuple[Mapping, float]]:
        budgets = {
            f"{budget:.3g}".replace("e+0", "e").replace("e+", "e"): budget
            for budget in self.flops or self.tokens
        }
        if len(budgets) < len(self.flops or self.tokens):
            raise UserError(
                f"budgets {', '.join(map(str, self.flops or self.tokens))}: two of them are the same in three digits, by which runs are named"
            )
        return {
            f"{size}-{shown}": (changes, budget)
            for shown, budget in budgets.items()
            for size, changes in self.sizes.items()
        }

    def config(self, name: str) -> ConfigDict:
        """The config of the run `name`, or of "held_out". Raises UserError for an unknown name."""
        runs = self._runs | ({HELD_OUT: self.held_out} if self.held_out else {})
        changes, budget = configs.choice(name, runs)
        config = self.base()
        for key, value in changes.items():
            configs.set_key(config, key, value)
        self._set_length(config, budget)
        return config

    def _set_length(self, config: ConfigDict, budget: float) -> None:
        """Updates, warm-up and intervals for a budget of FLOPs or tokens; one checkpoint half way,
        one evaluation at the end.
        """
        if bool(self.flops) == bool(self.tokens):
            raise UserError("a family has either flops (iso-FLOP) or tokens (Kaplan) as budgets")
        task = configs.named_class("task", config.task.name)(
            config, None, **configs.options(config.task)
        )
        row = task.flops(0) if self.flops else task.positions(0)
        steps = round(budget / row / config.train.batch)
        if steps < 2 * self.lines:
            raise UserError(
                f"a budget of {budget:.3g} is {steps} updates of {config.train.batch} rows: fewer than {2 * self.lines}, which a curve of {self.lines} points needs"
            )
        for key, value in {
            "train.num_steps": steps,
            "train.log_every": steps // self.lines,
            "train.eval_every": steps,
            "checkpoint.every": steps,
            "checkpoint.keep": 1,
            "optimizer.warmup_steps": round(self.warmup * steps),
        }.items():
            configs.set_key(config, key, value)
