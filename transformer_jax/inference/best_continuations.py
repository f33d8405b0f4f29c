"""The best continuations of prompts, by beam search with a causal language model."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.distributed import hosts
from transformer_jax.distributed.placement import Placement, gathered, split_rows
from transformer_jax.inference.batching import chunks, padded, rounded_up
from transformer_jax.inference.beam_search import BeamSearch
from transformer_jax.inference.generation import limit_in_window
from transformer_jax.inference.hypotheses import Outputs

# Lengths are padded to multiples of it, so that few shapes are compiled.
_LENGTH_MULTIPLE = 64


class ScoredContinuation(NamedTuple):
    text: str
    tokens: int  # generated
    # "end": at the end of the document; "length": after max_tokens
    finished: str
    score: float  # log-probability over the length penalty


@dataclasses.dataclass(frozen=True)
class BestContinuations:
    """Finds continuations with a Causal model, for `batch` prompts at a time.

    `with_start(ids)` returns a prompt's ids behind the token that a document starts with in
    training. The devices share the prompts of a batch. See CausalUse.generate_beam.
    """

    model: Any  # the Linen module
    tokenizer: Any
    with_start: Callable[[list[int]], list[int]]
    batch: int
    placement: Placement

    def __call__(
        self, params, prompts: Iterable[str], search: BeamSearch, max_tokens: int | None
    ) -> Iterator[list[ScoredContinuation]]:
        if max_tokens is not None and max_tokens < 1:
            raise UserError(f"max_tokens={max_tokens}: must be at least 1")
        params = self.model.for_decoding(params)
        first, size = 0, 0
        for texts in chunks(prompts, self.batch):
            # The last batch is filled up to the shape of the others.
            size = size or self.placement.rows(len(texts))
            ids = [self.with_start(ids) for ids in self.tokenizer.encode(texts)]
            limits = [
                limit_in_window(self.model, ids[row], first + row, max_tokens)
                for row in range(len(ids))
            ]
            program, inputs = self._inputs(ids, limits, size, search)
            outputs = jax.device_get(hosts.run(_Program.best, program, params, *inputs))
            for row, prompt in enumerate(ids):
                yield self._continuations(prompt, outputs.of_input(row))
            first += len(texts)

    def _inputs(
        self, prompts: list[list[int]], limits: list[int], size: int, search: BeamSearch
    ) -> tuple["_Program", tuple[np.ndarray, ...]]:
        """Returns the program of a batch, and its inputs of `size` rows."""
        lengths = [len(ids) for ids in prompts]
        slots = rounded_up(max(map(sum, zip(lengths, limits))), _LENGTH_MULTIPLE)
        slots = min(slots, self.model.window)
        length = min(rounded_up(max(lengths), _LENGTH_MULTIPLE), slots)
        room = min(rounded_up(max(limits), _LENGTH_MULTIPLE), slots)
        missing = size - len(prompts)
        # A row without a prompt has no room for an output.
        inputs = (
            padded(prompts, length, size),
            np.array(lengths + [1] * missing, np.int32),
            np.array(limits + [0] * missing, np.int32),
        )
        return _Program(self.model, search, self.placement, slots, room), inputs

    def _continuations(self, prompt: list[int], outputs: Outputs) -> list[ScoredContinuation]:
        """Returns the continuations of a prompt."""
        rows = outputs.tokens(self.tokenizer.eos_id)
        # A continuation that is decoded without its prompt may lose its first space.
        begin, *texts = self.tokenizer.decode([prompt, *(prompt + ids for ids in rows)])
        return [
            ScoredContinuation(
                text[len(begin) :],
                len(ids),
                "length" if len(ids) == length else "end",
                float(score),
            )
            for text, ids, length, score in zip(texts, rows, outputs.lengths, outputs.scores)
        ]


@dataclasses.dataclass(frozen=True)
class _Program:
    """The compiled search. Its parameters are those of the model's `for_decoding`."""

    model: Any
    search: BeamSearch
    placement: Placement
    slots: int  # of the cache
    room: int  # tokens of the longest output

    @partial(jax.jit, static_argnums=0)
    def best(
        self,
        params,
        prompts: Int[Array, "B L"],
        lengths: Int[Array, " B"],
        limits: Int[Array, " B"],
    ) -> Outputs:
        """Returns the best outputs (B, n_best, T). `limits` (B,) are their most tokens."""
        with self.placement.use():
            prompts, lengths, limits = split_rows((prompts, lengths, limits))
            logits, state = self.model.begin(params, prompts, lengths, slots=self.slots)
            begun = self.search.begin(limits, logits, state, _at_the_end(prompts, lengths))
            begun = self.search.resized(begun, self.room)
            ended = self.search.advance(begun, partial(self.model.step, params), len(prompts))
            return gathered(self.search.best(ended))


def _at_the_end(prompts: Int[Array, "B L"], lengths: Int[Array, " B"]) -> Int[Array, "B L"]:
    """Returns the prompts, moved to the ends of their rows; -1 stands in front of them."""
    places = jnp.arange(prompts.shape[1]) - prompts.shape[1] + lengths[:, None]
    moved = jnp.take_along_axis(prompts, jnp.maximum(places, 0), axis=1)
    return jnp.where(places < 0, -1, moved)


def checked_search(
    beam: Any, n_best: Any, *, decode: Any, tokenizer: Tokenizer, vocab_size: int
) -> BeamSearch:
    """Returns the search of config.decode with other numbers of beams and outputs.

    Raises UserError for an impossible number.
    """
    for name, value in (("beam", beam), ("n_best", n_best)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name}={value!r}: must be a whole number of at least 1")
    if n_best > min(beam, vocab_size):
        raise UserError(
            f"n_best={n_best}: must be at most beam={beam} and config.model.vocab_size={vocab_size}"
        )
    search = BeamSearch.of(decode, tokenizer.eos_id, n_best, continues=True, never=tokenizer.never)
    return dataclasses.replace(search, beam=beam)
