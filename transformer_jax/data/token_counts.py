"""The number of times that each token occurs in a token store."""

import functools

import numpy as np

from transformer_jax.data import store

_TOGETHER = 2**24  # tokens read at once


def of_store(stored: store.Store, data, vocab_size: int, name: str) -> np.ndarray:
    """Returns the count of each token (V,). The store is counted once; the cache has the counts."""
    content = store.Content(
        parts=lambda: range(len(stored.parts)),
        fill=functools.partial(_fill, stored=stored, vocab_size=vocab_size),
        whole=lambda parts: {"parts": len(parts)},
        title=f"counting the tokens of {name}",
    )
    key = {"store": str(stored.path).rpartition("/")[2], "vocab_size": vocab_size}
    counted = store.build(
        data.cache, f"counts-{name}", key, vocab_size, content, rebuild=data.rebuild
    )
    return counted.array("counts").reshape(-1, vocab_size).sum(axis=0)


def _fill(writer: store.Writer, part: int, stored: store.Store, vocab_size: int) -> dict:
    """Writes the counts of a part. It has no tokens of its own."""
    counts = np.zeros(vocab_size, np.int64)
    begin, end = stored.values.starts[part : part + 2]
    for start in range(begin, end, _TOGETHER):
        (tokens,) = stored.read([(start, min(start + _TOGETHER, end))])
        counts += np.bincount(tokens, minlength=vocab_size)
    writer.array("counts", counts)
    return {}
