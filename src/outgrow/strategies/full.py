"""`full`: every node, every neighbour, every epoch. The reference of all full-graph strategies.

With several workers, each owns the nodes of one part of a partition and sends, layer by layer, the rows that
others need.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from outgrow.core.arguments import check_arguments
from outgrow.core.validation import validate_choice
from outgrow.engine.nodewise import predicts_links_by_node
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.strategies.base import Execution, FullGraphExecution, Problem, Strategy


@check_arguments()
@dataclass(frozen=True, kw_only=True)
class Full(Strategy):
    """Full-graph training. One step per epoch. Several workers exchange the rows of their halos.

    Attributes:
        partition: How nodes are assigned to workers: see ``outgrow partition``.
        overlap: Whether to aggregate a worker's own rows while those of others are received.
    """

    name = "full"
    exact = True
    reads_own_features = True

    partition: str = "metis"
    overlap: bool = True

    def __post_init__(self) -> None:
        validate_choice("partition", self.partition, WITHOUT_CHUNKS)

    def options(self) -> dict[str, object]:
        """Return the options by name."""
        return asdict(self)

    def computes_read_rows(self, problem: Problem) -> bool:
        """See `Strategy.computes_read_rows`: where nothing of a node depends on others."""
        return predicts_links_by_node(problem)

    def prepare(self, problem: Problem) -> Execution:
        """Return the execution that trains the problem."""
        return FullGraphExecution(problem, overlap=self.overlap)
