"""Generated protein families, whose residues coevolve in pairs, as in real families.

The structure of a family is a sheet: strands of equal length that loops connect. The residues at
the same height of all strands form a rung, and all residues of a rung are in contact with each
other. For each rung, a member of the family draws a class of amino acids, and the residues of the
rung belong to that class. The loops are copies, with substitutions, of a sequence that the family
draws from a Markov chain.
"""

import dataclasses
import functools
import itertools
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float64, Int

from transformer_jax.config import PositiveInt, Range, Share, UserError
from transformer_jax.contracts.source import Source
from transformer_jax.data import proteins
from transformer_jax.data.rows import generator

# Classes of amino acids: aliphatic, aromatic and large, polar, charged, and the others. They are
# equally large, so that a residue is a class and a number within it.
CLASSES = ("AVLI", "FWYM", "STNQ", "DEKR", "CGPH")
# Residues are numbers until the end, because numbers of a class are then a range.
_LETTERS = np.frombuffer("".join(CLASSES).encode(), np.uint8)
_SIZE = len(CLASSES[0])
_LOOP = (3, 4)  # minimum and maximum number of residues in a loop
_END = (1, 2)  # the same for the two ends of the sequence
_PREFERRED = 0.7  # probability of the residue that a position in a strand prefers in each class
_SPLITS = ("train", "valid", "test")


class Family(NamedTuple):
    """The structure of a family of proteins with N residues."""

    rungs: Int[np.ndarray, "R S"]  # the position of each rung in each strand, from 0
    loops: Int[np.ndarray, " N"]  # the residue at each position of the family's own sequence
    preferred: Int[np.ndarray, "N C"]  # the residue that each position prefers in each class

    @property
    def contacts(self) -> Int[np.ndarray, "P 2"]:
        """The pairs of positions in contact."""
        pairs = itertools.combinations(range(self.rungs.shape[1]), 2)
        # Sorted, because a contact has no direction, and each pair must occur once.
        return np.concatenate([np.sort(self.rungs[:, pair], axis=1) for pair in pairs])


@dataclasses.dataclass
class ProteinFamilies(Source):
    """Members of each family in turn. Held-out members belong to the same families."""

    families: PositiveInt = 4  # number of families
    members: PositiveInt = 1000  # proteins of a family in the training split
    held_out: PositiveInt = 30  # proteins of a family in each of the other splits
    strands: Annotated[int, Range(least=2)] = 6  # strands of a sheet
    rungs: PositiveInt = 6  # residues of a strand
    conserved: Share = 0.8  # share of the residues of loops that the family conserves
    coupled: Share = 0.95  # share of the residues of strands that are of the class of their rung
    # numbers of the families in the training split, from 0; empty: all
    train_families: tuple[int, ...] = ()
    valid_families: tuple[int, ...] = ()  # as train_families, in the other splits
    seed: int = 0  # of the families and their members

    def __post_init__(self):
        for key in ("train_families", "valid_families"):
            if not all(0 <= number < self.families for number in getattr(self, key)):
                raise UserError(
                    f"config.source.{key}={getattr(self, key)}: must be numbers below "
                    f"config.source.families={self.families}"
                )

    def fingerprint(self, split):
        keys = [field.name for field in dataclasses.fields(self) if field.name != "data"]
        return [split, *(getattr(self, key) for key in keys)]

    def read(self, split):
        count = self.members if split == "train" else self.held_out
        own = self.train_families if split == "train" else self.valid_families
        for member, number in itertools.product(range(count), own or range(self.families)):
            family = self.structures[number]
            # Key 0 draws the structures, 1 to 3 the members of the splits and 4 the Markov chain,
            # so that more members or another split never change a family.
            key = np.array([self.seed, 1 + _SPLITS.index(split)], np.uint64)
            residues = self._member(family, generator(key, number, member))
            yield proteins.record(residues, family.contacts, family=number)

    @functools.cached_property
    def structures(self) -> list[Family]:
        """The structure of each family."""
        return [self._structure(number) for number in range(self.families)]

    def _structure(self, number: int) -> Family:
        random = generator(np.array([self.seed, 0], np.uint64), number, 0)
        gaps = [random.integers(_END[0], _END[1] + 1)]
        gaps += [random.integers(_LOOP[0], _LOOP[1] + 1) for _ in range(self.strands - 1)]
        starts = np.cumsum(gaps) + self.rungs * np.arange(self.strands)
        size = starts[-1] + self.rungs + random.integers(_END[0], _END[1] + 1)
        heights = np.arange(self.rungs)[:, None]
        # The direction of each strand: those of a real sheet run in the same or in opposite
        # directions.
        is_reversed = random.random(self.strands) < 0.5
        rungs = starts + np.where(is_reversed, self.rungs - 1 - heights, heights)
        within = random.integers(_SIZE, size=(size, len(CLASSES)))
        preferred = within + _SIZE * np.arange(len(CLASSES))
        return Family(rungs, self._sequence(size, random), preferred)

    def _sequence(self, size: int, random: np.random.Generator) -> np.ndarray:
        """Draws a sequence of residues (N,) from the Markov chain."""
        sequence = [int(random.integers(len(_LETTERS)))]
        while len(sequence) < size:
            sequence.append(int(random.choice(len(_LETTERS), p=self._transitions[sequence[-1]])))
        return np.array(sequence)

    @functools.cached_property
    def _transitions(self) -> Float64[np.ndarray, "V V"]:
        """The transition probabilities of the Markov chain, which all families share."""
        random = generator(np.array([self.seed, 4], np.uint64), 0, 0)
        # Below 1, the parameter makes few transitions likely, so that loops have local patterns to
        # learn.
        return random.dirichlet(np.full(len(_LETTERS), 0.3), len(_LETTERS))

    def _member(self, family: Family, random: np.random.Generator) -> str:
        size = len(family.loops)
        residues = random.integers(len(_LETTERS), size=size)
        is_conserved = random.random(size) < self.conserved
        residues = np.where(is_conserved, family.loops, residues)
        classes = random.integers(len(CLASSES), size=len(family.rungs))[:, None]  # (R, 1)
        prefers = random.random(family.rungs.shape) < _PREFERRED
        # A residue of the rung's class, but not always the one that its position prefers, so that
        # partners reveal the class and not the residue itself.
        others = _SIZE * classes + random.integers(_SIZE, size=family.rungs.shape)
        own = np.where(prefers, family.preferred[family.rungs, classes], others)
        is_coupled = random.random(family.rungs.shape) < self.coupled
        uncoupled = random.integers(len(_LETTERS), size=family.rungs.shape)
        residues[family.rungs] = np.where(is_coupled, own, uncoupled)
        return _LETTERS[residues].tobytes().decode()
