"""The eight data sets of GPT-2's zero-shot table, each with the measure that it reports.

Radford et al. 2019, section 3 and table 3. A perplexity is that of a word of the original file,
whatever the tokens of the model are: the exponential of the negative log-probability of the text,
divided by the number of its words and line ends. The text that the model reads is de-tokenized, but
the words are counted before.
"""

import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import from_json
from transformer_jax.inference.batching import chunks
from transformer_jax.pictures.progress import track
from transformer_jax.storage import buckets

_CHUNK = 1024  # windows of a text whose ids are in memory at once
_BLANK = "XXXXX"  # of a question of the Children's Book Test

# ---------------------------------------------------------------------------------- de-tokenization

# What the tokenizers of the sets have made of running text, and what it was. The order matters:
# quotation marks come last but one, because their inner spaces are found by their pairs.
_ARTIFACTS = (
    (r" @([-,.])@ ", r"\1"),  # WikiText: 1 @,@ 000, long @-@ term
    (r"(?<==) (?==)", ""),  # WikiText: = = Heading = =
    (r"-LRB- ?", "("),
    (r" ?-RRB-", ")"),
    (r"-LSB- ?", "["),
    (r" ?-RSB-", "]"),
    (r"`` ?", '"'),
    (r" ?''", '"'),
    (r" n't\b", "n't"),  # Penn Treebank: do n't; the next line: don 't
    (r" '(?=(?:s|d|m|t|re|ve|ll|S|D|M|RE|VE|LL)\b)", "'"),
    (r" ([.,;:!?%)\]])", r"\1"),
    (r"([(\[]) ", r"\1"),
    (r"([$£€#]) (?=[\dN])", r"\1"),
    (r'(?<!\S)" ([^"\n]*?) "(?!\w)', r'"\1"'),
    (r"  +", " "),
)
_PATTERNS = [(re.compile(pattern), replacement) for pattern, replacement in _ARTIFACTS]


def detokenized(text: str) -> str:
    """Returns the text as it was, as nearly as it can be told, before a tokenizer divided it.

    The line ends stay as they are. `<unk>` stays, because what it stands for is lost.
    """
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def num_words(text: str) -> int:
    """Returns the number of words between spaces, and of line ends, which count as a word each.

    They are the `<eos>` of the published perplexities of these sets.
    """
    return len(text.split()) + text.count("\n")


# ----------------------------------------------------------------------------- the kinds of measure


def evaluate(task: Any, params: Any, name: str, path: str) -> dict[str, Any]:
    """Returns the scores of a causal language model on a data set, whose file is `path`.

    `name` is a key of SETS. Texts are read in windows of `config.task.length` tokens, each of which
    predicts `config.decode.stride` new tokens, by default half a window. Raises UserError for a
    file that is empty, or that does not have the set's form.
    """
    with buckets.reading(path):
        content = buckets.path(path).read_bytes()
    # A part of enwik8 may begin in the middle of a character.
    text = content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    if not text.strip():
        raise UserError(f"{path}: is empty")
    return SETS[name](task, params, text, path)


def _word_perplexity(task, params, text: str, path: str) -> dict[str, Any]:
    """Returns the perplexity of a word of a running text."""
    log_prob, tokens = _text_log_prob(task, params, detokenized(text))
    words = num_words(text)
    return {"perplexity": math.exp(-log_prob / words), "words": words, "tokens": tokens}


def _sentence_perplexity(task, params, text: str, path: str) -> dict[str, Any]:
    """Returns the perplexity of a word of sentences in random order, each a document of its own."""
    sentences = [f"{line}\n" for line in text.splitlines() if line.strip()]
    pairs = (("", detokenized(sentence)) for sentence in sentences)
    scores = list(track(task.log_likelihoods(params, pairs), "sentences", len(sentences)))
    words = sum(map(num_words, sentences))
    return {
        "perplexity": math.exp(-sum(score.log_prob for score in scores) / words),
        "words": words,
        "tokens": sum(score.tokens for score in scores),
    }


def _bits(unit: str) -> Callable:
    """Returns the measure of a text in bits per byte or per character, as it is in its file."""

    def measure(task, params, text: str, path: str) -> dict[str, Any]:
        log_prob, tokens = _text_log_prob(task, params, text)
        count = len(text.encode()) if unit == "byte" else len(text)
        bits = -log_prob / math.log(2) / count
        return {f"bits_per_{unit}": bits, f"{unit}s": count, "tokens": tokens}

    return measure


def _last_word(task, params, text: str, path: str) -> dict[str, Any]:
    """Returns the scores of the last word of each passage, and those of its last token.

    The published scores are those of the last token, after the tokens before it, and filtered by a
    list of stop words that was not published (https://github.com/openai/gpt-2/issues/131).
    """
    words, last_tokens = [], []
    for number, passage in enumerate(_passages(text, path), 1):
        context, _, word = passage.rpartition(" ")
        if not context:
            raise UserError(f"{path}: passage {number} has less than two words")
        words.append((context, f" {word}"))
        (ids,) = task.tokenizer.encode([passage])
        last_tokens.append((task.with_start(ids[:-1]), ids[-1:]))
    by_word = list(track(task.log_likelihoods(params, words), "last words", len(words)))
    by_token = list(task.token_log_likelihoods(params, last_tokens))
    return {
        "passages": len(words),
        "accuracy": _mean(score.greedy for score in by_word),
        "perplexity": math.exp(-_mean(score.log_prob for score in by_word)),
        "last_token_accuracy": _mean(score.greedy for score in by_token),
        "last_token_perplexity": math.exp(-_mean(score.log_prob for score in by_token)),
    }


def _passages(text: str, path: str) -> Iterator[str]:
    """Yields the passages: JSON objects with "text", a line each, or lines of tokenized text."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("{"):
            record = from_json(line, f"{path}:{number}")
            if not isinstance(record.get("text"), str):
                raise UserError(f"{path}:{number}: has no text")
            yield record["text"].strip()
        elif line.strip():
            yield detokenized(line.strip())


def _blank(task, params, text: str, path: str) -> dict[str, Any]:
    """Returns the accuracy of choosing the word that a sentence lacks, after twenty others.

    The choice is the word that makes the rest of the sentence, from the word on, the likeliest.
    """
    pairs, sizes, answers = [], [], []
    for context, question, answer, choices in _questions(text, path):
        texts = [detokenized(f"{context} {question.replace(_BLANK, each)}") for each in choices]
        # All continuations begin with the same word boundary, where the texts begin to differ.
        start = max(os.path.commonprefix(texts).rfind(" "), 0)
        pairs += [(each[:start], each[start:]) for each in texts]
        sizes.append(len(choices))
        answers.append(choices.index(answer))
    scores = track(task.log_likelihoods(params, iter(pairs)), "comparing choices", len(pairs))
    log_probs = iter([score.log_prob for score in scores])
    chosen = [int(np.argmax(list(itertools.islice(log_probs, size)))) for size in sizes]
    hits = (choice == answer for choice, answer in zip(chosen, answers))
    return {"questions": len(answers), "accuracy": _mean(hits)}


def _questions(text: str, path: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yields (twenty sentences, the one with a blank, the missing word, choices).

    A line begins with its number. The twenty-first one has the columns question, answer, nothing
    and choices, which are separated by "|".
    """
    sentences = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        _, _, sentence = line.partition(" ")
        question, *columns = sentence.split("\t")
        if not columns:
            sentences.append(sentence.strip())
            continue
        answer, choices = columns[0], columns[-1].strip().split("|")
        if _BLANK not in question or answer not in choices:
            raise UserError(
                f"{path}:{number}: not a question of the Children's Book Test: {_BLANK} in a "
                "sentence, the answer, and choices with the answer"
            )
        yield " ".join(sentences), question, answer, choices
        sentences = []
    if sentences:
        raise UserError(f"{path}: ends without a question")


def _text_log_prob(task, params, text: str) -> tuple[float, int]:
    """Returns the log-probability of a text, and its number of tokens."""
    (ids,) = task.tokenizer.encode([text])
    start = task.with_start([])
    stride = task.config.decode.stride or max(task.length // 2, 1)
    windows = _windows(start + ids, len(start), task.length, stride)
    scores = itertools.chain.from_iterable(
        task.token_log_likelihoods(params, chunk) for chunk in chunks(windows, _CHUNK)
    )
    total = -(-len(ids) // stride)
    return sum(score.log_prob for score in track(scores, "windows", total)), len(ids)


def _windows(ids: list[int], begin: int, length: int, stride: int) -> Iterator:
    """Yields (context, continuation): each id from `begin` on is in one continuation.

    A context and its continuation have `length` + 1 ids, or as many as there are: the last one is
    predicted, but not read.
    """
    for first in range(begin, len(ids), stride):
        end = min(first + stride, len(ids))
        yield ids[max(0, end - length - 1) : first], ids[first:end]


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


SETS = {
    "lambada": _last_word,
    "cbt": _blank,
    "wikitext2": _word_perplexity,
    "ptb": _word_perplexity,
    "enwik8": _bits("byte"),
    "text8": _bits("character"),
    "wikitext103": _word_perplexity,
    "1bw": _sentence_perplexity,
}
