"""A training step in two compiled programs, between which each host scores its own rows.

It is for tasks whose rewards are computed by Python: see `Task.rollouts`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.distributed import hosts

Arrays = dict[str, jax.Array]  # (microbatches, rows, ...)


class TwoPrograms(NamedTuple):
    """The step (state, batch) -> state: rollouts, rewards of the host, then the updates.

    Attributes:
      roll: the jitted (state, batch) -> rollouts.
      score: rollouts, NumPy arrays (rows, ...) -> rewards (rows,). A pure function.
      learn: the jitted (state, rollouts with "rewards") -> state.
    """

    roll: Any
    score: Callable[[dict[str, np.ndarray]], np.ndarray]
    learn: Any

    def __call__(self, state, batch: Arrays):
        rollouts = hosts.run(self.roll, state, batch)
        return self.learn(state, rollouts | {"rewards": rewards(self.score, rollouts)})

    def lower(self, state, batch: Arrays):
        """Returns the second program, lowered for these shapes. It needs the more memory."""
        return self.learn.lower(state, self._scored(state, batch))

    def eval_shape(self, state, batch: Arrays):
        """Returns the shapes of the new state."""
        return self.learn.eval_shape(state, self._scored(state, batch))

    def _scored(self, state, batch: Arrays):
        """The shapes of the rollouts with their rewards."""
        rollouts = self.roll.eval_shape(state, batch)
        like = next(iter(rollouts.values()))
        scored = rollouts | {"rewards": jax.ShapeDtypeStruct(like.shape[:2], jnp.float32)}
        placed = next(iter(batch.values())).sharding
        return {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed)
            for name, x in scored.items()
        }


def rewards(score: Callable, rollouts: Arrays) -> jax.Array:
    """Returns the rewards (microbatches, rows) float32, with the sharding of the rollouts.

    A host scores the rows of its own devices. A row that stands on more than one of them is scored
    once.
    """
    parts: dict[tuple, dict[str, np.ndarray]] = {}
    for name, array in rollouts.items():
        for shard in array.addressable_shards:
            part = parts.setdefault(_place(shard.index), {})
            if name not in part:
                part[name] = np.asarray(shard.data)
    scores = {place: _of_part(score, part) for place, part in parts.items()}
    like = next(iter(rollouts.values()))
    return jax.make_array_from_callback(
        like.shape[:2], like.sharding, lambda index: scores[_place(index)]
    )


def _place(index: tuple[slice, ...]) -> tuple:
    """The microbatches and the rows that a part of an array has."""
    return tuple((part.start, part.stop) for part in index[:2])


def _of_part(score: Callable, part: dict[str, np.ndarray]) -> np.ndarray:
    shape = next(iter(part.values())).shape[:2]
    flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in part.items()}
    return np.float32(score(flat)).reshape(shape)
