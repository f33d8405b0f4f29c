"""The heads that fine-tuning puts on a pre-trained model."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.layers.cells import LSTM
from transformer_jax.layers.linear import Dropout, Linear
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.layers.parameters import declared
from transformer_jax.layers.recurrent import Unidirectional


class Head(nn.Module):
    """Dropout and one affine map: (..., M) -> float32 (..., features).

    With `pools`, dropout, an affine map and tanh precede them. A head of `zeros` begins with a
    kernel of zeros. All is computed in float32: bfloat16 would round different scores to equal
    ones.
    """

    features: int
    dropout: float = 0.0
    use_bias: bool = True
    pools: bool = False
    zeros: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*B M"], *, train: bool = False) -> Float[Array, "*B F"]:
        model = (x.shape[-1],)
        init = nn.initializers.truncated_normal(0.02)
        x = Dropout(self.dropout)(x, train=train).astype(jnp.float32)
        if self.pools:
            pooler = Linear(model, model, axes=("embed", "mlp"), kernel_init=init, name="pooler")
            x = Dropout(self.dropout)(jnp.tanh(pooler(x)), train=train)
        output = Linear(
            model,
            (self.features,),
            axes=("embed", None),
            use_bias=self.use_bias,
            head=True,
            kernel_init=nn.initializers.zeros if self.zeros else init,
            name="out",
        )
        return output(x)


class RewardHead(nn.Module):
    """A reward, by a head of one feature: (..., M) -> float32 (..., 2).

    The first number is the output of the head, which is learned. The second one is normalised: the
    first less `mean`, over `deviation`. These two are no part of the loss. They are measured, so
    that the normalised rewards of reference texts have mean 0 and variance 1 (Ziegler et al. 2019,
    section 2.1).
    """

    score: Head

    @nn.compact
    def __call__(self, x: Float[Array, "*B M"], *, train: bool = False) -> Float[Array, "*B 2"]:
        mean = self.param("mean", declared(nn.initializers.zeros, ()), ())
        deviation = self.param("deviation", declared(nn.initializers.ones, ()), ())
        reward = self.score(x, train=train)
        normalised = jax.lax.stop_gradient((reward - mean) / deviation)
        return jnp.concatenate([reward, normalised], axis=-1)


class ConcatenationHead(nn.Module):
    """Two blocks of a norm, dropout and an affine map, with rectified units between them.

    (..., M) -> float32 (..., features) (Howard & Ruder 2018, section 3.3). The norms are layer
    norms, where the paper has batch norms: the outputs of a row depend on no other row.
    """

    features: int
    dropout: float = 0.0
    width: int = 50

    @nn.compact
    def __call__(self, x: Float[Array, "*B M"], *, train: bool = False) -> Float[Array, "*B F"]:
        x = x.astype(jnp.float32)
        x = Dropout(self.dropout)(LayerNorm(name="input_norm")(x), train=train)
        hidden = Linear((x.shape[-1],), (self.width,), axes=("embed", None), name="hidden")
        x = LayerNorm(name="hidden_norm")(jax.nn.relu(hidden(x)))
        return Head(self.features, self.dropout, name="output")(x, train=train)


class RecurrentHead(nn.Module):
    """A two-layer bidirectional LSTM on frozen features (Devlin et al. 2018, section 5.3).

    States of several layers, (B, L, width) each, filled (B, L) bool -> float32 (B, L, features).
    The layers' states are concatenated, or summed with learned weights that add up to 1. Where it
    is `scaled`, a learned number multiplies the sum, and dropout follows (Peters et al. 2018,
    section 3.2). Where it `pools`, the outputs are (B, features), from the largest values over the
    positions (Conneau et al. 2017, section 3.2.3).
    """

    features: int
    concatenate: bool = False
    width: int = 768  # of both directions together
    dropout: float = 0.0
    scaled: bool = False
    pools: bool = False

    @nn.compact
    def __call__(
        self,
        states: Sequence[Float[Array, "B L _"]],
        filled: Bool[Array, "B L"],
        *,
        train: bool = False,
    ) -> Float[Array, "B L F"] | Float[Array, "B F"]:
        if self.concatenate:
            x = jnp.concatenate(states, axis=-1)
        else:
            x = self._mixed(jnp.stack(states), train)
        cell = LSTM(self.width // 2)
        for layer in range(2):
            forward = Unidirectional(cell, name=f"lstm_{layer}_forward")
            backward = Unidirectional(cell, reverse=True, name=f"lstm_{layer}_backward")
            x = jnp.concatenate([forward(x, filled)[0], backward(x, filled)[0]], axis=-1)
        if self.pools:
            x = jnp.where(filled[..., None], x, -jnp.inf).max(axis=1)
            x = jnp.where(filled.any(axis=1)[:, None], x, 0)  # a row of padding alone
        return Head(self.features, self.dropout, name="tags")(x, train=train)

    def _mixed(self, states: Float[Array, "layers B L M"], train: bool) -> Float[Array, "B L M"]:
        """Returns the weighted sum of the layers' states."""
        init = declared(nn.initializers.zeros, (None,))
        weights = jax.nn.softmax(self.param("weights", init, (len(states),)))
        if self.scaled:
            weights = weights * self.param("scale", declared(nn.initializers.ones, ()), ())
        x = jnp.einsum("s,sblm->blm", weights.astype(states.dtype), states)
        return Dropout(self.dropout)(x, train=train) if self.scaled else x
