"""GPT and GPT-2 with a language-model head, and GPT-2 classifiers, from and to `models/gpt.py`.

Our rows for classification have tokens at the beginning, between texts and at the end: the last
three ids of the vocabulary (see `finetuning/encoder.py`). A published GPT-2 classifier never saw
them. Its conversion adds three newly initialized vectors to the vocabulary. The outputs for rows
without these tokens stay the same, but the model needs further fine-tuning before `predict` is
useful.

A run exported from here has the three tokens. A key in config.json says so, and the exported
tokenizer adds them to each row.
"""

import dataclasses

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.huggingface import family, heads
from transformer_jax.huggingface.keys import Keys, check_head_dim
from transformer_jax.huggingface.tensors import layers

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

# A key of config.json: the last three ids begin, separate and end the texts of a row.
_MARKS = "transformer_jax_marks"
_NUM_MARKS = 3


@dataclasses.dataclass(frozen=True)
class LanguageModel(family.Family):
    model = "gpt"
    prefix = "transformer."
    # The output projection, tied to the embeddings, and the causal masks.
    ignored = ("lm_head.weight", ".attn.bias", ".attn.masked_bias")

    norm_position: str = "pre"

    def matches(self, config):
        return super().matches(config) and config.model.norm_position == self.norm_position

    def model_keys(self, hf_config):
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
                "config.model.dropout stands for both"
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
            "bos_token_id": tokenizer.eos_id,
            "eos_token_id": tokenizer.hf_end,
            "embd_pdrop": config.model.dropout,
            **inner,
        }


@dataclasses.dataclass(frozen=True)
class Classifier(LanguageModel):
    def model_keys(self, hf_config):
        keys = super().model_keys(hf_config)
        if not hf_config.get(_MARKS):
            keys["vocab_size"] += _NUM_MARKS
        return keys

    def task_keys(self, config, hf_config):
        # GPT-2's head has no dropout.
        return heads.read_keys(config, hf_config, dropout=0.0)

    def remarks(self, hf_config):
        yield from super().remarks(hf_config)
        if not hf_config.get(_MARKS):
            yield (
                "this model never saw the tokens that begin and end our rows; fine-tune it before "
                "you use it"
            )

    def other_keys(self, config, tokenizer):
        # The head reads the last token that is not padding: the one that ends our rows. Id 0 is our
        # padding.
        marks = {"pad_token_id": 0, _MARKS: True}
        return super().other_keys(config, tokenizer) | heads.write_keys(config.task) | marks

    def tokenizer_files(self, task):
        begin, separator, end = task.marks
        marks = (*begin, *separator, *end)
        return task.tokenizer.hf_files() | task.tokenizer.hf_marked(marks)


FAMILIES = [
    LanguageModel("OpenAIGPTLMHeadModel", "openai-gpt", _GPT1_KEYS, _GPT1, "causal_lm", "post"),
    LanguageModel("GPT2LMHeadModel", "gpt2", _GPT2_KEYS, _GPT2, "causal_lm"),
    Classifier(
        "GPT2ForSequenceClassification", "gpt2", _GPT2_KEYS, _GPT2 | _CLASSIFIER, "classification"
    ),
]
