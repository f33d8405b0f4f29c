"""Beam search and translation with an encoder-decoder whose decoder is recurrent."""

import functools
import types
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.jitted import jitted
from transformer_jax.config import Decode
from transformer_jax.contracts.model import Inputs, SequenceToSequence, takes_inputs
from transformer_jax.data import tokenizers
from transformer_jax.distributed.sharding import AXES
from transformer_jax.families.recurrent_seq2seq import RecurrentSeq2Seq
from transformer_jax.inference.translating import SequenceToSequenceUse
from transformer_jax.layers.decoding import Rows
from transformer_jax.layers.embeddings import Projection

LINES = ["a dog runs", "the cat sleeps and a dog runs", "", "a cat", "the dog sleeps"] * 2


class Summed(SequenceToSequence):
    """The decoder's state is a leaky sum, which begins with the mean of the source's embeddings."""

    vocab_size: int = 40
    d_model: int = 16
    dtype: str = "float32"
    max_length = 64

    def setup(self):
        self.embed = nn.Embed(self.vocab_size, self.d_model)
        self.recurrent = nn.Dense(self.d_model)

    def embedded(self, source):
        return self.embed(source)

    @takes_inputs
    def encode(self, source, *, train=False):
        return self.embedded(source.tokens)

    @takes_inputs
    def decode(self, target, memory, *, source_segment_ids=None, train=False):
        state = self.first(memory, source_segment_ids)
        states = []
        for position in range(target.tokens.shape[1]):
            state = self.after(state, target.tokens[:, position])
            states.append(state)
        return jnp.stack(states, axis=1)

    def first(self, memory, segments):
        filled = (segments > 0)[..., None]
        return (memory * filled).sum(axis=1) / filled.sum(axis=1)

    def after(self, state, tokens):
        return jnp.tanh(self.recurrent(jnp.concatenate([state, self.embed(tokens)], axis=-1)))

    def output(self):
        return Projection(4 * self.embed.embedding)

    def flops(self, source_length, target_length):
        return 0.0

    @nn.nowrap
    def begin(self, params, prompts, memory, segments, *, beams):
        first = self.apply({"params": params}, memory, segments, method="first")
        lengths = jnp.zeros_like(prompts)
        logits, state = self.step(params, Rows(first, lengths), prompts)
        return logits[:, 0], state

    @nn.nowrap
    def step(self, params, state, tokens):
        variables = {"params": params}
        new = self.apply(variables, state.cache, tokens.reshape(-1), method="after")
        logits = self.apply(variables, new, method="logits").reshape(*tokens.shape, -1)
        return logits, state.replace(cache=new, lengths=state.lengths + 1)


MODELS = {
    "summed": Summed,
    "attention": partial(RecurrentSeq2Seq, d_model=16, tie_output=True, max_length=64),
}


class Use(SequenceToSequenceUse):
    def __init__(self, num_rows, beam, model="summed"):
        tokenizer = tokenizers.train(LINES, "bpe", 40)
        self.tokenizer = types.SimpleNamespace(source=tokenizer, target=tokenizer)
        self.model = MODELS[model](vocab_size=tokenizer.vocab_size)
        self.config = types.SimpleNamespace(
            decode=Decode(batch=num_rows, beam=beam, alpha=0.6, max_extra=6),
            mesh=types.SimpleNamespace(pipeline=1, rules=()),
            data=types.SimpleNamespace(tokenizer_files=None),
        )


@functools.cache
def params(model):
    tokens = np.zeros((1, 3), np.int32)
    variables = jitted(Use(1, 1, model).model.init)(
        jax.random.key(2), Inputs(tokens, segment_ids=tokens + 1), tokens, method="hidden"
    )
    return jax.jit(lambda x: jax.tree.map(lambda x: 1.5 * x, x))(nn.unbox(variables["params"]))


@pytest.mark.sample("attention-3")
@pytest.mark.parametrize("model, beam", [("summed", 1), ("summed", 3), ("attention", 3)])
def test_lines_of_a_batch_have_the_translations_that_they_have_alone(model, beam):
    """Ten lines share two rows; the states of a row's next input come with it."""
    together = list(Use(2, beam, model).translate(params(model), LINES, beam))
    use = Use(1, beam, model)
    assert together[2] == [("", 0.0)] * beam and together[0] != together[1]
    for line, hypotheses in zip(LINES[:5], together):
        (alone,) = use.translate(params(model), [line], beam)
        assert [text for text, _ in hypotheses] == [text for text, _ in alone]
        scores = [score for _, score in hypotheses]
        np.testing.assert_allclose(scores, [score for _, score in alone], rtol=1e-5)
    assert use.attentions == (("cross",) if model == "attention" else ())


@pytest.mark.sample("attention")
@pytest.mark.parametrize("model", MODELS)
def test_a_mesh_gives_the_translations_of_one_device(model):
    mesh = Mesh(np.array(jax.devices()).reshape(1, 2, 4, 1, 1, 1), AXES)
    split = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, P())), params(model))
    name = "embed" if model == "summed" else "target_embed"
    split[name] = jax.device_put(split[name], NamedSharding(mesh, P(None, "fsdp")))
    use = Use(2, 3, model)
    expected, actual = (list(use.translate(tree, LINES, 3)) for tree in (params(model), split))
    for one, other in zip(expected, actual):
        assert [text for text, _ in one] == [text for text, _ in other]
        scores = [score for _, score in other]
        np.testing.assert_allclose(scores, [score for _, score in one], rtol=1e-5)


@pytest.mark.sample("summed")
@pytest.mark.parametrize("model", MODELS)
def test_a_score_is_the_log_probability_of_the_whole_output(model):
    use = Use(2, 3, model)
    variables = {"params": params(model)}
    source = use.tokenizer.source.encode(LINES[1])
    (_, beams), *_ = use.stream(params(model), 3)(params(model), [source], [8])
    apply = jitted(use.model.apply)
    for ids, length, score in zip(*beams):
        output = ids[:length].tolist()
        target = np.array([[use.tokenizer.target.bos_id, *output[:-1]]])
        tokens = np.array([source])
        inputs = Inputs(tokens, segment_ids=np.ones_like(tokens))
        hidden = apply(variables, inputs, target, method="hidden")
        logits = np.asarray(apply(variables, hidden, method="logits"))[0]
        log_probs = scipy.special.log_softmax(logits, axis=-1)[np.arange(len(output)), output]
        penalty = ((5 + len(output)) / 6) ** 0.6
        assert float(score) == pytest.approx(float(log_probs.sum()) / penalty, rel=1e-4)
