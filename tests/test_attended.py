"""Attention weights of every kind of run: they sum to 1, obey the masks and equal the model's."""

import jax
import numpy as np
import pytest

from tests.conftest import build_bert, build_config, build_gpt
from tests.finetuning import examples
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.pictures.attention_maps import Side, between
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.step import init_params

TEXT = "the cat sat on the mat."


def test_by_words_sums_keys_and_averages_queries():
    weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], np.float32)
    attended = between(weights, Side(["Haus"], [0, 0]), Side(["a", "house"], [0, 1, 1]))
    np.testing.assert_allclose(attended.weights, [[0.3, 0.7]], rtol=1e-6)
    assert (attended.queries, attended.keys) == (["Haus"], ["a", "house"])


def test_joined_sides_continue_the_numbers():
    assert Side(["[CLS]"], [0]) + Side(["a", "b"], [0, 0, 1]) == Side(
        ["[CLS]", "a", "b"], [0, 1, 1, 2]
    )


@pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece", "unigram", "characters"])
def test_tokens_become_the_words_of_the_text(kind):
    tokenizer = tokenizers.train(
        [f"{TEXT} a dog ran to the cat {i}" for i in range(40)],
        kind,
        120 if kind != "byte_bpe" else 270,
    )
    ids = [*tokenizer.encode([TEXT])[0], tokenizer.eos_id]
    words, numbers = tokenizer.words(ids)
    text = "the cat sat on the mat ." if kind == "wordpiece" else TEXT
    assert words[:-1] == text.split() and len(words) == numbers[-1] + 1
    assert len(numbers) == len(ids) and numbers == sorted(numbers)
    # the end of the text is a word of one token
    assert numbers.count(numbers[-1]) == 1


def task_of(kind, folder):
    if kind in ("bert", "gpt"):
        task = make_task({"bert": build_bert, "gpt": build_gpt}[kind](folder))
    elif kind == "translation":
        task = make_task(build_config(folder))
    else:
        family = kind.removeprefix("fine-tuned ")
        config = examples.build(
            folder / "tuned", "classification", examples.pretrained(folder, family)
        )
        task = make_task(resolve(config, folder / "run").config)
    return task, init_params(task)


@pytest.mark.sample("fine-tuned bert")
@pytest.mark.parametrize(
    "kind", ["bert", "gpt", "translation", "fine-tuned bert", "fine-tuned gpt"]
)
def test_every_task_shows_its_attention(kind, tmp_path):
    task, params = task_of(kind, tmp_path)
    for attention in task.attentions:
        options = dict(kind=attention, target="the mat") if len(task.attentions) > 1 else {}
        by_words, by_pieces = (
            task.attention(params, "the catdog ran to the mat", pieces=pieces, **options)
            for pieces in (False, True)
        )
        for attended in (by_words, by_pieces):
            shape = (2, 2, len(attended.queries), len(attended.keys))
            assert attended.weights.shape == shape and attended.weights.dtype == np.float32
            np.testing.assert_allclose(attended.weights.sum(axis=-1), 1, rtol=1e-4)
        assert len(by_words.queries) < len(by_pieces.queries)
        # The future is hidden. In a translation, the first pieces of a word predict its other
        # pieces, and the keys begin with <s>.
        if attention == "decoder":
            assert np.triu(by_pieces.weights, 1).max() == 0
            assert np.triu(by_words.weights, 1 + (by_words.keys[0] == "<s>")).max() == 0
    long = "the cat sat " * 100
    with pytest.raises(UserError, match="config.model.max_length"):
        task.attention(params, long, **(dict(target="x") if len(task.attentions) > 1 else {}))


def test_the_weights_are_those_of_the_model(tmp_path):
    """Computes the first layer's weights from the parameters."""
    task, params = task_of("gpt", tmp_path)
    weights = task.attention(params, TEXT, pieces=True).weights[0]
    (tokens,) = task.tokenizer.encode([TEXT])
    params = jax.device_get(params)
    layer = {
        name: value[0] for name, value in params["decoder"]["layers"]["attention_norm"].items()
    }
    x = (
        params["token_embed"]["embedding"][tokens]
        + params["position_embed"]["embedding"][: len(tokens)]
    )
    x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(
        x.var(axis=-1, keepdims=True) + 1e-5
    ) * layer["scale"] + layer["bias"]
    attention = params["decoder"]["layers"]["attention"]
    q, k = (
        np.einsum("lm,mhd->hld", x, attention[name]["kernel"][0])
        + attention[name]["bias"][0][:, None]
        for name in ("query", "key")
    )
    scores = np.where(
        np.tri(len(x), dtype=bool), np.einsum("hqd,hkd->hqk", q, k) / q.shape[-1] ** 0.5, -np.inf
    )
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
