"""What becomes of the learning rate where a resumed run is longer or shorter than it was."""

from transformer_jax.configuration import run_length
from transformer_jax.training import optimizer


def rate_line(before, config, step: int, skipped: int) -> str | None:
    """One line for a run that goes on after update `step`; None where its length stays.

    `before` is the recorded config; of `step` updates, `skipped` were not applied.
    """
    lengths = [one.train.num_steps for one in (before, config)]
    if lengths[0] == lengths[1]:
        return None
    old, new = (
        float(optimizer.schedule(one.optimizer, one.train.num_steps)(step - skipped))
        for one in (before, config)
    )
    now = f"is {new:.3g} instead of {old:.3g}" if new != old else f"stays {new:.3g}"
    return (
        f"config.train.num_steps {lengths[0]:,} -> {lengths[1]:,}: "
        f"{''.join(_moved(before, config))}the learning rate at update {step + 1:,} {now}"
    )


def _moved(before, config) -> list[str]:
    """The parts of the schedule that end at another update than before."""
    parts = []
    warmup, decay = (
        [_end(one, key) for one in (before, config)] for key in ("warmup_steps", "decay_steps")
    )
    if warmup[0] != warmup[1]:
        parts.append(f"the warm-up now ends at {warmup[1]:,} instead of {warmup[0]:,}; ")
    if config.optimizer.schedule in ("linear", "cosine") and decay[0] != decay[1]:
        parts.append(
            f"the {config.optimizer.schedule} schedule now ends at {decay[1]:,} "
            f"instead of {decay[0]:,}; "
        )
    return parts


def _end(config, key: str) -> int:
    value, num_steps = config.optimizer[key], config.train.num_steps
    return num_steps if value is None else run_length.span(value, num_steps)
