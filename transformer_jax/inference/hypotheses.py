"""The hypotheses of a beam search, open and ended, and the outputs that they become."""

from typing import NamedTuple

import jax

from transformer_jax.layers.decoding import State


class Beams(NamedTuple):
    """K hypotheses of each of B inputs, the best first. The lowest score marks an empty place."""

    ids: jax.Array  # (B, K, T) int32; the end is one of them
    scores: jax.Array  # (B, K) float32


class Outputs(NamedTuple):
    """The best hypotheses of each of B inputs, the best first."""

    ids: jax.Array  # (B, n_best, T) int32, 0 after the end
    lengths: jax.Array  # (B, n_best) int32: tokens, including the end
    scores: jax.Array  # (B, n_best) float32

    def of_input(self, number: int) -> "Outputs":
        """Returns the outputs of an input, (n_best, ...)."""
        return jax.tree.map(lambda x: x[number], self)

    def tokens(self, eos_id: int) -> list[list[int]]:
        """Returns the tokens of each output of one input, without the end."""
        outputs = [row[:length].tolist() for row, length in zip(self.ids, self.lengths)]
        return [ids[:-1] if ids[-1:] == [eos_id] else ids for ids in outputs]


class Search(NamedTuple):
    """B places. Each holds an input with its K open hypotheses, or nothing.

    Inputs come and go while the search of other inputs continues.
    """

    # (B,) int32: most tokens of an output, including the end; 0: an empty place
    limits: jax.Array
    lengths: jax.Array  # (B,) int32: tokens of each open hypothesis
    open: Beams  # (B, K, T)
    ended: Beams  # (B, K, T)
    state: State  # the tokens that the model has read
    # (B, P) int32: the tokens in front of an output, -1 for padding there; None: no constraint
    # reads them
    before: jax.Array | None = None

    @property
    def slots(self) -> int:
        """The most tokens T that there is room for."""
        return self.open.ids.shape[2]
