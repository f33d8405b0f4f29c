"""What the tasks that learn vectors of words share, negative sampling included."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.data import arguments
from transformer_jax.inference.encoder import EncoderUse
from transformer_jax.objectives.texts import TextTask

# --------------------------------------------------------------------------------------------------
# The base class of these tasks.


class WordTask(EncoderUse, TextTask):
    """A task with rows of `length` places and one loss. See WordVectorsTask."""

    length: int

    def positions(self, row_shape: int = 0) -> int:
        return self.length

    def derived(self, name, means):
        return {}

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean loss of a split, whose rows are drawn as those of training.

        Raises UserError where the run has no such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        means = self.mean_metrics(params, self.texts.evaluation(self.tokenizer, split))
        means.pop("filled")
        return means


# --------------------------------------------------------------------------------------------------
# Negative sampling: the target of a state against noise words (Mikolov et al. 2013).


def negative_sampling(
    states: Float[Array, "B S M"],
    targets: Float[Array, "B T M"],
    noise: Float[Array, "B K M"],
    pairs: Float[Array, "B S T"],
    repeats: Float[Array, "B T K"],
    *,
    negatives: float,
) -> Float[Array, " B"]:
    """Returns each row's sum over its pairs of the loss of Mikolov et al. 2013, equation 4.

    A state x and a target y that are a pair have -log sigmoid(x.y) - sum_k log sigmoid(-x.n_k) over
    noise words n_1, ..., n_negatives. All pairs of a row share its K noise words, each with the
    weight negatives / K, which leaves the expectation as it is. A noise word that is the target
    itself has no term, as in the published code.

    Args:
      states: (B, S, M).
      targets: (B, T, M).
      noise: (B, K, M).
      pairs: (B, S, T), 1 where a state and a target are a pair, else 0.
      repeats: (B, T, K), 1 where a noise word is the target, else 0.
      negatives: number of noise words of a pair.
    """
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    predicted = product("bsm,btm->bst", states, targets)
    refused = product("bsm,bkm->bsk", states, noise)
    others = pairs.sum(axis=-1, keepdims=True) - product("bst,btk->bsk", pairs, repeats)
    of_noise = negatives / noise.shape[1] * others * jax.nn.softplus(refused)
    of_pairs = pairs * jax.nn.softplus(-predicted)
    return of_pairs.sum(axis=(1, 2)) + of_noise.sum(axis=(1, 2))
