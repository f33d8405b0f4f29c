"""FLOPs of a forward pass by formula: two for each multiply-add of a matrix product.

Padding is counted. Norms, softmax and embedding look-ups are not.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class LayerSizes:
    """The sizes of a Transformer layer. A width is the number of heads times their width."""

    d_model: int
    width: int
    d_ff: int
    kv_width: int | None = None  # of keys and values; None: width
    mlp_inputs: int = 1  # products from d_model to d_ff: 2 in a gated MLP

    @classmethod
    def of(cls, model) -> "LayerSizes":
        """Returns the sizes of a model's layers, with the defaults of `head_dim` and `d_ff`."""
        head_dim = model.head_dim or model.d_model // model.num_heads
        return cls(model.d_model, model.num_heads * head_dim, model.d_ff or 4 * model.d_model)

    def attention(self, queries: int, keys: int, pairs: float) -> float:
        """Returns the FLOPs of an attention block: its four projections, scores and weighted sum.

        `pairs` is the number of (query, key) pairs that the mask leaves.
        """
        kv_width = self.width if self.kv_width is None else self.kv_width
        projections = 4 * self.d_model * (self.width * queries + kv_width * keys)
        return projections + 4 * self.width * pairs

    def mlp(self, length: int) -> int:
        """Returns the FLOPs of the products of an MLP block."""
        return 2 * (self.mlp_inputs + 1) * self.d_model * self.d_ff * length

    def layer(self, length: int, pairs: float) -> float:
        """Returns the FLOPs of a layer of self-attention and MLP."""
        return self.attention(length, length, pairs) + self.mlp(length)


def causal_pairs(length: int, window: int | None = None) -> float:
    """Returns the number of pairs that a causal mask leaves: half the square.

    With `window`, each query sees at most that many keys.
    """
    if window is None:
        return length**2 / 2
    window = min(window, length)
    return length * window - window**2 / 2


def dense(rows: int, inputs: int, outputs: int) -> int:
    """Returns the FLOPs of a dense layer on `rows` vectors."""
    return 2 * rows * inputs * outputs


def recurrent(length: int, inputs: int, cell) -> int:
    """Returns the FLOPs of a recurrent layer of one direction (layers/cells.py)."""
    recurrent = sum(dense(length, *shape) for shape in cell.matrices.values())
    return dense(length, inputs, cell.gates * cell.width) + recurrent
