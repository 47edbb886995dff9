"""What every aggregation promises. The set is closed: strategies rely on its two properties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from outgrow.core.block import Block

Aggregate = Callable[[Block, Tensor, Tensor | None, Tensor | None], Tensor]
"""What an `Aggregation` does when it is called."""


class Aggregation(ABC):
    """Combines the source rows of the in-edges of each destination.

    Attributes:
        sliceable: Columns do not mix, so a slice of the columns can be aggregated alone.
        additive: The result over all in-edges is the sum of the results over parts of them.
    """

    sliceable: bool
    additive: bool

    @abstractmethod
    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate.

        Args:
            block: Edges from ``Vs`` sources to ``Vd`` destinations.
            src_VsCF: ``[Vs, C, F]`` rows of the sources.
            dst_VdCF: ``[Vd, C, F]`` rows of the destinations; None where the aggregation reads none.
            weight_EK: ``[E, K]`` weight of each edge; None if all are 1.

        Returns:
            ``[Vd, C', F]``; zeros for a destination without in-edges.
        """

    def on_columns(self, first: int, last: int) -> Aggregate:
        """The same for rows that hold columns ``first`` to ``last - 1`` alone; where it is `sliceable`."""
        assert self.sliceable
        return self
