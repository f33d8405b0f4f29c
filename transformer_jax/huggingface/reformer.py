"""Reformer with its language-model head, from and to `models/reformer.py`.

The published model draws its rotations as torch does. Outputs are equal where both hash with the
same rotations.
"""

import dataclasses
import math

from transformer_jax.config import UserError
from transformer_jax.huggingface import family
from transformer_jax.huggingface.keys import Keys
from transformer_jax.huggingface.tensors import Table, layers, linear, norm

_KEYS = Keys(
    required={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "feed_forward_size": "d_ff",
        "num_attention_heads": "num_heads",
        "attention_head_size": "head_dim",
        "max_position_embeddings": "max_length",
    },
    optional={
        "local_attn_chunk_length": ("local_chunk", 64),
        "lsh_attn_chunk_length": ("lsh_chunk", 64),
        "num_hashes": ("rounds", 1),
        "layer_norm_eps": ("norm_epsilon", 1e-12),
        "initializer_range": ("init_std", 0.02),
        "hidden_dropout_prob": ("dropout", 0.05),
    },
    allowed={
        "is_decoder": (True,),
        "hidden_act": ("relu",),
        "local_num_chunks_before": (1,),
        "local_num_chunks_after": (0,),
        "lsh_num_chunks_before": (1,),
        "lsh_num_chunks_after": (0,),
        "tie_word_embeddings": (False,),
    },
)
_MLP = {
    **norm("feed_forward.layer_norm", "mlp_norm"),
    **linear("feed_forward.dense.dense", "mlp/wi"),
    **linear("feed_forward.output.dense", "mlp/wo"),
}
_ATTENTION = {
    **norm("attention.layer_norm", "attention_norm"),
    "attention.self_attention.value.weight": ("linear", "attention/value/kernel"),
    "attention.output.dense.weight": ("linear_merge", "attention/out/kernel"),
}
_LAYER = {
    "local": {
        **_ATTENTION,
        "attention.self_attention.query.weight": ("linear", "attention/query/kernel"),
        "attention.self_attention.key.weight": ("linear", "attention/key/kernel"),
        **_MLP,
    },
    "lsh": {
        **_ATTENTION,
        "attention.self_attention.query_key.weight": ("linear", "attention/query_key/kernel"),
        **_MLP,
    },
}
_HEAD = {
    "reformer.embeddings.word_embeddings.weight": ("same", "token_embed/embedding"),
    **norm("reformer.encoder.layer_norm", "norm"),
    "lm_head.decoder.weight": ("same", "output_embed/embedding"),
    # Published twice. The second one counts.
    "lm_head.bias": ("same", "output_bias/bias"),
    "lm_head.decoder.bias": ("same", "output_bias/bias"),
}


@dataclasses.dataclass(frozen=True)
class LanguageModel(family.Family):
    model = "reformer"
    ignored = ("mask_value_float16", "mask_value_float32")  # those of hidden keys

    def table(self, model):
        pattern = model.attention
        table = dict(_HEAD)
        for place, kind in enumerate(pattern):
            block = f"block_{place}/" if len(pattern) > 1 else ""
            name = f"reformer.encoder.layers.{{{place}:{len(pattern)}}}."
            table |= layers(name, f"decoder/layers/{block}", _LAYER[kind])
        return table | self._positions(model)

    def _positions(self, model) -> Table:
        """Returns the entries of the positions: a table, or one for each side of their grid."""
        if len(model.axial_shape) == 1:
            name = "reformer.embeddings.position_embeddings.embedding.weight"
            return {name: ("same", "position_embed_0/embedding")}
        name = "reformer.embeddings.position_embeddings.weights"
        layouts = ("first_side", "second_side")
        return {
            f"{name}.{side}": (layouts[side], f"position_embed_{side}/embedding")
            for side in range(len(model.axial_shape))
        }

    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        pattern = hf_config.get("attn_layers", ["local", "lsh"] * 3)
        buckets = hf_config.get("num_buckets")
        if buckets is None:
            raise UserError("num_buckets=None: must be a number, or its factors")
        shape, widths = [keys["max_length"]], [keys["d_model"]]
        if hf_config.get("axial_pos_embds", True):
            shape = hf_config.get("axial_pos_shape", [64, 64])
            widths = hf_config.get("axial_pos_embds_dim", [64, 192])
        return keys | {
            "num_layers": len(pattern),
            "attention": _shortest_pattern(pattern),
            "buckets": [buckets] if isinstance(buckets, int) else buckets,
            "across_buckets": True,
            "max_length": math.prod(shape),
            "axial_shape": shape,
            "axial_widths": widths,
            "attention_dropout": hf_config.get("lsh_attention_probs_dropout_prob", 0.0),
            "mlp_chunk": hf_config.get("chunk_size_feed_forward", 0) or None,
        }

    def remarks(self, hf_config):
        local, lsh = (
            hf_config.get(f"{kind}_attention_probs_dropout_prob", default)
            for kind, default in (("local", 0.05), ("lsh", 0.0))
        )
        if local != lsh:
            yield (
                f"local_attention_probs_dropout_prob={local} becomes {lsh}: our models have one "
                "rate for both kinds of attention"
            )

    def task_keys(self, config, hf_config):
        return {"length": config.model.max_length}

    def check(self, config):
        super().check(config)
        if not config.model.across_buckets:
            raise UserError(
                f"config.model.across_buckets=False: {self.architecture} attends across buckets"
            )
        if len(config.model.axial_shape) > 2:
            raise UserError(
                f"config.model.axial_shape={config.model.axial_shape}: {self.architecture} has one "
                "side or two"
            )

    def other_keys(self, config, tokenizer):
        model = config.model
        is_axial = len(model.axial_shape) > 1
        axial = dict(axial_pos_shape=model.axial_shape, axial_pos_embds_dim=model.axial_widths)
        pattern = [*model.attention] * (model.num_layers // len(model.attention))
        buckets = [*model.buckets]
        return {
            "attention_head_size": model.head_dim or model.d_model // model.num_heads,
            "attn_layers": pattern,
            "axial_pos_embds": is_axial,
            **(axial if is_axial else {}),
            "chunk_size_feed_forward": model.mlp_chunk or 0,
            "eos_token_id": tokenizer.eos_id,
            "local_attention_probs_dropout_prob": model.attention_dropout,
            "lsh_attention_probs_dropout_prob": model.attention_dropout,
            "num_buckets": buckets[0] if len(buckets) == 1 else buckets,
        }


def _shortest_pattern(kinds: list[str]) -> list[str]:
    """Returns the shortest pattern that repeats to these kinds of attention."""
    for length in range(1, len(kinds) + 1):
        times, rest = divmod(len(kinds), length)
        if not rest and kinds == kinds[:length] * times:
            return kinds[:length]
    return kinds


FAMILIES = [
    LanguageModel("ReformerModelWithLMHead", "reformer", _KEYS, _HEAD, "causal_lm"),
]
