"""The measures of GPT-2's zero-shot table, on small files in the form of each data set."""

import json
import math
import types

import numpy as np
import pytest

from tests.programs import call, refused
from tests.test_prompting import gpt_run
from transformer_jax import evaluate
from transformer_jax.config import UserError
from transformer_jax.inference import zero_shot
from transformer_jax.inference.log_probabilities import Likelihood


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return gpt_run(tmp_path_factory.mktemp("gpt"))


def stub(score, length=8, stride=0):
    """Returns a task whose tokens are characters. `score(context, continuation)` is log P."""

    def log_likelihoods(params, pairs):
        for context, continuation in pairs:
            log_prob = score(context, continuation)
            yield Likelihood(log_prob, log_prob > -1, len(continuation))

    def token_log_likelihoods(params, pairs):
        texts = [["".join(map(chr, filter(None, ids))) for ids in pair] for pair in pairs]
        return log_likelihoods(params, texts)

    return types.SimpleNamespace(
        length=length,
        tokenizer=types.SimpleNamespace(encode=lambda texts: [[*map(ord, each)] for each in texts]),
        config=types.SimpleNamespace(decode=types.SimpleNamespace(stride=stride)),
        with_start=lambda ids: [0, *ids],
        log_likelihoods=log_likelihoods,
        token_log_likelihoods=token_log_likelihoods,
    )


def uniform(context, continuation):
    """Log P if each character has the probability 1/2."""
    return -len(continuation) * math.log(2)


def measured(name, text, tmp_path, task):
    path = tmp_path / "set.txt"
    path.write_text(text, "utf-8")
    return zero_shot.evaluate(task, None, name, str(path))


@pytest.mark.parametrize(
    "tokenized, text",
    [
        ("1 @,@ 000 long @-@ term , 3 @.@ 5 % .", "1,000 long-term, 3.5%."),
        (" = = Early life = = ", " == Early life == "),
        ('He said : " I do n\'t know ( yet ) . " <unk>', 'He said: "I don\'t know (yet)." <unk>'),
        ("the company 's $ N million , they 'll", "the company's $N million, they'll"),
        ("`` It doesn 't , '' said he -LRB- twice -RRB- !", '"It doesn\'t," said he (twice)!'),
        ("an untouched text, with 'quotes' and a-b.", "an untouched text, with 'quotes' and a-b."),
    ],
)
def test_texts_are_detokenized(tokenized, text):
    assert zero_shot.detokenized(tokenized) == text


def test_a_perplexity_is_that_of_a_word_of_the_file(tmp_path):
    """Eight words and two line ends, in a text that is shorter than the file."""
    text = "a long @-@ term plan .\n= b\n"
    shorter = "a long-term plan.\n= b\n"
    scores = measured("wikitext2", text, tmp_path, stub(uniform))
    assert scores["words"] == 10 and scores["tokens"] == len(shorter)
    assert scores["perplexity"] == pytest.approx(2 ** (len(shorter) / 10))
    assert measured("ptb", text, tmp_path, stub(uniform)) == scores
    assert measured("wikitext103", text, tmp_path, stub(uniform)) == scores


@pytest.mark.parametrize("stride", [0, 1, 3, 8])
def test_windows_hold_each_token_once(stride, tmp_path):
    """With as much of the text before it as fits."""
    text, seen = "the quick brown fox\n" * 2, []

    def score(context, continuation):
        seen.append(continuation)
        assert context + continuation == "".join(seen)[-9:]
        return 0.0

    measured("ptb", text, tmp_path, stub(score, stride=stride))
    assert "".join(seen) == text


def test_sentences_in_random_order_are_documents(tmp_path):
    contexts = []

    def score(context, continuation):
        contexts.append((context, continuation))
        return uniform(context, continuation)

    scores = measured("1bw", "It 's so .\nNo !\n", tmp_path, stub(score))
    assert contexts == [("", "It's so.\n"), ("", "No!\n")]
    assert scores["words"] == 8 and scores["perplexity"] == pytest.approx(2 ** (13 / 8))


def test_bits(tmp_path):
    """ "é" is a character of two bytes."""
    scores = measured("enwik8", "<b>é</b> &amp;", tmp_path, stub(uniform))
    assert scores["bits_per_byte"] == pytest.approx(14 / 15) and scores["bytes"] == 15
    assert measured("text8", "one two", tmp_path, stub(uniform))["bits_per_character"] == 1


def test_the_last_word_and_the_last_token(tmp_path):
    def score(context, continuation):
        if continuation == " dog":  # a word
            return -2.0
        return -0.5 if continuation == "g" else -4.0

    text = json.dumps({"text": "She fed the dog"}) + "\nhe saw a cat , a cow\n"
    scores = measured("lambada", text, tmp_path, stub(score))
    assert scores["passages"] == 2
    assert (scores["accuracy"], scores["last_token_accuracy"]) == (0, 0.5)
    assert scores["perplexity"] == pytest.approx(math.exp(3))
    assert scores["last_token_perplexity"] == pytest.approx(math.exp(2.25))


QUESTION = "".join(f"{n} Sentence {n} .\n" for n in range(1, 21))
QUESTION += "21 `` The XXXXX sat . ''\tcat\t\tdog|cat|car\n\n"


def test_a_blank_is_filled_by_the_likeliest_rest_of_the_sentence(tmp_path):
    seen = []

    def score(context, continuation):
        seen.append((context, continuation))
        return -1.0 if "cat" in continuation else -2.0

    scores = measured("cbt", 2 * QUESTION, tmp_path, stub(score))
    assert scores == {"questions": 2, "accuracy": 1.0}
    assert {context for context, _ in seen} == {seen[0][0]}
    assert seen[0][0].endswith('Sentence 20. "The') and seen[1][1] == ' cat sat."'


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("ptb", " \n", ("is empty",)),
        ("lambada", "word\n", ("passage 1", "two words")),
        ("lambada", '{"body": "a b"}\n', ("set.txt:1", "no text")),
        ("cbt", "1 A sentence .\n", ("without a question",)),
        ("cbt", QUESTION.replace("XXXXX", "X"), ("set.txt:21", "XXXXX")),
        ("cbt", QUESTION.replace("\tcat\t", "\tcow\t"), ("set.txt:21", "choices")),
    ],
)
def test_a_file_of_another_form_is_refused(name, text, words, tmp_path):
    with pytest.raises(UserError) as error:
        measured(name, text, tmp_path, stub(uniform))
    assert all(word in str(error.value) for word in words)


def test_every_set_is_a_value_of_the_flag():
    assert evaluate.ZERO_SHOT == [*zero_shot.SETS]


def test_a_model_reads_a_text_and_its_words(workdir, tmp_path):
    """The perplexity of a model agrees with `evaluate` on the same text, token by token."""
    text = "the king number 7 sings to a dog\n" * 8
    path = tmp_path / "test.txt"
    path.write_text(text)
    flags = (f"--workdir={workdir}", f"--file={path}", "--config.decode.stride=16")
    done = call("evaluate", *flags, "--zero_shot=ptb")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert scores["words"] == 9 * 8 and np.isfinite(scores["perplexity"])
    bits = json.loads(call("evaluate", *flags, "--zero_shot=enwik8").stdout)
    nats = math.log(scores["perplexity"]) * scores["words"]
    assert nats == pytest.approx(bits["bits_per_byte"] * bits["bytes"] * math.log(2), rel=1e-5)
    expected = call("evaluate", f"--workdir={workdir}", f"--config.data.valid_files={path}")
    # `evaluate` has half a window of context, too, and the end of the document as a further token.
    assert json.loads(expected.stdout)["bits_per_byte"] == pytest.approx(
        bits["bits_per_byte"], rel=0.1
    )


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--zero_shot=ptb"], ("--zero_shot", "--file")),
        (["--file=a"], ("--file", "--zero_shot")),
        (["--zero_shot=ptb", "--file=a", "--set=test"], ("--zero_shot and --set",)),
        (["--zero_shot=ptb", "--file=/nowhere/a"], ("/nowhere/a", "can't be read")),
    ],
)
def test_mistakes(workdir, flags, words):
    refused(call("evaluate", f"--workdir={workdir}", *flags), *words)
