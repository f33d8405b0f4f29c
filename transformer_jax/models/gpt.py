"""The decoder-only Transformers of GPT-1, GPT-2 and GPT-3 (Radford et al. 2018, 2019; Brown et al.
2020).
"""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import UserError
from transformer_jax.layers import flops
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import Block, Remat, Stack
from transformer_jax.layers.embeddings import Embed, row_positions
from transformer_jax.layers.linear import Dropout, compute_dtype
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.losses import NO_TOKEN


class GPT(nn.Module):
    """Tokens (B, L) int32 -> logits of each next token (B, L, V) float32; a position sees itself
    and those before.

    Segment ids, from 1, keep the documents of a row apart (0: padding); by default a row is one
    segment and positions count from 0.
    """

    vocab_size: int = 50_257  # tokens of the vocabulary
    d_model: int = 768  # width of the residual stream
    d_ff: int | None = None  # None: 4 * d_model
    num_layers: int = 12  # blocks
    num_heads: int = 12  # attention heads of a layer
    head_dim: int | None = None  # None: d_model / num_heads
    max_length: int = 1024  # learned positions
    # pre, with a last norm: GPT-2 and GPT-3; post: GPT-1
    norm_position: Literal["pre", "post"] = "pre"
    norm_epsilon: float = 1e-5  # added to the variance in layer norms
    init_std: float = 0.02  # of all weights at first; narrow models learn sooner from more
    # what adds to the residual stream begins 1 / sqrt(2 * num_layers) as large (Radford et al.
    # 2019, section 2.3)
    scaled_init: bool = True
    # every second layer sees only so many positions back (GPT-3, which does not publish the width);
    # None: all
    local_window: int | None = None
    dropout: float = 0.1  # on each residual branch and on the embeddings
    attention_dropout: float = 0.1  # on the attention weights
    # rows of zeros are added to the embeddings up to a multiple of it, for the hardware; results do
    # not change
    vocab_multiple: int = 1
    # of computation; auto: bfloat16 on accelerators
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: int = 1  # layers compiled in line
    remat: Remat = "none"  # computed again in backward: nothing, all but products, all

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.normal(self.init_std)
        output_init = (
            nn.initializers.normal(self.init_std / (2 * self.num_layers) ** 0.5)
            if self.scaled_init
            else init
        )
        self.token_embed = Embed(
            self.vocab_size, self.d_model, init, dtype=dtype, multiple=self.vocab_multiple
        )
        self.position_embed = Embed(
            self.max_length, self.d_model, init, (None, "embed"), dtype, key="max_length"
        )
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
            block, self.num_layers, self.unroll, self.remat, windows=(None, self.local_window)
        )
        if self.norm_position == "pre":
            self.norm = norm()

    def __call__(self, tokens, positions=None, segment_ids=None, *, train=False):
        return self.logits(self.hidden(tokens, positions, segment_ids, train=train))

    def hidden(self, tokens, positions=None, segment_ids=None, *, train=False, decode=0):
        """As __call__, before the output projection: (B, L, M).

        With `decode` slots of cache, `positions` (B, L) also say which slots the tokens fill.
        """
        mask = Mask(
            causal=True,
            query_segments=segment_ids,
            key_segments=segment_ids,
            query_slots=positions if decode else None,
        )
        if decode and not tokens.shape[1] <= decode <= self.max_length:
            raise UserError(
                f"decode={decode}: a cache has a slot for each of a row's tokens "
                f"({tokens.shape[1]}) and at most config.model.max_length="
                f"{self.max_length}"
            )
        positions = row_positions(tokens, self.max_length) if positions is None else positions
        x = self.embed_dropout(
            self.token_embed(tokens) + self.position_embed(positions), train=train
        )
        x = self.decoder(x, mask=mask, train=train, decode=decode)
        return self.norm(x) if self.norm_position == "pre" else x

    def logits(self, hidden):
        """Hidden states (..., M) -> float32 (..., V)."""
        table, _ = self.output()
        return jnp.dot(
            hidden,
            table[: self.vocab_size].astype(hidden.dtype).T,
            preferred_element_type=jnp.float32,
        )

    def output(self):
        """The output projection, tied to the embeddings: table (V, M) float32, and bias (V,) or
        None; V a multiple of vocab_multiple.
        """
        table = self.token_embed.table()
        if table.shape[0] == self.vocab_size:
            return table, None
        return table, jnp.where(jnp.arange(table.shape[0]) < self.vocab_size, 0.0, NO_TOKEN)

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
        """Parameters that only fill up the vocabulary: no part of the model's size."""
        return (-self.vocab_size % self.vocab_multiple) * self.d_model
