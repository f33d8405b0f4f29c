"""The learning rate of a run that resumes with another length."""

from transformer_jax.configuration import run_length
from transformer_jax.configuration.sections import SCHEDULES
from transformer_jax.training import optimizer


def rate_line(recorded, config, step: int, skipped: int) -> str | None:
    """A line about the learning rate of a run that resumes after update number `step`.

    `recorded` is the recorded config. `skipped` of the updates were not applied. Returns None where
    the length of the run is the same.
    """
    old_length = recorded.train.num_steps
    new_length = config.train.num_steps
    if old_length == new_length:
        return None
    old = _rate(recorded, step - skipped)
    new = _rate(config, step - skipped)
    change = f"is {new:.3g} instead of {old:.3g}" if new != old else f"stays {new:.3g}"
    return (
        f"config.train.num_steps {old_length:,} -> {new_length:,}: "
        f"{_moved_ends(recorded, config)}the learning rate at update {step + 1:,} {change}"
    )


def _rate(config, count: int) -> float:
    """The learning rate after `count` applied updates."""
    return float(optimizer.schedule(config.optimizer, config.train.num_steps)(count))


def _moved_ends(recorded, config) -> str:
    """The parts of the schedule that end at another update than before; empty if none do."""
    line = ""
    old, new = _end(recorded, "warmup_steps"), _end(config, "warmup_steps")
    if old != new:
        line += f"the warm-up now ends at {new:,} instead of {old:,}; "
    schedule = config.optimizer.schedule
    old, new = _end(recorded, "decay_steps"), _end(config, "decay_steps")
    if "decay_steps" in SCHEDULES[schedule] and old != new:
        line += f"the {schedule} schedule now ends at {new:,} instead of {old:,}; "
    return line


def _end(config, key: str) -> int:
    value = config.optimizer[key]
    num_steps = config.train.num_steps
    return num_steps if value is None else run_length.span(value, num_steps)
