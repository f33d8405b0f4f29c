"""The protein language models ESM-1b (Rives et al. 2021) and ESM-2 (Lin et al. 2023)."""

import dataclasses
from functools import partial
from typing import ClassVar, Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.config import Fraction, PositiveInt, UserError
from transformer_jax.contracts.model import Inputs, takes_inputs
from transformer_jax.families.roberta import MASKED_LM, RoBERTa
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.tensors import Keys, Table, check_head_dim, layers, linear, norm
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import Block, LayerNorm
from transformer_jax.layers.embeddings import Rotary, row_positions
from transformer_jax.layers.parameters import Linear

# The fraction of tokens that pre-training replaces by the mask token: 80 % of the 15 % that are
# predicted. It is a constant in the published code, too, whatever a task masks.
_MASKED = 0.15 * 0.8


class ESM(RoBERTa):
    """Residues (B, L) int32 -> hidden states (B, L, M).

    ESM is a RoBERTa with pre-LN layers, a final norm and no pooler. Padding follows the residues of
    a row. The default sizes are ESM-1b's.
    """

    can = frozenset({"attend", "fill", "contact"})
    heads = ("mlm_transform", "mlm_norm", "mlm_bias", "contact")
    num_token_types: ClassVar[int] = 0

    vocab_size: PositiveInt = 33  # number of tokens of the alphabet
    d_model: PositiveInt = 1280  # width of the residual stream
    num_layers: PositiveInt = 33  # number of blocks
    num_heads: PositiveInt = 20  # attention heads of a layer
    max_length: PositiveInt = 1024  # largest number of tokens in a row, with special tokens
    dropout: Fraction = 0.0  # on each residual branch
    attention_dropout: Fraction = 0.0  # on the attention weights
    positions: Literal["learned", "rotary"] = "learned"  # rotary: ESM-2
    norm_first: bool = True  # a norm of the embeddings, before the layers; false: ESM-2
    # embeds mask tokens as zeros, and scales all other embeddings by the fraction of unmasked
    # tokens in pre-training over this fraction in the row
    token_dropout: bool = True
    mask_id: int = 32  # id of the mask token

    def setup(self):
        rotary = Rotary() if self.positions == "rotary" else None
        attention = partial(Attention, rotary=rotary)
        block = partial(Block, norm_position="pre")
        self._set_up_encoder(width=self.d_model, attention=attention, block=block)
        self._set_up_heads()
        self.encoder_norm = LayerNorm(self.norm_epsilon)
        maps = (self.num_layers * self.num_heads,)
        zeros = nn.initializers.zeros
        self.contact = Linear(maps, (1,), axes=(None, None), head=True, kernel_init=zeros)

    @takes_inputs
    def __call__(
        self, inputs: Inputs, *, train: bool = False
    ) -> tuple[Float[Array, "B L M"], Float[Array, "B L V"], Float[Array, "B 1 1"]]:
        """Returns hidden states (B, L, M), logits of masked residues (B, L, V) and of one contact.

        The contact logit is computed from zeros instead of attention maps. It is returned so that
        initialization creates the parameters of `contact_logits`.
        """
        hidden = self.hidden(inputs, train=train)
        no_maps = jnp.zeros((len(hidden), 1, 1, self.num_layers * self.num_heads))
        return hidden, self.logits(hidden), self.contact_logits(no_maps)

    @takes_inputs
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        """Returns the hidden states of the last layer (B, L, M). Token types are ignored."""
        x = self._embed(inputs, train=train)
        return self.encoder_norm(self.encoder(x, mask=inputs.mask, train=train))

    @takes_inputs
    def layers(self, inputs: Inputs) -> Float[Array, "N B L M"]:
        """Returns the embeddings and the hidden states of all layers (layers + 1, B, L, M).

        The hidden states of the last layer are normalized, as in `hidden`.
        """
        x = self._embed(inputs, train=False)
        outputs = self.encoder(x, mask=inputs.mask, every_layer=True)  # (layers, B, L, M)
        return jnp.concatenate([x[None], outputs[:-1], self.encoder_norm(outputs[-1:])])

    def _embed(self, inputs: Inputs, *, train: bool) -> Float[Array, "B L M"]:
        """Returns the inputs of the first layer, zeros for padding, without dropout."""
        tokens, positions, segments = inputs.tokens, inputs.positions, inputs.segment_ids
        filled = jnp.ones(jnp.shape(tokens), bool) if segments is None else segments > 0
        if positions is None:
            positions = row_positions(tokens, self.max_length)
        x = self.token_embed(tokens)
        if self.token_dropout:
            is_mask = (tokens == self.mask_id) & filled
            observed = is_mask.sum(axis=1) / jnp.maximum(filled.sum(axis=1), 1)  # (B,)
            # The maximum avoids a division by zero in a row of mask tokens, which becomes zeros.
            scale = (1 - _MASKED) / jnp.maximum(1 - observed, 1e-3)
            x = jnp.where(is_mask[..., None], 0, x * scale[:, None, None]).astype(x.dtype)
        if self.positions == "learned":
            x = x + self.position_embed(positions)
        if self.norm_first:
            x = self.embed_norm(x)
        # As in the published code, although attention hides the padding anyway.
        return jnp.where(filled[..., None], x, 0)

    def contact_logits(self, maps: Float[Array, "B P P N"]) -> Float[Array, "B P P"]:
        """Returns the logits of contacts between residues, float32 (Rao et al. 2020, section 3).

        `maps` are the attention maps of all layers and heads after the correction in
        families/esm/contacts.py.
        """
        return self.contact(maps.astype(jnp.float32))[..., 0]


# ----------------------------------------------------------------------------------- Hugging Face
_POSITIONS = "max_position_embeddings"
# transformers calls learned positions absolute: {position_embedding_type: config.model.positions}.
_KINDS = {"absolute": "learned", "rotary": "rotary"}
_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        _POSITIONS: "max_length",
        "mask_token_id": "mask_id",
    },
    optional={
        "layer_norm_eps": ("norm_epsilon", 1e-12),
        "hidden_dropout_prob": ("dropout", 0.1),
        "attention_probs_dropout_prob": ("attention_dropout", 0.1),
        "initializer_range": ("init_std", 0.02),
        "token_dropout": ("token_dropout", False),
        "emb_layer_norm_before": ("norm_first", False),
    },
    allowed={
        # Positions are counted from pad_token_id + 1, so that another id would shift them all.
        "pad_token_id": (ESM.position_offset - 1,),
        "is_folding_model": (False,),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
)
_LAYER = {
    **linear("attention.self.query", "attention/query"),
    **linear("attention.self.key", "attention/key"),
    **linear("attention.self.value", "attention/value"),
    **linear("attention.output.dense", "attention/out", "linear_merge"),
    **norm("attention.LayerNorm", "attention_norm"),
    **linear("intermediate.dense", "mlp/wi"),
    **linear("output.dense", "mlp/wo"),
    **norm("LayerNorm", "mlp_norm"),
}
_TABLE = {
    "esm.embeddings.word_embeddings.weight": ("same", "token_embed/embedding"),
    **layers("esm.encoder.layer.{}.", "encoder/layers/", _LAYER),
    **norm("esm.encoder.emb_layer_norm_after", "encoder_norm"),
    **linear("esm.contact_head.regression", "contact"),
    **MASKED_LM,
}
_LEARNED = {"esm.embeddings.position_embeddings.weight": ("same", "position_embed/embedding")}
_NORM_FIRST = norm("esm.embeddings.layer_norm", "embed_norm")


@dataclasses.dataclass(frozen=True)
class MaskedResidues(Family):
    model = "esm"
    body = ("esm.",)
    ignored = (
        # Copies of the embeddings and of lm_head.bias, with which `tied` compares them.
        "lm_head.decoder.weight",
        "lm_head.decoder.bias",
        # Buffers of the constants 0, 1, 2, ... and of the rates of the rotations, which nothing
        # trains.
        "embeddings.position_ids",
        "rotary_embeddings.inv_freq",
        # Checkpoints with rotary positions may also contain a table of learned positions.
        "embeddings.position_embeddings.weight",
    )
    tied = {
        "lm_head.decoder.weight": ("embeddings.word_embeddings.weight",),
        "lm_head.decoder.bias": ("lm_head.bias",),
    }

    def table(self, model) -> Table:
        table = dict(self.tensors)
        if model.positions == "learned":
            table |= _LEARNED
        return table | _NORM_FIRST if model.norm_first else table

    def sections(self, folder):
        return super().sections(folder) | {"source": {"name": "fasta"}}

    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        length = keys["max_length"]
        if not isinstance(length, int) or length <= ESM.position_offset:
            raise UserError(f"{_POSITIONS}={length!r}: must be a whole number from 3")
        kind = hf_config.get("position_embedding_type", "absolute")
        if kind not in _KINDS:
            raise UserError(
                f"position_embedding_type={kind!r}: only {' or '.join(map(repr, _KINDS))} is "
                "supported"
            )
        # The default of transformers is null, which means false.
        nones = {name: value or False for name, value in keys.items() if name == "norm_first"}
        sizes = {"max_length": length - ESM.position_offset, "positions": _KINDS[kind]}
        return keys | nones | sizes

    def task_keys(self, config, hf_config):
        return {"length": config.model.max_length}

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        padding = ESM.position_offset - 1
        if tokenizer.pad_id != padding:
            raise UserError(f"{self.architecture} needs an alphabet whose padding has the id 1")
        model = config.model
        kinds = {ours: theirs for theirs, ours in _KINDS.items()}
        return {
            _POSITIONS: model.max_length + ESM.position_offset,
            "intermediate_size": model.d_ff or 4 * model.d_model,
            "position_embedding_type": kinds[model.positions],
            "cls_token_id": tokenizer.cls_id,
            "eos_token_id": tokenizer.eos_id,
        }


ARCHITECTURES = [MaskedResidues("EsmForMaskedLM", "esm", _KEYS, _TABLE, "masked_residues")]
