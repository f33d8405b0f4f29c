"""Continuing texts with a causal language model: batches, a sliding window, stop strings."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import UserError
from transformer_jax.inference.sampling import Fixed, Sampling, Texts, sample
from transformer_jax.layers.blocks import for_decoding
from transformer_jax.layers.linear import compute_dtype
from transformer_jax.pictures.progress import say

WINDOWS = ("slide", "refuse")
MAX_TOKENS = 100  # of a continuation, by default

_BUCKET = 64  # lengths are padded to multiples of it, so that few shapes are compiled
_LOOK = 8  # tokens written between two calls of `watch` and two searches for stop strings


class Continuation(NamedTuple):
    text: str
    tokens: int  # written, those behind a stop string included
    finished: (
        str  # "end": the document did, "stop": before a stop string, "length": after max_tokens
    )


@dataclasses.dataclass(frozen=True)
class Request:
    """How each prompt is continued; see CausalLM.generate."""

    max_tokens: int | None
    how: Sampling
    stop: tuple[str, ...]
    seed: int
    watch: Callable[[list[str]], None] | None
    window: str

    def __post_init__(self):
        if "" in self.stop:
            raise UserError("an empty stop string would end every text at once")
        if self.window not in WINDOWS:
            raise UserError(f"window={self.window!r}: must be one of {', '.join(WINDOWS)}")

    @property
    def looks(self) -> bool:
        return self.watch is not None or bool(self.stop)


@dataclasses.dataclass(frozen=True)
class Generator:
    """Continues prompts with a GPT, `batch` texts at a time.

    `begun(ids)` gives a prompt's ids as in training.
    """

    model: Any  # the Linen module
    tokenizer: Any
    begun: Callable[[list[int]], list[int]]
    batch: int

    def __call__(self, params, prompts: Iterable[str], request: Request) -> Iterator[Continuation]:
        params = for_decoding(params, compute_dtype(self.model.dtype))
        numbered, size = enumerate(prompts), 0
        while chunk := list(itertools.islice(numbered, self.batch)):
            size = size or len(chunk)  # the last batch is filled up to the shape of the others
            ids = [self.begun(ids) for ids in self.tokenizer.encode([text for _, text in chunk])]
            most = self._most(ids, chunk[0][0], request)
            yield from _Batch(self, params, request, ids, most).write(chunk[0][0], size)

    def _most(self, prompts: list[list[int]], first: int, request: Request) -> list[int]:
        """The most tokens to write behind each prompt; `first` is the first prompt's number."""
        room = self.model.max_length
        if request.window == "refuse":
            return [self._most_in_window(ids, first + i, request) for i, ids in enumerate(prompts)]
        if long := [first + i + 1 for i, ids in enumerate(prompts) if len(ids) >= room]:
            named = f"prompt{'s' * (len(long) > 1)} {', '.join(map(str, long))}"
            say(
                f"{named}: no room in the window of config.model.max_length={room} tokens; "
                f"generation begins from the last {room // 2}"
            )
        return [MAX_TOKENS if request.max_tokens is None else request.max_tokens] * len(prompts)

    def _most_in_window(self, ids: list[int], number: int, request: Request) -> int:
        room = self.model.max_length
        most = request.max_tokens
        if most is None:
            most = max(min(MAX_TOKENS, room - len(ids)), 1)
        if len(ids) + most > room:
            raise UserError(
                f"prompt {number + 1}: its {len(ids)} tokens and {most} more exceed "
                f"config.model.max_length={room}"
            )
        return most


class _Batch:
    """The texts of a batch while they are written: their tokens, and the windows onto them.

    A full window goes on with its last half as a new prompt. A text with a full window waits until
    the others have filled theirs or have ended; then all are read anew together.
    """

    def __init__(
        self,
        generator: Generator,
        params,
        request: Request,
        prompts: list[list[int]],
        most: list[int],
    ):
        self.model, self.tokenizer = generator.model, generator.tokenizer
        self.programs = Programs(self.model, self.tokenizer.eos_id)
        self.params, self.request = params, request
        self.ids = [list(ids) for ids in prompts]
        self.starts = np.array([len(ids) for ids in prompts])  # tokens of the prompts
        self.ends = self.starts + np.array(most)
        self.begins = np.zeros(len(prompts), int)  # where each window begins in its text
        self.done = np.zeros(len(prompts), bool)
        self.prompts = self.tokenizer.decode(prompts)

    def write(self, first: int, size: int) -> list[Continuation]:
        """Continues the texts in a batch of `size` rows; `first` is the first text's number."""
        key = jax.random.key(self.request.seed)
        keys = jax.vmap(partial(jax.random.fold_in, key))(first + jnp.arange(size))
        while not self.done.all():
            self._slide()
            self._fill(keys)
        outputs, stops = self._outputs()
        return [self._continuation(row, outputs[row], stops[row]) for row in range(len(self.ids))]

    def _slide(self) -> None:
        """Moves each full window to its last half."""
        room, lengths = self.model.max_length, np.array([len(ids) for ids in self.ids])
        self.begins = np.where(lengths - self.begins >= room, lengths - room // 2, self.begins)

    def _fill(self, keys: jax.Array) -> None:
        """Writes until each text has ended or its window is full."""
        window, slots = self._window(keys)
        how, steps = self.request.how, _LOOK if self.request.looks else slots
        texts = self.programs.begin(self.params, window, steps, slots, how)
        while True:
            ended = self._take(texts)
            outputs, stops = self._outputs()
            if self.request.watch:
                self.request.watch(outputs)
            self.done |= np.array([at is not None for at in stops])
            ended[: len(self.done)] |= self.done
            if ended.all():
                break
            texts = texts._replace(ended=jnp.asarray(ended))
            texts = self.programs.go_on(self.params, texts, window.fixed, steps, how)
        lengths = np.array([len(ids) for ids in self.ids])
        full = (lengths - self.begins >= self.model.max_length) & (lengths < self.ends)
        self.done |= ~full

    def _window(self, keys: jax.Array) -> tuple["Window", int]:
        """The next windows, and the slots of the cache. Rows of finished texts have ended."""
        size, room = len(keys), self.model.max_length
        live = np.flatnonzero(~self.done)
        lengths, before, limits = (
            np.ones(size, np.int32),
            np.zeros(size, np.int32),
            np.ones(size, np.int32),
        )
        before[live] = self.begins[live]
        lengths[live] = [len(self.ids[row]) - self.begins[row] for row in live]
        limits[live] = np.minimum(self.ends[live] - self.begins[live], room)
        slots = (
            room if before.any() else min(_rounded(limits.max()), room)
        )  # one shape for all later windows
        tokens = np.zeros((size, min(_rounded(lengths.max()), slots)), np.int32)
        for row in live:
            tokens[row, : lengths[row]] = self.ids[row][self.begins[row] :]
        return Window(tokens, lengths, self._seen(size), Fixed(keys, before, limits)), slots

    def _seen(self, size: int) -> np.ndarray | None:
        """(B, V): the tokens of each whole text; None where no penalty asks for them."""
        if self.request.how.repetition_penalty == 1:
            return None
        seen = np.zeros((size, self.model.vocab_size), bool)
        for row, ids in enumerate(self.ids):
            seen[row, ids] = True
        seen[:, self.tokenizer.eos_id] = False  # one before the text is the end of another
        return seen

    def _take(self, texts: Texts) -> np.ndarray:
        """Keeps what has been written; returns which rows have ended (B,)."""
        ids, lengths, ended = jax.device_get((texts.ids, texts.lengths, texts.ended))
        for row in np.flatnonzero(~self.done):
            self.ids[row][self.begins[row] :] = ids[row, : lengths[row]].tolist()
        return ended.copy()

    def _outputs(self) -> tuple[list[str], list[int | None]]:
        """Each continuation up to its first stop string; and where that begins, or None."""
        wholes = self.tokenizer.decode(
            self.ids
        )  # by itself a continuation may lose its first blank
        outputs = [whole[len(prompt) :] for whole, prompt in zip(wholes, self.prompts)]
        places = [[output.find(text) for text in self.request.stop] for output in outputs]
        stops = [min((place for place in each if place >= 0), default=None) for each in places]
        return [output[:at] for output, at in zip(outputs, stops)], stops

    def _continuation(self, row: int, output: str, at: int | None) -> Continuation:
        count = len(self.ids[row]) - int(self.starts[row])
        limited = len(self.ids[row]) == self.ends[row]
        return Continuation(
            output, count, "stop" if at is not None else "length" if limited else "end"
        )


class Window(NamedTuple):
    """The ends of B texts, which the model reads before it writes."""

    tokens: Any  # (B, P) int32
    lengths: Any  # (B,) int32, at most P
    seen: Any  # (B, V) bool, the tokens of each whole text, or None
    fixed: Fixed


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled parts, with parameters `for_decoding`."""

    model: Any
    eos_id: int

    @partial(jax.jit, static_argnums=(0, 4, 5))
    def begin(self, params, window: Window, steps: jax.Array, slots: int, how: Sampling) -> Texts:
        """Reads a window into a cache of `slots`, and writes up to `steps` tokens of each text."""
        tokens, lengths, seen, fixed = window
        batch, size = tokens.shape
        positions = jnp.broadcast_to(jnp.arange(size), tokens.shape)
        hidden, cache = self._run(
            params, {}, tokens, positions, slots
        )  # the cache's slots behind a text are overwritten before they are seen
        ids = jnp.zeros((batch, slots), jnp.int32).at[:, :size].set(tokens)
        logits = self._logits(params, hidden[jnp.arange(batch), lengths - 1])
        texts = Texts(ids, lengths, lengths >= fixed.limits, seen, logits, cache)
        return self._more(params, texts, fixed, steps, how)

    @partial(jax.jit, static_argnums=(0, 5), donate_argnums=2)
    def go_on(self, params, texts: Texts, fixed: Fixed, steps: jax.Array, how: Sampling) -> Texts:
        """Writes up to `steps` tokens more."""
        return self._more(params, texts, fixed, steps, how)

    def _more(self, params, texts, fixed, steps, how):
        slots = texts.ids.shape[1]

        def step(cache, tokens, positions):
            positions = jnp.minimum(positions, slots - 1)  # a text that has filled its window waits
            hidden, cache = self._run(params, cache, tokens[:, None], positions[:, None], slots)
            return self._logits(params, hidden[:, 0]), cache

        return sample(step, texts, fixed, steps, how=how, eos_id=self.eos_id)

    def _run(self, params, cache, tokens, positions, slots):
        return self.model.apply(
            {"params": params, **cache},
            tokens,
            positions,
            decode=slots,
            method="hidden",
            mutable=["cache"],
        )

    def _logits(self, params, hidden):
        return self.model.apply({"params": params}, hidden, method="logits")


def _rounded(length: int) -> int:
    return -(-int(length) // _BUCKET) * _BUCKET
