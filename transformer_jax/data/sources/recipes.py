"""Pairs of texts as documents of a causal language model, which so learns to turn one into the
other.
"""

import dataclasses
from collections.abc import Iterable, Iterator


@dataclasses.dataclass(frozen=True)
class Marked:
    """Each pair as SOURCE MARKER TARGET: "I am a student <to-fr> je suis étudiant", "ARTICLE
    <summarize> SUMMARY".

    The trained model is asked with "SOURCE MARKER" and ends the document behind the target.
    (Sources, targets and a delimiter in one sequence: Liu et al. 2018, section 4.2.3, for
    summaries.)
    """

    pairs: Iterable[tuple[str, str]]  # re-iterable, with a fingerprint: as sources.pairs gives
    marker: str

    def fingerprint(self) -> dict:
        return {"pairs": self.pairs.fingerprint(), "marker": self.marker}

    def __iter__(self) -> Iterator[str]:
        return (f"{source} {self.marker} {target}" for source, target in self.pairs)
