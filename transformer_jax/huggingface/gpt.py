"""GPT (openai-gpt) and GPT-2 with their language-model heads, and GPT-2 that classifies, to and
from `models/gpt.py`.

Our rows of texts to classify stand between tokens of their own, the last three ids (see
`finetuning/encoder.py`). A published GPT-2 that classifies has never seen them: converted, its
vocabulary has grown by three vectors as initialised, so it computes what it did of rows without
them, but has to be fine-tuned further before `predict` is of use. What was exported from here has
them, says so by a key of its own in config.json, and its tokenizer sets texts between them.
"""

import dataclasses
import pathlib
from typing import Literal

from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.huggingface import heads
from transformer_jax.pictures.progress import say

_SIZES = {
    "vocab_size": "vocab_size",
    "n_positions": "max_length",
    "n_embd": "d_model",
    "n_layer": "num_layers",
    "n_head": "num_heads",
}
# with their defaults
_OTHERS = {
    "layer_norm_epsilon": ("norm_epsilon", 1e-5),
    "resid_pdrop": ("dropout", 0.1),
    "attn_pdrop": ("attention_dropout", 0.1),
}

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
_EMBEDDINGS = ("same", "token_embed/embedding"), ("same", "position_embed/embedding")
_GPT1 = (
    dict(
        zip(("transformer.tokens_embed.weight", "transformer.positions_embed.weight"), _EMBEDDINGS)
    )
    | _LAYERS
)
_GPT2 = (
    dict(zip(("transformer.wte.weight", "transformer.wpe.weight"), _EMBEDDINGS))
    | _LAYERS
    | {
        "transformer.ln_f.weight": ("same", "norm/scale"),
        "transformer.ln_f.bias": ("same", "norm/bias"),
    }
)

# its "gelu" is the tanh approximation
_GPT1_ONLY = {"afn": ("gelu",), "tie_word_embeddings": (True,)}
_GPT2_ONLY = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
# key of config.json: the last three ids are those that begin, part and end a row
MARKS = "transformer_jax_marks"


@dataclasses.dataclass(frozen=True)
class Family:
    architecture: str
    model_type: str
    norm_position: Literal["pre", "post"]
    # the values of its config's keys that our model computes, the default first
    only: dict[str, tuple]
    table: dict[str, tuple[str, ...]]
    task: str = "causal_lm"
    prefix: str = "transformer."
    # tied to the embeddings; causal masks
    ignored: tuple[str, ...] = ("lm_head.weight", ".attn.bias", ".attn.masked_bias")

    def holds(self, config: ConfigDict) -> bool:
        """Whether a run with this config is of the family."""
        return (
            config.model.name == "gpt"
            and config.model.norm_position == self.norm_position
            and config.task.name == self.task
        )

    def to_ours(self, theirs: dict, folder: pathlib.Path) -> ConfigDict:
        """The config of a run that begins with the folder's weights. Raises UserError for what our
        model can't compute.
        """
        path = folder / "config.json"
        if missing := [key for key in _SIZES if key not in theirs]:
            raise UserError(f"{path}: no {' and no '.join(missing)}")
        for key, values in self.only.items():
            if theirs.get(key, values[0]) not in values:
                raise UserError(
                    f"{path}: {key}={theirs[key]!r}: only {' or '.join(map(repr, values))} can be computed here"
                )
        model = {ours: theirs[key] for key, ours in _SIZES.items()} | {
            ours: theirs.get(key, default) for key, (ours, default) in _OTHERS.items()
        }
        if theirs.get("embd_pdrop", 0.1) != model["dropout"]:
            say(
                f"{path}: embd_pdrop={theirs.get('embd_pdrop', 0.1)} becomes {model['dropout']}: config.model.dropout is that of resid_pdrop, too"
            )
        try:
            config = configs.experiment(
                model=dict(
                    name="gpt",
                    norm_position=self.norm_position,
                    d_ff=theirs.get("n_inner") if self.norm_position == "pre" else None,
                    **model,
                ),
                task=dict(name=self.task),
                data=dict(tokenizer_files=str(folder)),
                decode=dict(batch=8),
            )
            for key, value in self._task(config, theirs).items():
                configs.set_key(config, f"task.{key}", value)
            if self.task != "causal_lm" and not theirs.get(MARKS):
                configs.set_key(config, "model.vocab_size", config.model.vocab_size + 3)
                say(
                    f"{path}: this model never saw the tokens that begin and end our rows: fine-tune it further before use"
                )
            configs.validate(config)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        return config

    def _task(self, config: ConfigDict, theirs: dict) -> dict:
        if self.task == "causal_lm":
            return {"length": config.model.max_length}
        return heads.to_ours(config, theirs, dropout=0.0)  # there is none before its head

    def to_theirs(self, config: ConfigDict, eos_id: int) -> dict:
        """The content of config.json. Raises UserError for what Hugging Face's model can't compute."""
        model, head = config.model, {}
        # it reads the last token that is no padding: ours ends a row, and 0 fills up rows here, too
        if self.task != "causal_lm":
            head = heads.to_theirs(config.task) | {"pad_token_id": 0, MARKS: True}
        if model.local_window is not None:
            raise UserError(
                f"config.model.local_window={model.local_window}: {self.architecture} has no local attention"
            )
        if model.head_dim not in (None, model.d_model / model.num_heads):
            raise UserError(
                f"config.model.head_dim={model.head_dim}: {self.architecture} has only d_model / num_heads"
            )
        inner = {"n_inner": model.d_ff} if self.norm_position == "pre" else {}
        if not inner and model.d_ff not in (None, 4 * model.d_model):
            raise UserError(
                f"config.model.d_ff={model.d_ff}: {self.architecture} has only 4 * d_model"
            )
        ours = _SIZES | {key: name for key, (name, _) in _OTHERS.items()}
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "dtype": "float32",
            "bos_token_id": eos_id,
            "eos_token_id": eos_id,
            **{key: model[name] for key, name in ours.items()},
            "embd_pdrop": model.dropout,
            **inner,
            **{key: values[0] for key, values in self.only.items()},
            **head,
        }


FAMILIES = [
    Family("OpenAIGPTLMHeadModel", "openai-gpt", "post", _GPT1_ONLY, _GPT1),
    Family("GPT2LMHeadModel", "gpt2", "pre", _GPT2_ONLY, _GPT2),
    Family(
        "GPT2ForSequenceClassification",
        "gpt2",
        "pre",
        _GPT2_ONLY,
        _GPT2 | {"score.weight": ("linear", "head/out/kernel")},
        "classification",
    ),
]
