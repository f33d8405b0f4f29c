"""The patterns of Sparse Transformers: two sets of keys of each query (Child et al. 2019)."""

import dataclasses
from typing import Literal

import numpy as np
from jaxtyping import Array, Bool, Int

# The sets that the heads of a layer attend to. "split": the first half of the heads attends to near
# keys, the second half to far keys.
Attends = Literal["near", "far", "both", "split"]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The near and the far keys of a query (section 4.3). Places count from 0 in each text.

    strided: near keys are the last `stride` places. Far keys are at distances of 0, `stride`, 2
      `stride` and so on.
    fixed: a text has blocks of `stride` places. Near keys are those of the query's own block. Far
      keys are the last `num_summaries` places of each block.

    The methods take places of queries and of keys, and ignore that later keys are hidden.
    """

    name: Literal["strided", "fixed"]
    stride: int
    num_summaries: int = 1

    def near(self, queries: Int[Array, "*#A"], keys: Int[Array, "*#A"]) -> Bool[Array, "*#A"]:
        """Returns whether a key is near."""
        if self.name == "strided":
            return queries - keys < self.stride
        return queries // self.stride == keys // self.stride

    def far(self, queries: Int[Array, "*#A"], keys: Int[Array, "*#A"]) -> Bool[Array, "*#A"]:
        """Returns whether a key is far."""
        if self.name == "strided":
            return (queries - keys) % self.stride == 0
        return self.is_summary(keys)

    def is_summary(self, places: Int[Array, "*A"]) -> Bool[Array, "*A"]:
        """Returns whether a place is far from later blocks of the fixed pattern."""
        return places % self.stride >= self.stride - self.num_summaries

    def first_near(self, places: Int[Array, "*A"]) -> Int[Array, "*A"]:
        """Returns the first place of a query's near keys. It may be before the text."""
        if self.name == "strided":
            return places - self.stride + 1
        return places - places % self.stride

    def num_pairs(self, length: int, attends: Attends) -> float:
        """Returns the number of pairs of a query and a visible key: the mean of all heads."""
        block, place = np.divmod(np.arange(length), self.stride)
        if self.name == "strided":
            near = np.where(block > 0, self.stride, place + 1)
            earlier, own = block, 1
        else:
            near = place + 1
            earlier = block * self.num_summaries
            own = np.maximum(near - (self.stride - self.num_summaries), 0)
        far = earlier + own
        # The far keys of the own block are near keys, too.
        pairs = {"near": near, "far": far, "both": near + earlier, "split": (near + far) / 2}
        return float(pairs[attends].sum())
