"""The spans of a row that are masked, and the masked positions that stand beside a true one."""

import numpy as np
from jaxtyping import Bool, Int64


def spans(
    generator: np.random.Generator, length: int, share: float, span: int, *, least: int = 0
) -> Bool[np.ndarray, " L"]:
    """Returns True at the masked positions of `length` (Baevski et al. 2020, section 4.2).

    Spans of `span` positions begin at different places, at `least` so many. They may overlap, so
    that the masked part is below `share`, their total length over `length`.
    """
    masked = np.zeros(length, bool)
    places = length - span + 1
    count = max(int(share * length / span + generator.random()), least)
    if places < 1 or not count:
        return masked
    starts = generator.choice(places, min(count, places), replace=False)
    masked[(starts[:, None] + np.arange(span)).reshape(-1)] = True
    return masked


def most_masked(length: int, share: float, span: int, least: int = 0) -> int:
    """Returns the largest number of positions that `spans` masks."""
    return min(length, max(int(share * length / span + 1), least) * span)


def distractors(
    generator: np.random.Generator, count: int, number: int
) -> Int64[np.ndarray, "P K"]:
    """Returns `number` others of `count` positions for each, drawn with replacement (P, K).

    All are 0 where there is no other position.
    """
    if count < 2:
        return np.zeros((count, number), np.int64)
    drawn = generator.integers(0, count - 1, (count, number))
    return drawn + (drawn >= np.arange(count)[:, None])
