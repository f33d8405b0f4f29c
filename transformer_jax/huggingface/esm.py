"""ESM with the heads of masked residues and of contacts, from and to `models/esm.py`."""

import dataclasses

from transformer_jax.config import UserError
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.keys import Keys, check_head_dim
from transformer_jax.huggingface.roberta import MASKED_LM
from transformer_jax.huggingface.tensors import Table, layers, linear, norm
from transformer_jax.models.esm import ESM

_POSITIONS = "max_position_embeddings"
# {position_embedding_type: config.model.positions}
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
        "token_dropout": ("zero_masks", False),
        "emb_layer_norm_before": ("norm_first", False),
    },
    allowed={
        # The first position is the one behind it.
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
    ignored = (
        # Tied to the embeddings and to lm_head.bias.
        "lm_head.decoder.weight",
        "lm_head.decoder.bias",
        # The numbers 0, 1, 2, ..., and the rates of the rotations.
        "embeddings.position_ids",
        "rotary_embeddings.inv_freq",
        # Checkpoints with rotary positions may have a table of learned ones, too.
        "embeddings.position_embeddings.weight",
    )

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


FAMILIES = [MaskedResidues("EsmForMaskedLM", "esm", _KEYS, _TABLE, "masked_residues")]
