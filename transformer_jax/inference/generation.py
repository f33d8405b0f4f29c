"""Generating text token by token: sampling, a sliding window, stop strings, the best of n."""

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

from transformer_jax.config import UserError
from transformer_jax.data import arguments
from transformer_jax.distributed import hosts, sharding
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference.batching import chunks, padded, rounded_up
from transformer_jax.layers.decoding import State, on_rows, split
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# Generating token by token: the likeliest token, or a random one.

# Tokens of a block: about the square root of a large vocabulary's size.
_BLOCK_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits. The options apply in this order."""

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
        """Returns a token for each row, (B,) int32.

        The arguments are the logits (B, V), the tokens that each row's text has (B, V) bool, and a
        key for each row (B,).
        """
        logits = logits.astype(jnp.float32)
        if self.repetition_penalty != 1:
            penalised = jnp.where(
                logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty
            )
            logits = jnp.where(seen, penalised, logits)
        if self.temperature == 0:
            return logits.argmax(axis=-1).astype(jnp.int32)
        logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            # With [:, -1:] XLA sorts the whole vocabulary, which takes a hundred times as long.
            least = jax.lax.top_k(logits, self.top_k)[0].min(axis=-1, keepdims=True)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p < 1:
            logits = jnp.where(_nucleus(jax.nn.softmax(logits), self.top_p), logits, -jnp.inf)
        weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
        return drawn(weights, jax.vmap(jax.random.uniform)(keys))


def sampling_from(how: Any, options: Mapping[str, Any]) -> Sampling:
    """Returns `how`, or the Sampling with these options by name.

    Raises UserError for an unknown name, and where both are given.
    """
    names = [field.name for field in dataclasses.fields(Sampling)]
    if unknown := [name for name in options if name not in names]:
        name, known = unknown[0], ", ".join(names)
        raise UserError(f"{name}={options[name]!r}: unknown option; the options are {known}")
    if how is not None and options:
        raise UserError(f"how and {next(iter(options))}: give the options of sampling in one way")
    if not isinstance(how, Sampling | None):
        raise UserError(f"how={how!r}: must be a Sampling; or give its options by name")
    return how or Sampling(**options)


def _nucleus(probabilities: Float[Array, "B V"], top_p: float) -> Bool[Array, "B V"]:
    """Returns the tokens (B, V) bool whose likelier tokens have less than `top_p` together.

    The token that reaches `top_p` is among them. Bisection over the bits of float32, which have the
    same order as the numbers, finds the probability at the border. Sorting a vocabulary takes 15
    times as long on a CPU.
    """
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        room = jnp.where(bits > middle, probabilities, 0).sum(axis=-1, keepdims=True) < top_p
        return jnp.where(room, low, middle + 1), jnp.where(room, middle, high)

    one = jnp.full_like(bits[:, :1], jnp.float32(1).view(jnp.int32))
    return bits >= jax.lax.fori_loop(0, 31, halve, (jnp.zeros_like(one), one))[1]


def drawn(weights: Float[Array, "B V"], uniform: Float[Array, " B"]) -> Int[Array, " B"]:
    """Returns a token for each row of weights (B, V), from a number (B,) in [0, 1) each.

    A block of tokens is drawn first, then a token of the block. Gumbel noise for each token takes
    20 times as long on a CPU.
    """
    batch, vocab = weights.shape
    blocks = jnp.pad(weights, ((0, 0), (0, -vocab % _BLOCK_TOKENS)))
    blocks = blocks.reshape(batch, -1, _BLOCK_TOKENS)

    def reached(sums, share):
        """Returns the first place where the cumulated `sums` (B, N) exceed `share` (B,), and the
        part of `share` beyond the beginning of that place.
        """
        ends = jnp.cumsum(sums, axis=-1)
        # Rounding must not put the share beyond the last place.
        share = jnp.minimum(share, ends[:, -1] * (1 - 2**-22))
        begins = jnp.where(ends <= share[:, None], ends, 0).max(axis=-1)
        return jnp.sum(ends <= share[:, None], axis=-1), share - begins

    sums = blocks.sum(axis=-1)
    block, share = reached(sums, uniform * sums.sum(axis=-1))
    token, _ = reached(blocks[jnp.arange(batch), block], share)
    return (block * _BLOCK_TOKENS + token).astype(jnp.int32)


class Texts(NamedTuple):
    """B texts during generation: their tokens, and the state that the next token is drawn from."""

    ids: jax.Array  # (B, T) int32, prompts first
    lengths: jax.Array  # (B,) int32: number of `ids`
    ended: jax.Array  # (B,) bool
    seen: jax.Array | None  # (B, V) bool: the tokens in each text; None where no penalty needs them
    logits: jax.Array  # (B, V) of the next token
    state: State  # the tokens that the model has read


class Fixed(NamedTuple):
    """Values that do not change while B texts are generated."""

    keys: jax.Array  # (B,)
    num_before: jax.Array  # (B,) int32: tokens of the text before its `ids`
    limits: jax.Array  # (B,) int32: most tokens in its `ids`


def sample(
    step: Callable, texts: Texts, fixed: Fixed, steps: Int[Array, ""], *, how: Sampling, eos_id: int
) -> Texts:
    """Returns `texts` with up to `steps` more tokens each.

    A text ends before `eos_id` or at its limit. `step(state, tokens (B, 1))` returns
    (logits (B, 1, V), state).

    The randomness of a token comes from its row's key and its place in the whole text. So a text
    depends neither on the other rows nor on the number of steps of a call.
    """

    def running(loop):
        number, texts = loop
        return (number < steps) & ~texts.ended.all()

    def write(texts, fixed):
        rows = jnp.arange(len(texts.lengths))
        keys = jax.vmap(jax.random.fold_in)(fixed.keys, fixed.num_before + texts.lengths)
        token = how.draw(texts.logits, texts.seen, keys)
        live = ~texts.ended & (token != eos_id)
        ids = texts.ids.at[rows, texts.lengths].set(
            jnp.where(live, token, texts.ids[rows, texts.lengths])
        )
        seen = None if texts.seen is None else texts.seen.at[rows, token].max(live)
        lengths = texts.lengths + live
        ended = ~live | (lengths >= fixed.limits)
        return Texts(ids, lengths, ended, seen, None, None), token

    def advance(loop):
        number, texts = loop
        written, token = on_rows(write, texts._replace(state=None), fixed)
        logits, state = step(texts.state, token[:, None])
        return number + 1, written._replace(logits=logits[:, 0], state=state)

    return jax.lax.while_loop(running, advance, (jnp.int32(0), texts))[1]


# --------------------------------------------------------------------------------------------------
# Continuing texts with a causal language model: batches, a sliding window, stop strings.

WINDOWS = ("slide", "refuse")
MAX_TOKENS = 100  # of a continuation, by default

# Lengths are padded to multiples of it, so that few shapes are compiled.
LENGTH_MULTIPLE = 64
# Tokens between two calls of `watch`, and between two searches for stop strings.
_WATCH_EVERY = 8


class Continuation(NamedTuple):
    text: str
    tokens: int  # generated, including those behind a stop string
    # "end": at the end of the document; "stop": before a stop string; "length": after max_tokens
    finished: str


@dataclasses.dataclass(frozen=True)
class Request:
    """How each prompt is continued. See CausalUse.generate."""

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

    A prompt is the ids of a text's beginning, as the model reads them in training. The devices
    share the texts of a batch.
    """

    model: Any  # the Linen module
    tokenizer: Any
    batch: int
    placement: Placement

    def __call__(
        self, params, prompts: Iterable[list[int]], request: Request
    ) -> Iterator[Continuation]:
        params = self.model.for_decoding(params)
        first, size = 0, 0
        for ids in chunks(prompts, self.batch):
            # The last batch is filled up to the shape of the others.
            size = size or self.placement.rows(len(ids))
            limits = self._limits(ids, first, request)
            yield from _Batch(self, params, request, ids, limits=limits).write(first, size)
            first += len(ids)

    def _limits(self, prompts: list[list[int]], first: int, request: Request) -> list[int]:
        """Returns the most tokens to generate for each prompt; `first` is the first number."""
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
                f"generation begins from the last {max_length // 2}"
            )
        return [MAX_TOKENS if request.max_tokens is None else request.max_tokens] * len(prompts)


def limit_in_window(model: Any, prompt: list[int], number: int, max_tokens: int | None) -> int:
    """Returns the most tokens to generate for prompt `number`, counted from 0, of these ids.

    Raises UserError where the prompt and these tokens exceed the model's window.
    """
    limit = max_tokens
    if limit is None:
        limit = max(min(MAX_TOKENS, model.window - len(prompt)), 1)
    if len(prompt) + limit > model.window:
        raise UserError(
            f"prompt {number + 1}: its {len(prompt)} tokens and {limit} more exceed "
            f"config.model.max_length={model.window}"
        )
    return limit


class _Batch:
    """The texts of a batch during generation: their tokens, and the windows onto them.

    A full window moves to its last half, which becomes a new prompt. A text with a full window
    waits until the other texts have filled theirs or have ended. Then all windows are read at once.
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
        self.programs = Programs(self.model, self.tokenizer.eos_id, generator.placement)
        self.params, self.request = params, request
        self.ids = [list(ids) for ids in prompts]
        self.prompt_lengths = np.array([len(ids) for ids in prompts])
        self.max_lengths = self.prompt_lengths + np.array(limits)
        # The place in its text at which each window begins.
        self.begins = np.zeros(len(prompts), int)
        self.done = np.zeros(len(prompts), bool)
        self.prompts = self.tokenizer.decode(prompts)

    def write(self, first: int, size: int) -> list[Continuation]:
        """Continues the texts in a batch of `size` rows; `first` is the first text's number."""
        key = jax.random.key(self.request.seed)
        keys = jax.vmap(partial(jax.random.fold_in, key))(first + jnp.arange(size))
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
        is_full = lengths - self.begins >= max_length
        self.begins = np.where(is_full, lengths - max_length // 2, self.begins)

    def _fill(self, keys: np.ndarray) -> None:
        """Generates until each text has ended or its window is full."""
        window, slots = self._window(keys)
        programs, how = self.programs, self.request.how
        steps = _WATCH_EVERY if self.request.needs_text else slots
        texts = hosts.run(Programs.begin, programs, self.params, window, steps, slots, how)
        while True:
            ended = self._take(texts)
            outputs, stops = self._outputs()
            if self.request.watch:
                self.request.watch(outputs)
            self.done |= np.array([at is not None for at in stops])
            ended[: len(self.done)] |= self.done
            if ended.all():
                break
            texts = texts._replace(ended=ended)
            texts = hosts.run(
                Programs.resume, programs, self.params, texts, window.fixed, steps, how
            )
        lengths = self._lengths()
        is_full = lengths - self.begins >= self.model.window
        self.done |= ~(is_full & (lengths < self.max_lengths))

    def _window(self, keys: np.ndarray) -> tuple["Window", int]:
        """Returns the next windows, and the slots of the cache. Rows of done texts are ended."""
        size = len(keys)
        max_length = self.model.window
        live = np.flatnonzero(~self.done)
        lengths = np.ones(size, np.int32)
        lengths[live] = (self._lengths() - self.begins)[live]
        num_before = np.zeros(size, np.int32)
        num_before[live] = self.begins[live]
        limits = np.ones(size, np.int32)
        limits[live] = np.minimum((self.max_lengths - self.begins)[live], max_length)
        # All windows but the first have the same shape.
        slots = max_length
        if not num_before.any():
            slots = min(rounded_up(limits.max(), LENGTH_MULTIPLE), max_length)
        length = min(rounded_up(lengths.max(), LENGTH_MULTIPLE), slots)
        rows = [[]] * size
        for row in live:
            rows[row] = self.ids[row][self.begins[row] :]
        fixed = Fixed(keys, num_before, limits)
        return Window(padded(rows, length), lengths, self._seen(size), fixed), slots

    def _seen(self, size: int) -> np.ndarray | None:
        """Returns the tokens of each whole text (B, V) bool; None where no penalty needs them."""
        if self.request.how.repetition_penalty == 1:
            return None
        seen = np.zeros((size, self.model.vocab_size), bool)
        for row, ids in enumerate(self.ids):
            seen[row, ids] = True
        # The end token at the start of a text is the end of another document.
        seen[:, self.tokenizer.eos_id] = False
        return seen

    def _take(self, texts: Texts) -> np.ndarray:
        """Stores the generated tokens. Returns which rows have ended (B,)."""
        ids, lengths, ended = jax.device_get((texts.ids, texts.lengths, texts.ended))
        for row in np.flatnonzero(~self.done):
            self.ids[row][self.begins[row] :] = ids[row, : lengths[row]].tolist()
        return ended.copy()

    def _outputs(self) -> tuple[list[str], list[int | None]]:
        """Returns each continuation up to its first stop string, and the place of that or None."""
        # A continuation that is decoded without its prompt may lose its first space.
        texts = self.tokenizer.decode(self.ids)
        outputs = [text[len(prompt) :] for text, prompt in zip(texts, self.prompts)]
        places = [[output.find(text) for text in self.request.stop] for output in outputs]
        stops = [min((place for place in each if place >= 0), default=None) for each in places]
        return [output[:at] for output, at in zip(outputs, stops)], stops

    def _continuation(self, row: int, output: str, stop: int | None) -> Continuation:
        finished = "end"
        if len(self.ids[row]) == self.max_lengths[row]:
            finished = "length"
        if stop is not None:
            finished = "stop"
        num_tokens = len(self.ids[row]) - int(self.prompt_lengths[row])
        return Continuation(output, num_tokens, finished)


class Window(NamedTuple):
    """The last tokens of B texts, which the model reads before it generates."""

    tokens: Any  # (B, P) int32
    lengths: Any  # (B,) int32, at most P
    seen: Any  # (B, V) bool, the tokens of each whole text; or None
    fixed: Fixed  # its keys are data (B, 2) uint32


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled functions. Their parameters are those of the model's `for_decoding`."""

    model: Any
    eos_id: int
    placement: Placement

    @partial(jax.jit, static_argnums=(0, 4, 5))
    def begin(
        self, params, window: Window, steps: Int[Array, ""] | int, slots: int, how: Sampling
    ) -> Texts:
        """Reads a window with room for `slots` tokens. Generates up to `steps` tokens a text."""
        with self.placement.use():
            tokens, lengths, seen, fixed = split_rows(window)
            batch, size = tokens.shape
            logits, state = self.model.begin(params, tokens, lengths, slots=slots)
            ids = jnp.zeros((batch, slots), jnp.int32).at[:, :size].set(tokens)
            texts = Texts(ids, lengths, lengths >= fixed.limits, seen, logits, state)
            return self._more(params, texts, fixed, steps, how)

    @partial(jax.jit, static_argnums=(0, 5), donate_argnums=2)
    def resume(
        self, params, texts: Texts, fixed: Fixed, steps: Int[Array, ""] | int, how: Sampling
    ) -> Texts:
        """Generates up to `steps` more tokens a text."""
        with self.placement.use():
            return self._more(params, split(texts), split_rows(fixed), steps, how)

    def _more(self, params, texts, fixed, steps, how):
        def step(state, tokens):
            return self.model.step(*sharding.gather_after(params, state), tokens)

        fixed = fixed._replace(keys=jax.random.wrap_key_data(fixed.keys))
        texts = split(sample(step, texts, fixed, steps, how=how, eos_id=self.eos_id))
        # The host reads these.
        ids, lengths, ended = gathered((texts.ids, texts.lengths, texts.ended))
        return texts._replace(ids=ids, lengths=lengths, ended=ended)


# --------------------------------------------------------------------------------------------------
# Best of n: the continuation of several that a reward model prefers (Stiennon et al. 2020).

# Continuations that are scored together, at least those of one prompt.
_SCORED = 1024


class Rewarded(NamedTuple):
    text: str
    tokens: int  # generated, including those behind a stop string
    finished: str  # as that of a Continuation
    reward: float


def best_of(
    generate: Callable[[Iterable[Any]], Iterable[Continuation]],
    score: Callable[[list[tuple[Any, str]]], Iterable[float]],
    prompts: Iterable[Any],
    n: int,
) -> Iterator[Rewarded]:
    """Yields the continuation of each prompt with the highest reward of `n`, in order.

    A prompt is a text, or the messages of a conversation where `generate` and `score` take them.
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
