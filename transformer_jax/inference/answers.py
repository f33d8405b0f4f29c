"""Answers that a causal model writes within a compiled step, to learn from them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.distributed import sharding
from transformer_jax.inference.sampling import Fixed, Sampling, Texts, sample
from transformer_jax.layers.decoding import split


class Answers(NamedTuple):
    """B answers behind their prompts, of up to T tokens each.

    Attributes:
      ids: (B, P + T) int32, the tokens of prompt and answer, the end of the answer included.
      begins: (B,) int32, the number of tokens of each prompt.
      lengths: (B,) int32, that of prompt and answer together.
      ended: (B,) bool, whether the answer has an end. Others stop at the limit.
    """

    ids: Int[Array, "B L"]
    begins: Int[Array, " B"]
    lengths: Int[Array, " B"]
    ended: Bool[Array, " B"]

    @classmethod
    def of(cls, batch: dict[str, Array]) -> "Answers":
        """Returns the answers whose arrays a batch holds by name, beside others."""
        return cls(*(batch[name] for name in cls._fields))

    def filled(self, size: int) -> Bool[Array, "B T"]:
        """Returns which of `size` places of each answer have a token."""
        return jnp.arange(size) < (self.lengths - self.begins)[:, None]

    def tokens(self, size: int) -> Int[Array, "B T"]:
        """Returns the tokens of the answers alone, then zeros."""
        places = jnp.minimum(self._places(size), self.ids.shape[1] - 1)
        tokens = jnp.take_along_axis(self.ids, places, axis=1)
        return jnp.where(self.filled(size), tokens, 0)

    def states(self, hidden: Float[Array, "B L M"], size: int) -> Float[Array, "B T M"]:
        """Returns the states of rows that predict the tokens of the answers."""
        places = jnp.minimum(self._places(size) - 1, hidden.shape[1] - 1)
        return jnp.take_along_axis(hidden, places[..., None], axis=1)

    def _places(self, size: int) -> Int[Array, "B T"]:
        return self.begins[:, None] + jnp.arange(size)


class Writer(NamedTuple):
    """How answers are written: by the cached generation of `generate`, on the mesh of the step.

    The parameters are those of training, whatever their sharding.
    """

    model: Any  # the Linen module
    how: Sampling
    max_tokens: int  # of an answer, its end included
    eos_id: int

    def __call__(
        self, params, prompts: Int[Array, "B P"], lengths: Int[Array, " B"], key: Key[Array, ""]
    ) -> Answers:
        """Returns an answer to each prompt. `lengths` (B,) are the tokens of the prompts.

        The randomness of row j comes from fold_in(key, j).
        """
        batch, length = prompts.shape
        slots = length + self.max_tokens
        params = self.model.for_decoding(params)
        logits, state = self.model.begin(params, prompts, lengths, slots=slots)
        ids = jnp.zeros((batch, slots), jnp.int32).at[:, :length].set(prompts)
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(batch))
        fixed = Fixed(keys, jnp.zeros_like(lengths), lengths + self.max_tokens)
        texts = Texts(ids, lengths, jnp.zeros(batch, bool), None, logits, state)

        def step(state, tokens):
            return self.model.step(*sharding.gather_after(params, state), tokens)

        steps = jnp.int32(self.max_tokens)
        texts = split(sample(step, texts, fixed, steps, how=self.how, eos_id=self.eos_id))
        return self._with_ends(texts, fixed)

    def _with_ends(self, texts: Texts, fixed: Fixed) -> Answers:
        """Returns the answers with their end tokens. A text at its limit has none."""
        ended = texts.lengths < fixed.limits
        places = jnp.arange(texts.ids.shape[1])
        is_end = (places == texts.lengths[:, None]) & ended[:, None]
        # Behind the end of a prompt there may be padding that no token has replaced.
        is_text = places < texts.lengths[:, None]
        ids = jnp.where(is_end, self.eos_id, jnp.where(is_text, texts.ids, 0))
        begins = fixed.limits - self.max_tokens
        return Answers(ids, begins, texts.lengths + ended, ended)
