"""SentencePiece, the tokenizer of translation and the default of language models."""

import io
import itertools
import os
from collections.abc import Iterable, Iterator

import sentencepiece

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.tokenizer import Tokenizer, known_ids, visible

_THREADS = 8  # Fixed, because the trained model may depend on it.
_MAX_LINE_BYTES = 2**16
# Characters. Longer lines could exceed `_MAX_LINE_BYTES`, and SentencePiece would leave them out.
_MAX_LINE_CHARACTERS = 2**13


class SentencePiece(Tokenizer):
    """A SentencePiece model (Kudo & Richardson 2018), unigram or BPE.

    The model has the ids of its special pieces. Where it is trained here, ids 0 to 3 are padding,
    unknown, start and end.
    """

    file = "sentencepiece.model"

    def __init__(self, model: bytes):
        super().__init__(model)
        self._processor = loaded(model)
        self.vocab_size = self._processor.vocab_size()
        self.unk_id = self._processor.unk_id()
        self.eos_id = self._processor.eos_id()
        if self.eos_id < 0:
            raise ValueError("the SentencePiece model has no piece for the end of a text")
        others = (self._processor.pad_id(), self._processor.bos_id())
        self.pad_id, self.bos_id = (None if i < 0 else i for i in others)

    @classmethod
    def train(
        cls, lines: Iterable[str], vocab_size: int, model_type: str, **options
    ) -> "SentencePiece":
        """Returns a model trained on the lines, or on a sample of two million.

        It has fewer pieces than `vocab_size` where the text has no more. Raises UserError where the
        text does not suffice.
        """
        model = io.BytesIO()
        recorder = _ErrorRecorder(lines)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(recorder),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=model_type,
                character_coverage=1.0 if vocab_size > 2000 else 0.9995,
                hard_vocab_limit=False,
                input_sentence_size=2_000_000,
                max_sentence_length=_MAX_LINE_BYTES,
                pad_id=0,
                unk_id=1,
                bos_id=2,
                eos_id=3,
                num_threads=_THREADS,
                minloglevel=2,
                **options,
            )
        except (RuntimeError, OSError) as error:
            if recorder.error:
                raise recorder.error from None
            raise UserError(
                f"the tokenizer can't be trained with {vocab_size} pieces on this text: {error}"
            ) from None
        return cls(model.getvalue())

    @classmethod
    def train_documents(
        cls, texts: Iterable[str], vocab_size: int, model_type: str
    ) -> "SentencePiece":
        """Returns a model that keeps newlines and all spaces; a newline is one piece."""
        lines = (
            line[start : start + _MAX_LINE_CHARACTERS]
            for text in texts
            for line in text.split("\n")
            for start in range(0, len(line), _MAX_LINE_CHARACTERS)
        )
        return cls.train(
            lines,
            vocab_size,
            model_type,
            user_defined_symbols=["\n"],
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
        )

    def _encode(self, texts):
        return self._processor.encode(texts, num_threads=os.cpu_count())

    def encode_spans(self, texts):
        # A model that was trained on documents changes no character.
        pieces = self._processor.encode(texts, out_type=str)
        ends = [itertools.accumulate(map(len, sequence), initial=0) for sequence in pieces]
        return [
            (ids, list(itertools.pairwise(each))) for ids, each in zip(self.encode(texts), ends)
        ]

    def _decode(self, ids):
        return self._processor.decode([known_ids(self, sequence) for sequence in ids])

    def pieces(self, ids):
        return [visible(self._processor.id_to_piece(i)) for i in known_ids(self, ids)]


def loaded(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Returns the processor of a serialized model. Raises RuntimeError for other content."""
    processor = sentencepiece.SentencePieceProcessor()
    # The constructor would accept an empty file.
    processor.LoadFromSerializedProto(model)
    return processor


class _ErrorRecorder:
    """Iterates over lines and keeps their UserError, which SentencePiece turns into another."""

    def __init__(self, lines: Iterable[str]):
        self._lines = lines
        self.error: UserError | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            yield from self._lines
        except UserError as error:
            self.error = error
            raise
