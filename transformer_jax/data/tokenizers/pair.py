"""The two tokenizers of an encoder-decoder."""

import copy
import pathlib

from transformer_jax.data.tokenizers import loading, marian
from transformer_jax.data.tokenizers.sentence_piece import SentencePiece
from transformer_jax.data.tokenizers.tokenizer import Tokenizer, write_files


class Pair:
    """The tokenizers of the source and the target, of any kind.

    They are one object where both sides share a vocabulary.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer):
        self.source = source
        self.target = target

    @property
    def vocab_size(self) -> int:
        """The number of tokens of the larger vocabulary."""
        return max(self.source.vocab_size, self.target.vocab_size)

    def fingerprint(self) -> list[str]:
        return [self.source.fingerprint(), self.target.fingerprint()]

    def files(self) -> dict[str, bytes]:
        """Returns the files of both. A shared tokenizer is saved as a single one is."""
        if self.source is not self.target:
            sides = {"source": self.source, "target": self.target}
            return {_name(side, type(each)): each.model for side, each in sides.items()}
        if isinstance(self.source, SentencePiece):
            return {loading.SHARED: self.source.model}
        return self.source.files()

    def hf_files(self) -> dict[str, bytes]:
        """Returns the files that AutoTokenizer reads; none for two tokenizers."""
        return self.source.hf_files() if self.source is self.target else {}

    def save(self, folder: pathlib.Path) -> None:
        write_files(self.files(), folder)

    @classmethod
    def of_files(cls, files: dict[str, bytes]) -> "Pair":
        """Returns the tokenizers of saved files: those of a pair, or of a single tokenizer."""
        sides = [
            kind(files[_name(side, kind)])
            for side in ("source", "target")
            for kind in loading.KINDS.values()
            if _name(side, kind) in files
        ]
        if len(sides) == 2:
            return cls(*sides)
        shared = loading.of_files(files)
        return cls(shared, shared)

    @classmethod
    def read_published(cls, folder: pathlib.Path) -> "Pair":
        """Returns the tokenizers of a published model. Raises UserError for other content."""
        if not (folder / "source.spm").exists():
            shared = loading.read_published(folder)
            return cls(shared, shared)
        with loading.unreadable_as_user_error(folder):
            return cls(*marian.of_folder(folder))

    @classmethod
    def load(cls, folder: pathlib.Path) -> "Pair":
        """Returns the tokenizers that a run has saved. Raises UserError where there are none."""
        with loading.unreadable_as_user_error(folder):
            return cls.of_files(loading.files_of(folder))


class ContinuedPair(Pair):
    """One tokenizer of a source and of a target that continues it in the same row.

    A target has no start of its own. A decoder reads masks, and writes neither those nor starts.
    """

    def __init__(self, shared: Tokenizer):
        target = copy.copy(shared)
        target.never = (*shared.never, shared.cls_id, shared.mask_id)
        target.cls_id, target.bos_id = None, shared.mask_id
        super().__init__(shared, target)

    def fingerprint(self) -> list[str]:
        return [*super().fingerprint(), "continued"]

    def files(self) -> dict[str, bytes]:
        return Pair(self.source, self.source).files()

    def hf_files(self) -> dict[str, bytes]:
        return self.source.hf_files()


def _name(side: str, kind: type[Tokenizer]) -> str:
    """Returns the name of the file of one side, such as "source.model"."""
    return f"{side}.{kind.file.removeprefix('sentencepiece.')}"


def check_pair(pair: Pair, source_vocab_size: int | None, vocab_size: int) -> None:
    """Raises UserError where a tokenizer has more tokens than the model."""
    check_source(pair.source, source_vocab_size, vocab_size)
    loading.check_size(pair.target, vocab_size)


def check_source(source: Tokenizer, source_vocab_size: int | None, vocab_size: int) -> None:
    """Raises UserError where the tokenizer of the sources has more tokens than the model."""
    if source_vocab_size is None:
        loading.check_size(source, vocab_size)
    else:
        loading.check_size(source, source_vocab_size, "source_vocab_size")
