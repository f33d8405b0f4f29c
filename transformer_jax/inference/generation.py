"""Autoregressive generation: sampling, a sliding window, stop strings and best-of-n."""

import dataclasses
import itertools
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.config import UserError, did_you_mean, known_elsewhere, shown
from transformer_jax.data import arguments
from transformer_jax.distributed import hosts, sharding
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference.batching import chunks, padded, rounded_up
from transformer_jax.inference.token_constraints import UNCONSTRAINED, Constraints, Written
from transformer_jax.layers.decoding import State, on_rows, split
from transformer_jax.pictures.progress import say

# -------------------------------------------- decoding one token at a time, greedily or by sampling

# Block size of the two-stage draw in `drawn`. Its cost grows with the number of blocks plus the
# size of a block, which is least near the square root of the vocabulary's size.
_BLOCK_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits. The options are applied in this order."""

    # above 1: tokens that the text already has become less likely (Keskar et al. 2019, section 4.1)
    repetition_penalty: float = 1.0
    temperature: float = 1.0  # 0: the likeliest token
    top_k: int = 0  # draw from the k likeliest tokens (Fan et al. 2018); 0: from all
    # draw from the likeliest tokens that together have this probability (Holtzman et al. 2020)
    top_p: float = 1.0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kind = numbers.Integral if field.type is int else numbers.Real
            if not isinstance(value, kind) or isinstance(value, bool):
                number = "a whole number" if field.type is int else "a number"
                raise UserError(f"{field.name}={value!r}: must be {number}")
        self._check("repetition_penalty", self.repetition_penalty > 0, "above 0")
        # A far smaller temperature would make the divided logits infinite, and infinity minus their
        # maximum, infinity, is NaN.
        is_temperature = self.temperature == 0 or self.temperature >= 1e-6
        self._check("temperature", is_temperature, "0 or at least 1e-6")
        self._check("top_k", self.top_k >= 0, "at least 0")
        self._check("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")

    def _check(self, name: str, is_right: bool, bounds: str) -> None:
        if not is_right:
            raise UserError(f"{name}={getattr(self, name)}: must be {bounds}")

    def draw(
        self,
        logits: Float[Array, "B V"],
        seen: Bool[Array, "B V"] | None,
        keys: Key[Array, " B"],
    ) -> Int[Array, " B"]:
        """Returns the next token of each row, (B,) int32.

        `seen` is true for the vocabulary entries that already occur in each row's text; it may be
        None unless there is a repetition penalty. `keys` holds one random key for each row.
        """
        # In bfloat16, cumulated probabilities would lose the tail of the distribution.
        logits = logits.astype(jnp.float32)
        if self.repetition_penalty != 1:
            # Negative logits are multiplied, because dividing them would make the token likelier.
            penalized = jnp.where(
                logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty
            )
            logits = jnp.where(seen, penalized, logits)
        # After the penalty, which greedy decoding obeys as well, and before the division by 0.
        if self.temperature == 0:
            return logits.argmax(axis=-1).astype(jnp.int32)
        logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            # `min` rather than [:, -1:]: with the slice, XLA sorts the whole vocabulary, which
            # takes a hundred times as long.
            least = jax.lax.top_k(logits, self.top_k)[0].min(axis=-1, keepdims=True)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p < 1:
            logits = jnp.where(_nucleus(jax.nn.softmax(logits), self.top_p), logits, -jnp.inf)
        # Subtracting the maximum keeps exp from overflowing. The weights need not sum to 1, because
        # `drawn` scales its random number by their sum.
        weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
        return drawn(weights, jax.vmap(jax.random.uniform)(keys))


def sampling_from(how: Any, options: Mapping[str, Any]) -> Sampling:
    """Returns `how`, or a Sampling made from `options`.

    Raises UserError for an unknown option, and if both `how` and options are given.
    """
    names = [field.name for field in dataclasses.fields(Sampling)]
    if unknown := [name for name in options if name not in names]:
        name, known = unknown[0], [*names, "max_tokens", "stop", "seed"]
        flags = known_elsewhere(name, [f"--{option}" for option in known])
        meant = did_you_mean(flags[0].removeprefix("--") if flags else name, known)
        raise UserError(
            f"{name}={shown(options[name])}: unknown option{meant}; the options are "
            f"{', '.join(known)}"
        )
    if how is not None and options:
        raise UserError(f"how and {next(iter(options))}: give the options of sampling in one way")
    if not isinstance(how, Sampling | None):
        raise UserError(f"how={how!r}: must be a Sampling; or give its options by name")
    return how or Sampling(**options)


def _nucleus(probabilities: Float[Array, "B V"], top_p: float) -> Bool[Array, "B V"]:
    """Returns the nucleus of each distribution, (B, V) bool (Holtzman et al. 2020).

    It is the smallest set of likeliest tokens whose probabilities sum to at least `top_p`. The
    threshold is found by bisection rather than by sorting, which takes 15 times as long on a CPU.
    """
    # The bit patterns of nonnegative float32 numbers, read as integers, are in the order of the
    # numbers. So bisection over integers finds the exact threshold in one step for each bit but
    # the sign.
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        below = jnp.where(bits > middle, probabilities, 0).sum(axis=-1, keepdims=True) < top_p
        return jnp.where(below, low, middle + 1), jnp.where(below, middle, high)

    one = jnp.full_like(bits[:, :1], jnp.float32(1).view(jnp.int32))
    return bits >= jax.lax.fori_loop(0, 31, halve, (jnp.zeros_like(one), one))[1]


def drawn(weights: Float[Array, "B V"], uniform: Float[Array, " B"]) -> Int[Array, " B"]:
    """Samples a token for each row in proportion to its weights.

    `uniform` holds one number in [0, 1) for each row. Inverse transform sampling in two stages
    draws a block of tokens first, and then a token of this block. The Gumbel-max trick needs a
    random number for each entry of the vocabulary, which takes 20 times as long on a CPU.
    """
    batch, vocab = weights.shape
    # Padding has the weight 0, so that it is never drawn.
    blocks = jnp.pad(weights, ((0, 0), (0, -vocab % _BLOCK_TOKENS)))
    blocks = blocks.reshape(batch, -1, _BLOCK_TOKENS)

    def reached(sums, share):
        """Returns the first index whose cumulated sum of `sums` (B, N) exceeds `share` (B,), and
        what is left of `share` after the entries before this index.
        """
        ends = jnp.cumsum(sums, axis=-1)
        # Without this bound, rounding could put the share beyond the last entry.
        share = jnp.minimum(share, ends[:, -1] * (1 - 2**-22))
        starts = jnp.where(ends <= share[:, None], ends, 0).max(axis=-1)
        return jnp.sum(ends <= share[:, None], axis=-1), share - starts

    sums = blocks.sum(axis=-1)
    block, share = reached(sums, uniform * sums.sum(axis=-1))
    token, _ = reached(blocks[jnp.arange(batch), block], share)
    return (block * _BLOCK_TOKENS + token).astype(jnp.int32)


class Texts(NamedTuple):
    """B texts during generation: their tokens, the next token's logits and the decoding state."""

    ids: jax.Array  # (B, T) int32, prompts first
    lengths: jax.Array  # (B,) int32: valid tokens in `ids`
    ended: jax.Array  # (B,) bool
    seen: jax.Array | None  # (B, V) bool: the tokens in each text; None unless a penalty needs them
    logits: jax.Array  # (B, V) of the next token
    state: State  # KV cache or recurrent state of the tokens that the model has read


class Fixed(NamedTuple):
    """What stays constant while B texts are generated."""

    keys: jax.Array  # (B,)
    num_before: jax.Array  # (B,) int32: tokens of the text in front of the window in `ids`
    limits: jax.Array  # (B,) int32: maximum number of tokens in `ids`
    # For constraints, the lengths of the prompt and of the whole text at most, counted from the
    # start of the window in `ids`; None without constraints.
    prompts: jax.Array | None = None  # (B,) int32, negative for a window after the prompt
    whole: jax.Array | None = None  # (B,) int32


def sample(
    step: Callable,
    texts: Texts,
    fixed: Fixed,
    steps: Int[Array, ""],
    *,
    how: Sampling,
    ends: tuple[int, ...],
    constraints: Constraints = UNCONSTRAINED,
) -> Texts:
    """Returns `texts` with up to `steps` more tokens each.

    A text ends in front of one of the tokens `ends` or at its limit. `step(state, tokens (B, 1))`
    returns (logits (B, 1, V), state).
    """

    def running(loop):
        number, texts = loop
        # Checked at each token, since most texts end long before the limit of the call.
        return (number < steps) & ~texts.ended.all()

    def write(texts, fixed):
        rows = jnp.arange(len(texts.lengths))
        # A token's key depends only on its row's key and its position in the whole text, so that a
        # sample changes neither with the other rows of the batch, nor with the number of steps of
        # a call, nor when the window moves.
        keys = jax.vmap(jax.random.fold_in)(fixed.keys, fixed.num_before + texts.lengths)
        logits = texts.logits
        # Both sides are static, so that a program without constraints traces none of this and does
        # not need `prompts` and `whole`, which are then None.
        if constraints != UNCONSTRAINED:
            written = Written(
                texts.ids[:, None],
                texts.lengths,
                texts.lengths - fixed.prompts,
                fixed.whole - fixed.prompts,
            )
            # The axis of length 1 is there because constraints are written for the K hypotheses of
            # a beam search.
            logits = constraints(logits[:, None].astype(jnp.float32), written, ends)[:, 0]
        token = how.draw(logits, texts.seen, keys)
        live = ~texts.ended & ~jnp.isin(token, np.array(ends))
        # Rows that have ended write back what they hold, because all rows take part in the scatter.
        ids = texts.ids.at[rows, texts.lengths].set(
            jnp.where(live, token, texts.ids[rows, texts.lengths])
        )
        # `max` instead of `set`, so that a row that has ended does not forget a token.
        seen = None if texts.seen is None else texts.seen.at[rows, token].max(live)
        lengths = texts.lengths + live
        ended = ~live | (lengths >= fixed.limits)
        return Texts(ids, lengths, ended, seen, None, None), token

    def advance(loop):
        number, texts = loop
        # On a mesh, each device draws the tokens of its own rows. XLA would otherwise gather the
        # logits and keys of all rows for each token.
        written, token = on_rows(write, texts._replace(state=None), fixed)
        logits, state = step(texts.state, token[:, None])
        return number + 1, written._replace(logits=logits[:, 0], state=state)

    return jax.lax.while_loop(running, advance, (jnp.int32(0), texts))[1]


# -------------------------------------- continuing prompts: batches, a sliding window, stop strings

WINDOWS = ("slide", "refuse")
MAX_TOKENS = 100  # default of a continuation, because a text need not come to an end by itself

# Lengths are padded to multiples of this, so that few shapes are compiled.
LENGTH_MULTIPLE = 64
# Tokens between two calls of `watch`, and between two searches for stop strings. The searches are
# not made at each token, because each of them waits for the devices, copies the tokens to the host
# and decodes the whole texts.
_WATCH_EVERY = 8


class Continuation(NamedTuple):
    text: str
    tokens: int  # generated, including those after the start of a stop string
    # "end": at the end of the document; "stop": at a stop string; "length": after max_tokens
    finished: str


@dataclasses.dataclass(frozen=True)
class Request:
    """How prompts are continued: the options of CausalUse.generate."""

    max_tokens: int | None
    how: Sampling
    stop: tuple[str, ...]
    seed: int
    watch: Callable[[list[str]], None] | None
    window: str

    def __post_init__(self):
        if "" in self.stop:
            raise UserError("an empty stop string ends every text at once: must not be empty")
        if self.window not in WINDOWS:
            raise UserError(f"window={self.window!r}: must be one of {', '.join(WINDOWS)}")

    @property
    def needs_text(self) -> bool:
        """Whether unfinished texts are decoded during generation."""
        return self.watch is not None or bool(self.stop)


@dataclasses.dataclass(frozen=True)
class Generator:
    """Continues prompts with a Causal model, `batch` texts at a time.

    A prompt is a list of token ids, in the form that the model reads in training. The texts of a
    batch are split over the devices.
    """

    model: Any  # the Linen module
    tokenizer: Any
    batch: int
    placement: Placement
    ends: tuple[int, ...]  # the tokens that end a text
    constraints: Constraints = UNCONSTRAINED

    def __call__(
        self, params, prompts: Iterable[list[int]], request: Request
    ) -> Iterator[Continuation]:
        params = self.model.for_decoding(params)
        first, size = 0, 0
        for ids in chunks(prompts, self.batch):
            # The last batch is padded to the shape of the others, so that nothing is recompiled.
            size = size or self.placement.rows(len(ids))
            limits = self._limits(ids, first, request)
            yield from _Batch(self, params, request, ids, limits=limits).write(first, size)
            first += len(ids)

    def _limits(self, prompts: list[list[int]], first: int, request: Request) -> list[int]:
        """Returns the maximum number of new tokens of each prompt.

        `first` is the index of the first of these prompts among all.
        """
        if request.window == "refuse":
            return [
                limit_in_window(self.model, ids, first + i, request.max_tokens)
                for i, ids in enumerate(prompts)
            ]
        max_length = self.model.window
        if long := [first + i + 1 for i, ids in enumerate(prompts) if len(ids) >= max_length]:
            numbers = f"prompt{'s' * (len(long) > 1)} {', '.join(map(str, long))}"
            say(
                f"{numbers}: no room in the window of config.model.max_length={max_length} tokens; "
                f"generation starts from the last {max_length // 2}"
            )
        return [MAX_TOKENS if request.max_tokens is None else request.max_tokens] * len(prompts)


def limit_in_window(model: Any, prompt: list[int], number: int, max_tokens: int | None) -> int:
    """Returns the maximum number of new tokens of prompt `number`, counted from 0.

    Raises UserError if the prompt and these tokens together exceed the model's window.
    """
    limit = max_tokens
    if limit is None:
        # At least 1, so that a prompt that leaves no room raises the error below instead of ending
        # empty.
        limit = max(min(MAX_TOKENS, model.window - len(prompt)), 1)
    if len(prompt) + limit > model.window:
        raise UserError(
            f"prompt {number + 1}: its {len(prompt)} tokens and {limit} more exceed "
            f"config.model.max_length={model.window}"
        )
    return limit


class _Batch:
    """The texts of a batch during generation, on the host: their tokens and their windows.

    A text that fills its window continues from the last half of it, which becomes a new prompt.
    It waits until the other texts have filled their windows or have ended, because all windows are
    then read in one call. `starts` holds the index in each text at which its window starts.
    """

    def __init__(
        self,
        generator: Generator,
        params,
        request: Request,
        prompts: list[list[int]],
        *,
        limits: list[int],
    ):
        self.model, self.tokenizer = generator.model, generator.tokenizer
        self.programs = Programs(
            self.model, generator.ends, generator.placement, generator.constraints
        )
        self.params, self.request = params, request
        self.ids = [list(ids) for ids in prompts]
        self.prompt_lengths = np.array([len(ids) for ids in prompts])
        self.max_lengths = self.prompt_lengths + np.array(limits)
        self.starts = np.zeros(len(prompts), int)
        self.done = np.zeros(len(prompts), bool)
        # Decoded once, because `_outputs` cuts the prompts from the decoded texts at each call.
        self.prompts = self.tokenizer.decode(prompts)

    def write(self, first: int, size: int) -> list[Continuation]:
        """Continues the texts in a batch of `size` rows; `first` is the index of the first text."""
        # A row's key depends on the seed and the index of its prompt, not on the batch, so that
        # config.decode.batch does not change the texts.
        key = jax.random.key(self.request.seed)
        keys = jax.vmap(partial(jax.random.fold_in, key))(first + jnp.arange(size))
        # As key data, because windows consist of NumPy arrays, which have no typed keys.
        data = np.asarray(jax.random.key_data(keys))
        while not self.done.all():
            self._slide()
            self._fill(data)
        outputs, stops = self._outputs()
        return [self._continuation(row, outputs[row], stops[row]) for row in range(len(self.ids))]

    def _lengths(self) -> np.ndarray:
        return np.array([len(ids) for ids in self.ids])

    def _slide(self) -> None:
        """Moves each full window to its last half."""
        max_length = self.model.window
        lengths = self._lengths()
        is_full = lengths - self.starts >= max_length
        # Half is a compromise: a shorter rest loses more context, and a longer one fills the window
        # again after fewer new tokens, each time with a pass over all of it.
        self.starts = np.where(is_full, lengths - max_length // 2, self.starts)

    def _fill(self, keys: np.ndarray) -> None:
        """Generates until each text has ended or its window is full."""
        window, slots = self._window(keys)
        programs, how = self.programs, self.request.how
        # If nobody reads unfinished texts, one call fills the window, because each return to the
        # host waits for the devices.
        steps = _WATCH_EVERY if self.request.needs_text else slots
        texts = hosts.run(Programs.begin, programs, self.params, window, steps, slots, how)
        while True:
            ended = self._take(texts)
            outputs, stops = self._outputs()
            if self.request.watch:
                self.request.watch(outputs)
            # Stop strings are found in the decoded texts, because they may start or end within a
            # token.
            self.done |= np.array([at is not None for at in stops])
            # `ended` is longer than `done`, because it has the rows that pad the batch.
            ended[: len(self.done)] |= self.done
            if ended.all():
                break
            texts = texts._replace(ended=ended)
            texts = hosts.run(
                Programs.resume, programs, self.params, texts, window.fixed, steps, how
            )
        lengths = self._lengths()
        is_full = lengths - self.starts >= self.model.window
        # A text that filled neither its window nor its limit has ended by itself, since only then
        # do the steps end early.
        self.done |= ~(is_full & (lengths < self.max_lengths))

    def _window(self, keys: np.ndarray) -> tuple["Window", int]:
        """Returns the next windows, and the number of slots of the KV cache.

        The rows of texts that are done, and the rows that pad the batch, have length and limit 1,
        so they count as ended from the start.
        """
        size = len(keys)
        max_length = self.model.window
        live = np.flatnonzero(~self.done)
        lengths = np.ones(size, np.int32)
        lengths[live] = (self._lengths() - self.starts)[live]
        num_before = np.zeros(size, np.int32)
        num_before[live] = self.starts[live]
        limits = np.ones(size, np.int32)
        limits[live] = np.minimum((self.max_lengths - self.starts)[live], max_length)
        # A short text needs no cache of full length, which each step would read. After the first
        # window, all windows have one shape, so that nothing is recompiled.
        slots = max_length
        if not num_before.any():
            slots = min(rounded_up(limits.max(), LENGTH_MULTIPLE), max_length)
        length = min(rounded_up(lengths.max(), LENGTH_MULTIPLE), slots)
        rows = [[]] * size
        for row in live:
            rows[row] = self.ids[row][self.starts[row] :]
        fixed = Fixed(keys, num_before, limits)
        if self.programs.constraints != UNCONSTRAINED:
            none = np.zeros(size - len(self.ids), np.int64)
            prompts, whole = (
                np.concatenate([lengths - self.starts, none]).astype(np.int32)
                for lengths in (self.prompt_lengths, self.max_lengths)
            )
            fixed = fixed._replace(prompts=prompts, whole=whole)
        return Window(padded(rows, length), lengths, self._seen(size), fixed), slots

    def _seen(self, size: int) -> np.ndarray | None:
        """Returns which tokens each whole text has, (B, V) bool; None unless a penalty needs them.

        Tokens in front of the window count, too.
        """
        if self.request.how.repetition_penalty == 1:
            return None
        # Made on the host, because the window on the devices lacks the tokens in front of it.
        seen = np.zeros((size, self.model.num_outputs), bool)
        for row, ids in enumerate(self.ids):
            seen[row, ids] = True
        # The end token at the start of a text belongs to the document in front of it: it must not
        # make the end of this text less likely. One that the tokenizer puts there does, as in
        # transformers.
        if self.tokenizer.eos_id not in self.tokenizer.prefix:
            seen[:, self.tokenizer.eos_id] = False
        return seen

    def _take(self, texts: Texts) -> np.ndarray:
        """Stores the generated tokens. Returns which rows have ended (B,)."""
        ids, lengths, ended = jax.device_get((texts.ids, texts.lengths, texts.ended))
        for row in np.flatnonzero(~self.done):
            self.ids[row][self.starts[row] :] = ids[row, : lengths[row]].tolist()
        return ended.copy()  # the caller writes to it, and device_get may return a read-only view

    def _outputs(self) -> tuple[list[str], list[int | None]]:
        """Returns each continuation up to its first stop string, and the index of the latter in the
        continuation, or None.
        """
        # Decoded with its prompt, because a continuation may lose its first space without it.
        texts = self.tokenizer.decode(self.ids)
        outputs = [text[len(prompt) :] for text, prompt in zip(texts, self.prompts)]
        found = [[output.find(text) for text in self.request.stop] for output in outputs]
        stops = [min((index for index in each if index >= 0), default=None) for each in found]
        return [output[:at] for output, at in zip(outputs, stops)], stops

    def _continuation(self, row: int, output: str, stop: int | None) -> Continuation:
        finished = "end"
        if len(self.ids[row]) == self.max_lengths[row]:
            finished = "length"
        # Last, because a text with a stop string may also have reached its limit in the same call.
        if stop is not None:
            finished = "stop"
        num_tokens = len(self.ids[row]) - int(self.prompt_lengths[row])
        return Continuation(output, num_tokens, finished)


class Window(NamedTuple):
    """The last tokens of B texts, which the model reads before it generates."""

    tokens: Any  # (B, P) int32
    lengths: Any  # (B,) int32, at most P
    seen: Any  # (B, V) bool, the tokens in each whole text; or None
    fixed: Fixed  # its keys are key data (B, 2) uint32, since NumPy has no typed keys


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled functions. They take parameters in the form of the model's `for_decoding`."""

    model: Any
    ends: tuple[int, ...]
    placement: Placement
    constraints: Constraints = UNCONSTRAINED

    # `slots` is static, because it is a shape. `steps` is traced, so that another number of steps
    # needs no compilation.
    @partial(jax.jit, static_argnums=(0, 4, 5))
    def begin(
        self, params, window: Window, steps: Int[Array, ""] | int, slots: int, how: Sampling
    ) -> Texts:
        """Reads the windows into a cache of `slots` tokens, and generates up to `steps` more."""
        with self.placement.use():
            tokens, lengths, seen, fixed = split_rows(window)
            batch, size = tokens.shape
            logits, state = self.model.begin(params, tokens, lengths, slots=slots)
            # As long as the cache, so that the loop writes each token in place.
            ids = jnp.zeros((batch, slots), jnp.int32).at[:, :size].set(tokens)
            texts = Texts(ids, lengths, lengths >= fixed.limits, seen, logits, state)
            return self._more(params, texts, fixed, steps, how)

    # Donating `texts` keeps XLA from copying the KV cache at each call.
    @partial(jax.jit, static_argnums=(0, 5), donate_argnums=2)
    def resume(
        self, params, texts: Texts, fixed: Fixed, steps: Int[Array, ""] | int, how: Sampling
    ) -> Texts:
        """Generates up to `steps` more tokens for each text. The buffers of `texts` are donated."""
        with self.placement.use():
            return self._more(params, split(texts), split_rows(fixed), steps, how)

    def _more(self, params, texts, fixed, steps, how):
        def step(state, tokens):
            # Without the barrier, XLA gathers all sharded parameters at once, before the loop, and
            # each device needs the memory of the whole model.
            return self.model.step(*sharding.gather_after(params, state), tokens)

        fixed = fixed._replace(keys=jax.random.wrap_key_data(fixed.keys))
        rules = dict(how=how, ends=self.ends, constraints=self.constraints)
        texts = split(sample(step, texts, fixed, steps, **rules))
        # Only these three are gathered, because the host reads them after each call. The others, of
        # which the KV cache is by far the largest, stay split over the devices.
        ids, lengths, ended = gathered((texts.ids, texts.lengths, texts.ended))
        return texts._replace(ids=ids, lengths=lengths, ended=ended)


# ------------------------------------ best-of-n sampling with a reward model (Stiennon et al. 2020)

# Continuations that are scored in one call. It bounds what a stream of prompts holds in memory;
# those of one prompt are never separated, because the best is chosen among all of them.
_SCORED = 1024


class Rewarded(NamedTuple):
    text: str
    tokens: int  # generated, including those after the start of a stop string
    finished: str  # as in Continuation
    reward: float


def best_of(
    generate: Callable[[Iterable[Any]], Iterable[Continuation]],
    score: Callable[[list[tuple[Any, str]]], Iterable[float]],
    prompts: Iterable[Any],
    n: int,
) -> Iterator[Rewarded]:
    """Yields, for each prompt in order, the one of `n` continuations that has the highest reward.

    A prompt is a text, or the messages of a conversation if `generate` and `score` take them.
    `generate(prompts)` samples a continuation of each prompt, and `score(pairs)` returns the reward
    of each (prompt, continuation); they are methods of two tasks, bound to their parameters. Ties
    go to the first continuation. Prompt i has the samples i n to i n + n - 1 of `generate`.

    Raises UserError if `n` is below 1.
    """
    if n < 1:
        raise UserError(f"best_of={n}: must be at least 1")
    # A stream of prompts may be endless, so each is repeated, continued, and scored in turn.
    repeated = (prompt for prompt in arguments.as_texts(prompts) for _ in range(n))
    to_score, to_continue = itertools.tee(repeated)
    drawn = zip(to_score, generate(to_continue))
    for pairs in chunks(drawn, n * max(_SCORED // n, 1)):
        rewards = score([(prompt, continuation.text) for prompt, continuation in pairs])
        rewarded = [
            Rewarded(*continuation, reward) for (_, continuation), reward in zip(pairs, rewards)
        ]
        for group in chunks(rewarded, n):
            yield max(group, key=lambda rewarded: rewarded.reward)
