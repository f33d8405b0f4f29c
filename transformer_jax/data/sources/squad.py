"""Questions on paragraphs in the form of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018)."""

import dataclasses
from collections.abc import Iterator

from transformer_jax.config import UserError
from transformer_jax.data.sources import tfds
from transformer_jax.data.sources.file_digests import sha256
from transformer_jax.data.sources.tables import Record, split_files
from transformer_jax.data.sources.text_files import from_json
from transformer_jax.storage import buckets

_TFDS_FEATURES = ("id", "question", "context", "answers")
_Answers = tuple[tuple[str, int], ...]  # (text, index of its first character in the context)


@dataclasses.dataclass(frozen=True)
class Squad:
    """The questions of SQuAD's JSON files."""

    paths: tuple[str, ...]

    def fingerprint(self) -> dict:
        return {"files": sha256(self.paths)}

    def __iter__(self) -> Iterator[Record]:
        """Yields a record for each question.

        Its values are (id, question, context, ((text, first character), ...)). Questions that the
        context does not answer have no answers.
        """
        for path in self.paths:
            try:
                content = from_json(buckets.path(path).read_text("utf-8-sig"), path)
                questions = [
                    (entry["id"], entry["question"], paragraph["context"], _answers(entry))
                    for article in content["data"]
                    for paragraph in article["paragraphs"]
                    for entry in paragraph["qas"]
                ]
            except (ValueError, KeyError, TypeError) as error:
                fault = f"{type(error).__name__}: {error}"
                raise UserError(f"{path}: not in SQuAD's form ({fault})") from None
            for question in questions:
                yield _checked_record(f"{path}: question {question[0]}", *question)


def _answers(entry: dict) -> _Answers:
    if entry.get("is_impossible"):
        return ()
    return tuple((answer["text"], answer["answer_start"]) for answer in entry["answers"])


@dataclasses.dataclass(frozen=True)
class TfdsSquad:
    """The questions of a split that TFDS has prepared; records as those of Squad."""

    folder: str
    split: str

    def fingerprint(self) -> dict:
        return {"tfds": tfds.digest(self.folder), "split": self.split}

    def __iter__(self) -> Iterator[Record]:
        for example in tfds.examples(self.folder, self.split):
            where = f"{self.folder} {self.split} example {example.get('id')}"
            tfds.check_features(self.folder, example, _TFDS_FEATURES)
            texts = (tfds.decoded(example[name], where) for name in ("id", "question", "context"))
            yield _checked_record(where, *texts, self._tfds_answers(example, where))

    def _tfds_answers(self, example: dict, where: str) -> _Answers:
        if example.get("is_impossible"):
            return ()
        texts = example["answers"]["text"]
        starts = example["answers"]["answer_start"]
        return tuple((tfds.decoded(text, where), int(start)) for text, start in zip(texts, starts))


def of_split(data, split: str) -> Squad | TfdsSquad | None:
    """Returns the questions of a split that `config.data` names; None where it names none."""
    if data.tfds_name and not data[f"{split}_files"]:
        prepared = tfds.prepared_split(data, split)
        return prepared and TfdsSquad(*prepared)
    paths = split_files(data, split)
    return paths and Squad(paths)


def _checked_record(
    where: str, question_id: str, question: str, context: str, answers: _Answers
) -> Record:
    """Returns the record. Raises UserError where an answer does not stand in its context."""
    texts = (question, context, *(text for text, _ in answers))
    starts = (start for _, start in answers)
    if not all(isinstance(text, str) for text in texts) or not all(
        isinstance(start, int) for start in starts
    ):
        raise UserError(
            f"{where}: question, context and answers must be texts, "
            "and answer_start must be a whole number"
        )
    for text, start in answers:
        if not text or context[start : start + len(text)] != text:
            raise UserError(
                f"{where}: the answer {text[:40]!r} is not at character {start} of its context"
            )
    return Record(where, (question_id, question, context, answers))
