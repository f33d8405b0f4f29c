"""A tiny causal model with a carry: each state is a leaky sum of the embeddings before it."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from tests.conftest import build_gpt
from transformer_jax.models.model import Causal
from transformer_jax.runs.resolve import make_task
from transformer_jax.tasks import causal_lm

MODEL = ("d_model", "vocab_size", "max_length", "dropout")


class LeakySum(Causal):
    can = frozenset({"carry"})

    vocab_size: int = 300
    d_model: int = 8
    max_length: int = 64
    dropout: float = 0.1

    def setup(self):
        self.embed = nn.Embed(self.vocab_size, self.d_model)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, tokens):
        return self.logits(self.hidden(tokens))

    def initial_carry(self, rows):
        return {"sum": jnp.zeros((rows, self.d_model))}

    def advance(self, tokens, carry, *, restarts=None, train=False):
        inputs = self.drop(self.embed(tokens), deterministic=not train)
        restarts = jnp.zeros(tokens.shape) if restarts is None else restarts

        def step(state, x):
            vector, begins = x
            state = 0.9 * jnp.where(begins[:, None] == 1, 0, state) + vector
            return state, jnp.tanh(state)

        last, states = jax.lax.scan(
            step, carry["sum"], (inputs.swapaxes(0, 1), restarts.swapaxes(0, 1))
        )
        return states.swapaxes(0, 1), {"sum": last}

    def output(self):
        return self.embed.embedding, None

    def hidden(self, tokens, *, positions=None, segment_ids=None, token_types=None, train=False):
        return self.advance(tokens, self.initial_carry(len(tokens)), train=train)[0]

    def flops(self, length, predictions=None):
        return 2.0 * length * self.d_model * self.vocab_size


def build(folder, **overrides):
    """Returns the config of a language model with a carry; `make` gives its task the model."""
    changes = dict(
        task__carry=True, task__length=8, data__mask_documents=True, model__attention_dropout=0.0
    )
    return build_gpt(folder, **{"model__d_model": 8, **changes, **overrides})


def make(config, monkeypatch):
    """Returns the task of a config of `build`."""
    model = LeakySum(**{key: config.model[key] for key in MODEL})
    monkeypatch.setattr(causal_lm, "build_model", lambda config: model)
    return make_task(config)
