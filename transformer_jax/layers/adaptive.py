"""Adaptive input embeddings, and the adaptive softmax that shares their tables.

Grave et al. 2017 sort a vocabulary by frequency and divide it at cutoffs into a head, which holds
the most frequent tokens, and tails. Baevski & Auli 2019, section 3, use narrower embeddings for the
tails.
"""

import dataclasses
import itertools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers.embeddings import AdaptiveSoftmax, Cluster, Embed, Projection, check_ids
from transformer_jax.layers.parameters import declared, dense


@dataclasses.dataclass(frozen=True)
class Clusters:
    """The clusters of a vocabulary. The first cluster is the head, the others are the tails."""

    num_tokens: int
    width: int  # of the embeddings of the head
    cutoffs: tuple[int, ...]
    divisor: int = 1

    @property
    def sizes(self) -> list[int]:
        """The number of tokens in each cluster."""
        bounds = [min(bound, self.num_tokens) for bound in (0, *self.cutoffs, self.num_tokens)]
        return [stop - start for start, stop in itertools.pairwise(bounds)]

    @property
    def widths(self) -> list[int]:
        """The embedding width of each cluster."""
        return [self.width // self.divisor**number for number in range(len(self.cutoffs) + 1)]

    def check(self) -> None:
        """Raises UserError if a cluster has no tokens or its embeddings would have width 0."""
        if list(self.cutoffs) != sorted(set(self.cutoffs)) or min(*self.cutoffs, *self.sizes) < 1:
            raise UserError(
                f"config.model.adaptive_cutoffs={self.cutoffs}: must ascend, and lie between 0 and "
                f"config.model.vocab_size={self.num_tokens}"
            )
        if self.divisor < 1 or min(self.widths) < 1:
            raise UserError(
                f"config.model.adaptive_divisor={self.divisor}: must be at least 1, and leave of "
                f"config.model.d_model={self.width} a width of at least 1 after the last cutoff"
            )

    def num_padding(self, multiple: int) -> int:
        """Returns the number of parameters that pad tables and biases to a multiple of rows."""
        return sum(-size % multiple * (width + 1) for size, width in zip(self.sizes, self.widths))

    def flops(self, inputs: int, positions: int) -> float:
        """Returns the FLOPs of the embeddings of `inputs` and of the softmax at `positions`.

        The logits of a tail are counted for the expected number of labels in it under Zipf's law,
        by which the frequency of the token of rank r is proportional to 1 / r. The sum of 1 / r up
        to n is approximated by log(n) + 0.5772.
        """
        if not self.num_tokens:
            return 0.0
        sizes, widths = self.sizes, self.widths
        total = dense(positions, self.width, sizes[0] + len(self.cutoffs))
        bounds = itertools.pairwise([*self.cutoffs, self.num_tokens])
        for size, width, (first, last) in zip(sizes[1:], widths[1:], bounds):
            share = math.log(last / first) / (math.log(self.num_tokens) + np.euler_gamma)
            total += share * dense(positions, width, size)
        if self.divisor > 1:
            total += dense(inputs + positions, self.width, sum(widths))
        return total


class AdaptiveEmbed(nn.Module):
    """An embedding table for each cluster of tokens: int32 ids (B, L) -> `dtype` (B, L, M).

    The embeddings of cluster i have the width M / divisor^i. If the divisor is above 1, they are
    projected to M. As in `Embed`, the rows of each table are padded to a multiple of `multiple`,
    and ids are checked.
    """

    clusters: Clusters
    init_std: float = 0.02
    dtype: jnp.dtype = jnp.float32
    multiple: int = 1

    def setup(self):
        init = nn.initializers.normal(self.init_std)
        options = dict(init=init, dtype=self.dtype, multiple=self.multiple)
        shapes = zip(self.clusters.sizes, self.clusters.widths)
        self.table = [Embed(*shape, **options) for shape in shapes]
        # There are no projections for the divisor 1, because all tables then have the width of the
        # model.
        widths = self.clusters.widths if self.clusters.divisor > 1 else []
        self.projections = [
            _projection(self, f"projection_{number}", (width, self.clusters.width), self.init_std)
            for number, width in enumerate(widths)
        ]

    def __call__(self, ids: Int[ArrayLike, "B L"]) -> Float[Array, "B L M"]:
        if not isinstance(ids, jax.core.Tracer):
            # Ids are checked here, because `Embed` sees only positions within a cluster and could
            # not name the id.
            check_ids(np.asarray(ids), self.clusters.num_tokens)
        first, total = 0, jnp.zeros((), self.dtype)
        for number, size in enumerate(self.clusters.sizes):
            # The first cluster has no lower bound and the last one no upper bound, so that an id
            # outside the vocabulary reaches `Embed` and becomes NaN rather than a silent zero.
            inside = jnp.ones(ids.shape, bool) if number == 0 else ids >= first
            if number < len(self.clusters.cutoffs):
                inside &= ids < first + size
            # Ids of other clusters look up row 0, which is discarded below. A table is read at all
            # positions, because a shape cannot depend on how many ids belong to a cluster.
            x = self.table[number](jnp.where(inside, ids - first, 0))
            if self.projections:
                x = x @ self.projections[number].astype(x.dtype)
            total += jnp.where(inside[..., None], x, 0)
            first += size
        return total

    def output(self) -> tuple[Cluster, ...]:
        """Returns the clusters of an adaptive softmax tied to the tables, without biases."""
        sizes = self.clusters.sizes
        rows = [table.output() for table in self.table]
        return tuple(map(Cluster, rows, self.projections or [None] * len(sizes), sizes))


class AdaptiveOutput(nn.Module):
    """The parameters of an adaptive softmax that are not shared with the input embeddings.

    These are the biases, and the rows by which the head predicts the tails. The head has a
    projection of its own, whereas the tails share the projections of the embeddings, as in the
    published code of Dai et al. 2019.
    """

    init_std: float = 0.02

    @nn.compact
    def __call__(self, clusters: tuple[Cluster, ...]) -> AdaptiveSoftmax:
        head, *tails = [self._biased(*numbered) for numbered in enumerate(clusters)]
        table, bias = head.rows
        count = len(tails)
        init = declared(nn.initializers.normal(self.init_std), (None, "embed"), decays=True)
        tail_rows = self.param("tail_rows", init, (count, table.shape[1]))
        tail_bias = self.param("tail_bias", declared(nn.initializers.zeros, (None,)), (count,))
        table = jnp.concatenate([table, tail_rows.astype(table.dtype)])
        rows = Projection(table, jnp.concatenate([bias, tail_bias]))
        own = head.projection
        if own is not None:
            own = _projection(self, "head_projection", own.shape, self.init_std)
        return AdaptiveSoftmax(head.replace(rows=rows, projection=own), tuple(tails))

    def _biased(self, number: int, cluster: Cluster) -> Cluster:
        """Returns the cluster with a learned bias added."""
        init = declared(nn.initializers.zeros, ("vocab",))
        bias = self.param(f"bias_{number}", init, cluster.rows.table.shape[:1])
        return cluster.replace(rows=cluster.rows.biased(bias))


def _projection(
    module: nn.Module, name: str, shape: tuple[int, int], init_std: float
) -> Float[ArrayLike, "E M"]:
    """Declares the matrix that projects the embeddings of a cluster to the width of a model.

    Its initial standard deviation is half the one of the embeddings, as in the published code of
    Dai et al. 2019.
    """
    init = declared(nn.initializers.normal(init_std / 2), (None, "embed"), decays=True, inputs=1)
    return module.param(name, init, shape)
