"""Extractive question answering (Devlin et al. 2018, figure 4c, sections 4.2 and 4.3)."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.special

from transformer_jax.config import PositiveInt, UserError
from transformer_jax.data.sources import tables
from transformer_jax.finetuning.base import FineTuning
from transformer_jax.finetuning.predictions import Unlabelled
from transformer_jax.layers.embeddings import Head
from transformer_jax.losses import label_nll
from transformer_jax.scores import predictions as scores

# The logit of a position that can't be chosen. It is not -inf, because in a row that only pads the
# batch no position can be chosen, and its loss would be NaN, even times a weight of 0.
_EXCLUDED = -1e9


@dataclasses.dataclass(frozen=True)
class _Part:
    """A question with the part of its context that fits a row."""

    question: int  # its index in the split or input
    answers: tuple[str, ...]
    context: str
    question_ids: list[int]
    begin: int  # the position of the first of `ids` in the row
    ids: list[int]  # token ids of the part
    spans: Sequence[tuple[int, int]]  # the characters of the context that each token covers
    central: np.ndarray  # (len(ids),) bool: no other part has more context around the token
    # indices in `ids` of the first and last token of an answer; None: it is not in this part
    target: tuple[int, int] | None


class _Answer(NamedTuple):
    span: str  # the best span; "" if there is none
    margin: float  # the score of no answer minus the score of the span
    ranked: list[tuple[str, float]]  # the best answers with their probabilities


@dataclasses.dataclass
class Span(FineTuning):
    """The answer to a question is a span of its context.

    Files have the JSON format of SQuAD. A context longer than a row is read in overlapping parts.
    """

    length: int = 384
    head_dropout: float = 0.0
    stride: int = 128  # tokens between the starts of two parts of a context
    max_question: PositiveInt = 64  # most tokens of a question; a longer one is cut
    max_answer: PositiveInt = 30  # most tokens of an answer
    n_best: PositiveInt = 20  # spans considered in each part
    unanswerable: bool = False  # questions may have no answer (SQuAD 2.0)
    # the prediction is "no answer" if its score exceeds the best span's by more than this;
    # evaluate reports the best value
    null_threshold: float = 0.0

    summarises = False
    two_texts = True
    empty_details = {"answer": None, "n_best": []}
    long_lines = ("split",)  # as in training

    def __post_init__(self):
        super().__post_init__()
        max_stride = self.length - self.max_question - 3
        if not 1 <= self.stride <= max_stride:
            raise UserError(
                f"config.task.stride={self.stride}: must be from 1 to config.task.length - "
                f"max_question - 3 = {max_stride}, so that the parts of a context leave no gaps"
            )

    @property
    def num_global(self):
        """[CLS] and the question have global attention (Beltagy et al. 2020, section 6.1)."""
        return 1 + self.max_question

    def read(self, split):
        return tables.open_squad(self.config.data, split)

    def examples(self, records):
        records = list(records)
        for record in records:
            _, question, context, answers = record.values
            if not question.strip() or not context.strip():
                raise UserError(f"{record.where}: an empty question or context")
            if not answers and not self.unanswerable:
                raise UserError(
                    f"{record.where}: no answer; --config.task.unanswerable=true allows that"
                )
        return self._parts([record.values[1:] for record in records])

    def _parts(self, questions) -> list[_Part]:
        """Returns the parts of each (question, context, answers)."""
        if not questions:
            return []
        question_ids = self.tokenizer.encode([question for question, _, _ in questions])
        # SQuAD has several questions about each context, which is encoded only once.
        contexts = list(dict.fromkeys(context for _, context, _ in questions))
        encoded = dict(zip(contexts, self.tokenizer.encode_spans(contexts)))
        parts = []
        for number, ((_, context, answers), ids) in enumerate(zip(questions, question_ids)):
            parts += self._parts_of(number, ids, context, encoded[context], answers)
        return parts

    def _parts_of(self, number, question_ids, context, encoded, answers) -> Iterator[_Part]:
        """Yields the parts of one question; `encoded` holds the context's ids and their spans."""
        ids, spans = encoded
        question_ids = question_ids[: self.max_question]
        target = _tokens_of(spans, answers[0]) if answers else None
        room = self.length - self.special_tokens.count(2) - len(question_ids)
        # A tokenizer with more special tokens may leave less room than the stride, and the parts
        # must not leave gaps.
        starts = _starts(len(ids), room, min(self.stride, room))
        central = _most_central(starts, room, len(ids))
        for part, start in enumerate(starts):
            stop = min(start + room, len(ids))
            # A part that contains only some tokens of the answer is trained to predict "no answer",
            # as in the published code of BERT.
            inside = target is not None and start <= target[0] and target[1] < stop
            yield _Part(
                number,
                tuple(text for text, _ in answers),
                context,
                question_ids,
                self.special_tokens.second(question_ids),
                ids[start:stop],
                spans[start:stop],
                central[start:stop] == part,
                (target[0] - start, target[1] - start) if inside else None,
            )

    def row(self, example):
        row = self.encoder.row(
            self.tokenizer, example.question_ids, example.ids, length=self.length
        )
        first = last = self._null(example)
        if example.target is not None:
            first, last = (example.begin + index for index in example.target)
        return row | {"first": np.int32(first), "last": np.int32(last)}

    def _null(self, example) -> int:
        """Returns the position that is predicted for "no answer".

        It is the special token whose hidden state depends on the whole row: [CLS], or the last
        token in a causal model.
        """
        if self.encoder.bidirectional and not self.model.cls_last:
            return 0
        return example.begin + len(example.ids) + len(self.special_tokens.end) - 1

    def num_tokens(self, example):
        return len(example.question_ids) + len(example.ids) + self.special_tokens.count(2)

    def shapes(self, length):
        return self.encoder.shapes(length) | {"first": (), "last": ()}

    def head(self):
        return Head(2, self.head_dropout, True)

    def objective(self, outputs, batch):
        is_row = self.counted(batch)
        logits = jnp.where(batch["segment_ids"][..., None] > 0, outputs, _EXCLUDED)
        logits = jnp.moveaxis(logits, 1, 2)  # (rows, first and last, L)
        labels = jnp.stack([batch["first"], batch["last"]], axis=-1)
        count = is_row.sum(dtype=jnp.int32)
        is_right = (logits.argmax(axis=-1) == labels).all(axis=-1) & is_row
        correct = jnp.sum(is_right, dtype=jnp.float32)
        loss = jnp.sum(label_nll(logits, labels).mean(axis=-1) * is_row)
        return loss, count, {"accuracy": (correct, count)}

    def scores(self, examples, outputs):
        by_question = itertools.groupby(zip(examples, outputs), key=lambda pair: pair[0].question)
        questions = [list(parts) for _, parts in by_question]
        gold = [parts[0][0].answers for parts in questions]
        answers = [self._answer(parts) for parts in questions]
        margins = [answer.margin for answer in answers]
        results = {}
        for name, measure in (("exact_match", scores.exact_match), ("f1", scores.overlap_f1)):
            answered = [measure(texts, answer.span) for texts, answer in zip(gold, answers)]
            if not self.unanswerable:
                results[name] = float(np.mean(answered))
                continue
            refused = [measure(texts, "") for texts in gold]
            is_refused = np.array(margins) > self.null_threshold
            results[name] = float(np.mean(np.where(is_refused, refused, answered)))
            best, threshold = scores.best_threshold(margins, answered, refused)
            results |= {f"best_{name}": best, f"best_{name}_threshold": threshold}
        return results

    def _answer(self, parts) -> _Answer:
        """Returns the answer to a question, given (example, outputs) for each of its parts."""
        spans = [span for example, outputs in parts for span in self._spans(example, outputs[0])]
        spans = sorted(spans, reverse=True)[: self.n_best]
        # Spans with the same text count once, with the score of the first and so the best of them.
        best = {}
        for score, text in spans:
            best.setdefault(text, score)
        # A question is unanswerable only if no part answers it, so the part that is least sure of
        # "no answer" decides, as in the published code of BERT.
        null = min(outputs[0][self._null(example)].sum() for example, outputs in parts)
        candidates = list(best.items())
        if self.unanswerable or not best:
            candidates.append(("", float(null)))
        probabilities = scipy.special.softmax([score for _, score in candidates])
        texts = [text for text, _ in candidates]
        ranked = sorted(zip(texts, map(float, probabilities)), key=lambda pair: -pair[1])
        if not best:
            # Without a span, only "no answer" is left, whatever the threshold.
            return _Answer("", math.inf, ranked)
        score, span = spans[0]
        return _Answer(span, float(null - score), ranked)

    def _spans(self, example, logits) -> Iterator[tuple[float, str]]:
        """Yields (score, text) of the likeliest spans in a part.

        A span has at most max_answer tokens. It starts at a token for which this part has the most
        context, so that a span in several parts counts once.
        """
        logits = logits[example.begin : example.begin + len(example.ids)]
        # A stable sort takes equal logits from left to right, on every machine.
        order = np.argsort(-logits, axis=0, kind="stable")[: self.n_best].tolist()
        firsts, lasts = ([row[side] for row in order] for side in (0, 1))
        for first, last in itertools.product(firsts, lasts):
            if first <= last < first + self.max_answer and example.central[first]:
                score = float(logits[first, 0] + logits[last, 1])
                start, end = example.spans[first][0], example.spans[last][1]
                yield score, example.context[start:end].strip()

    def prediction(self, examples, outputs):
        span, margin, ranked = self._answer(list(zip(examples, outputs)))
        answer = "" if self.unanswerable and margin > self.null_threshold else span
        n_best = [{"answer": text, "probability": p} for text, p in ranked]
        return answer, {"answer": answer, "n_best": n_best}

    def unlabelled(self, lines):
        """Returns the parts of each line: a question and its context, separated by a tab."""
        questions = []
        for number, line in lines:
            question, _, context = line.partition("\t")
            if not question.strip() or not context.strip():
                raise UserError(
                    f"line {number}: must hold a question and its context, separated by a tab"
                )
            questions.append((question, context, ()))
        by_question = itertools.groupby(self._parts(questions), key=lambda part: part.question)
        return [Unlabelled(list(parts), False) for _, parts in by_question]


def _tokens_of(spans, answer: tuple[str, int]) -> tuple[int, int] | None:
    """Returns the first and last token that share characters with an answer, or None."""
    text, start = answer
    inside = [index for index, (a, b) in enumerate(spans) if a < start + len(text) and b > start]
    return (inside[0], inside[-1]) if inside else None


def _starts(length: int, room: int, stride: int) -> list[int]:
    """Returns the tokens at which the parts of a context start. The last part reaches its end."""
    num_parts = 1 + max(0, -(-(length - room) // stride))
    return [stride * part for part in range(num_parts)]


def _most_central(starts: list[int], room: int, length: int) -> np.ndarray:
    """Returns for each token of a context the index of the part with most context around it.

    The context around a token is the smaller of its two sides. Among equal parts, the first one is
    taken.
    """
    tokens = np.arange(length)
    around = []
    for start in starts:
        stop = min(start + room, length)
        smaller_side = np.minimum(tokens - start, stop - 1 - tokens)
        is_inside = (tokens >= start) & (tokens < start + room)
        # Longer parts are slightly preferred, as in the published code of BERT.
        around.append(np.where(is_inside, smaller_side + 0.01 * (stop - start), -np.inf))
    return np.argmax(around, axis=0)
