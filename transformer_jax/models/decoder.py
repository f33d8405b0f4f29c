"""The decoder-only Transformer of Llama and its kin.

Llama: Touvron et al. 2023; Llama 3: Grattafiori et al. 2024. Qwen2: Yang et al. 2024. Sliding
windows: Mistral 7B, Jiang et al. 2023.
"""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers import flops
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import Block, Remat, Stack
from transformer_jax.layers.embeddings import Embed
from transformer_jax.layers.linear import Dropout, compute_dtype
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import RMSNorm
from transformer_jax.layers.outputs import Projection
from transformer_jax.layers.positions import Rotary
from transformer_jax.models.causal import Cached


class Decoder(Cached):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    Pre-LN blocks with RMSNorm, rotary positions, grouped keys and a gated MLP (SwiGLU). A position
    attends to itself and to earlier positions. Segment ids start at 1 and separate the documents of
    a packed row; 0 is padding. By default a row is one document, with positions 0..L-1.
    """

    vocabulary = ("token_embed/embedding", "output_embed/embedding")

    vocab_size: int = 32_000  # number of tokens in the vocabulary
    d_model: int = 4096  # width of the residual stream
    d_ff: int = 11_008  # width of the MLP's hidden layer
    num_layers: int = 32  # number of blocks
    num_heads: int = 32  # attention heads of a layer
    # heads of keys and values, each for num_heads / num_kv_heads heads of queries; None: num_heads
    num_kv_heads: int | None = None
    head_dim: int | None = None  # width of a head; None: d_model / num_heads
    max_length: int = 4096  # largest number of positions
    rotary_theta: float = 10_000.0  # base of the wavelengths of the rotary positions
    # slows the slow rotations down, for rows longer than rotary_length (Llama 3.1); 1: none
    rotary_factor: float = 1.0
    rotary_length: int = 8192  # length of rows before rotary_factor
    # number of positions that a position attends to; None: all earlier positions
    local_window: int | None = None
    qkv_bias: bool = False  # biases of the projections to queries, keys and values (Qwen2)
    tie_output: bool = False  # uses the token embeddings as output projection
    norm_epsilon: float = 1e-5  # added to the mean square in norms
    init_std: float = 0.02  # standard deviation of the initial weights
    dropout: float = 0.0  # on each residual branch and on the embeddings
    attention_dropout: float = 0.0  # on the attention weights
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: int = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)
        heads, kv_heads = self.num_heads, self.num_kv_heads
        if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
            raise UserError(
                f"config.model.num_kv_heads={kv_heads}: must divide config.model.num_heads={heads}"
            )
        if self._head_dim % 2:
            raise UserError(
                f"config.model.head_dim={self._head_dim}: must be even for rotary positions"
            )
        for key in ("rotary_theta", "rotary_factor"):
            if getattr(self, key) < 1:
                raise UserError(f"config.model.{key}={getattr(self, key)}: must be at least 1")

    @property
    def _head_dim(self) -> int:
        return self.head_dim or self.d_model // self.num_heads

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.normal(self.init_std)
        embed = partial(Embed, self.vocab_size, self.d_model, init=init, dtype=dtype)
        self.token_embed = embed()
        if not self.tie_output:
            self.output_embed = embed()
        self.embed_dropout = Dropout(self.dropout)

        linear = dict(kernel_init=init, dtype=dtype)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self._head_dim,
            num_kv_heads=self.num_kv_heads,
            rotary=Rotary(self.rotary_theta, self.rotary_factor, self.rotary_length),
            dropout=self.attention_dropout,
            use_bias=self.qkv_bias,
            output_bias=False,
            **linear,
        )
        mlp = partial(
            MLP, d_ff=self.d_ff, activation=jax.nn.silu, gated=True, use_bias=False, **linear
        )
        norm = partial(RMSNorm, self.norm_epsilon)
        block = partial(
            Block,
            attention=attention,
            mlp=mlp,
            norm=norm,
            norm_position="pre",
            dropout=self.dropout,
        )
        self.decoder = Stack(
            (block,),
            self.num_layers,
            unroll=self.unroll,
            remat=self.remat,
            windows=(self.local_window,),
        )
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
        x = self.embed_dropout(self.token_embed(tokens), train=train)
        x = self.decoder(x, positions=positions, mask=mask, train=train, decode=decode)
        return self.norm(x)

    def output(self) -> Projection:
        """Returns the output projection: the table, and no bias."""
        return Projection((self.token_embed if self.tie_output else self.output_embed).table())

    def flops(self, length: int, predictions: int | None = None) -> float:
        kv_heads = self.num_kv_heads or self.num_heads
        sizes = flops.LayerSizes(
            self.d_model,
            self.num_heads * self._head_dim,
            self.d_ff,
            kv_width=kv_heads * self._head_dim,
            mlp_inputs=2,
        )
        layer = sizes.layer(length, flops.causal_pairs(length, self.local_window))
        positions = length if predictions is None else predictions
        return self.num_layers * layer + flops.dense(positions, self.d_model, self.vocab_size)
