"""The updates at which a run logs, evaluates and saves."""

import dataclasses

from transformer_jax.configuration import run_length


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Numbers of updates. Each interval also ends with the `last` update."""

    last: int
    log_every: int
    eval_every: int
    save_every: int
    saves_evaluated: bool  # whether a checkpoint is saved after each evaluation

    @classmethod
    def of(cls, config) -> "Intervals":
        eval_every, save_every = run_length.intervals(config)
        return cls(
            last=config.train.num_steps,
            log_every=config.train.log_every,
            eval_every=eval_every,
            save_every=save_every,
            saves_evaluated=run_length.saves_at_evaluations(config),
        )

    def logs(self, step: int) -> bool:
        return step == self.last or step % self.log_every == 0

    def evaluates(self, step: int) -> bool:
        return step == self.last or step % self.eval_every == 0

    def saves(self, step: int, evaluated: bool) -> bool:
        """`evaluated`: whether the run was evaluated after this update."""
        saves_evaluation = evaluated and self.saves_evaluated
        return step == self.last or step % self.save_every == 0 or saves_evaluation
