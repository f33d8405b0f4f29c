"""Texts longer than the window, against a model without a cache that reads each window anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_gpt
from transformer_jax.config import UserError
from transformer_jax.inference.sampling import Sampling
from transformer_jax.runs.resolve import make_task
from transformer_jax.tasks.causal_lm import Continuation
from transformer_jax.training.state import init_params

WINDOW, COUNT = 64, 100  # tokens
HOWS = {
    "greedy": Sampling(temperature=0),
    "sampled": Sampling(temperature=0.7, top_p=0.95),
    "penalised": Sampling(repetition_penalty=1.5, temperature=0.7),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A task with parameters as initialised, whose logits depend strongly on the text."""
    task = make_task(
        build_gpt(
            tmp_path_factory.mktemp("generation"), model__init_std=0.3, data__mask_documents=True
        )
    )
    return task, jax.tree.map(jnp.asarray, init_params(task))


@pytest.fixture(scope="module")
def prompts(opened):
    """Of 4, 1, 40, 63, 64 and 130 tokens, the end of a document before them included."""
    task, _ = opened
    (ids,) = task.tokenizer.encode(["the dog sat. a cat ran to it, 7 mice hid: " * 9])
    texts = [task.tokenizer.decode([ids[:count]])[0] for count in (3, 0, 39, 62, 63, 129)]
    assert [len(task.with_start(each)) for each in task.tokenizer.encode(texts)] == [
        4,
        1,
        40,
        63,
        64,
        130,
    ]
    return texts


@pytest.fixture(scope="module")
def expected(opened, prompts):
    task, params = opened

    def texts(how):
        @jax.jit
        def draw(tokens, length, seen, key):
            logits = task.model.apply({"params": params}, tokens)[:, length - 1]
            return how.draw(logits, seen, key[None])[0]

        return [by_windows(task, draw, prompt, number) for number, prompt in enumerate(prompts)]

    return {name: texts(how) for name, how in HOWS.items()}


def by_windows(task, draw, prompt, number, seed=3):
    """A full window goes on with its last half. A token's key is that of its place in the text."""
    tokenizer, ids = task.tokenizer, task.with_start(task.tokenizer.encode([prompt])[0])
    fold_in = jax.jit(jax.random.fold_in)
    window, start, finished = ids, len(ids), "length"
    key, seen = (
        jax.random.fold_in(jax.random.key(seed), number),
        np.zeros((1, task.model.vocab_size), bool),
    )
    while len(ids) < start + COUNT:
        window = window[-WINDOW // 2 :] if len(window) >= WINDOW else window
        seen[0, ids], seen[0, tokenizer.eos_id] = True, False
        tokens = np.array([window + [0] * (WINDOW - len(window))])
        token = int(draw(tokens, len(window), seen, fold_in(key, len(ids))))
        if token == tokenizer.eos_id:
            finished = "end"
            break
        ids, window = [*ids, token], [*window, token]
    before, whole = tokenizer.decode([ids[:start], ids])
    return Continuation(whole[len(before) :], len(ids) - start, finished)


@pytest.mark.parametrize("name", HOWS)
def test_a_window_that_slides_equals_one_that_is_computed_anew(
    opened, prompts, expected, name, capsys
):
    """Rows fill their windows at different times; some end in the first window, some later."""
    task, params = opened
    assert (
        list(task.generate(params, prompts, max_tokens=COUNT, how=HOWS[name], seed=3))
        == expected[name]
    )
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "prompts 5, 6: no room in the window of config.model.max_length=64 tokens; "
        "generation begins from the last 32"
    ]


def test_the_cases_are_there(expected):
    assert {found.finished for found in expected["sampled"]} == {"end", "length"}
    assert any(
        found.tokens > WINDOW and found.finished == "end"
        for each in expected.values()
        for found in each
    )
    assert expected["penalised"] != expected["sampled"]


def test_a_text_does_not_depend_on_its_batch(opened, prompts, expected):
    task, params = opened
    single = make_task(task.config.copy_and_resolve_references())
    single.config.decode.batch = 1
    found = single.generate(params, prompts[:3], max_tokens=COUNT, how=HOWS["sampled"], seed=3)
    assert list(found) == expected["sampled"][:3]


def test_watching_and_stopping_behind_the_first_window(opened, prompts, expected):
    task, params = opened
    seen, options = [], dict(max_tokens=COUNT, how=HOWS["penalised"], seed=3)
    whole = expected["penalised"][:4]
    assert list(task.generate(params, prompts[:4], watch=seen.append, **options)) == whole
    assert seen[-1] == [found.text for found in whole]
    for before, after in zip(seen, seen[1:]):
        assert all(b.startswith(a.rstrip("\ufffd")) for a, b in zip(before, after))

    text = max((found.text for found in whole), key=len)
    stop = next(
        text[at : at + 3]
        for at in range(len(text) - 3, 0, -1)
        if text.find(text[at : at + 3]) == at
    )
    assert text.index(stop) > WINDOW
    stopped = list(task.generate(params, prompts[:4], stop=["never", stop], **options))
    for found, full in zip(stopped, whole):
        assert found.text == full.text.partition(stop)[0]
        assert (
            found.finished == ("stop" if stop in full.text else full.finished)
            and found.tokens <= full.tokens
        )


def test_refusing_what_exceeds_the_window(opened, prompts):
    task, params = opened
    with pytest.raises(
        UserError, match="prompt 3: its 40 tokens and 25 more exceed config.model.max_length=64"
    ):
        list(task.generate(params, prompts[:3], max_tokens=25, window="refuse"))
    with pytest.raises(UserError, match="prompt 1: its 64 tokens and 1 more exceed"):
        list(task.generate(params, [prompts[4]], window="refuse"))
    found = list(task.generate(params, prompts[:4], window="refuse", how=HOWS["sampled"], seed=3))
    for each, prompt in zip(found, prompts):  # by default what is left
        room = WINDOW - len(task.with_start(task.tokenizer.encode([prompt])[0]))
        assert each.tokens <= room and (each.tokens == room) == (each.finished == "length")
    with pytest.raises(UserError, match="window='roll': must be one of slide, refuse"):
        task.generate(params, prompts, window="roll")


def test_a_hundred_tokens_are_the_default(opened):
    task, params = opened
    (found,) = task.generate(params, ["the "], temperature=0, stop=["never"])
    assert found.tokens == 100 or found.finished == "end"


def test_options_of_sampling_by_name(opened):
    task, params = opened
    write = lambda **options: [
        found.text for found in task.generate(params, ["the ", "a"], max_tokens=9, **options)
    ]
    assert write(temperature=0.7, top_p=0.95) == write(how=HOWS["sampled"]) != write(temperature=0)
    for options, message in (
        (
            dict(temprature=1),
            "temprature=1: unknown option; the options are repetition_penalty, temperature, top_k",
        ),
        (dict(how=Sampling(), top_k=3), "how and top_k: give the options of sampling in one way"),
        (dict(how={"top_k": 3}), "must be a Sampling"),
        (dict(temperature="0.8"), "temperature='0.8': must be a number"),
        (dict(top_k=2.5), "top_k=2.5: must be a whole number"),
        (dict(top_p=float("nan")), "top_p=nan"),
    ):
        with pytest.raises(UserError, match=message):
            task.generate(params, ["the "], **options)
