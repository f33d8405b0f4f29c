"""ALBERT: transformers' outputs, published sizes, shared layers, and what masks hide."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conversion.checkpoints import CLOSE
from tests.fixtures import make_huggingface_albert as make
from transformer_jax.huggingface import tensors
from transformer_jax.huggingface.tensors import linear, norm
from transformer_jax.layers.attention import weights_in
from transformer_jax.layers.masks import Mask
from transformer_jax.models.albert import ALBERT

TINY = dict(
    vocab_size=37,
    d_embed=8,
    d_model=16,
    num_layers=3,
    num_heads=2,
    max_length=24,
    dropout=0.0,
    attention_dropout=0.0,
    dtype="float32",
)
TOKENS = jax.random.randint(jax.random.key(1), (2, 12), 0, 37)


@pytest.fixture(scope="module")
def tiny():
    model = ALBERT(**TINY)

    @jax.jit
    def init():
        params = nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]
        return jax.tree.map(
            lambda x: x + 0.3 * jax.random.normal(jax.random.key(2), x.shape), params
        )

    return model, init()


@pytest.mark.parametrize(
    "options, count",
    [
        (dict(), 11_683_584),
        (dict(d_model=1024, num_layers=24, num_heads=16), 17_683_968),
        (dict(d_model=2048, num_layers=24, num_heads=32), 58_724_864),
        (dict(d_model=4096, num_layers=12, num_heads=64), 222_595_584),
    ],
    ids=["base", "large", "xlarge", "xxlarge"],
)
def test_published_parameter_counts(options, count):
    """Those of transformers' AlbertModel; 12, 18, 60 and 235 million in the paper's table 1."""
    shapes = nn.unbox(jax.eval_shape(ALBERT(**options).init, jax.random.key(0), TOKENS))["params"]
    encoder = {name: tree for name, tree in shapes.items() if name not in ALBERT.heads}
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(encoder)) == count


_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0."
PUBLISHED = {
    "albert.embeddings.word_embeddings.weight": ("same", "token_embed/embedding"),
    "albert.embeddings.position_embeddings.weight": ("same", "position_embed/embedding"),
    "albert.embeddings.token_type_embeddings.weight": ("same", "type_embed/embedding"),
    **norm("albert.embeddings.LayerNorm", "embed_norm"),
    **linear("albert.encoder.embedding_hidden_mapping_in", "embed_projection"),
    **linear(f"{_LAYER}attention.query", "encoder/layer/attention/query"),
    **linear(f"{_LAYER}attention.key", "encoder/layer/attention/key"),
    **linear(f"{_LAYER}attention.value", "encoder/layer/attention/value"),
    **linear(f"{_LAYER}attention.dense", "encoder/layer/attention/out", "linear_merge"),
    **norm(f"{_LAYER}attention.LayerNorm", "encoder/layer/attention_norm"),
    **linear(f"{_LAYER}ffn", "encoder/layer/mlp/wi"),
    **linear(f"{_LAYER}ffn_output", "encoder/layer/mlp/wo"),
    **norm(f"{_LAYER}full_layer_layer_norm", "encoder/layer/mlp_norm"),
    **linear("albert.pooler", "pooler"),
    **linear("sop_classifier.classifier", "nsp"),
    **linear("predictions.dense", "mlm_transform"),
    **norm("predictions.LayerNorm", "mlm_norm"),
    "predictions.bias": ("same", "mlm_bias/bias"),
}


def test_its_outputs_are_those_of_transformers():
    sizes = dict(vocab_size=43, d_embed=8, d_model=16, d_ff=24, num_layers=3, num_heads=2)
    model = ALBERT(**sizes, max_length=32, norm_epsilon=1e-3, dtype="float32")
    expected = np.load(make.FOLDER / "expected.npz")
    ids, filled = expected["ids"], expected["filled"] > 0
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), ids))["params"]
    params = jax.tree.map(lambda x: np.full(x.shape, np.nan, x.dtype), shapes)
    tensors.read(make.FOLDER, tensors.views(params, PUBLISHED), "", ())

    @jax.jit
    def outputs(ids, types, segments):
        options = dict(token_types=types, segment_ids=segments)
        variables = {"params": params}
        _, logits, order = model.apply(variables, ids, **options)
        return model.apply(variables, ids, **options, method="layers"), logits, order

    states, logits, order = outputs(ids, expected["types"], expected["filled"])
    np.testing.assert_allclose(states[:, filled], expected["hidden"][:, filled], **CLOSE)
    np.testing.assert_allclose(logits[filled], expected["logits"][filled], **CLOSE)
    np.testing.assert_allclose(order, expected["order"], **CLOSE)


def test_all_layers_have_the_same_parameters(tiny):
    model, params = tiny
    states = model.apply({"params": params}, TOKENS, method="layers")
    assert states.shape == (4, 2, 12, 16)
    stack = model.bind({"params": params}).encoder
    block = stack.blocks[0]()
    layer = {"params": params["encoder"]["layer"]}
    for before, after in zip(states, states[1:]):
        y = block.apply(layer, before, mask=Mask())
        np.testing.assert_allclose(y, after, rtol=1e-4, atol=1e-4)


def test_examples_of_a_row_do_not_attend_to_each_other(tiny):
    model, params = tiny
    segments = jnp.array([[1] * 5 + [2] * 5 + [0] * 2] * 2)
    changed = TOKENS.at[:, :5].add(1) % 37
    original, other = (
        model.apply({"params": params}, tokens, segment_ids=segments, method="hidden")
        for tokens in (TOKENS, changed)
    )
    np.testing.assert_array_equal(original[:, 5:10], other[:, 5:10])
    assert (original[:, :5] != other[:, :5]).any(axis=-1).all()


def test_attention_has_weights_in_every_layer(tiny):
    weights = weights_in(*tiny, "encoder", TOKENS[:1])
    assert weights.shape == (3, 2, 12, 12)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
