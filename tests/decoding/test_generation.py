"""Texts longer than the window, compared with a model without a cache that rereads each window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_gpt
from transformer_jax.config import UserError
from transformer_jax.inference.generation import Continuation, Sampling
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import init_params

WINDOW, COUNT = 64, 100  # tokens
HOWS = {
    "greedy": Sampling(temperature=0),
    "sampled": Sampling(temperature=0.7, top_p=0.95),
    "penalised": Sampling(repetition_penalty=1.5, temperature=0.7),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A task and initial parameters, with which the logits depend strongly on the text."""
    folder = tmp_path_factory.mktemp("generation")
    task = make_task(build_gpt(folder, model__init_std=0.3, data__mask_documents=True))
    return task, jax.tree.map(jnp.asarray, init_params(task))


@pytest.fixture(scope="module")
def prompts(opened):
    """Prompts of 4, 1, 40, 63, 64 and 130 tokens, the end token at their beginning included."""
    task, _ = opened
    (ids,) = task.tokenizer.encode(["the dog sat. a cat ran to it, 7 mice hid: " * 9])
    texts = [task.tokenizer.decode([ids[:count]])[0] for count in (3, 0, 39, 62, 63, 129)]
    lengths = [len(task.with_start(ids)) for ids in task.tokenizer.encode(texts)]
    assert lengths == [4, 1, 40, 63, 64, 130]
    return texts


@pytest.fixture(scope="module")
def expected(opened, prompts):
    task, params = opened
    size = task.tokenizer.vocab_size

    def texts(how):
        @jax.jit
        def draw(tokens, length, seen, key):
            logits = task.model.apply({"params": params}, tokens)[:, length - 1, :size]
            return how.draw(logits, seen, key[None])[0]

        return [by_windows(task, draw, prompt, number) for number, prompt in enumerate(prompts)]

    return {name: texts(how) for name, how in HOWS.items()}


def by_windows(task, draw, prompt, number, seed=3):
    """Moves a full window to its last half. A token's key depends on its position in the text."""
    tokenizer = task.tokenizer
    ids = task.with_start(tokenizer.encode([prompt])[0])
    window, start, finished = ids, len(ids), "length"
    fold_in = jax.jit(jax.random.fold_in)
    key = jax.random.fold_in(jax.random.key(seed), number)
    seen = np.zeros((1, tokenizer.vocab_size), bool)
    while len(ids) < start + COUNT:
        window = window[-WINDOW // 2 :] if len(window) >= WINDOW else window
        seen[0, ids] = True
        seen[0, tokenizer.eos_id] = False
        tokens = np.array([window + [0] * (WINDOW - len(window))])
        token = int(draw(tokens, len(window), seen, fold_in(key, len(ids))))
        if token == tokenizer.eos_id:
            finished = "end"
            break
        ids, window = [*ids, token], [*window, token]
    prompt_text, text = tokenizer.decode([ids[:start], ids])
    return Continuation(text[len(prompt_text) :], len(ids) - start, finished)


@pytest.mark.sample("penalised")
@pytest.mark.parametrize("name", HOWS)
def test_a_window_that_slides_equals_one_that_is_read_anew(opened, prompts, expected, name, capsys):
    """Rows fill their windows at different times. Some end in the first window, some later."""
    task, params = opened
    texts = task.generate(params, prompts, max_tokens=COUNT, how=HOWS[name], seed=3)
    assert list(texts) == expected[name]
    assert capsys.readouterr().err.splitlines() == [
        "prompts 5, 6: no room in the window of config.model.max_length=64 tokens; "
        "generation starts from the last 32"
    ]


def test_the_cases_differ(expected):
    assert {text.finished for text in expected["sampled"]} == {"end", "length"}
    texts = [text for texts in expected.values() for text in texts]
    assert any(text.tokens > WINDOW and text.finished == "end" for text in texts)
    assert expected["penalised"] != expected["sampled"]


def test_a_text_does_not_depend_on_its_batch(opened, prompts, expected):
    task, params = opened
    single = make_task(task.config.copy_and_resolve_references())
    single.config.decode.batch = 1
    texts = single.generate(params, prompts[:3], max_tokens=COUNT, how=HOWS["sampled"], seed=3)
    assert list(texts) == expected["sampled"][:3]


def test_watching_and_stopping_behind_the_first_window(opened, prompts, expected):
    task, params = opened
    watched, options = [], dict(max_tokens=COUNT, how=HOWS["penalised"], seed=3)
    texts = expected["penalised"][:4]
    assert list(task.generate(params, prompts[:4], watch=watched.append, **options)) == texts
    assert watched[-1] == [text.text for text in texts]
    for earlier, later in zip(watched, watched[1:]):
        assert all(b.startswith(a.rstrip("\ufffd")) for a, b in zip(earlier, later))

    longest = max((text.text for text in texts), key=len)
    stop = next(
        longest[at : at + 3]
        for at in range(len(longest) - 3, 0, -1)
        if longest.find(longest[at : at + 3]) == at
    )
    assert longest.index(stop) > WINDOW
    stopped_texts = task.generate(params, prompts[:4], stop=["never", stop], **options)
    for stopped, text in zip(stopped_texts, texts, strict=True):
        assert stopped.text == text.text.partition(stop)[0]
        assert stopped.finished == ("stop" if stop in text.text else text.finished)
        assert stopped.tokens <= text.tokens


def test_prompts_that_exceed_the_window_are_refused(opened, prompts):
    task, params = opened
    message = "prompt 3: its 40 tokens and 25 more exceed config.model.max_length=64"
    with pytest.raises(UserError, match=message):
        list(task.generate(params, prompts[:3], max_tokens=25, window="refuse"))
    with pytest.raises(UserError, match="prompt 1: its 64 tokens and 1 more exceed"):
        list(task.generate(params, [prompts[4]], window="refuse"))
    with pytest.raises(UserError, match="window='roll': must be one of slide, refuse"):
        task.generate(params, prompts, window="roll")


def test_texts_fill_the_window_by_default_where_it_is_the_limit(opened, prompts):
    task, params = opened
    options = dict(window="refuse", how=HOWS["sampled"], seed=3)
    for text, prompt in zip(task.generate(params, prompts[:4], **options), prompts):
        room = WINDOW - len(task.with_start(task.tokenizer.encode([prompt])[0]))
        assert text.tokens <= room and (text.tokens == room) == (text.finished == "length")


def test_a_hundred_tokens_are_the_default(opened):
    task, params = opened
    (text,) = task.generate(params, ["the "], temperature=0, stop=["never"])
    assert text.tokens == 100 or text.finished == "end"


def test_options_of_sampling_by_name(opened):
    task, params = opened

    def texts(**options):
        return [text.text for text in task.generate(params, ["the ", "a"], max_tokens=9, **options)]

    assert texts(temperature=0.7, top_p=0.95) == texts(how=HOWS["sampled"]) != texts(temperature=0)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            dict(temprature=1),
            r"temprature=1: unknown option; did you mean temperature\?; the options are "
            "repetition_penalty, temperature, top_k, top_p, max_tokens, stop, seed",
        ),
        (dict(max_new_tokens=3), r"max_new_tokens=3: unknown option; did you mean max_tokens\?"),
        (dict(how=Sampling(), top_k=3), "how and top_k: give the options of sampling in one way"),
        (dict(how={"top_k": 3}), "must be a Sampling"),
        (dict(temperature="0.8"), "temperature='0.8': must be a number"),
        (dict(top_k=2.5), "top_k=2.5: must be a whole number"),
        (dict(top_p=float("nan")), "top_p=nan"),
    ],
)
def test_wrong_options_of_sampling_are_refused(opened, options, message):
    task, params = opened
    with pytest.raises(UserError, match=message):
        task.generate(params, ["the "], **options)


# A vocabulary that is larger than its tokenizer: most of its ids belong to no character.

VOCABULARY = 128


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """A task with characters, and initial parameters that give most probability to other ids."""
    config = build_gpt(
        tmp_path_factory.mktemp("larger"),
        model__vocab_size=VOCABULARY,
        model__init_std=0.3,
        data__tokenizer="characters",
    )
    task = make_task(config)
    assert task.tokenizer.vocab_size < VOCABULARY / 4
    return task, jax.tree.map(jnp.asarray, init_params(task))


def are_characters(task, continuations):
    """Whether each token of the continuations is a character of the tokenizer."""
    return all(
        "\ufffd" not in each.text and len(each.text) == each.tokens for each in continuations
    )


@pytest.mark.parametrize(
    "how", [*HOWS.values(), Sampling(), Sampling(top_k=100), Sampling(top_p=0.5)], ids=str
)
def test_a_sample_has_no_id_without_a_piece(larger, how):
    task, params = larger
    drawn = list(task.generate(params, ["the dog ", "a"] * 2, max_tokens=40, how=how, seed=1))
    assert sum(each.tokens for each in drawn) > 40 and are_characters(task, drawn)


def test_likelihoods_are_over_the_whole_vocabulary_and_beams_over_the_tokenizer(larger):
    task, params = larger
    (best,) = task.generate_beam(params, ["the dog"], beam=3, n_best=3, max_tokens=5)
    assert are_characters(task, best)
    best = [each for each in best if each.finished == "length"]
    likelihoods = list(task.log_likelihoods(params, [("the dog", each.text) for each in best]))
    forward = jax.jit(lambda tokens: task.model.apply({"params": params}, tokens))
    (start,) = (task.with_start(ids) for ids in task.tokenizer.encode(["the dog"]))
    assert best
    for each, likelihood in zip(best, likelihoods, strict=True):
        (ids,) = task.tokenizer.encode([each.text])
        row = [*start, *ids]
        logits = forward(np.array([row + [0] * (WINDOW - len(row))]))[0, len(start) - 1 :]
        expected = [
            np.asarray(jax.nn.log_softmax(logits[: len(ids), :size]))[range(len(ids)), ids].sum()
            for size in (VOCABULARY, task.tokenizer.vocab_size)
        ]
        assert likelihood.log_prob == pytest.approx(expected[0], rel=1e-4)
        penalty = ((5 + each.tokens) / 6) ** task.config.decode.alpha
        assert each.score * penalty == pytest.approx(expected[1], rel=1e-4)


def test_next_tokens_are_those_of_the_logits_and_sum_to_1(larger):
    task, params = larger
    tokenizer, prompts = task.tokenizer, ["the dog ", "", "a cat " * 20]
    size = tokenizer.vocab_size
    listed = list(task.next_tokens(params, prompts, top_k=size))
    forward = jax.jit(lambda tokens: task.model.apply({"params": params}, tokens))
    for prompt, tokens in zip(prompts, listed, strict=True):
        ids = task.with_start(tokenizer.encode([prompt])[0])[-WINDOW:]
        logits = forward(np.array([ids + [0] * (WINDOW - len(ids))]))[0, len(ids) - 1, :size]
        expected = np.asarray(jax.nn.softmax(logits))
        order = np.argsort(-expected, kind="stable")
        assert [token for token, _ in tokens] == tokenizer.pieces(order.tolist())
        np.testing.assert_allclose([p for _, p in tokens], expected[order], rtol=2e-4)
    assert [len(tokens) for tokens in task.next_tokens(params, prompts)] == [10, 10, 10]
    with pytest.raises(UserError, match=f"top_k={size + 1}: must be from 1 to {size}"):
        task.next_tokens(params, prompts, top_k=size + 1)
