"""The uses of a trained causal language model: generating and scoring text."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.data import arguments
from transformer_jax.data.sources import chat
from transformer_jax.data.tokenizers import ChatTokenizer, conversational
from transformer_jax.data.tokenizers.chat import Prompt, as_messages
from transformer_jax.distributed import hosts
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference import attention
from transformer_jax.inference.batching import chunks, padded, rounded_up
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
    sampling_from,
)
from transformer_jax.inference.log_probabilities import LeftToRight, TextScores
from transformer_jax.inference.token_constraints import Constraints, end_ids
from transformer_jax.pictures.attention_maps import Attended

# Lengths are padded to multiples of this, so that few shapes are compiled.
_LENGTH_MULTIPLE = 64


class NextToken(NamedTuple):
    token: str  # for display, with visible spaces and line ends
    probability: float


@partial(jax.jit, static_argnums=(0, 1, 4))
def _likeliest_next(
    model, placement, params, prompts: tuple[Int[Array, "B L"], Int[Array, " B"]], top_k: int
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Returns the log-probabilities and ids of the likeliest next tokens of the prompts, (B, k).

    `prompts` are tokens (B, L), and the number of them that belong to each prompt (B,).
    """
    with placement.use():
        tokens, lengths = split_rows(prompts)
        hidden = model.apply({"params": params}, Inputs(tokens), method="hidden")
        last = jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)[:, 0]
        logits = model.apply({"params": params}, last, method="logits")
        return gathered(tuple(jax.lax.top_k(jax.nn.log_softmax(logits), top_k)))


# --------------------------------------------------------- the uses of a task whose model is causal


class CausalUse(TextScores):
    """The methods of a task whose model is of the kind Causal."""

    @property
    def scoring(self) -> LeftToRight:
        return LeftToRight(self.model, self.tokenizer, self.config.data.mask_documents)

    @property
    def limited_model(self) -> Any:
        """The model, whose next tokens are limited to those of the tokenizer: what is generated."""
        return self.model.limited_to(self.tokenizer, self.config.data)

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

        A continuation ends at the end of the document, in front of one of the strings `stop`, or
        after `max_tokens` tokens (default: 100). `how=Sampling(...)` decides how a token is drawn;
        its options may also be given by name, as in temperature=0.8. `watch` is called from time to
        time with the unfinished continuations of a batch.

        The model reads a window of at most `config.model.max_length` tokens. When the window is
        full, its last half becomes a new prompt whose positions start from 0; the end token in
        front of the text is not repeated. A prompt that fills the window is cut to its last half.
        `repetition_penalty` considers the tokens of the whole text.

        With window="refuse", a prompt that exceeds the window together with `max_tokens` raises
        UserError, and by default `max_tokens` is at most the room that the window has left.

        A text depends only on its prompt, the index of its prompt, and `seed`. The other texts of
        its batch change its logits by rounding errors, which never decide a token in float32 and
        rarely do in bfloat16.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/gpt")
          >>> [continuation] = task.generate(params, ["The cat"], max_tokens=5, temperature=0.8)
          >>> len(continuation.text)
          5
        """
        how = sampling_from(how, sampling)
        request = Request(max_tokens, how, _strings(stop), seed, watch, window)
        generator = self._generator(params, self.tokenizer)
        # Prompts are encoded batch by batch as they are needed, so they may be a stream.
        batches = chunks(arguments.as_texts(prompts), generator.batch)
        encoded = (
            self.with_start(ids) for texts in batches for ids in self.tokenizer.encode(texts)
        )
        return generator(params, encoded, request)

    def _generator(self, params, tokenizer) -> Generator:
        placement = Placement.of(params, self.config.mesh).decoding()
        batch = placement.rows(self.config.decode.batch)
        decode = self.config.decode
        ends = end_ids(decode, tokenizer)
        if tokenizer.eos_id != self.tokenizer.eos_id:  # a reply ends with its message, too
            ends = tuple(dict.fromkeys((tokenizer.eos_id, *decode.ends)))
        constraints = Constraints.of(decode, ends, never=tuple(tokenizer.never))
        # Renormalizing shifts all log-probabilities of a text alike, which only matters where
        # hypotheses are compared with each other, in a beam search.
        constraints = dataclasses.replace(constraints, renormalize=False)
        return Generator(self.limited_model, tokenizer, batch, placement, ends, constraints)

    def reply(self, params, messages: Prompt, **options) -> Continuation:
        """Returns the assistant's reply to one prompt. See `replies` for options and errors.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/chat")
          >>> messages = [{"role": "user", "content": "Hello"}]
          >>> isinstance(task.reply(params, messages, max_tokens=4).text, str)
          True
        """
        encode, write = self._chat_functions(params, **options)
        return next(write([encode(messages)]))

    def replies(self, params, prompts: Iterable[Prompt], **options) -> Iterator[Continuation]:
        """Yields the assistant's reply to each prompt, in order.

        A prompt is a conversation, such as [{"role": "user", "content": "Hello"}], or a text, which
        is read as a message of the user. A reply has at most `max_tokens` tokens, by default a
        quarter of `config.model.max_length`. A conversation that leaves less room loses its oldest
        turns, but keeps the system message. `tools` are the descriptions of functions that a chat
        template may show, as transformers passes them to it. The other options are those of
        `generate`, except for `window`.

        Raises UserError for messages that are not a conversation, for a run whose tokenizer has no
        special tokens for conversations, and if the last turn alone leaves too little room.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/chat")
          >>> len([*task.replies(params, ["Hello", "Thanks"], max_tokens=4)])
          2
        """
        encode, write = self._chat_functions(params, **options)
        return write(each(encode, arguments.as_texts(prompts)))

    def _chat_functions(
        self,
        params,
        *,
        max_tokens: int | None = None,
        how: Sampling | None = None,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        watch: Callable[[list[str]], None] | None = None,
        tools: Sequence[Mapping] = (),
        **sampling,
    ) -> tuple[Callable, Callable]:
        """Returns two functions: one encodes a prompt, the other replies to encoded prompts."""
        tokenizer = self.chat_tokenizer
        limit = _default_max_tokens(self.model) if max_tokens is None else max_tokens
        how = sampling_from(how, sampling)
        # A window that slides would lose the system message and start in the middle of a turn.
        request = Request(limit, how, _strings(stop), seed, watch, "refuse")
        encode = partial(prompt, tokenizer, self.model, limit, tools=tools)
        generator = self._generator(params, tokenizer.for_replies)
        return encode, partial(generator, params, request=request)

    @functools.cached_property
    def chat_tokenizer(self) -> ChatTokenizer:
        """The tokenizer for conversations. Raises UserError if the run has none."""
        tokenizer = conversational(self.tokenizer)
        if tokenizer is None:
            raise UserError(
                f"config.task.name={self.config.task.name!r}: this run has neither special tokens "
                "for conversations nor a chat template; start a run of config.task.name='chat' "
                "from it"
            )
        return tokenizer

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

        `beam` is the number of open hypotheses (default: `config.decode.beam`); a beam of 1 always
        takes the likeliest token. A score is the log-probability divided by the length penalty with
        `config.decode.alpha`. The other keys of config.decode apply as well, except for
        `max_length` and `max_extra`. A continuation ends at the end of the document, or after
        `max_tokens` tokens (default: 100, or less if the window has less room).

        Raises UserError for a prompt that exceeds the window together with `max_tokens`.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/gpt")
          >>> [best] = task.generate_beam(params, ["The cat"], beam=3, n_best=2, max_tokens=5)
          >>> best[0].score >= best[1].score
          True
        """
        decode = self.config.decode
        search = checked_search(
            decode.beam if beam is None else beam,
            n_best,
            decode=decode,
            tokenizer=self.tokenizer,
            vocab_size=self.limited_model.num_outputs,
        )
        placement = Placement.of(params, self.config.mesh).decoding()
        batch = placement.rows(decode.batch)
        find = BestContinuations(
            self.limited_model, self.tokenizer, self.with_start, batch, placement
        )
        return find(params, arguments.as_texts(prompts), search, max_tokens)

    def next_tokens(
        self, params, prompts: Iterable[str], top_k: int = 10
    ) -> Iterator[list[NextToken]]:
        """Yields the `top_k` likeliest next tokens of each prompt, in order, the likeliest first.

        The probabilities are the model's own, from which `generate` samples at temperature 1. They
        are over the tokens of the tokenizer. Of a prompt longer than `config.model.max_length`, the
        last tokens are read. Raises UserError if there are fewer than `top_k` tokens.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/gpt")
          >>> [tokens] = task.next_tokens(params, ["The ca"], top_k=3)
          >>> tokens[0].probability > tokens[1].probability
          True
        """
        model = self.limited_model
        if not 1 <= top_k <= model.num_outputs:
            raise UserError(
                f"top_k={top_k}: must be from 1 to {model.num_outputs}, the number of tokens"
            )
        return self._next_tokens(params, model, arguments.as_texts(prompts), top_k)

    def _next_tokens(self, params, model, prompts, top_k: int) -> Iterator[list[NextToken]]:
        on_devices = Placement.of(params, self.config.mesh)
        batch = on_devices.rows(self.config.decode.batch)
        for texts in chunks(prompts, batch):
            ids = [self.with_start(ids) for ids in self.tokenizer.encode(texts)]
            rows = [row[-model.window :] for row in ids]
            length = min(rounded_up(max(map(len, rows)), _LENGTH_MULTIPLE), model.window)
            # Rows that pad the batch have one token, because an index of -1 would be the last one.
            lengths = np.ones(batch, np.int32)
            lengths[: len(rows)] = [len(row) for row in rows]
            read = padded(rows, length, batch), lengths
            # The length of a batch is not known when the mesh is chosen, which need not divide it.
            placement = on_devices.dividing(length=length)
            computed = hosts.run(_likeliest_next, model, placement, params, read, top_k)
            log_probs, likeliest = jax.device_get(computed)
            for row in range(len(rows)):
                pieces = self.tokenizer.pieces(likeliest[row].tolist())
                yield list(map(NextToken, pieces, np.exp(log_probs[row]).tolist()))

    def with_start(self, ids: list[int]) -> list[int]:
        """Returns the ids with the token in front that starts a document in training, if any."""
        return self.scoring.started(ids)

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """Returns the attention weights between the words of a text or, with `pieces`, its tokens.

        Raises UserError for a text longer than `config.model.max_length`.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/gpt")
          >>> found = task.attention(params, "the cat sat")
          >>> found.queries, found.weights.shape[-2:]
          (['the', 'cat', 'sat'], (3, 3))
        """
        ids = self.with_start(self.tokenizer.encode([text])[0])
        return attention.in_text(
            self.model,
            params,
            self.tokenizer,
            Inputs(jnp.array([ids])),
            stack="decoder",
            pieces=pieces,
        )


def _strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _default_max_tokens(model: Any) -> int:
    """Returns the default for the maximum length of a reply: a quarter of the window."""
    # A recurrent model has no maximum length of which to take a quarter.
    return MAX_TOKENS if model.max_length is None else max(model.window // 4, 1)


def prompt(
    tokenizer: ChatTokenizer,
    model: Any,
    max_tokens: int,
    turns: Prompt,
    *,
    tools: Sequence[Mapping] = (),
) -> list[int]:
    """Returns the ids of a conversation, leaving room for `max_tokens` in the window.

    As many of the oldest turns as necessary are left out. A turn is a message of the user together
    with the messages that follow it. The system message is always kept. Raises UserError if the
    last turn alone is too long, and for messages that are not a conversation.
    """
    messages = as_messages(turns)
    chat.check_turns(messages, "messages")
    room = model.window - max_tokens
    # Only whole turns are left out: a conversation must not start with a reply.
    starts = [index for index, message in enumerate(messages) if message["role"] == "user"]
    has_system = messages[0]["role"] == "system"
    for start in [int(has_system), *starts]:
        ids = tokenizer.prompt([*messages[:has_system], *messages[start:]], tools=tools)
        if len(ids) <= room:
            return ids
    raise UserError(
        f"the last message: its prompt of {len(ids)} tokens and a reply of {max_tokens} exceed "
        f"config.model.max_length={model.max_length}; write less, or give a smaller max_tokens"
    )


def each(encode: Callable[[Prompt], list[int]], prompts: Iterable[Prompt]) -> Iterator[list[int]]:
    """Yields the ids of each prompt. An error says which prompt it concerns."""
    for number, turns in enumerate(prompts, 1):
        try:
            yield encode(turns)
        except UserError as error:
            raise UserError(f"prompt {number}: {error}") from None
