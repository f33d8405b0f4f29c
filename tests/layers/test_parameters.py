"""Parameters declare their axes, their weight decay and the inputs of their matrices."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.families.bert import BERT
from transformer_jax.layers import parameters
from transformer_jax.layers.embeddings import RecurrentHead
from transformer_jax.layers.parameters import Traits

KEY = jax.random.key(0)
TOKENS = jnp.ones((1, 4), jnp.int32)


def declared_by(model, *args):
    boxed = jax.eval_shape(model.init, KEY, *args)["params"]
    traits = jax.tree_util.tree_leaves_with_path(parameters.traits(boxed))
    return {"/".join(key.key for key in path): leaf for path, leaf in traits}


def test_the_parameters_of_bert_declare_axes_decay_and_inputs():
    traits = declared_by(BERT(vocab_size=20, d_model=8, num_layers=2, num_heads=2), TOKENS)
    layers = "encoder/layers"
    assert {
        "token_embed/embedding": Traits(("vocab", "embed"), decays=True),
        f"{layers}/attention/query/kernel": Traits(
            ("layers", "embed", "heads", "head_dim"), decays=True, inputs=1, query_power=0.5
        ),
        f"{layers}/attention/query/bias": Traits(("layers", "heads", "head_dim"), query_power=0.5),
        f"{layers}/attention/out/kernel": Traits(
            ("layers", "heads", "head_dim", "embed"), decays=True, inputs=2
        ),
        f"{layers}/mlp_norm/scale": Traits(("layers", "norm")),
        "mlm_transform/kernel": Traits(("embed", "mlp"), decays=True, inputs=1),
        "nsp/kernel": Traits(("embed", None), decays=True, inputs=1, head=True),
        "mlm_bias/bias": Traits(("vocab",)),
    }.items() <= traits.items()
    decay = {path for path, leaf in traits.items() if leaf.decays}
    assert decay == {path for path in traits if path.endswith(("kernel", "embedding"))}


def test_the_matrices_of_a_recurrent_head_decay_and_its_output_is_a_head():
    states = jnp.ones((2, 1, 4, 8))
    traits = declared_by(RecurrentHead(3, width=8), list(states), TOKENS > 0)
    assert traits["lstm_0_forward/recurrent"] == Traits(("mlp", None), decays=True, inputs=1)
    assert traits["lstm_0_forward/input/kernel"].inputs == 1
    assert traits["tags/out/kernel"] == Traits(("embed", None), decays=True, inputs=1, head=True)
    assert not traits["weights"].decays


def test_a_parameter_without_a_declaration_does_not_decay():
    traits = declared_by(nn.Dense(3), jnp.ones((1, 2)))
    assert traits == {"kernel": Traits((None, None)), "bias": Traits((None,))}
