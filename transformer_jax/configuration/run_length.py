"""Keys that count updates, as a whole number or a fraction of the run: both become updates here.

A fraction is a number between 0 and 1, such as 0.1 for a tenth of config.train.num_steps.
A whole number, 5.0 included, counts updates.
"""

import math

from transformer_jax.configuration.errors import UserError

_ROUNDING = 1e-6  # 0.1 * 30 is a little more than 3


def span(value: float, num_steps: int) -> int:
    """Returns a number of updates, such as that of a warm-up."""
    return round(value * num_steps) if 0 < value < 1 else int(value)


def check(key: str, value: float | None, least: int = 1) -> None:
    """Raises UserError where `config.<key>` is no number of updates that is at least `least`."""
    if value is None:
        return
    if value < least and not 0 < value < 1:
        bound = f"be at least {least}" if least else "not be negative"
        raise UserError(
            f"config.{key}={value}: must {bound}, or a fraction of the run between 0 and 1"
        )
    if value >= 2**31:
        raise UserError(f"config.{key}={value}: sizes and updates are counted up to 2^31 - 1")


def interval(value: float, num_steps: int) -> int:
    """Returns the number of updates between two events.

    A third of 1,000 gives 334, not 333: the third event is then the end, not one update before it.
    """
    return max(math.ceil(value * num_steps - _ROUNDING), 1) if 0 < value < 1 else int(value)


def intervals(config) -> tuple[int, int]:
    """Returns the updates between evaluations, and between checkpoints."""
    num_steps = config.train.num_steps
    return (
        interval(config.train.eval_every, num_steps),
        interval(config.checkpoint.every, num_steps),
    )


def saves_at_evaluations(config) -> bool:
    """Returns whether each evaluation saves a checkpoint, beside those of config.checkpoint.every.

    The best checkpoint must be one that was evaluated. Where neither interval is a multiple of the
    other, or no regular checkpoint precedes the end, evaluations therefore save one.
    """
    evaluated, saved = intervals(config)
    if not config.checkpoint.best_metric:
        return False
    return saved >= config.train.num_steps or bool(saved % evaluated and evaluated % saved)


def warnings(config) -> list[str]:
    """Returns lines about a run that is too short for its intervals or warm-up, with remedies."""
    num_steps = config.train.num_steps
    evaluated, saved = intervals(config)
    warmup = span(config.optimizer.warmup_steps, num_steps)
    lines, states, flags = [], [], []
    if evaluated >= num_steps:
        states.append(f"is evaluated at its end alone (config.train.eval_every={evaluated})")
        flags.append("--config.train.eval_every=0.1")
    if saved >= num_steps and (evaluated >= num_steps or not saves_at_evaluations(config)):
        minutes = config.checkpoint.minutes
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
