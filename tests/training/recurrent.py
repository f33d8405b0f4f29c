"""A tiny LSTM whose state passes from one update to the next."""

from tests.conftest import build_gpt
from transformer_jax import config as configs

LSTM = dict(name="recurrent", vocab_size=300, d_model=8, dropout=0.1)


def build(folder, model=LSTM, **overrides):
    """Returns the config of a language model; overrides are written model__dropout=0.1."""
    config = configs.experiment(
        model=model,
        task=dict(name="causal_lm", length=8, carry=True),
    )
    other = build_gpt(folder, data__mask_documents=True)
    for section in ("data", "train", "optimizer", "checkpoint", "decode"):
        config[section] = other[section]
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config
