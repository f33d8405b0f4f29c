"""Generating and scoring text with a tiny language model."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.conftest import build_gpt as build
from tests.jitted import jitted
from transformer_jax.config import UserError
from transformer_jax.inference.generation import Sampling
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task

GREEDY = Sampling(temperature=0)
PROMPTS = ["the ", "a dog", "", "the dog sat. a cat ran to the"]


def by_whole_prefixes(task, params, prompt, max_tokens):
    """Returns a greedy continuation from a model that reads the whole prefix for each token."""
    ids = task.tokenizer.encode([prompt])[0] or [task.tokenizer.eos_id]
    start = len(ids)
    apply = jax.jit(lambda tokens: task.model.apply({"params": params}, tokens))
    while len(ids) < start + max_tokens:
        logits = apply(jnp.array([ids + [0] * (64 - len(ids))]))
        token = int(logits[0, len(ids) - 1].argmax())
        if token == task.tokenizer.eos_id:
            break
        ids.append(token)
    return task.tokenizer.decode([ids[start:]])[0]


def texts(task, params, **options):
    return [text.text for text in task.generate(params, PROMPTS, **options)]


@pytest.mark.full
def test_greedy_text_is_that_of_whole_prefixes_in_any_batch(gpt):
    expected = [by_whole_prefixes(gpt.task, gpt.params, prompt, 20) for prompt in PROMPTS]
    assert len(set(expected)) > 1 and all(expected)
    assert texts(gpt.task, gpt.params, max_tokens=20, how=GREEDY) == expected
    for batch in (1, 3):
        task, _ = open_run(gpt.workdir, overrides={"decode.batch": batch})
        assert texts(task, gpt.params, max_tokens=20, how=GREEDY) == expected


@pytest.mark.full
def test_equal_seeds_give_equal_text_in_any_batch(gpt):
    options = dict(max_tokens=16, seed=3)
    first = texts(gpt.task, gpt.params, **options)
    assert first == texts(gpt.task, gpt.params, **options)
    assert first != texts(gpt.task, gpt.params, max_tokens=16, seed=4)
    single, _ = open_run(gpt.workdir, overrides={"decode.batch": 1})
    assert first == texts(single, gpt.params, **options)


def test_watching_changes_nothing(gpt):
    watched, options = [], dict(max_tokens=16, seed=3)
    expected = texts(gpt.task, gpt.params, **options)
    assert expected == texts(gpt.task, gpt.params, watch=watched.append, **options)
    assert len(watched) >= 2
    assert all(last.startswith(first) for first, last in zip(watched[0], watched[-1]))


def test_a_stop_string_ends_a_text(gpt):
    def text(**options):
        return next(gpt.task.generate(gpt.params, ["the "], how=GREEDY, **options))

    uncut = text(max_tokens=30)
    stop = uncut.text[5:8]
    cut = text(max_tokens=30, stop=["never", stop])
    assert cut.text == uncut.text[: uncut.text.find(stop)]
    assert cut.finished == "stop" and cut.tokens <= uncut.tokens
    assert text(max_tokens=3).finished == "length"


def test_too_long_a_prompt_is_named(gpt):
    message = "prompt 2: its .* tokens and 30 more exceed config.model.max_length=64"
    prompts = ["the", "the dog " * 40]
    with pytest.raises(UserError, match=message):
        list(gpt.task.generate(gpt.params, prompts, max_tokens=30, window="refuse"))


def test_a_repetition_penalty_counts_the_prompt(gpt):
    def text(penalty):
        how = Sampling(penalty, temperature=0)
        return next(gpt.task.generate(gpt.params, ["the dog"], max_tokens=12, how=how)).text

    assert text(1e6) != text(1.0)
    prompt_ids, ids = gpt.task.tokenizer.encode(["the dog", text(1e6)])
    assert not set(ids) & set(prompt_ids)


def test_log_likelihoods_are_those_of_the_model(gpt):
    task, params = gpt.task, gpt.params
    apply = jitted(task.model.apply)
    pairs = [("the cat", " sat"), ("a", " dog ran to the cat"), ("", "the"), ("the ", "mat")]
    for (context, continuation), likelihood in zip(pairs, task.log_likelihoods(params, pairs)):
        ids = task.tokenizer.encode([context + continuation])[0]
        start = len(task.tokenizer.encode([context.rstrip()])[0])
        inputs = ids if start else [task.tokenizer.eos_id, *ids]
        logits = apply({"params": params}, np.array([inputs]))
        log_p = scipy.special.log_softmax(logits, axis=-1)[0]
        scored = range(max(start, 1), len(inputs))
        total = sum(float(log_p[i - 1, inputs[i]]) for i in scored)
        assert likelihood.log_prob == pytest.approx(total, rel=1e-4)
        assert likelihood.greedy == all(int(log_p[i - 1].argmax()) == inputs[i] for i in scored)
        assert likelihood.tokens == len(scored)
    # A context that is too long loses its beginning.
    long = next(task.log_likelihoods(params, [("the dog " * 60, "sat")]))
    assert math.isfinite(long.log_prob)


def test_a_scored_text_follows_an_end_token_where_documents_are_masked(tmp_path):
    task = make_task(build(tmp_path, data__mask_documents=True))
    ids = task.tokenizer.encode("the cat")
    assert task.scoring.started(ids) == [task.tokenizer.eos_id, *ids]


def test_log_probability_sums_the_tokens_of_a_text(gpt):
    texts = ["the cat sat", "", "a dog"]
    found = list(gpt.task.log_probability(gpt.params, texts))
    likelihoods = gpt.task.log_likelihoods(gpt.params, [("", text) for text in texts])
    for score, likelihood in zip(found, likelihoods, strict=True):
        assert score.log_prob == pytest.approx(likelihood.log_prob, abs=1e-6)
        assert len(score.tokens) == len(score.log_probs) == likelihood.tokens
        assert score.log_prob == pytest.approx(sum(score.log_probs), abs=1e-5)
    assert found[1] == (0.0, [], [])
    with pytest.raises(UserError, match="within_word: it is for masked language models"):
        gpt.task.log_probability(gpt.params, texts, within_word=True)


@pytest.mark.parametrize(
    "pair, message",
    [
        (
            ([1, 300], [2]),
            r"pair 2: the id 300 is not from 0 to 299 \(config.model.vocab_size=300\)",
        ),
        (([1], [-1]), "pair 2: the id -1 is not"),
        (([], [1]), "pair 2: the context is empty"),
        (([1], [2] * 65), "pair 2: the continuation has 65 tokens: must have at most config.model"),
    ],
)
def test_ids_that_cannot_be_scored_are_refused(gpt, pair, message):
    with pytest.raises(UserError, match=message):
        gpt.task.token_log_likelihoods(gpt.params, [([1], [2]), pair])
