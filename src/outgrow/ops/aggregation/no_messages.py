"""`NoMessages`: the aggregation of layers that read no neighbours."""

from __future__ import annotations

from torch import Tensor

from outgrow.core.block import Block
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.sparse import PartialRows


class NoMessages(Aggregation):
    """Zeros for all destinations; edges are not read. Final."""

    sliceable = True
    additive = True
    reads_sources = False

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Return ``[Vd, C, F]`` zeros."""
        # The product keeps the result in autograd, where backward passes look for the gradient of the sources.
        return src_VsCF.new_zeros(block.edges.num_dst, *src_VsCF.shape[1:]) + 0 * src_VsCF.sum()


def zero_aggregate(x_VD: Tensor | PartialRows, channels: int, columns: int) -> Tensor:
    """Return ``[V, channels, columns]``: the aggregate of nodes whose neighbours send nothing."""
    return x_VD.new_zeros(len(x_VD), channels, columns)
