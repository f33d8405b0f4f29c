"""A family is one file in transformer_jax/families/: nothing else names it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conversion.checkpoints import read_json, weights
from tests.fixtures.make_huggingface import HERE
from transformer_jax import config as configs
from transformer_jax import convert, families
from transformer_jax.config import UserError
from transformer_jax.huggingface import family, tensors

# An encoder-decoder: two stacks.
GUEST = """
from transformer_jax.huggingface.family import Family
from transformer_jax.huggingface.tensors import Keys
from transformer_jax.huggingface.tensors import layers, linear, norm

_ENCODER = linear("fc1", "mlp/wi") | linear("fc2", "mlp/wo") | norm("norm", "mlp_norm")
_ENCODER |= norm("self_attn_norm", "attention_norm")
_DECODER = _ENCODER | norm("cross_attn_norm", "cross_attention_norm")
for ours, theirs in (("attention", "self_attn"), ("cross_attention", "cross_attn")):
    attention = linear(f"{theirs}.out", f"{ours}/out", "linear_merge")
    for part in ("query", "key", "value"):
        attention |= linear(f"{theirs}.{part}", f"{ours}/{part}")
    _DECODER = _DECODER | attention
    _ENCODER = _ENCODER if theirs == "cross_attn" else _ENCODER | attention


class Guest(Family):
    model = "encoder_decoder"
    vocabulary = ("target_embed/embedding",)


_KEYS = Keys(
    {
        "vocab_size": "vocab_size",
        "width": "d_model",
        "encoder_layers": "num_encoder_layers",
        "decoder_layers": "num_decoder_layers",
    },
    {},
    {"activation": ("relu",)},
    absent={"head_dim": "width of a head"},
)
_TABLE = {
    "shared.weight": ("same", "target_embed/embedding"),
    **layers("encoder.{}.", "encoder/layers/", _ENCODER),
    **layers("decoder.{}.", "decoder/layers/", _DECODER),
}
ARCHITECTURES = [Guest("GuestForTranslation", "guest", _KEYS, _TABLE, "translation")]
"""


@pytest.fixture
def guest(tmp_path, monkeypatch):
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "guest.py").write_text(GUEST)
    folders = [*families.__path__, str(tmp_path / "families")]
    monkeypatch.setattr(families, "__path__", folders)
    (guest_family,) = [
        each for each in family.families() if each.architecture == "GuestForTranslation"
    ]
    return guest_family


def test_a_family_in_a_new_file_is_found(guest, tmp_path, capsys):
    convert.to_hf(HERE.parent / "format_1", tmp_path / "hf", architecture=guest.architecture)
    written = weights(tmp_path / "hf")
    assert written["shared.weight"].shape == (96, 16)
    assert written["decoder.1.cross_attn.key.weight"].shape == (16, 16)
    content = read_json(tmp_path / "hf" / "config.json")
    assert content["architectures"] == ["GuestForTranslation"]
    assert (content["decoder_layers"], content["activation"]) == (2, "relu")
    assert "transformers has no Pair tokenizer" in capsys.readouterr().err
    with pytest.raises(UserError, match="config.json: activation='tanh': only 'relu' is supported"):
        guest.read_config(content | {"activation": "tanh"}, tmp_path / "hf")


def test_a_file_whose_architectures_are_none_is_named(tmp_path, monkeypatch):
    (tmp_path / "names.py").write_text('ARCHITECTURES = ["Guest"]')
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    with pytest.raises(UserError, match="names.py: ARCHITECTURES must be a list"):
        family.families()


def test_each_stack_has_its_own_number_of_layers(guest, tmp_path):
    options = dict(num_encoder_layers=3, num_decoder_layers=1, d_model=8, d_ff=12, num_heads=2)
    config = configs.experiment(
        model=dict(name="encoder_decoder", vocab_size=20, **options), task=dict(name="translation")
    )
    model = configs.build_model(config)
    tokens = jnp.zeros((1, 4), jnp.int32)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens, tokens))["params"]
    generator = np.random.default_rng(0)

    def draw(x):
        return generator.normal(size=x.shape).astype(np.float32)

    params = jax.tree.map(draw, nn.unbox(shapes))
    tensors.write(tmp_path, tensors.views(params, guest.table(config.model)))
    names = weights(tmp_path).keys()
    assert {name.split(".")[1] for name in names if name.startswith("encoder")} == set("012")
    assert {name.split(".")[1] for name in names if name.startswith("decoder")} == {"0"}
    back = jax.tree.map(np.zeros_like, params)
    tensors.read(tmp_path, tensors.views(back, guest.table(config.model)), "", ())
    jax.tree.map(np.testing.assert_array_equal, back, params)
