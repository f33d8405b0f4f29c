"""Tagged sentences in CoNLL's columns."""

import dataclasses
from collections.abc import Iterator

from transformer_jax.config import UserError
from transformer_jax.data.sources.file_digests import sha256
from transformer_jax.data.sources.tables import Record
from transformer_jax.data.sources.text_files import text_lines


@dataclasses.dataclass(frozen=True)
class Conll:
    """Sentences with one word a line; the last column is its tag.

    A blank line ends a sentence. `prefix` is removed from each word.
    """

    paths: tuple[str, ...]
    prefix: str = ""

    def fingerprint(self) -> dict:
        return {"files": sha256(self.paths), "prefix": self.prefix}

    def __iter__(self) -> Iterator[Record]:
        """Yields a record for each sentence; its values are (words, tags)."""
        for path in self.paths:
            yield from self._sentences(path)

    def _sentences(self, path: str) -> Iterator[Record]:
        words, tags = [], []
        first_line = 1
        width = 0
        for number, line in enumerate(text_lines(path), 1):
            line = line.strip("\ufeff")  # Some published files hold marks inside.
            if not line.strip() or line.startswith("-DOCSTART-"):
                if words:
                    yield Record(f"{path}:{first_line}", (tuple(words), tuple(tags)))
                words, tags = [], []
                first_line = number + 1
                continue
            columns = line.split("\t") if "\t" in line else line.split(" ")
            if len(columns) < 2 or not columns[0].strip() or not columns[-1].strip():
                raise UserError(f"{path}:{number}: expected columns, a word first and its tag last")
            width = width or len(columns)
            if len(columns) != width:
                raise UserError(f"{path}:{number}: {len(columns)} columns, {width} before")
            words.append(columns[0].removeprefix(self.prefix))
            tags.append(columns[-1].strip())
        if words:
            yield Record(f"{path}:{first_line}", (tuple(words), tuple(tags)))
