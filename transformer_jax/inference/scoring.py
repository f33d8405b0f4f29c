"""Log-probabilities that a causal language model gives to texts."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.config import UserError
from transformer_jax.distributed import hosts
from transformer_jax.distributed.placement import Placement, gathered, split_rows
from transformer_jax.inference.batching import chunks, in_order, longest_first, padded, rounded_up
from transformer_jax.layers.embeddings import check_ids
from transformer_jax.layers.outputs import token_log_probs

# Lengths are padded to multiples of it, so that few shapes are compiled.
_LENGTH_MULTIPLE = 64
# Batches whose texts are sorted by length together.
_SORTED_BATCHES = 16


class Likelihood(NamedTuple):
    log_prob: float  # log P(continuation | context)
    greedy: bool  # whether each token was the likeliest one
    tokens: int  # of the continuation


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores continuations with a causal language model, `batch` at a time.

    The devices share the rows of a batch, so `batch` is a number that `placement` divides.
    `with_start(ids)` returns a text's ids behind the token that a document starts with in training.
    See CausalUse.log_likelihoods.
    """

    model: Any  # the Linen module
    tokenizer: Any
    with_start: Callable[[list[int]], list[int]]
    batch: int
    placement: Placement

    def texts(self, params, pairs: Iterable[tuple[str, str]]) -> Iterator[Likelihood]:
        """Yields the likelihood of each (context, continuation)."""
        for chunk in chunks(pairs, _SORTED_BATCHES * self.batch):
            yield from self.tokens(params, self.encoded(chunk))

    def encoded(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Returns the token ids of contexts and continuations.

        Spaces at the end of a context belong to the continuation, since they are part of its first
        word's token. So does a token that crosses the border.
        """
        contexts = [context.rstrip() for context, _ in pairs]
        texts = self.tokenizer.encode([context + continuation for context, continuation in pairs])
        pairs_of_ids = []
        for ids, context_ids in zip(texts, self.tokenizer.encode(contexts)):
            border = len(os.path.commonprefix([ids, context_ids]))
            pairs_of_ids.append((self.with_start(ids[:border]), ids[border:]))
        return pairs_of_ids

    def tokens(self, params, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[Likelihood]:
        """As `texts`, for token ids."""
        for number, (context, continuation) in enumerate(pairs, 1):
            self._check(f"pair {number}", context, continuation)
        longest = self.model.window + 1  # the last token is predicted, but not read
        rows = [
            ((context + continuation)[-longest:], len(continuation))
            for context, continuation in pairs
        ]
        return in_order(self._scored(params, rows))

    def _check(self, name: str, context: Sequence[int], continuation: Sequence[int]) -> None:
        if not len(context):
            raise UserError(f"{name}: the context is empty; begin a document with eos_id")
        try:
            check_ids(np.array([*context, *continuation]), self.model.vocab_size)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        if len(continuation) > self.model.window:
            raise UserError(
                f"{name}: the continuation has {len(continuation)} tokens: must have at most "
                f"config.model.max_length={self.model.max_length}"
            )

    def _scored(
        self, params, rows: list[tuple[list[int], int]]
    ) -> Iterator[tuple[int, Likelihood]]:
        """Yields (number of a row, its likelihood). Rows are (ids, number of last ids to score)."""
        for numbers in chunks(longest_first([len(ids) for ids, _ in rows]), self.batch):
            chosen = [rows[number] for number in numbers]
            length = rounded_up(len(chosen[0][0]) - 1, _LENGTH_MULTIPLE)
            length = min(length, self.model.window)
            tokens = padded([ids for ids, _ in chosen], length + 1, self.batch)
            weights = np.zeros((self.batch, length), np.int32)
            for row, (ids, num_scored) in enumerate(chosen):
                weights[row, len(ids) - 1 - num_scored : len(ids) - 1] = 1
            placement = self.placement.dividing(length=length)
            scores = jax.device_get(
                hosts.run(_score, self.model, placement, params, tokens, weights)
            )
            for number, (_, num_scored), log_prob, greedy in zip(numbers, chosen, *scores):
                yield number, Likelihood(float(log_prob), bool(greedy), num_scored)


@partial(jax.jit, static_argnums=(0, 1))
def _score(
    model, placement, params, tokens: Int[Array, "B read"], weights: Int[Array, "B L"]
) -> tuple[Float[Array, " B"], Bool[Array, " B"]]:
    """Returns the log-probabilities (B,) of the tokens with weight 1, and whether all of them are
    the likeliest ones (B,).

    `tokens` is (B, L + 1); `weights` (B, L) belongs to the tokens from the second on.
    """
    with placement.use():
        tokens, weights = split_rows((tokens, weights))
        hidden = model.apply({"params": params}, tokens[:, :-1], method="hidden")
        output = model.apply({"params": params}, method="output")
        log_probs, likeliest = token_log_probs(hidden, output, tokens[:, 1:])
        log_prob = jnp.sum(log_probs * weights, axis=1)
        return gathered((log_prob, jnp.all(likeliest | (weights == 0), axis=1)))
