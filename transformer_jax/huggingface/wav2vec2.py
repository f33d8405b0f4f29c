"""wav2vec 2.0 with the heads of pre-training and of transcription, from and to
`models/wav2vec2.py`.
"""

import dataclasses
import json

from transformer_jax.config import UserError
from transformer_jax.data.sound import RATE
from transformer_jax.data.spelling import BOUNDARY
from transformer_jax.huggingface import family
from transformer_jax.huggingface.keys import Keys, check_head_dim
from transformer_jax.huggingface.tensors import Table, layers, linear, norm, read_json

_KEYS = Keys(
    required={
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
    },
    optional={
        "conv_dim": ("convolution_widths", (512,) * 7),
        "conv_kernel": ("convolution_kernels", (10, 3, 3, 3, 3, 2, 2)),
        "conv_stride": ("convolution_strides", (5, 2, 2, 2, 2, 2, 2)),
        "conv_bias": ("convolution_bias", False),
        "feat_extract_norm": ("convolution_norm", "group"),
        "num_conv_pos_embeddings": ("position_kernel", 128),
        "num_conv_pos_embedding_groups": ("position_groups", 16),
        "do_stable_layer_norm": ("stable", False),
        "num_codevector_groups": ("codebooks", 2),
        "num_codevectors_per_group": ("codes", 320),
        "codevector_dim": ("d_code", 256),
        "proj_codevector_dim": ("d_projection", 256),
        "layer_norm_eps": ("norm_epsilon", 1e-5),
        "initializer_range": ("init_std", 0.02),
        "hidden_dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "activation_dropout": ("hidden_dropout", 0.1),
        "feat_proj_dropout": ("feature_dropout", 0.0),
        "feat_quantizer_dropout": ("quantizer_dropout", 0.0),
        "layerdrop": ("layer_drop", 0.1),
    },
    allowed={
        "hidden_act": ("gelu",),
        "feat_extract_activation": ("gelu",),
        "add_adapter": (False,),
        "adapter_attn_dim": (None,),
    },
)
_LAYER = {
    **linear("attention.q_proj", "attention/query"),
    **linear("attention.k_proj", "attention/key"),
    **linear("attention.v_proj", "attention/value"),
    **linear("attention.out_proj", "attention/out", "linear_merge"),
    **norm("layer_norm", "attention_norm"),
    **linear("feed_forward.intermediate_dense", "mlp/wi"),
    **linear("feed_forward.output_dense", "mlp/wo"),
    **norm("final_layer_norm", "mlp_norm"),
}
_POSITIONS = "wav2vec2.encoder.pos_conv_embed.conv"
_ENCODER = {
    "wav2vec2.masked_spec_embed": ("same", "mask_vector"),
    **norm("wav2vec2.feature_projection.layer_norm", "feature_norm"),
    **linear("wav2vec2.feature_projection.projection", "projection"),
    f"{_POSITIONS}.bias": ("same", "positions/bias"),
    f"{_POSITIONS}.parametrizations.weight.original0": ("third_side", "positions/scale"),
    f"{_POSITIONS}.parametrizations.weight.original1": ("time_convolution", "positions/direction"),
    **norm("wav2vec2.encoder.layer_norm", "norm"),
    **layers("wav2vec2.encoder.layers.{}.", "encoder/layers/", _LAYER),
}
_QUANTIZER = {
    "quantizer.codevectors": ("second_side", "quantizer/table"),
    **linear("quantizer.weight_proj", "quantizer/logits"),
    **linear("project_q", "project_target"),
    **linear("project_hid", "project_context"),
}


@dataclasses.dataclass(frozen=True)
class _Speech(family.Family):
    """The encoder. Its convolutions are no stack: the first one has another shape."""

    model = "wav2vec2"

    def sections(self, folder):
        return {"source": {"name": "sound"}}

    def table(self, model) -> Table:
        table = dict(self.tensors)
        for number in range(len(model.convolution_widths)):
            layer = f"wav2vec2.feature_extractor.conv_layers.{number}"
            table[f"{layer}.conv.weight"] = ("time_convolution", f"convolution_{number}/kernel")
            if model.convolution_bias:
                table[f"{layer}.conv.bias"] = ("same", f"convolution_{number}/bias")
            if model.convolution_norm == "layer" or number == 0:
                table |= norm(f"{layer}.layer_norm", f"convolution_norms_{number}")
        return table

    def check(self, config):
        super().check(config)
        check_head_dim(config.model, self.architecture)

    def other_keys(self, config, tokenizer):
        return {
            "intermediate_size": config.model.d_ff or 4 * config.model.d_model,
            "num_feat_extract_layers": len(config.model.convolution_widths),
            "mask_time_length": config.task.span,
        }

    def tokenizer_files(self, task):
        content = {
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "do_normalize": True,
            "feature_size": 1,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": task.model.convolution_norm == "layer",
            "sampling_rate": RATE,
        }
        return {"preprocessor_config.json": _json(content)}


@dataclasses.dataclass(frozen=True)
class _PreTraining(_Speech):
    def task_keys(self, config, hf_config):
        return {
            "span": hf_config.get("mask_time_length", 10),
            "distractors": hf_config.get("num_negatives", 100),
            "similarity_temperature": hf_config.get("contrastive_logits_temperature", 0.1),
            "diversity_weight": hf_config.get("diversity_loss_weight", 0.1),
        }

    def other_keys(self, config, tokenizer):
        return super().other_keys(config, tokenizer) | {
            "num_negatives": config.task.distractors,
            "contrastive_logits_temperature": config.task.similarity_temperature,
            "diversity_loss_weight": config.task.diversity_weight,
        }


@dataclasses.dataclass(frozen=True)
class _CTC(_Speech):
    def sections(self, folder):
        numbers = read_json(folder / "vocab.json")
        tokens = sorted(numbers, key=numbers.get)
        if [numbers[token] for token in tokens] != [*range(len(tokens))]:
            raise UserError(f"{folder / 'vocab.json'}: must number its tokens 0, 1, 2, ...")
        return {"source": {"name": "sound"}, "task": {"vocabulary": tuple(tokens)}}

    def task_keys(self, config, hf_config):
        if hf_config.get("vocab_size", 32) != len(config.task.vocabulary):
            raise UserError(
                f"vocab_size={hf_config.get('vocab_size')}: vocab.json has "
                f"{len(config.task.vocabulary)} tokens"
            )
        return {
            "blank": hf_config.get("pad_token_id") or 0,
            "head_dropout": hf_config.get("final_dropout", 0.1),
            "masked": hf_config.get("mask_time_prob", 0.05),
            "span": hf_config.get("mask_time_length", 10),
            "silent": hf_config.get("mask_feature_prob", 0.0),
            "silent_span": hf_config.get("mask_feature_length", 10),
        }

    def other_keys(self, config, tokenizer):
        return super().other_keys(config, tokenizer) | {
            "vocab_size": len(config.task.vocabulary),
            "pad_token_id": config.task.blank,
            "final_dropout": config.task.head_dropout,
            "mask_time_prob": config.task.masked,
            "mask_feature_prob": config.task.silent,
            "mask_feature_length": config.task.silent_span,
        }

    def tokenizer_files(self, task):
        blank = task.vocabulary[task.blank]
        options = {
            "tokenizer_class": "Wav2Vec2CTCTokenizer",
            "pad_token": blank,
            "unk_token": task.spelling.unknown or blank,
            "bos_token": None,
            "eos_token": None,
            "word_delimiter_token": BOUNDARY,
        }
        numbers = {token: number for number, token in enumerate(task.vocabulary)}
        files = {"vocab.json": _json(numbers), "tokenizer_config.json": _json(options)}
        return super().tokenizer_files(task) | files


def _json(content: dict) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


FAMILIES = [
    _PreTraining(
        "Wav2Vec2ForPreTraining", "wav2vec2", _KEYS, _ENCODER | _QUANTIZER, "masked_speech"
    ),
    _CTC("Wav2Vec2ForCTC", "wav2vec2", _KEYS, _ENCODER | linear("lm_head", "head/out"), "ctc"),
]
