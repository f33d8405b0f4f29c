"""Best of n: the continuation of several that a reward model prefers (Stiennon et al. 2020)."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from transformer_jax.config import UserError
from transformer_jax.data import arguments
from transformer_jax.inference.batching import chunks
from transformer_jax.inference.generation import Continuation

# Continuations that are scored together, at least those of one prompt.
_SCORED = 1024


class Rewarded(NamedTuple):
    text: str
    tokens: int  # generated, including those behind a stop string
    finished: str  # as that of a Continuation
    reward: float


def best_of(
    generate: Callable[[Iterable[str]], Iterable[Continuation]],
    score: Callable[[list[tuple[str, str]]], Iterable[float]],
    prompts: Iterable[str],
    n: int,
) -> Iterator[Rewarded]:
    """Yields the continuation of each prompt with the highest reward of `n`, in order.

    `generate(prompts)` draws a continuation of each prompt, and `score(pairs)` gives the reward of
    each (prompt, continuation): the methods of two tasks with their parameters. Of equal rewards
    the first one counts. Prompt number i has the draws number i n to i n + n - 1 of `generate`.
    """
    if n < 1:
        raise UserError(f"best_of={n}: must be at least 1")
    repeated = (prompt for prompt in arguments.as_texts(prompts) for _ in range(n))
    to_score, to_continue = itertools.tee(repeated)
    drawn = zip(to_score, generate(to_continue))
    for some in chunks(drawn, n * max(_SCORED // n, 1)):
        rewards = score([(prompt, continuation.text) for prompt, continuation in some])
        rewarded = [Rewarded(*each, reward) for (_, each), reward in zip(some, rewards)]
        for group in chunks(rewarded, n):
            yield max(group, key=lambda each: each.reward)
