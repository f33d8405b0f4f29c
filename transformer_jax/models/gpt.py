"""The decoder-only Transformers GPT-1, GPT-2 and GPT-3.

GPT-1: Radford et al. 2018. GPT-2: Radford et al. 2019. GPT-3: Brown et al. 2020.
"""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers import flops
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import Block, Remat, Stack
from transformer_jax.layers.embeddings import Embed
from transformer_jax.layers.linear import Dropout, compute_dtype
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.layers.outputs import Projection
from transformer_jax.models.causal import Cached


class GPT(Cached):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    A position attends to itself and to earlier positions. Segment ids start at 1 and separate the
    documents of a packed row; 0 is padding. By default a row is one document, with positions
    0..L-1.
    """

    vocab_size: int = 50_257  # number of tokens in the vocabulary
    d_model: int = 768  # width of the residual stream
    d_ff: int | None = None  # width of the MLP's hidden layer; None: 4 * d_model
    num_layers: int = 12  # number of blocks
    num_heads: int = 12  # attention heads of a layer
    head_dim: int | None = None  # width of a head; None: d_model / num_heads
    max_length: int = 1024  # number of learned positions
    # pre, with a final norm: GPT-2 and GPT-3; post: GPT-1
    norm_position: Literal["pre", "post"] = "pre"
    norm_epsilon: float = 1e-5  # added to the variance in layer norms
    # standard deviation of the initial weights; narrow models learn faster with a larger value
    init_std: float = 0.02
    # divides the initial weights of the projections into the residual stream by
    # sqrt(2 * num_layers) (Radford et al. 2019, section 2.3)
    scaled_init: bool = True
    # number of positions that every second layer attends to (GPT-3, whose width is not published);
    # None: all layers attend to all earlier positions
    local_window: int | None = None
    dropout: float = 0.1  # on each residual branch and on the embeddings
    attention_dropout: float = 0.1  # on the attention weights
    # pads the embedding table with zeros to a multiple of this number of rows, for speed; results
    # do not change
    vocab_multiple: int = 1
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: int = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.normal(self.init_std)
        output_init = init
        if self.scaled_init:
            output_init = nn.initializers.normal(self.init_std / (2 * self.num_layers) ** 0.5)
        embed = partial(Embed, features=self.d_model, init=init, dtype=dtype)
        self.token_embed = embed(self.vocab_size, multiple=self.vocab_multiple)
        self.position_embed = embed(self.max_length, axes=(None, "embed"), key="max_length")
        self.embed_dropout = Dropout(self.dropout)

        linear = dict(kernel_init=init, output_init=output_init, dtype=dtype)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            **linear,
        )
        mlp = partial(
            MLP,
            d_ff=self.d_ff or 4 * self.d_model,
            activation=partial(jax.nn.gelu, approximate=True),
            **linear,
        )
        norm = partial(LayerNorm, self.norm_epsilon)
        block = partial(
            Block,
            attention=attention,
            mlp=mlp,
            norm=norm,
            norm_position=self.norm_position,
            dropout=self.dropout,
        )
        self.decoder = Stack(
            (block,),
            self.num_layers,
            unroll=self.unroll,
            remat=self.remat,
            windows=(None, self.local_window),
        )
        if self.norm_position == "pre":
            self.norm = norm()

    def decoded(
        self,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"],
        *,
        mask: Mask,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B L M"]:
        x = self.token_embed(tokens) + self.position_embed(positions)
        x = self.embed_dropout(x, train=train)
        x = self.decoder(x, mask=mask, train=train, decode=decode)
        return self.norm(x) if self.norm_position == "pre" else x

    def output(self) -> Projection:
        """Returns the output projection: table (V, M) float32, and bias (V,) or None.

        The table is that of the token embeddings. V is a multiple of vocab_multiple here. The bias
        excludes the rows that pad the vocabulary.
        """
        return self.token_embed.output()

    def flops(self, length: int, predictions: int | None = None) -> float:
        """Returns the FLOPs of a forward pass over one row: two for each multiply-add.

        `predictions` is the number of predicted positions (None: all). Causal attention counts the
        visible keys. Padding is counted; norms, softmax and embedding look-ups are not.
        """
        sizes = flops.LayerSizes.of(self)
        num_local = 0 if self.local_window is None else self.num_layers // 2
        full = sizes.layer(length, flops.causal_pairs(length))
        local = sizes.layer(length, flops.causal_pairs(length, self.local_window))
        positions = length if predictions is None else predictions
        output = flops.dense(positions, self.d_model, self.vocab_size)
        return (self.num_layers - num_local) * full + num_local * local + output

    def num_padding(self) -> int:
        return (-self.vocab_size % self.vocab_multiple) * self.d_model
