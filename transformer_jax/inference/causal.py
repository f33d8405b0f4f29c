"""The uses of a trained causal language model: continuing texts, and scoring them."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.data import arguments
from transformer_jax.data.sources import chat
from transformer_jax.data.tokenizers import ChatTokenizer
from transformer_jax.data.tokenizers.chat import Prompt, as_messages
from transformer_jax.distributed import hosts
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference import attention, batching
from transformer_jax.inference.batching import chunks, in_order, longest_first, padded, rounded_up
from transformer_jax.inference.beam_search import (
    BestContinuations,
    ScoredContinuation,
    checked_search,
)
from transformer_jax.inference.generation import (
    MAX_TOKENS,
    Continuation,
    Generator,
    Request,
    Sampling,
)
from transformer_jax.inference.generation import sampling_from as sampling_of
from transformer_jax.layers.embeddings import check_ids, token_log_probs
from transformer_jax.pictures.attention_maps import Attended

# --------------------------------------------------------------------------------------------------
# Log-probabilities that a causal language model gives to texts.

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
        hidden = model.apply({"params": params}, Inputs(tokens[:, :-1]), method="hidden")
        output = model.apply({"params": params}, method="output")
        log_probs, likeliest = token_log_probs(hidden, output, tokens[:, 1:])
        log_prob = jnp.sum(log_probs * weights, axis=1)
        return gathered((log_prob, jnp.all(likeliest | (weights == 0), axis=1)))


# --------------------------------------------------------------------------------------------------
# The methods of a task whose model is causal. They also reply in chats and return attention.


class CausalUse:
    """The methods of a task whose model is of the kind Causal."""

    config: ConfigDict
    model: Any
    tokenizer: Any

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kinds of attention that `attention` returns."""
        return self.model.attentions

    def generate(
        self,
        params,
        prompts: Iterable[str],
        *,
        max_tokens: int | None = None,
        how: Sampling | None = None,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        watch: Callable[[list[str]], None] | None = None,
        window: Literal["slide", "refuse"] = "slide",
        **sampling,
    ) -> Iterator[Continuation]:
        """Yields a continuation of each prompt, in order.

        A continuation ends where the document ends, before one of the strings `stop`, or after
        `max_tokens` tokens (default: 100). `how=Sampling(...)` decides how a token is drawn; its
        options may be given by name, as in temperature=0.8. `watch` is called from time to time
        with the unfinished continuations of a batch.

        The model reads a window of at most `config.model.max_length` tokens. When the window is
        full, its last half becomes a new prompt with positions from 0. The end of a document that
        stands before a text is not repeated there. A prompt that fills the window is cut to its
        last half. `repetition_penalty` counts the tokens of the whole text.

        With window="refuse", a prompt and `max_tokens` that exceed the window together raise
        UserError. The default of `max_tokens` is then at most the room that is left.

        A text depends only on its prompt, the number of its prompt, and `seed`. Other texts of its
        batch change its logits by rounding errors. In float32 these errors decide no token; in
        bfloat16 they rarely do.
        """
        drawing = sampling_of(how, sampling)
        request = Request(max_tokens, drawing, _strings(stop), seed, watch, window)
        generator = self._generator(params, self.tokenizer)
        some = chunks(arguments.as_texts(prompts), generator.batch)
        encoded = (self.with_start(ids) for texts in some for ids in self.tokenizer.encode(texts))
        return generator(params, encoded, request)

    def _generator(self, params, tokenizer) -> Generator:
        placement = Placement.of(params, self.config.mesh).decoding()
        batch = placement.rows(self.config.decode.batch)
        return Generator(self.model, tokenizer, batch, placement)

    def reply(self, params, messages: Prompt, **options) -> Continuation:
        """Returns the assistant's answer to one prompt. See `replies` for options and errors."""
        encode, write = self._answering(params, **options)
        return next(write([encode(messages)]))

    def replies(self, params, prompts: Iterable[Prompt], **options) -> Iterator[Continuation]:
        """Yields the assistant's answer to each prompt, in order, for a run that knows the marks.

        A prompt is a conversation, [{"role": "user", "content": "Hello"}] and so on, or a text,
        which is a message of the user. An answer has at most `max_tokens` tokens, by default a
        quarter of `config.model.max_length`. A conversation that leaves less room loses its oldest
        turns; the message of the system stays. The other options are those of `generate`, but for
        `window`.

        Raises UserError for messages that are no conversation, for a run without marks, and where
        the last turn alone leaves less room.
        """
        encode, write = self._answering(params, **options)
        return write(each(encode, arguments.as_texts(prompts)))

    def _answering(
        self,
        params,
        *,
        max_tokens: int | None = None,
        how: Sampling | None = None,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        watch: Callable[[list[str]], None] | None = None,
        **sampling,
    ) -> tuple[Callable, Callable]:
        """Returns two functions: that of a prompt's ids, and that of the answers to ids."""
        tokenizer = self.chat_tokenizer
        limit = room_of_answer(self.model) if max_tokens is None else max_tokens
        drawing = sampling_of(how, sampling)
        request = Request(limit, drawing, _strings(stop), seed, watch, "refuse")
        encode = partial(prompt, tokenizer, self.model, limit)
        generator = self._generator(params, tokenizer.answering)
        return encode, partial(generator, params, request=request)

    @property
    def chat_tokenizer(self) -> ChatTokenizer:
        """The tokenizer, with the marks of conversations. Raises UserError where it has none."""
        if not isinstance(self.tokenizer, ChatTokenizer):
            raise UserError(
                f"config.task.name={self.config.task.name!r}: this run knows no marks of "
                "conversations; begin a run of config.task.name='chat' with it"
            )
        return self.tokenizer

    def generate_beam(
        self,
        params,
        prompts: Iterable[str],
        *,
        beam: int | None = None,
        n_best: int = 1,
        max_tokens: int | None = None,
    ) -> Iterator[list[ScoredContinuation]]:
        """Yields the `n_best` continuations of each prompt, in order, by beam search.

        `beam` hypotheses are open at a time (default: `config.decode.beam`); one beam always takes
        the likeliest token. A score is the log-probability over the length penalty of
        `config.decode.alpha`. The other keys of config.decode hold, but for `max_length` and
        `max_extra`. A continuation ends where the document ends, or after `max_tokens` tokens
        (default: 100, at most the room that the window has left).

        Raises UserError for a prompt that exceeds the window together with `max_tokens`.
        """
        decode, model = self.config.decode, self.config.model
        search = checked_search(
            decode.beam if beam is None else beam,
            n_best,
            decode=decode,
            tokenizer=self.tokenizer,
            vocab_size=model.vocab_size,
        )
        placement = Placement.of(params, self.config.mesh).decoding()
        batch = placement.rows(decode.batch)
        find = BestContinuations(self.model, self.tokenizer, self.with_start, batch, placement)
        return find(params, arguments.as_texts(prompts), search, max_tokens)

    def with_start(self, ids: list[int]) -> list[int]:
        """Returns the ids of a text's beginning, as the model reads them in training."""
        return batching.with_start(ids, self.tokenizer, self.config.data)

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """Returns the attention weights between the words of a text; with `pieces`, its tokens.

        Raises UserError for a text longer than `config.model.max_length`.
        """
        ids = self.with_start(self.tokenizer.encode([text])[0])
        return attention.in_text(
            self.model, params, self.tokenizer, ids, stack="decoder", pieces=pieces
        )

    def log_likelihoods(self, params, pairs: Iterable[tuple[str, str]]) -> Iterator[Likelihood]:
        """Yields log P(continuation | context) for each (context, continuation), in order.

        An empty context is the beginning of a document. A text that is too long for the model loses
        the beginning of its context.
        """
        return self._scorer(params).texts(params, pairs)

    def token_log_likelihoods(
        self, params, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> Iterator[Likelihood]:
        """As `log_likelihoods`, for token ids.

        Raises UserError for an empty context, and for ids that are not in the vocabulary.
        """
        return self._scorer(params).tokens(params, pairs)

    def _scorer(self, params) -> Scorer:
        placement = Placement.of(params, self.config.mesh)
        batch = placement.rows(self.config.decode.batch)
        return Scorer(self.model, self.tokenizer, self.with_start, batch, placement)


def _strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


def room_of_answer(model: Any) -> int:
    """Returns the most tokens of an answer, by default: a quarter of the window."""
    return MAX_TOKENS if model.max_length is None else max(model.window // 4, 1)


def prompt(tokenizer: ChatTokenizer, model: Any, max_tokens: int, turns: Prompt) -> list[int]:
    """Returns the ids of a conversation that leaves room for `max_tokens` in the window.

    The oldest turns are left out until it does. A turn is a message of the user with those that
    follow it. The message of the system stays. Raises UserError where the last turn alone is too
    long, and for messages that are no conversation.
    """
    messages = as_messages(turns)
    chat.check_turns(messages, "messages")
    room = model.window - max_tokens
    begins = [place for place, message in enumerate(messages) if message["role"] == "user"]
    has_system = messages[0]["role"] == "system"
    for begin in [int(has_system), *begins]:
        ids = tokenizer.prompt([*messages[:has_system], *messages[begin:]])
        if len(ids) <= room:
            return ids
    raise UserError(
        f"the last message: its prompt of {len(ids)} tokens and an answer of {max_tokens} exceed "
        f"config.model.max_length={model.max_length}; write less, or give a smaller max_tokens"
    )


def each(encode: Callable[[Prompt], list[int]], prompts: Iterable[Prompt]) -> Iterator[list[int]]:
    """Yields the ids of each prompt. An error names its number."""
    for number, turns in enumerate(prompts, 1):
        try:
            yield encode(turns)
        except UserError as error:
            raise UserError(f"prompt {number}: {error}") from None
