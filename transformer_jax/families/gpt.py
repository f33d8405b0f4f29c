"""The decoder-only Transformers GPT-1, GPT-2 and GPT-3.

GPT-1: Radford et al. 2018. GPT-2: Radford et al. 2019. GPT-3: Brown et al. 2020.
"""

import dataclasses
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
from jaxtyping import Array, ArrayLike, Float, Int
from ml_collections import ConfigDict

from transformer_jax.config import Fraction, NonNegativeFloat, PositiveInt, UserError
from transformer_jax.contracts.model import Cached
from transformer_jax.huggingface import family
from transformer_jax.huggingface.generate_options import Causal
from transformer_jax.huggingface.tensors import Keys, check_head_dim, layers
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import MLP, Block, LayerNorm, Remat, Stack
from transformer_jax.layers.embeddings import Embed, Projection
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, compute_dtype


class GPT(Cached):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    Each position attends to itself and to earlier positions. Segment ids start at 1 and separate
    the documents of a packed row; 0 is padding. By default, a row is one document with positions
    0..L-1.
    """

    vocab_size: PositiveInt = 50_257  # number of tokens in the vocabulary
    d_model: PositiveInt = 768  # width of the residual stream
    d_ff: PositiveInt | None = None  # width of the MLP's hidden layer; None: 4 * d_model
    num_layers: PositiveInt = 12  # number of blocks
    num_heads: PositiveInt = 12  # attention heads of a layer
    head_dim: PositiveInt | None = None  # width of a head; None: d_model / num_heads
    max_length: PositiveInt = 1024  # number of learned positions
    # pre, with a final norm: GPT-2 and GPT-3; post: GPT-1
    norm_position: Literal["pre", "post"] = "pre"
    norm_epsilon: NonNegativeFloat = 1e-5  # added to the variance in layer norms
    # standard deviation of the initial weights; narrow models learn faster with a larger value
    init_std: NonNegativeFloat = 0.02
    # divides the initial weights of the projections into the residual stream by
    # sqrt(2 * num_layers) (Radford et al. 2019, section 2.3)
    scaled_init: bool = True
    # number of positions that every second layer attends to (GPT-3, whose width is not published);
    # None: all layers attend to all earlier positions
    local_window: PositiveInt | None = None
    dropout: Fraction = 0.1  # on each residual branch and on the embeddings
    attention_dropout: Fraction = 0.1  # on the attention weights
    # pads the embedding table with zeros to a multiple of this number of rows, for speed; results
    # do not change
    vocab_multiple: PositiveInt = 1
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
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
            # The tanh approximation, as in the published code.
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
            # GPT-3 alternates dense and local layers (Brown et al. 2020, section 2.1).
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

        The table is tied to the token embeddings. V is rounded up to a multiple of vocab_multiple,
        and the bias excludes the rows that pad the vocabulary.
        """
        return self.token_embed.output()

    def flops(self, length: int, predictions: int | None = None) -> float:
        """Returns the FLOPs of a forward pass over one row, two for each multiply-add.

        `predictions` is the number of predicted positions (None: all). Causal attention counts only
        visible keys. Padding is counted; norms, softmax and embedding lookups are not.
        """
        sizes = parameters.LayerSizes.of(self)
        # The pattern starts with a dense layer, so the last one of an odd number is dense, too.
        num_local = 0 if self.local_window is None else self.num_layers // 2
        full = sizes.layer(length, parameters.causal_pairs(length))
        local = sizes.layer(length, parameters.causal_pairs(length, self.local_window))
        positions = length if predictions is None else predictions
        output = parameters.dense(positions, self.d_model, self.vocab_size)
        return (self.num_layers - num_local) * full + num_local * local + output

    def num_padding(self) -> int:
        return (-self.vocab_size % self.vocab_multiple) * self.d_model


# ----------------------------------------------------------------------------------- Hugging Face
#
# For classification, this package adds special tokens at the start of a row, between its texts and
# at its end, whose ids are the last three of the vocabulary (see `finetuning/encoder.py`). A
# published GPT-2 classifier was trained without them, so its conversion adds three newly
# initialized embeddings. The outputs for rows without these tokens are unchanged, but the model
# needs further fine-tuning before `predict` is useful.
#
# A classifier exported from this package has the three tokens. A key in config.json says so, and
# the exported tokenizer adds them to each row.
_REQUIRED = {
    "vocab_size": "vocab_size",
    "n_positions": "max_length",
    "n_embd": "d_model",
    "n_layer": "num_layers",
    "n_head": "num_heads",
}
_OPTIONAL = {
    "layer_norm_epsilon": ("norm_epsilon", 1e-5),
    "resid_pdrop": ("dropout", 0.1),
    "attn_pdrop": ("attention_dropout", 0.1),
}
_ABSENT = {"local_window": "local attention"}
# GPT's "gelu" is the tanh approximation.
_GPT1_KEYS = Keys(
    _REQUIRED,
    _OPTIONAL,
    allowed={"afn": ("gelu",), "tie_word_embeddings": (True,)},
    absent=_ABSENT,
)
_GPT2_KEYS = Keys(
    _REQUIRED,
    _OPTIONAL,
    allowed={
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    absent=_ABSENT,
)

# OpenAI's Conv1D stores its kernels as (inputs, outputs), like ours and unlike torch.nn.Linear, so
# the kernels of the MLP keep their layout. Queries, keys and values are one matrix there.
_LAYER = {
    "ln_1.weight": ("same", "attention_norm/scale"),
    "ln_1.bias": ("same", "attention_norm/bias"),
    "attn.c_attn.weight": (
        "conv1d",
        "attention/query/kernel",
        "attention/key/kernel",
        "attention/value/kernel",
    ),
    "attn.c_attn.bias": (
        "vector",
        "attention/query/bias",
        "attention/key/bias",
        "attention/value/bias",
    ),
    "attn.c_proj.weight": ("conv1d_merge", "attention/out/kernel"),
    "attn.c_proj.bias": ("same", "attention/out/bias"),
    "ln_2.weight": ("same", "mlp_norm/scale"),
    "ln_2.bias": ("same", "mlp_norm/bias"),
    "mlp.c_fc.weight": ("same", "mlp/wi/kernel"),
    "mlp.c_fc.bias": ("same", "mlp/wi/bias"),
    "mlp.c_proj.weight": ("same", "mlp/wo/kernel"),
    "mlp.c_proj.bias": ("same", "mlp/wo/bias"),
}
_LAYERS = layers("transformer.h.{}.", "decoder/layers/", _LAYER)
_TOKENS = ("same", "token_embed/embedding")
_POSITIONS = ("same", "position_embed/embedding")
_GPT1 = {
    "transformer.tokens_embed.weight": _TOKENS,
    "transformer.positions_embed.weight": _POSITIONS,
    **_LAYERS,
}
_GPT2 = {
    "transformer.wte.weight": _TOKENS,
    "transformer.wpe.weight": _POSITIONS,
    **_LAYERS,
    "transformer.ln_f.weight": ("same", "norm/scale"),
    "transformer.ln_f.bias": ("same", "norm/bias"),
}
_CLASSIFIER = {"score.weight": ("linear", "head/out/kernel")}

# This key of config.json says that the last three ids start, separate and end the texts of a row.
# Its name must not change, because exported checkpoints contain it.
_HAS_SPECIAL_TOKENS = "transformer_jax_marks"
_NUM_SPECIAL_TOKENS = 3


@dataclasses.dataclass(frozen=True)
class LanguageModel(Causal):
    model = "gpt"
    body = ("transformer.",)
    prefix = "transformer."
    # A copy of the embeddings, which `tied` compares, and buffers that hold the causal mask.
    ignored = ("lm_head.weight", ".attn.bias", ".attn.masked_bias")
    tied = {"lm_head.weight": ("wte.weight", "tokens_embed.weight")}

    norm_position: str = "pre"

    def matches(self, config):
        return super().matches(config) and config.model.norm_position == self.norm_position

    def model_keys(self, hf_config):
        # GPT's configuration has no n_inner; its MLP always has the width 4 * d_model.
        d_ff = hf_config.get("n_inner") if self.norm_position == "pre" else None
        return {**super().model_keys(hf_config), "norm_position": self.norm_position, "d_ff": d_ff}

    def task_keys(self, config, hf_config):
        return {"length": config.model.max_length}

    def remarks(self, hf_config):
        embedding_dropout = hf_config.get("embd_pdrop", 0.1)
        dropout = hf_config.get("resid_pdrop", 0.1)
        if embedding_dropout != dropout:
            yield (
                f"embd_pdrop={embedding_dropout} becomes {dropout}, the value of resid_pdrop: "
                "config.model.dropout sets both rates"
            )

    def check(self, config: ConfigDict) -> None:
        super().check(config)
        model = config.model
        check_head_dim(model, self.architecture)
        if self.norm_position == "post" and model.d_ff not in (None, 4 * model.d_model):
            raise UserError(
                f"config.model.d_ff={model.d_ff}: {self.architecture} has only 4 * d_model"
            )

    def other_keys(self, config, tokenizer):
        inner = {"n_inner": config.model.d_ff} if self.norm_position == "pre" else {}
        return {
            # GPT-2 has a single special token, which ends a document and starts the next.
            "bos_token_id": tokenizer.eos_id,
            "eos_token_id": tokenizer.hf_end,
            "embd_pdrop": config.model.dropout,
            **inner,
        }


@dataclasses.dataclass(frozen=True)
class Classifier(LanguageModel):
    # A classifier has no output projection, so what a file still holds of it is not compared.
    tied = {}

    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        if not hf_config.get(_HAS_SPECIAL_TOKENS):
            keys["vocab_size"] += _NUM_SPECIAL_TOKENS
        return keys

    def task_keys(self, config, hf_config):
        # GPT-2's head has no dropout.
        return family.read_keys(config, hf_config, dropout=0.0)

    def remarks(self, hf_config):
        yield from super().remarks(hf_config)
        if not hf_config.get(_HAS_SPECIAL_TOKENS):
            yield (
                "this model was trained without the special tokens at the start and end of our "
                "rows; fine-tune it before you use it"
            )

    def other_keys(self, config, tokenizer):
        # transformers' head reads the last token that is not padding, which is the end token of the
        # row. The id of padding is 0.
        special = {"pad_token_id": 0, _HAS_SPECIAL_TOKENS: True}
        return super().other_keys(config, tokenizer) | family.write_keys(config.task) | special

    def tokenizer_files(self, task):
        start, separator, end = task.special_tokens
        special = (*start, *separator, *end)
        return task.tokenizer.hf_files() | task.tokenizer.hf_with_delimiters(special)


ARCHITECTURES = [
    LanguageModel("OpenAIGPTLMHeadModel", "openai-gpt", _GPT1_KEYS, _GPT1, "causal_lm", "post"),
    LanguageModel("GPT2LMHeadModel", "gpt2", _GPT2_KEYS, _GPT2, "causal_lm"),
    Classifier(
        "GPT2ForSequenceClassification", "gpt2", _GPT2_KEYS, _GPT2 | _CLASSIFIER, "classification"
    ),
]
