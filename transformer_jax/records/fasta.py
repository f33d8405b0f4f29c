"""Proteins from FASTA files, with one record for each entry."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from transformer_jax.config import Range, UserError
from transformer_jax.contracts.source import Source
from transformer_jax.data import proteins
from transformer_jax.data.sources import text_files
from transformer_jax.data.sources.text_files import Location, Span, text_lines
from transformer_jax.data.store import Record
from transformer_jax.data.tokenizers.words import AMBIGUOUS, STANDARD
from transformer_jax.pictures.progress import say

_KNOWN = STANDARD + AMBIGUOUS
# Lower-case letters are residues, too, by which data bases denote repeats.
_UNKNOWN = re.compile(rf"[^{_KNOWN}{_KNOWN.lower()}\s]")
_PAIR = re.compile(r"(\d+)-(\d+)")
_CONTACTS = ";contacts "
# A description may be a whole paragraph, of which an error message shows this many characters.
_SHOWN = 60


class _Entry(NamedTuple):
    description: str
    location: Location  # of the description line
    lines: list[tuple[Location, str]]  # lines of residues
    contacts: list[tuple[Location, str]]


class _Damaged(Exception):
    """An entry can't become a record. The message names the line and the fault."""


@dataclasses.dataclass
class Fasta(Source):
    """Entries that consist of a line ">description" and lines of residues.

    Residues are the letters of the 20 amino acids, and X, B, U, Z, O, in upper or lower case. A "*"
    at the end of an entry is dropped. A line ";contacts 3-27 4-26" lists pairs of residues in
    contact, counted from 1.
    """

    # of an entry, at most
    max_residues: Annotated[int, Range(least=1, most=proteins.MOST_RESIDUES)] = 40_000
    # leave out the entries with a fault, such as an unknown residue, and count them; false: end
    # with an error
    skip_damaged: bool = False

    def fingerprint(self, split):
        paths = self.files(split)
        return None if paths is None else text_files.sha256(paths)

    def read(self, split):
        faults = []
        for path in self.files(split):
            for entry in self._entries(path):
                try:
                    yield self._record(entry)
                # Not a UserError, because only faults of an entry may be skipped, and not faults of
                # a file.
                except _Damaged as error:
                    if not self.skip_damaged:
                        remedy = "config.source.skip_damaged=true leaves such entries out"
                        raise UserError(f"{error}; {remedy}") from None
                    faults.append(str(error))
        if faults:
            say(f"{split}: {len(faults):,} damaged entries are left out, the first: {faults[0]}")

    def _entries(self, path: str) -> Iterator[_Entry]:
        """Yields the entries of a file. Raises UserError if it does not start with one."""
        entry, count = None, 0
        for index, line in enumerate(text_lines(path)):
            location = Location(Span(path), index)
            if line.startswith(">"):
                if entry is not None:
                    yield entry
                entry, count = _Entry(line[1:].strip(), location, [], []), 0
            elif line.startswith(_CONTACTS) and entry is not None:
                entry.contacts.append((location, line))
            elif line.strip() and not line.startswith(";"):
                if entry is None:
                    raise UserError(
                        f"{location}: must begin with '>' and a description, as in FASTA"
                    )
                # Lines beyond the limit are not kept, so that a huge entry can't fill the memory.
                if count <= self.max_residues:
                    entry.lines.append((location, line))
                count += len(line)
        if entry is not None:
            yield entry

    def _record(self, entry: _Entry) -> Record:
        name = entry.description[:_SHOWN]
        lines = entry.lines
        if lines:
            location, last = lines[-1]
            # Translated genes end with "*", the stop codon, which is no residue.
            lines[-1] = (location, last.rstrip().removesuffix("*"))
        residues = "".join(_letters(location, line, name) for location, line in lines)
        if not residues:
            raise _Damaged(f"{entry.location}: {name}: no residues")
        if len(residues) > self.max_residues:
            raise _Damaged(
                f"{entry.location}: {name}: more than config.source.max_residues="
                f"{self.max_residues} residues"
            )
        contacts = [pair for line in entry.contacts for pair in _pairs(*line, len(residues))]
        # The shape is given for entries without contacts, too.
        contacts = np.array(contacts, np.int64).reshape(-1, 2)
        return proteins.record(residues, contacts, line=entry.location.index + 1)


def _letters(location: Location, line: str, name: str) -> str:
    """Returns the residues of a line in upper case. Raises _Damaged for another character."""
    if unknown := _UNKNOWN.search(line):
        raise _Damaged(
            f"{location}: {name}: {unknown[0]!r}, character {unknown.start() + 1} of the line, is "
            "not a residue"
        )
    return "".join(line.split()).upper()


def _pairs(location: Location, line: str, size: int) -> Iterator[tuple[int, int]]:
    """Yields the pairs of positions (from 0) in contact. Raises _Damaged for malformed pairs."""
    for word in line.removeprefix(_CONTACTS).split():
        pair = _PAIR.fullmatch(word)
        first, second = map(int, pair.groups()) if pair else (0, 0)
        if not 1 <= min(first, second) <= max(first, second) <= size:
            raise _Damaged(
                f"{location}: {word!r}: must be two numbers from 1 to {size}, as in 3-{size}"
            )
        # Biologists count residues from 1.
        yield first - 1, second - 1
