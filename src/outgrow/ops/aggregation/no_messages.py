"""`NoMessages`: the aggregation of layers that read no neighbours."""

from __future__ import annotations

from torch import Tensor

from outgrow.core.block import Block
from outgrow.ops.aggregation.base import Aggregation


class NoMessages(Aggregation):
    """Rows without columns for all destinations; edges are not read. Final."""

    sliceable = False
    additive = False

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Return ``[Vd, 1, 0]``."""
        # A product with nothing keeps the result in autograd, so that backward passes find the sources.
        return src_VsCF.new_zeros(block.edges.num_dst, 1, 0) + 0 * src_VsCF.sum()
