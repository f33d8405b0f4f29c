"""Shared by the tasks that learn word vectors: their base class, and negative sampling."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.data import arguments
from transformer_jax.inference.encoder import FillingUse
from transformer_jax.objectives.texts import TextTask

# --------------------------------------------------------------------------------------------------
# The base class of these tasks. Their losses are no cross-entropies over the vocabulary, so they
# have no perplexity, and texts no log-probability.


class WordTask(FillingUse, TextTask):
    """A task with rows of `length` positions and one loss. See WordVectorsTask."""

    length: int

    def positions(self, row_shape: int = 0) -> int:
        return self.length

    def derived(self, name, means):
        return {}

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean loss of a split, whose rows are drawn as in training.

        Raises UserError if the run has no such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        means = self.mean_metrics(params, self.texts.evaluation(self.tokenizer, split))
        # The share of padding says nothing about the model.
        means.pop("filled")
        return means


# --------------------------------------------------------------------------------------------------
# Negative sampling: the target of a hidden state against noise words (Mikolov et al. 2013). A
# softmax would need a product with the whole vocabulary for each target.


def negative_sampling(
    states: Float[Array, "B S M"],
    targets: Float[Array, "B T M"],
    noise: Float[Array, "B K M"],
    pairs: Float[Array, "B S T"],
    repeats: Float[Array, "B T K"],
    *,
    negatives: float,
) -> Float[Array, " B"]:
    """Returns for each row the loss of Mikolov et al. 2013, equation 4, summed over its pairs.

    The loss of a state x and its target y is -log sigmoid(x.y) - sum_k log sigmoid(-x.n_k), with
    noise words n_1, ..., n_negatives. All pairs of a row share its K noise words, so that the loss
    is a few matrix products instead of one look-up per pair. Each noise word has the weight
    negatives / K, which leaves the expectation unchanged. A noise word that equals the target has
    no term, as in the published code.

    Args:
      states: (B, S, M).
      targets: (B, T, M).
      noise: (B, K, M).
      pairs: (B, S, T), 1 where a state and a target are a pair, else 0.
      repeats: (B, T, K), 1 where a noise word is the target, else 0.
      negatives: number of noise words of a pair.
    """
    # Accumulated in float32, because bfloat16 would round the logits.
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    predicted = product("bsm,btm->bst", states, targets)
    rejected = product("bsm,bkm->bsk", states, noise)
    # A state meets a noise word in several pairs with equal losses, so the pairs are counted,
    # without those whose target it is.
    counts = pairs.sum(axis=-1, keepdims=True) - product("bst,btk->bsk", pairs, repeats)
    # -log sigmoid(-x) as softplus(x), which stays finite where the sigmoid underflows.
    noise_losses = negatives / noise.shape[1] * counts * jax.nn.softplus(rejected)
    pair_losses = pairs * jax.nn.softplus(-predicted)
    return pair_losses.sum(axis=(1, 2)) + noise_losses.sum(axis=(1, 2))
