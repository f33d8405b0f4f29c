"""Answering a question by a span of a text (Devlin et al. 2018, figure 4c, sections 4.2 and 4.3)."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import scipy.special

from transformer_jax.config import UserError
from transformer_jax.data.sources import tables
from transformer_jax.finetuning.base import ROW, FineTuning
from transformer_jax.finetuning.predictions import Asked
from transformer_jax.layers.heads import Head
from transformer_jax.losses import label_nll
from transformer_jax.scores import predictions as scores

_NEVER = -1e9  # logit of what can't be chosen


@dataclasses.dataclass(frozen=True)
class _Part:
    """A question with as much of its context as fits a row."""

    question: int  # by its number in the split or input
    answers: tuple[str, ...]
    context: str
    question_ids: list[int]
    ids: list[int]  # of the context's part
    spans: Sequence[tuple[int, int]]  # characters of each of them in the context
    central: np.ndarray  # (len(ids),) bool: no other part has more context around this token
    # first and last token of an answer in `ids`; None: it is not here
    target: tuple[int, int] | None

    @property
    def begin(self) -> int:
        """The row's position of the first of `ids`."""
        return len(self.question_ids) + 2


@dataclasses.dataclass
class Span(FineTuning):
    """Files are in the JSON form of SQuAD. Contexts longer than a row are read in overlapping
    parts.
    """

    length: int = 384
    head_dropout: float = 0.0
    stride: int = 128  # tokens between the beginnings of two parts of a context
    max_question: int = 64  # tokens; longer ones are cut
    max_answer: int = 30  # tokens
    n_best: int = 20  # spans kept of each part
    unanswerable: bool = False  # questions may have no answer (SQuAD 2.0)
    # no answer is given where its score is higher than the best span's by more than this; evaluate
    # tells the best one
    null_threshold: float = 0.0

    summarises = False
    two_texts = True
    unread = {"answer": None, "n_best": []}
    long_lines = ("split",)  # as in training

    def __post_init__(self):
        super().__post_init__()
        if min(self.n_best, self.max_answer, self.max_question) < 1:
            raise UserError(
                f"config.task.n_best={self.n_best}, max_answer={self.max_answer}, max_question={self.max_question}: each is at least 1"
            )
        if not 1 <= self.stride <= self.length - self.max_question - 3:
            raise UserError(
                f"config.task.stride={self.stride}: from 1 to config.task.length - max_question - 3 = {self.length - self.max_question - 3}, "
                "or parts of a context would leave gaps"
            )

    def read(self, split):
        return tables.squad(self.config.data, split)

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

    def _parts(self, asked) -> list[_Part]:
        if not asked:
            return []
        questions = self.tokenizer.encode([question for question, _, _ in asked])
        contexts = dict(
            zip(
                there := list(dict.fromkeys(context for _, context, _ in asked)),
                self.tokenizer.encode_spans(there),
            )
        )
        found = []
        for number, ((_, context, answers), question) in enumerate(zip(asked, questions)):
            (ids, spans), question = contexts[context], question[: self.max_question]
            target = _tokens_of(spans, answers[0]) if answers else None
            room = self.length - 3 - len(question)
            starts = (
                [*range(0, max(len(ids) - room, 0) + self.stride, self.stride)]
                if len(ids) > room
                else [0]
            )
            starts = starts[
                : 1
                + next(
                    (i for i, start in enumerate(starts) if start + room >= len(ids)), len(starts)
                )
            ]
            central = _most_central(starts, room, len(ids))
            for part, start in enumerate(starts):
                stop = min(start + room, len(ids))
                inside = target is not None and start <= target[0] and target[1] < stop
                found.append(
                    _Part(
                        number,
                        tuple(text for text, _ in answers),
                        context,
                        question,
                        ids[start:stop],
                        spans[start:stop],
                        central[start:stop] == part,
                        (target[0] - start, target[1] - start) if inside else None,
                    )
                )
        return found

    def row(self, example):
        row = self.encoder.row(self.tokenizer, example.question_ids, example.ids, self.length)
        null = self._null(example)
        first, last = (
            (null, null)
            if example.target is None
            else (example.begin + place for place in example.target)
        )
        return row | {"first": np.int32(first), "last": np.int32(last)}

    def _null(self, example) -> int:
        """Where "no answer" points: to the position that has seen all."""
        return 0 if self.encoder.bidirectional else example.begin + len(example.ids)

    def filled(self, example):
        return len(example.question_ids) + len(example.ids) + 3

    def shapes(self, length):
        return dict.fromkeys(ROW, (length,)) | {"first": (), "last": ()}

    def head(self):
        return Head(2, self.head_dropout, True)

    def objective(self, outputs, batch):
        there = self.counted(batch)
        logits = jnp.where(batch["segment_ids"][..., None] > 0, outputs, _NEVER)
        # (rows, first and last, L)
        logits, labels = (
            jnp.moveaxis(logits, 1, 2),
            jnp.stack([batch["first"], batch["last"]], axis=-1),
        )
        count = there.sum(dtype=jnp.int32)
        right = jnp.sum((logits.argmax(axis=-1) == labels).all(axis=-1) & there, dtype=jnp.float32)
        return (
            jnp.sum(label_nll(logits, labels).mean(axis=-1) * there),
            count,
            {"accuracy": (right, count)},
        )

    def scores(self, examples, outputs):
        by_question = itertools.groupby(zip(examples, outputs), key=lambda pair: pair[0].question)
        questions = [list(parts) for _, parts in by_question]
        found = [(parts[0][0].answers, *self._answer(parts)[:2]) for parts in questions]
        measured = {}
        for name, measure in (("exact_match", scores.exact_match), ("f1", scores.overlap_f1)):
            answered = [measure(answers, span) for answers, span, _ in found]
            if not self.unanswerable:
                measured[name] = float(np.mean(answered))
                continue
            refused, margins = (
                [measure(answers, "") for answers, _, _ in found],
                [margin for _, _, margin in found],
            )
            measured[name] = float(
                np.mean(np.where(np.array(margins) > self.null_threshold, refused, answered))
            )
            measured[f"best_{name}"], measured[f"best_{name}_threshold"] = scores.best_threshold(
                margins, answered, refused
            )
        return measured

    def _answer(self, parts) -> tuple[str, float, list[tuple[str, float]]]:
        """(the best span, by how much the score of no answer is higher than its own, the n best
        with their probabilities) from a question's parts with their outputs.
        """
        spans = sorted(
            (span for example, outputs in parts for span in self._spans(example, outputs[0])),
            reverse=True,
        )[: self.n_best]
        best = {}
        for score, text in spans:
            best.setdefault(text, score)
        null = min(outputs[0][self._null(example)].sum() for example, outputs in parts)
        candidates = [
            *best.items(),
            *([("", float(null))] if self.unanswerable or not best else []),
        ]
        probabilities = scipy.special.softmax([score for _, score in candidates])
        ranked = sorted(
            zip((text for text, _ in candidates), map(float, probabilities)),
            key=lambda pair: -pair[1],
        )
        return (spans[0][1], float(null - spans[0][0]), ranked) if best else ("", math.inf, ranked)

    def _spans(self, example, logits):
        """(score, text) of the likeliest spans in a part: no longer than max_answer, beginning
        where this part knows most of the context.
        """
        logits = logits[example.begin : example.begin + len(example.ids)]
        first, last = (
            np.argsort(-logits[:, side], kind="stable")[: self.n_best] for side in (0, 1)
        )
        for a, b in itertools.product(first.tolist(), last.tolist()):
            if a <= b < a + self.max_answer and example.central[a]:
                yield (
                    float(logits[a, 0] + logits[b, 1]),
                    example.context[example.spans[a][0] : example.spans[b][1]].strip(),
                )

    def shown(self, examples, outputs):
        span, margin, ranked = self._answer(list(zip(examples, outputs)))
        answer = "" if self.unanswerable and margin > self.null_threshold else span
        n_best = [{"answer": text, "probability": p} for text, p in ranked]
        return answer, {"answer": answer, "n_best": n_best}

    def asked(self, lines):
        """A question and its context a line, separated by a tab."""
        asked = []
        for number, line in lines:
            question, _, context = line.partition("\t")
            if not question.strip() or not context.strip():
                raise UserError(
                    f"line {number}: a question and its context are asked for, separated by a tab"
                )
            asked.append((question, context, ()))
        by_question = itertools.groupby(self._parts(asked), key=lambda part: part.question)
        return [Asked(list(parts), False) for _, parts in by_question]


def _tokens_of(spans, answer: tuple[str, int]) -> tuple[int, int] | None:
    """The first and last token that share characters with an answer; None where no token does."""
    text, start = answer
    inside = [place for place, (a, b) in enumerate(spans) if a < start + len(text) and b > start]
    return (inside[0], inside[-1]) if inside else None


def _most_central(starts: list[int], room: int, length: int) -> np.ndarray:
    """For each token of a context the part in which the smaller of its two sides of context is
    largest (the first such).
    """
    places = np.arange(length)
    around = [
        np.where(
            (places >= start) & (places < start + room),
            np.minimum(places - start, min(start + room, length) - 1 - places)
            + 0.01 * (min(start + room, length) - start),
            -np.inf,
        )
        for start in starts
    ]
    return np.argmax(around, axis=0)
