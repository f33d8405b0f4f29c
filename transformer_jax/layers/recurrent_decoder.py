"""A recurrent decoder: stacked cells with attention before them, after them, or none."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers import flops
from transformer_jax.layers.cells import Cell
from transformer_jax.layers.linear import Linear
from transformer_jax.layers.parameters import declared
from transformer_jax.layers.recurrence import Product, Weights, recur
from transformer_jax.layers.recurrent import recurrent_weights
from transformer_jax.layers.recurrent_attention import Attend, RecurrentAttention

# none: no attention. before: the state before the step is the query, and the context an input of
# the first cell (Bahdanau et al. 2014). after: the last cell's new output is the query, and
# tanh(W [context; output]) the output of the decoder (Luong et al. 2015, section 3).
Place = Literal["none", "before", "after"]


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the decoder, for R = B Q rows: Q hypotheses of each of B sources.

    The state is (those of the cells, a vector that the first cell reads where the decoder `feeds`).
    With attention after the cells, the vector is the output of the step before (Luong et al. 2015,
    section 3.3); without attention, it stays what it is (Cho et al. 2014, section 2.2). The output
    of a step is (the decoder's states (R, F), attention weights (B, Q, S) or None). With attention
    before the cells, a state is the query beside the context.
    """

    cells: tuple[Cell, ...]
    attend: Attend | None
    place: Place
    feeds: bool

    def __call__(self, product: Product, source: dict[str, Array], position: tuple, state: tuple):
        (x, first, kept), masks = position
        if first is not None:  # a text begins in a packed row
            begins = masks["begins"][:, None]
            state = jax.tree.map(lambda new, old: jnp.where(begins, new, old), first, state)
        states, fed = state
        query, weights = states[-1][0], None
        if self.place == "before":
            context, weights = self._attended(product, source, query, masks)
            output = jnp.concatenate([query, context], axis=-1)
            x = x + product("feed", context).reshape(x.shape)
        elif self.feeds:
            x = x + product("feed", fed).reshape(x.shape)
        states = self._through_cells(product, x, kept, states)
        if self.place == "after":
            query = states[-1][0]
            context, weights = self._attended(product, source, query, masks)
            joined = jnp.concatenate([context, query], axis=-1)
            output = jnp.tanh(product("attentional", joined))
        elif self.place == "none":
            output = states[-1][0]
        if self.place == "after" and self.feeds:
            fed = output
        return (states, fed), (output, weights)

    def _attended(self, product, source, query, masks):
        queries = query.reshape(len(source["values"]), -1, query.shape[-1])
        context, weights = self.attend(product, source, queries, masks["visible"], masks["at"])
        return context.reshape(len(query), -1), weights

    def _through_cells(self, product, x, kept, states):
        after = []
        for layer, (cell, state) in enumerate(zip(self.cells, states)):
            if layer:
                below = after[-1][0]
                below = below if kept is None else below * kept[layer - 1]
                x = product(f"input_{layer}", below).reshape(-1, cell.gates, cell.width)
            after.append(cell(_of_layer(product, layer), x, state))
        return tuple(after)

    def flops(
        self, source_length: int, target_length: int, width: int, max_positions: int
    ) -> float:
        """Returns the FLOPs over a row with annotations of this width."""
        cell = self.cells[0]
        total = sum(flops.recurrent(target_length, cell.width, cell) for cell in self.cells)
        if self.place == "before" or self.feeds:
            fed = width if self.place == "before" else cell.width
            total += flops.dense(target_length, fed, cell.gates * cell.width)
        if self.place == "after":
            total += flops.dense(target_length, width + cell.width, cell.width)
        if self.attend:
            sizes = (cell.width, width, max_positions)
            total += self.attend.flops(target_length, source_length, sizes)
        return total


def _of_layer(product: Product, layer: int) -> Product:
    def of_layer(name, x):
        return product(f"{name}_{layer}", x)

    return of_layer


class RecurrentLayers(nn.Module):
    """The parameters of a `Step`, and its application to all positions of rows.

    `d_model` is the width of the inputs and of the cells' outputs, `width` that of an annotation.
    """

    step: Step
    d_model: int
    width: int
    max_positions: int
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        cell = self.step.cells[0]
        self.input = Linear(
            (self.d_model,),
            (cell.gates, cell.width),
            axes=("embed", None, "mlp"),
            dtype=self.dtype,
        )
        weights = {}
        for layer, cell in enumerate(self.step.cells):
            if layer:
                shape = (self.d_model, cell.gates * cell.width)
                weights[f"input_{layer}"] = (
                    self._matrix(f"input_{layer}", shape),
                    self._bias(f"input_bias_{layer}", shape[1]),
                )
            own = recurrent_weights(self, cell, self.dtype, ending=f"_{layer}")
            weights |= {f"{name}_{layer}": value for name, value in own.items()}
        cell = self.step.cells[0]
        if self.step.place == "before" or self.step.feeds:
            fed = self.width if self.step.place == "before" else self.d_model
            weights["feed"] = (self._matrix("feed", (fed, cell.gates * cell.width)), None)
        if self.step.place == "after":
            shape = (self.width + self.d_model, self.d_model)
            weights["attentional"] = (self._matrix("attentional", shape), None)
        self.matrices = weights
        if self.step.attend:
            self.cross_attention = RecurrentAttention(
                self.step.attend, self.d_model, self.width, self.max_positions, self.dtype
            )

    def weights(self) -> Weights:
        """Returns the matrices and biases of the products of a step."""
        attention = self.cross_attention.weights() if self.step.attend else {}
        return jax.tree.map(lambda x: x.astype(self.dtype), {**self.matrices, **attention})

    def source(
        self, annotations: Float[Array, "B S D"], positions: Int[ArrayLike, "B S"]
    ) -> dict[str, Array]:
        """Returns the arrays (B, S, ...) of the source that all steps see."""
        if not self.step.attend:
            return {"values": annotations[..., :0]}
        return self.cross_attention.source(annotations, positions)

    def _seen(self, source: dict[str, Array]) -> dict[str, Array]:
        return source | self.cross_attention.vectors() if self.step.attend else source

    def __call__(
        self,
        x: Float[Array, "B T M"],
        source: dict[str, Array],
        first: Any,
        masks: Mapping[str, Array],
        *,
        train: bool = False,
    ) -> Float[Array, "B T F"]:
        """Returns the decoder's states of inputs x.

        `first` is the state before the first position of a text, arrays (B, T, ...), at each
        position where a text `begins`. `masks` are "begins" (B, T), "visible" (B, T, S), and the
        position "at" (B, T) in its text.
        """
        dropout_mask = None
        if train and self.dropout:
            shape = (len(self.step.cells) - 1, x.shape[1], len(x), self.d_model)
            keep = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.dropout, shape)
            scaled = keep / (1 - self.dropout)
            dropout_mask = jnp.moveaxis(scaled, 0, 1).astype(x.dtype)
        along = partial(jax.tree.map, lambda x: jnp.moveaxis(x, 1, 0))
        masks = dict(masks, visible=masks["visible"][:, :, None], at=masks["at"][..., None])
        positions = ((along(self.input(x)), along(first), dropout_mask), along(masks))
        zeros = jax.tree.map(lambda x: jnp.zeros_like(x[:, 0]), first)
        (states, weights), _ = recur(
            self.step, self.weights(), self._seen(source), positions, zeros
        )
        if self.step.attend:
            self.cross_attention.expose(jnp.moveaxis(weights[:, :, 0], 0, 1))
        return jnp.moveaxis(states, 0, 1)

    def advance(
        self, x: Float[Array, "R M"], source: dict[str, Array], masks: Mapping[str, Array], state
    ) -> tuple[Float[Array, "R F"], Any]:
        """Returns the decoder's states of the next inputs, and the state after them.

        R = B Q rows are Q hypotheses of each source. `masks` are "visible" (B, 1, S) and the
        positions "at" (B, Q).
        """
        weights = self.weights()

        def product(name, x):
            matrix, bias = weights[name]
            return x @ matrix if bias is None else x @ matrix + bias

        position = ((self.input(x[:, None])[:, 0], None, None), masks)
        state, (output, _) = self.step(product, self._seen(source), position, state)
        return output, state

    def _matrix(self, name: str, shape: tuple[int, int]) -> Float[Array, "I O"]:
        init = declared(nn.initializers.xavier_uniform(), ("embed", "mlp"), decays=True, inputs=1)
        return self.param(name, init, shape, jnp.float32)

    def _bias(self, name: str, size: int) -> Float[Array, " O"]:
        init = declared(nn.initializers.zeros, ("mlp",))
        return self.param(name, init, (size,), jnp.float32)
