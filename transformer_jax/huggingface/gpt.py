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
import pathlib
from typing import Literal

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.huggingface import heads
from transformer_jax.huggingface.keys import Keys, check_head_dim
from transformer_jax.pictures.progress import say

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
# GPT's "gelu" is the tanh approximation.
_GPT1_KEYS = Keys(
    _REQUIRED,
    _OPTIONAL,
    allowed={"afn": ("gelu",), "tie_word_embeddings": (True,)},
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
_LAYERS = {
    f"transformer.h.{{}}.{name}": (layout, *(f"decoder/layers/{path}" for path in paths))
    for name, (layout, *paths) in _LAYER.items()
}
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
MARKS = "transformer_jax_marks"
_NUM_MARKS = 3


@dataclasses.dataclass(frozen=True)
class Family:
    architecture: str
    model_type: str
    norm_position: Literal["pre", "post"]
    keys: Keys
    table: dict[str, tuple[str, ...]]
    task: str = "causal_lm"
    prefix: str = "transformer."
    # The output projection, tied to the embeddings, and the causal masks.
    ignored: tuple[str, ...] = ("lm_head.weight", ".attn.bias", ".attn.masked_bias")

    def matches(self, config: ConfigDict) -> bool:
        """Returns whether a run with this config is of the family."""
        return (
            config.model.name == "gpt"
            and config.model.norm_position == self.norm_position
            and config.task.name == self.task
        )

    def read_config(self, hf_config: dict, folder: pathlib.Path) -> ConfigDict:
        """Returns the config of a run that starts from the weights in `folder`.

        Raises UserError for a model that `models/gpt.py` does not compute.
        """
        path = folder / "config.json"
        model = self.keys.read(path, hf_config)
        embedding_dropout = hf_config.get("embd_pdrop", 0.1)
        if embedding_dropout != model["dropout"]:
            say(
                f"{path}: embd_pdrop={embedding_dropout} becomes {model['dropout']}, the value of "
                "resid_pdrop: config.model.dropout stands for both"
            )
        try:
            config = configs.experiment(
                model=dict(
                    name="gpt",
                    norm_position=self.norm_position,
                    d_ff=hf_config.get("n_inner") if self.norm_position == "pre" else None,
                    **model,
                ),
                task=dict(name=self.task),
                data=dict(tokenizer_files=str(folder)),
                decode=dict(batch=8),
            )
            for key, value in self._task_keys(config, hf_config).items():
                configs.set_key(config, f"task.{key}", value)
            if self.task != "causal_lm" and not hf_config.get(MARKS):
                configs.set_key(config, "model.vocab_size", config.model.vocab_size + _NUM_MARKS)
                say(
                    f"{path}: this model never saw the tokens that begin and end our rows; "
                    "fine-tune it before you use it"
                )
            configs.validate(config)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        return config

    def _task_keys(self, config: ConfigDict, hf_config: dict) -> dict:
        if self.task == "causal_lm":
            return {"length": config.model.max_length}
        # GPT-2's head has no dropout.
        return heads.read_keys(config, hf_config, dropout=0.0)

    def write_config(self, config: ConfigDict, eos_id: int) -> dict:
        """Returns the content of config.json.

        Raises UserError for a model that Hugging Face's does not compute.
        """
        model = config.model
        head = {}
        if self.task != "causal_lm":
            # The head reads the last token that is not padding: the one that ends our rows. Id 0 is
            # our padding.
            head = {**heads.write_keys(config.task), "pad_token_id": 0, MARKS: True}
        if model.local_window is not None:
            raise UserError(
                f"config.model.local_window={model.local_window}: {self.architecture} has no "
                "local attention"
            )
        check_head_dim(model, self.architecture)
        inner = {"n_inner": model.d_ff} if self.norm_position == "pre" else {}
        if not inner and model.d_ff not in (None, 4 * model.d_model):
            raise UserError(
                f"config.model.d_ff={model.d_ff}: {self.architecture} has only 4 * d_model"
            )
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "dtype": "float32",
            "bos_token_id": eos_id,
            "eos_token_id": eos_id,
            **self.keys.write(model),
            "embd_pdrop": model.dropout,
            **inner,
            **self.keys.fixed(),
            **head,
        }


FAMILIES = [
    Family("OpenAIGPTLMHeadModel", "openai-gpt", "post", _GPT1_KEYS, _GPT1),
    Family("GPT2LMHeadModel", "gpt2", "pre", _GPT2_KEYS, _GPT2),
    Family(
        "GPT2ForSequenceClassification",
        "gpt2",
        "pre",
        _GPT2_KEYS,
        _GPT2 | _CLASSIFIER,
        task="classification",
    ),
]
