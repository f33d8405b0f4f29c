"""The decoder-only Transformer of Llama and related models.

Llama: Touvron et al. 2023; Llama 3: Grattafiori et al. 2024. Qwen2: Yang et al. 2024. Sliding
windows: Mistral 7B, Jiang et al. 2023. Experts: Mixtral 8x7B, Jiang et al. 2024.
"""

import dataclasses
from functools import partial
from typing import Annotated, Literal

import flax.linen as nn
import jax
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Range,
    UserError,
)
from transformer_jax.contracts.model import Cached
from transformer_jax.huggingface.generate_options import Causal
from transformer_jax.huggingface.tensors import Keys, layers
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import MLP, Block, Remat, RMSNorm, Stack
from transformer_jax.layers.embeddings import Embed, Projection, Rotary
from transformer_jax.layers.experts import Experts, capacity
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, compute_dtype


class Decoder(Cached):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    Pre-LN blocks with RMSNorm, rotary positions, grouped-query attention and a gated MLP (SwiGLU).
    Each position attends to itself and to earlier positions. Segment ids start at 1 and separate
    the documents of a packed row; 0 is padding. By default, a row is one document with positions
    0..L-1.
    """

    vocabulary = ("token_embed/embedding", "output_embed/embedding")

    vocab_size: PositiveInt = 32_000  # number of tokens in the vocabulary
    d_model: PositiveInt = 4096  # width of the residual stream
    d_ff: PositiveInt = 11_008  # width of the MLP's hidden layer
    num_layers: PositiveInt = 32  # number of blocks
    num_heads: PositiveInt = 32  # attention heads of a layer
    # heads of keys and values, each shared by num_heads / num_kv_heads query heads; None: num_heads
    num_kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None  # width of a head; None: d_model / num_heads
    max_length: PositiveInt = 4096  # largest number of positions
    # base of the wavelengths of the rotary positions
    rotary_theta: Annotated[float, Range(least=1)] = 10_000.0
    # divides the rates of slow rotations, for rows longer than rotary_length (Llama 3.1); 1: none
    rotary_factor: Annotated[float, Range(least=1)] = 1.0
    rotary_length: int = 8192  # length of rows in training without rotary_factor
    # number of positions that a position attends to; None: all earlier positions
    local_window: PositiveInt | None = None
    # MLPs of a layer, of which each token is sent to a few; 0: all tokens have the same MLP
    num_experts: NonNegativeInt = 0
    experts_per_token: PositiveInt = 2  # experts to which each token is sent
    # limit of the positions of a row that an expert computes in training; 1.25 is a quarter more
    # than its equal share of length * experts_per_token / num_experts; None: no limit
    capacity_factor: Annotated[float, Range(above=0)] | None = None
    balance: NonNegativeFloat = 0.02  # factor of the loss that makes experts equally frequent
    qkv_bias: bool = False  # biases of the projections to queries, keys and values (Qwen2)
    tie_output: bool = False  # uses the token embeddings as output projection
    norm_epsilon: NonNegativeFloat = 1e-5  # added to the mean square in norms
    init_std: NonNegativeFloat = 0.02  # standard deviation of the initial weights
    dropout: Fraction = 0.0  # on each residual branch and on the embeddings
    attention_dropout: Fraction = 0.0  # on the attention weights
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
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

        if self.num_experts and self.experts_per_token > self.num_experts:
            raise UserError(
                f"config.model.experts_per_token={self.experts_per_token}: must be at most "
                f"config.model.num_experts={self.num_experts}"
            )

    @property
    def layer_losses(self) -> dict[str, float]:
        return {"balance": self.balance} if self.num_experts else {}

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
            output_bias=False,  # also in Qwen2, where queries, keys and values have biases
            **linear,
        )
        gated = dict(d_ff=self.d_ff, activation=jax.nn.silu, **linear)
        if self.num_experts:
            mlp = partial(
                Experts,
                num_experts=self.num_experts,
                per_token=self.experts_per_token,
                capacity_factor=self.capacity_factor,
                **gated,
            )
        else:
            mlp = partial(MLP, gated=True, use_bias=False, **gated)
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
        """Returns the output projection: the table (V, M) without a bias."""
        return Projection((self.token_embed if self.tie_output else self.output_embed).table())

    def flops(self, length: int, predictions: int | None = None) -> float:
        kv_heads = self.num_kv_heads or self.num_heads
        sizes = parameters.LayerSizes(
            self.d_model,
            self.num_heads * self._head_dim,
            self.d_ff,
            kv_width=kv_heads * self._head_dim,
            mlp_inputs=2,
        )
        pairs = parameters.causal_pairs(length, self.local_window)
        layer = sizes.attention(length, length, pairs)
        if self.num_experts:
            # The products have room for the capacity of all experts, whether it is used or not.
            experts, per_token = self.num_experts, self.experts_per_token
            room = capacity(length, experts, per_token, self.capacity_factor)
            layer += sizes.mlp(experts * room) + parameters.dense(length, self.d_model, experts)
        else:
            layer += sizes.mlp(length)
        positions = length if predictions is None else predictions
        return self.num_layers * layer + parameters.dense(positions, self.d_model, self.vocab_size)


# ----------------------------------------------------------------------------------- Hugging Face
#
# Llama, Qwen2 and Mixtral are one model here: Qwen2 has biases of queries, keys and values, and
# Mixtral has experts.
_REQUIRED = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_length",
}
# The defaults are transformers', which may differ from the defaults of config.model.
_OPTIONAL = {
    "num_key_value_heads": ("num_kv_heads", None),
    "rms_norm_eps": ("norm_epsilon", 1e-6),
    "attention_dropout": ("attention_dropout", 0.0),
    "initializer_range": ("init_std", 0.02),
    "tie_word_embeddings": ("tie_output", False),
}
_ABSENT = {"local_window": "window in all layers"}
_LLAMA_KEYS = Keys(
    _REQUIRED,
    _OPTIONAL,
    allowed={
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "pretraining_tp": (1,),
    },
    absent=_ABSENT,
)
_QWEN2_KEYS = Keys(
    _REQUIRED,
    _OPTIONAL,
    allowed={"hidden_act": ("silu",), "use_sliding_window": (False,)},
    absent=_ABSENT,
)
_MIXTRAL_KEYS = Keys(
    _REQUIRED | {"num_local_experts": "num_experts"},
    _OPTIONAL
    | {
        "num_key_value_heads": ("num_kv_heads", 8),
        "rms_norm_eps": ("norm_epsilon", 1e-5),
        "num_experts_per_tok": ("experts_per_token", 2),
        # transformers adds up the shares of all choices, so that its factor is smaller.
        "router_aux_loss_coef": ("balance", 0.001),
        "sliding_window": ("local_window", None),
    },
    allowed={"hidden_act": ("silu",), "router_jitter_noise": (0.0,)},
)

_ATTENTION = {
    "input_layernorm.weight": ("same", "attention_norm/scale"),
    "self_attn.q_proj.weight": ("linear", "attention/query/kernel"),
    "self_attn.k_proj.weight": ("linear", "attention/key/kernel"),
    "self_attn.v_proj.weight": ("linear", "attention/value/kernel"),
    "self_attn.o_proj.weight": ("linear_merge", "attention/out/kernel"),
    "post_attention_layernorm.weight": ("same", "mlp_norm/scale"),
}
_MLP = {
    "mlp.gate_proj.weight": ("linear", "mlp/wi/kernel"),
    "mlp.up_proj.weight": ("linear", "mlp/wv/kernel"),
    "mlp.down_proj.weight": ("linear", "mlp/wo/kernel"),
}
_EXPERTS = {
    "block_sparse_moe.gate.weight": ("linear", "mlp/router"),
    "block_sparse_moe.experts.{}.w1.weight": ("linear", "mlp/wi/kernel"),
    "block_sparse_moe.experts.{}.w3.weight": ("linear", "mlp/wv/kernel"),
    "block_sparse_moe.experts.{}.w2.weight": ("linear", "mlp/wo/kernel"),
}
_BIASES = {
    "self_attn.q_proj.bias": ("vector", "attention/query/bias"),
    "self_attn.k_proj.bias": ("vector", "attention/key/bias"),
    "self_attn.v_proj.bias": ("vector", "attention/value/bias"),
}
_OUTPUT = "lm_head.weight"
_BODY = {
    "model.embed_tokens.weight": ("same", "token_embed/embedding"),
    **layers("model.layers.{}.", "decoder/layers/", _ATTENTION),
    "model.norm.weight": ("same", "norm/scale"),
    _OUTPUT: ("same", "output_embed/embedding"),
}
_LLAMA = _BODY | layers("model.layers.{}.", "decoder/layers/", _MLP)
_MIXTRAL = _BODY | layers("model.layers.{}.", "decoder/layers/", _EXPERTS)
_QWEN2 = _LLAMA | layers("model.layers.{}.", "decoder/layers/", _BIASES)

# Numbers of turns in the trained length between which the rates change gradually. `Rotary` has
# these values of Llama 3.1 built in, so a checkpoint with others is refused.
_TURNS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_MIXTRAL_THETA = 1e6  # of files without rope_theta
# Llama 3.1 has 131,072 positions. A converted run starts with shorter rows, which take much less
# memory; config.task.length can be raised.
_MAX_LENGTH = 4096


@dataclasses.dataclass(frozen=True)
class LanguageModel(Causal):
    model = "decoder"
    body = ("model.",)
    prefix = "model."
    # If the output projection is tied to the embeddings, older files contain it nevertheless.
    ignored = (_OUTPUT, "rotary_emb.inv_freq")
    tied = {_OUTPUT: ("embed_tokens.weight",)}

    qkv_bias: bool = False
    has_experts: bool = False

    def matches(self, config):
        if not super().matches(config):  # another model has no such keys
            return False
        own = (config.model.qkv_bias, config.model.num_experts > 0)
        return own == (self.qkv_bias, self.has_experts)

    def table(self, model):
        names = self.tensors.keys() - ({_OUTPUT} if model.tie_output else set())
        return {name: entry for name, entry in self.tensors.items() if name in names}

    def model_keys(self, hf_config):
        others = {"head_dim": hf_config.get("head_dim"), "qkv_bias": self.qkv_bias}
        keys = super().model_keys(hf_config)
        if self.has_experts:
            _check_experts("num_experts_per_tok", keys["experts_per_token"])
            keys["balance"] *= keys["experts_per_token"]
        return keys | _rotary(hf_config, _MIXTRAL_THETA if self.has_experts else 10_000.0) | others

    def task_keys(self, config, hf_config):
        return {"length": min(config.model.max_length, _MAX_LENGTH)}

    def other_keys(self, config, tokenizer):
        model = config.model
        rotary = {"rope_type": "default", "rope_theta": model.rotary_theta}
        if model.rotary_factor != 1:
            rotary |= {
                "rope_type": "llama3",
                "factor": model.rotary_factor,
                "original_max_position_embeddings": model.rotary_length,
                **_TURNS,
            }
        experts = {}
        if self.has_experts:
            _check_experts("config.model.experts_per_token", model.experts_per_token)
            experts["router_aux_loss_coef"] = model.balance / model.experts_per_token
        return experts | {
            "num_key_value_heads": model.num_kv_heads or model.num_heads,
            # Qwen2's configuration does not accept null.
            **({"head_dim": model.head_dim} if model.head_dim else {}),
            # Both keys, because transformers 5 reads the first, and earlier releases read the
            # second.
            "rope_parameters": rotary,
            "rope_theta": model.rotary_theta,
            "bos_token_id": tokenizer.bos_id,
            "eos_token_id": tokenizer.hf_end,
        }


def _check_experts(key: str, value: int) -> None:
    """Raises UserError for one expert for each token, whose weight is always 1 in transformers."""
    if value == 1:
        raise UserError(f"{key}=1: only 2 or more experts for each token are Mixtral's")


def _rotary(hf_config: dict, default_theta: float) -> dict:
    """Returns the keys of config.model for the rotary positions.

    transformers 5 stores them in rope_parameters, earlier releases in rope_theta and rope_scaling.
    Raises UserError for variants that `embeddings.Rotary` does not support.
    """
    key = "rope_parameters" if hf_config.get("rope_parameters") else "rope_scaling"
    values = hf_config.get(key) or {}
    if not isinstance(values, dict):
        raise UserError(f"{key}={values!r}: must be an object")
    theta = values.get("rope_theta", hf_config.get("rope_theta", default_theta))
    kind = values.get("rope_type", values.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise UserError(f"{key}.rope_type={kind!r}: only 'default' or 'llama3' is supported")
    allowed = {"partial_rotary_factor": 1.0} | (_TURNS if kind == "llama3" else {})
    for name, value in allowed.items():
        if values.get(name, value) != value:
            raise UserError(f"{key}.{name}={values[name]!r}: only {value} is supported")
    if kind == "default":
        return {"rotary_theta": theta}
    length = "original_max_position_embeddings"
    missing = [name for name in ("factor", length) if name not in values]
    if missing:
        raise UserError(f"{key}: no {' and no '.join(missing)}")
    return {
        "rotary_theta": theta,
        "rotary_factor": values["factor"],
        "rotary_length": values[length],
    }


ARCHITECTURES = [
    LanguageModel("LlamaForCausalLM", "llama", _LLAMA_KEYS, _LLAMA, "causal_lm"),
    LanguageModel("Qwen2ForCausalLM", "qwen2", _QWEN2_KEYS, _QWEN2, "causal_lm", qkv_bias=True),
    LanguageModel(
        "MixtralForCausalLM", "mixtral", _MIXTRAL_KEYS, _MIXTRAL, "causal_lm", has_experts=True
    ),
]
