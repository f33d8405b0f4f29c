"""The learning rate of a run that resumes with another length."""

from transformer_jax.configuration import run_length
from transformer_jax.configuration.sections import SCHEDULES
from transformer_jax.training import optimizer


def rate_line(
    recorded, config, updates: int, skipped: int, updates_per_step: int = 1
) -> str | None:
    """A line about the learning rate of a run that resumes after update number `updates`.

    `recorded` is the recorded config. `skipped` of the updates were not applied. Returns None where
    the length of the run is the same.
    """
    old_length = recorded.train.num_steps
    new_length = config.train.num_steps
    if old_length == new_length:
        return None
    old = _rate(recorded, updates - skipped, updates_per_step)
    new = _rate(config, updates - skipped, updates_per_step)
    change = f"is {new:.3g} instead of {old:.3g}" if new != old else f"stays {new:.3g}"
    return (
        f"config.train.num_steps {old_length:,} -> {new_length:,}: "
        f"{_moved_ends(recorded, config, updates_per_step)}"
        f"the learning rate at update {updates + 1:,} {change}"
    )


def _rate(config, count: int, updates_per_step: int) -> float:
    """The learning rate after `count` applied updates."""
    num_updates = config.train.num_steps * updates_per_step
    return float(optimizer.schedule(config.optimizer, num_updates)(count))


def _moved_ends(recorded, config, updates_per_step: int) -> str:
    """The parts of the schedule that end at another update than before; empty if none do."""
    line = ""

    def ends(key: str) -> tuple[int, int]:
        return _end(recorded, key, updates_per_step), _end(config, key, updates_per_step)

    old, new = ends("warmup_steps")
    if old != new:
        line += f"the warm-up now ends at {new:,} instead of {old:,}; "
    schedule = config.optimizer.schedule
    old, new = ends("decay_steps")
    if "decay_steps" in SCHEDULES[schedule] and old != new:
        line += f"the {schedule} schedule now ends at {new:,} instead of {old:,}; "
    return line


def _end(config, key: str, updates_per_step: int) -> int:
    value = config.optimizer[key]
    num_updates = config.train.num_steps * updates_per_step
    return num_updates if value is None else run_length.span(value, num_updates)
