"""The LSTM: its equations in NumPy, its state over rows and documents, and its decoding.

tests/decoding/test_best_continuations.py has its beam search.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.jitted import Jitted
from tests.training import recurrent
from transformer_jax.families.recurrent import RecurrentLM
from transformer_jax.inference.generation import Sampling
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import init_params

TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, 12), 0, 37))
CLOSE = dict(rtol=1e-4, atol=1e-5)


@functools.cache
def build(**options):
    """Returns a tiny model and parameters far from their small initial values."""
    model = Jitted(RecurrentLM(**{**dict(vocab_size=37, d_model=16, num_layers=2), **options}))
    params = nn.unbox(model.init(jax.random.key(0), TOKENS % model.vocab_size))["params"]

    def perturb(x):
        return x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape)

    return model, jax.jit(lambda params: jax.tree.map(perturb, params))(params)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(params, tokens):
    """Returns the logits (L, V) of a row in float64, by torch.nn.LSTM's equations.

    The forget gate's bias is the parameter plus 1.
    """
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = params["token_embed"]["embedding"][np.asarray(tokens)]
    for layer in range(2):
        weights = params["layers"][f"layer_{layer}"]
        kernel, bias = (weights["input"][name] for name in ("kernel", "bias"))
        recurrent = weights["recurrent"].reshape(16, 4, 16)
        output, cell, outputs = np.zeros(16), np.zeros(16), []
        for vector in x:
            gates = np.einsum("m,mgf->gf", vector, kernel) + bias
            i, f, g, o = gates + np.einsum("m,mgf->gf", output, recurrent)
            cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g)
            output = sigmoid(o) * np.tanh(cell)
            outputs.append(output)
        x = np.stack(outputs)
    return x @ params["output_embed"]["embedding"].T + params["output_bias"]["bias"]


def test_equals_the_equations_in_numpy():
    model, params = build()
    logits = np.asarray(model.apply({"params": params}, TOKENS))
    for row in range(2):
        np.testing.assert_allclose(logits[row], reference(params, TOKENS[row]), **CLOSE)


def test_the_state_passes_from_part_to_part_and_ends_with_a_document():
    model, params = build()
    variables = {"params": params}
    hidden = model.apply(variables, TOKENS, method="hidden")
    first, carry = model.apply(variables, TOKENS[:, :5], model.initial_carry(2), method="advance")
    second, last = model.apply(variables, TOKENS[:, 5:], carry, method="advance")
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), hidden, **CLOSE)

    restarts = np.zeros((2, 7), np.int32)
    restarts[:, 3] = 1
    restarted, ended = model.apply(
        variables, TOKENS[:, 5:], carry, restarts=restarts, method="advance"
    )
    alone = model.apply(variables, TOKENS[:, 8:], method="hidden")
    restarted = np.asarray(restarted)
    np.testing.assert_allclose(restarted[:, 3:], alone, **CLOSE)
    np.testing.assert_allclose(restarted[:, :3], np.asarray(second)[:, :3], **CLOSE)
    assert jax.tree.map(jnp.shape, ended) == jax.tree.map(jnp.shape, last)


def test_documents_of_a_row_and_padding_do_not_change_each_other():
    model, params = build()
    segments = np.array([[1] * 5 + [2] * 5 + [0] * 2] * 2)
    packed = np.asarray(model.apply({"params": params}, TOKENS, segment_ids=segments))
    alone = model.apply({"params": params}, TOKENS[:, 5:10])
    np.testing.assert_allclose(packed[:, 5:10], alone, **CLOSE)


def test_decoding_equals_the_whole_prefix():
    """Prompts have different lengths; each state has read its own row alone."""
    model, params = build()
    expected = np.asarray(model.apply({"params": params}, TOKENS))
    lengths, rows = np.array([5, 8]), np.arange(2)
    prompts = np.where(np.arange(8) < lengths[:, None], TOKENS[:, :8], 9)
    params = model.for_decoding(params)
    logits, state = model.begin(params, prompts, lengths, slots=16)
    np.testing.assert_allclose(logits, expected[rows, lengths - 1], **CLOSE)
    for _ in range(4):
        logits, state = model.step(params, state, TOKENS[rows, lengths][:, None])
        np.testing.assert_allclose(np.asarray(logits)[:, 0], expected[rows, lengths], **CLOSE)
        lengths = lengths + 1


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A task with an LSTM and initial parameters, with which logits depend on the text."""
    folder = tmp_path_factory.mktemp("lstm")
    changes = dict(task__carry=False, data__mask_documents=False, decode__batch=2)
    task = make_task(recurrent.build(folder, model__d_model=32, **changes))
    return task, jax.tree.map(lambda x: jnp.asarray(3 * np.asarray(x)), init_params(task))


def test_text_has_no_window(opened):
    """Greedy continuations of a short and a long prompt take the likeliest token of the prefix."""
    task, params = opened
    prompts = ["the dog sat on the mat. " * 5, "a"]
    continuations = task.generate(
        params, prompts, max_tokens=30, how=Sampling(temperature=0), window="refuse"
    )

    @jax.jit
    def likeliest(ids):
        return task.model.apply({"params": params}, ids)[0].argmax(axis=-1)

    for prompt, continuation in zip(prompts, continuations):
        ids = task.tokenizer.encode([prompt])[0]
        for _ in range(30):
            padded = jnp.array([ids + [0] * (160 - len(ids))])
            ids.append(int(np.asarray(likeliest(padded))[len(ids) - 1]))
        assert continuation.tokens == 30
        assert prompt + continuation.text == task.tokenizer.decode([ids])[0]


def test_scores_are_sums_of_log_probabilities(opened):
    task, params = opened
    (likelihood,) = task.log_likelihoods(params, [("the dog", " sat on a mat")])
    ids, context = task.tokenizer.encode(["the dog sat on a mat", "the dog"])
    begin = len(context)
    logits = jax.jit(task.model.apply)({"params": params}, np.array([ids]))
    log_probs = scipy.special.log_softmax(np.asarray(logits)[0], axis=-1)
    expected = sum(float(log_probs[i - 1, ids[i]]) for i in range(begin, len(ids)))
    assert likelihood.log_prob == pytest.approx(expected, rel=1e-5)


def test_flops_count_the_matrix_products():
    model = RecurrentLM(vocab_size=100, d_model=32, num_layers=2)
    assert model.flops(7) == 2 * 7 * (2 * 64 * 128 + 32 * 100)
