"""Sentence pairs as documents of a causal language model, which learns to continue the source with
the target.
"""

import dataclasses
from collections.abc import Iterator

from transformer_jax.data.sources.pairs import SentencePairs


@dataclasses.dataclass(frozen=True)
class Marked:
    """Documents SOURCE MARKER TARGET, one for each pair.

    Examples: "I am a student <to-fr> je suis étudiant", "ARTICLE <summarize> SUMMARY". The prompt
    of the trained model is "SOURCE MARKER"; the document ends after the target. Liu et al. 2018,
    section 4.2.3, use one sequence with a delimiter for summaries.
    """

    pairs: SentencePairs
    marker: str

    def fingerprint(self) -> dict:
        return {"pairs": self.pairs.fingerprint(), "marker": self.marker}

    def parts(self) -> list["Marked"]:
        return [Marked(part, self.marker) for part in self.pairs.parts()]

    def __iter__(self) -> Iterator[str]:
        return (f"{source} {self.marker} {target}" for source, target in self.pairs)
