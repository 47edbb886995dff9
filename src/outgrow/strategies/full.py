"""`full`: every node, every neighbour, every epoch. The reference of all full-graph strategies.

On N workers each owns the nodes of one part of a partition and sends, layer by layer, the rows that others need.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from typing import get_type_hints

from torch import Tensor

from outgrow.core.nearest import pick
from outgrow.core.option_types import require_types
from outgrow.engine.resident import ResidentPass
from outgrow.engine.share import Share, share_of
from outgrow.graph.graph import Graph
from outgrow.graph.partition.method import WITHOUT_CHUNKS
from outgrow.runtime.comm import Comm
from outgrow.strategies.base import Execution, Problem, Step, Strategy, whole_inference


@dataclass(frozen=True, kw_only=True)
class Full(Strategy):
    """Full-graph training. One step per epoch. Nothing moves on one worker; rows of the halo on several.

    Attributes:
        partition: How nodes are dealt out to workers: see ``outgrow partition``.
        overlap: Whether to aggregate a worker's own rows while those of others are under way.
    """

    name = "full"
    exact = True

    partition: str = "metis"
    overlap: bool = True

    def __post_init__(self) -> None:
        require_types(asdict(self), get_type_hints(Full))
        pick("partition", self.partition, WITHOUT_CHUNKS)

    def share(self, graph: Graph, comm: Comm, *, self_loops: bool) -> Share:
        """See `Strategy.share`: the nodes that a worker owns by the partition."""
        return share_of(graph.topology, comm, WITHOUT_CHUNKS[self.partition], graph.store, self_loops=self_loops)

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return _FullExecution(problem, overlap=self.overlap)


class _FullExecution:
    in_memory = True

    def __init__(self, problem: Problem, *, overlap: bool) -> None:
        self.problem = problem
        self.work = ResidentPass(
            problem.model, problem.share, problem.input, problem.goal, problem.seed, overlap=overlap
        )

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        if first == 0:
            yield Step(loss=self.work.epoch(epoch), num_seeds=self.problem.num_train)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return whole_inference(self.problem)

    def close(self) -> None:
        self.work.close()
