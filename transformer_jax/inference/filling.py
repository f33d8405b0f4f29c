"""Reading texts with an encoder: words for masked tokens, hidden states, and next sentences."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.data import arguments
from transformer_jax.data.arguments import LongLines
from transformer_jax.distributed import hosts
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference import batching
from transformer_jax.inference.batching import chunks, fitted, padded, rounded_up

# Lengths are padded to multiples of this, so that few shapes are compiled.
_LENGTH_MULTIPLE = 32


class Filling(NamedTuple):
    word: str
    probability: float


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads texts with an Encoder, or the encoder of an encoder-decoder, `batch` at a time.

    The rows of a batch are split over the devices. See `EncoderUse` and `StatesUse`.
    """

    model: Any  # the Linen module
    tokenizer: Any  # of the model's inputs; to fill masks, it needs a mask token
    batch: int
    placement: Placement

    def __post_init__(self):
        # Called for its error about a tokenizer without special tokens, so that it is raised now
        # and not at the first text.
        batching.text_frame(self.model, self.tokenizer)

    def fill(
        self, params, texts: Iterable[str], top_k: int, long: str
    ) -> Iterator[list[list[Filling]]]:
        """Yields the `top_k` likeliest words of each mask of each text."""
        if "fill" not in self.model.can:
            raise UserError(f"the model {type(self.model).__name__} does not fill masks")
        self.tokenizer.required("mask", user=type(self.model).__name__)
        # Checked here and not in the generator below, so that a wrong option is refused by the call
        # itself rather than by the first result.
        treatment = self._long_texts(long, ("split", "skip", "refuse"))
        return self._filled(params, texts, top_k, treatment)

    def _filled(self, params, texts, top_k, treatment) -> Iterator[list[list[Filling]]]:
        with treatment:
            for chunk in chunks(enumerate(texts, 1), self.batch):
                parts = [self._masked_parts(number, text, treatment) for number, text in chunk]
                fillings = []
                # Parts of several texts share a batch, because a long text has many parts and most
                # have one.
                for rows in chunks(itertools.chain.from_iterable(parts), self.batch):
                    fillings += self._fillings(params, rows, top_k)
                fillings_of_parts = iter(fillings)
                for parts_of_text in parts:
                    yield [mask for _ in parts_of_text for mask in next(fillings_of_parts)]

    def _masked_parts(self, number: int, text: str, treatment: LongLines) -> list[list[int]]:
        """Returns the ids of the parts of a text that contain masks."""
        if not text.strip():
            return []
        mask = self.tokenizer.mask_id
        ids = self.tokenizer.encode_masked(text)
        if mask not in ids:
            raise UserError(f"text {number}: no [MASK] in it")
        if len(ids) <= self._max_tokens:
            return [ids]
        treatment.add(number)
        if treatment.way == "skip":
            return []
        parts = arguments.split(text, self._encode_masked, self._max_tokens)
        # Only parts with masks are read, because the others have nothing to fill.
        return [part for part in parts if mask in part]

    def _encode_masked(self, texts: list[str]) -> list[list[int]]:
        return [self.tokenizer.encode_masked(text) for text in texts]

    def _fillings(self, params, rows: list[list[int]], top_k: int) -> list[list[list[Filling]]]:
        """Returns the likeliest words of each mask of each row."""
        tokens, segments = self._padded(rows)
        likeliest = jax.device_get(
            hosts.run(Reader._likeliest, self, params, tokens, segments, top_k)
        )
        masks = [np.flatnonzero(row == self.tokenizer.mask_id) for row in tokens]
        return [
            self._words(*(each[row, masks[row]] for each in likeliest)) for row in range(len(rows))
        ]

    def _words(self, log_probs: np.ndarray, ids: np.ndarray) -> list[list[Filling]]:
        """Returns the words of each mask, from arrays (masks, k)."""
        words = [self.tokenizer.pieces(mask_ids) for mask_ids in ids.tolist()]
        probabilities = np.exp(log_probs).tolist()
        return [list(map(Filling, *mask)) for mask in zip(words, probabilities)]

    def features(
        self, params, texts: Iterable[str], layers: tuple[int, ...], long: str
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Yields the N tokens of each text, and their hidden states (layers, N, M) float32."""
        num_states = self.model.num_states
        if wrong := [layer for layer in layers if not -num_states <= layer < num_states]:
            raise UserError(
                f"layer {wrong[0]}: must be from 0 (the embeddings) to {num_states - 1}, "
                f"or from -{num_states} to -1"
            )
        treatment = self._long_texts(long, ("truncate", "skip", "refuse"))
        numbers = tuple(layer % num_states for layer in layers)
        return self._features(params, texts, numbers, treatment)

    def _features(self, params, texts, layers, treatment) -> Iterator[tuple[list[str], np.ndarray]]:
        no_states = np.zeros((len(layers), 0, self.model.d_model), np.float32)
        with treatment:
            for chunk in chunks(enumerate(texts, 1), self.batch):
                encoded = self.tokenizer.encode([text for _, text in chunk])
                rows = [
                    self._readable(number, ids, treatment)
                    for (number, _), ids in zip(chunk, encoded)
                ]
                states = self._states_of(params, [ids for ids in rows if ids is not None], layers)
                for ids in rows:
                    yield ([], no_states) if ids is None else next(states)

    def _readable(self, number: int, ids: list, treatment: LongLines) -> list | None:
        """Returns the part of a text that is read, or None if the text is skipped."""
        if len(ids) <= self._max_tokens:
            return ids
        treatment.add(number)
        return None if treatment.way == "skip" else ids[: self._max_tokens]

    def _states_of(self, params, rows: list[list], layers: tuple[int, ...]):
        """Yields the tokens of each row, and their hidden states in these layers."""
        if not rows:
            return
        tokens, segments = self._padded(rows)
        states = hosts.run(Reader._states, self, params, tokens, segments, layers)
        # float32, because the states are bfloat16 on accelerators, which NumPy itself does not
        # have.
        states = np.asarray(jax.device_get(states), np.float32)
        for row, ids in enumerate(rows):
            count = len(ids) + self._num_special
            yield self.tokenizer.pieces(tokens[row, :count].tolist()), states[:, row, :count]

    def next_sentences(
        self, params, pairs: Iterable[tuple[str, str]], long: str
    ) -> Iterator[float | None]:
        """Yields the probability that the second text of each pair follows the first.

        None for a pair of empty texts, and for a pair that is skipped because it is too long.
        """
        treatment = self._long_texts(long, ("truncate", "skip", "refuse"), "pair")
        return self._next_sentences(params, pairs, treatment)

    def _next_sentences(self, params, pairs, treatment) -> Iterator[float | None]:
        with treatment:
            for chunk in chunks(enumerate(pairs, 1), self.batch):
                texts = [text for _, (first, second) in chunk for text in (first, second)]
                encoded = self.tokenizer.encode(texts)
                rows = [
                    self._readable_pair(number, first, second, treatment)
                    for (number, _), first, second in zip(chunk, encoded[::2], encoded[1::2])
                ]
                filled = [pair for pair in rows if pair is not None]
                probabilities = iter(self._probabilities_of_next(params, filled))
                for pair in rows:
                    yield None if pair is None else next(probabilities)

    def _readable_pair(
        self, number: int, first: list[int], second: list[int], treatment: LongLines
    ) -> tuple[list[int], list[int]] | None:
        """Returns the parts of two texts that are read, or None for an empty or skipped pair."""
        if not first and not second:
            return None
        if not first or not second:
            raise UserError(f"pair {number}: must be two texts; one is empty")
        max_tokens = self._max_tokens - 1  # without the separator between the texts
        if len(first) + len(second) <= max_tokens:
            return first, second
        treatment.add(number)
        return None if treatment.way == "skip" else fitted(first, second, max_tokens)

    def _probabilities_of_next(
        self, params, pairs: list[tuple[list[int], list[int]]]
    ) -> list[float]:
        """Returns the probability that the second text of each pair follows the first."""
        if not pairs:
            return []
        begin, (sep, *_) = batching.text_frame(self.model, self.tokenizer)
        # One separator, as in the rows of pre-training, also for a tokenizer that has two between
        # the texts of a fine-tuned pair.
        tokens, segments = self._padded([[*first, sep, *second] for first, second in pairs])
        starts = np.zeros(len(tokens), np.int32)
        starts[: len(pairs)] = [len(begin) + len(first) + 1 for first, _ in pairs]
        is_second = np.arange(tokens.shape[1]) >= starts[:, None]
        types = (is_second & (segments > 0)).astype(np.int32)
        computed = hosts.run(Reader._follows, self, params, tokens, segments, types)
        return jax.device_get(computed)[: len(pairs)].tolist()

    @property
    def _max_tokens(self) -> int:
        """The maximum number of tokens of a text, without the special tokens around it."""
        return self.model.window - self._num_special

    @property
    def _num_special(self) -> int:
        """The number of special tokens around a text, such as [CLS] and [SEP]."""
        return sum(map(len, batching.text_frame(self.model, self.tokenizer)))

    def _long_texts(self, way: str, ways: tuple[str, ...], noun: str = "text") -> LongLines:
        special = " and ".join(
            piece
            for ids in batching.text_frame(self.model, self.tokenizer)
            for piece in self.tokenizer.pieces(list(ids))
        )
        limit = f"config.model.max_length={self.model.max_length} tokens, including {special}"
        return LongLines(way, ways, limit, noun)

    def _padded(self, rows: list[list]) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens (B, L, ...) and segment ids (B, L) of texts with their special tokens.

        Empty rows pad the batch so that the mesh divides B.
        """
        begin, end = batching.text_frame(self.model, self.tokenizer)
        rows = [[*begin, *ids, *end] for ids in rows]
        length = rounded_up(max(map(len, rows)), _LENGTH_MULTIPLE)
        length = min(length, self.model.window)
        num_rows = self.placement.rows(len(rows))
        segments = [[1] * len(ids) for ids in rows]
        return padded(rows, length, num_rows), padded(segments, length, num_rows)

    @partial(jax.jit, static_argnums=(0, 4))
    def _likeliest(
        self, params, tokens: Int[Array, "B L"], segments: Int[Array, "B L"], top_k: int
    ) -> tuple[Float[Array, "B L k"], Int[Array, "B L k"]]:
        """Returns the log-probabilities and ids of the likeliest words, (B, L, k) each."""
        variables = {"params": params}
        with self._placed(tokens):
            tokens, segments = split_rows((tokens, segments))
            inputs = Inputs(tokens, segment_ids=segments)
            hidden = self.model.apply(variables, inputs, method="hidden")
            logits = self.model.limited_to(self.tokenizer).apply(variables, hidden, method="logits")
            # A mask is never filled with a special token: some objectives never train their
            # embeddings, so their logits would be arbitrary.
            log_probs = jnp.where(self.tokenizer.special, -jnp.inf, jax.nn.log_softmax(logits))
            return gathered(tuple(jax.lax.top_k(log_probs, top_k)))

    @partial(jax.jit, static_argnums=0)
    def _follows(
        self,
        params,
        tokens: Int[Array, "B L"],
        segments: Int[Array, "B L"],
        types: Int[Array, "B L"],
    ) -> Float[Array, " B"]:
        """Returns the probability that the second text of each row follows the first (B,)."""
        variables = {"params": params}
        with self._placed(tokens):
            tokens, segments, types = split_rows((tokens, segments, types))
            inputs = Inputs(tokens, segment_ids=segments, token_types=types)
            hidden = self.model.apply(variables, inputs, method="hidden")
            logits = self.model.apply(variables, hidden, method="next_logits")
            return gathered(jax.nn.softmax(logits)[:, 0])

    @partial(jax.jit, static_argnums=(0, 4))
    def _states(
        self,
        params,
        tokens: Int[Array, "B L ..."],
        segments: Int[Array, "B L"],
        layers: tuple[int, ...],
    ) -> Float[Array, "layers B L M"]:
        """Returns the hidden states of these layers."""
        variables = {"params": params}
        with self._placed(tokens):
            tokens, segments = split_rows((tokens, segments))
            inputs = Inputs(tokens, segment_ids=segments)
            states = self.model.apply(variables, inputs, method="layers")
            return gathered(_stacked([states[layer] for layer in layers]))

    def _placed(self, tokens) -> contextlib.AbstractContextManager:
        return self.placement.dividing(length=tokens.shape[1]).use()


def _stacked(states: list[Float[Array, "B L _"]]) -> Float[Array, "layers B L M"]:
    """Returns the states of layers as one array. Raises UserError if their widths differ."""
    if len(widths := {x.shape[-1] for x in states}) > 1:
        raise UserError(
            f"--layers: layers of the widths {min(widths)} and {max(widths)} do not fit into one "
            "array; choose layers of the same width"
        )
    return jnp.stack(states)
