"""`full`: every node, every neighbour, every epoch. The reference of all full-graph strategies.

On N workers each owns the nodes of one part of a partition and sends, layer by layer, the rows that others need.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass
from typing import get_type_hints

import torch

from outgrow.core.nearest import pick
from outgrow.core.option_types import require_types
from outgrow.engine.constant import first_aggregate
from outgrow.engine.full_pass import full_pass
from outgrow.engine.share import Share, share_of
from outgrow.graph.graph import Graph
from outgrow.graph.partition.method import WITHOUT_CHUNKS
from outgrow.ops import buffers
from outgrow.ops.keyed import derive
from outgrow.runtime.comm import Comm
from outgrow.strategies.base import Execution, Problem, Step, Strategy


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
    def __init__(self, problem: Problem, *, overlap: bool) -> None:
        self.problem, self.overlap = problem, overlap
        self.labels = problem.labels[problem.train]
        self.ledger = problem.share.comm.ledger
        self.edges = [problem.share.view(layer).block.edges for layer in problem.model.stages()]
        first = problem.share.view(problem.model.stages()[0]).block
        self.known = first_aggregate(problem.model, first, problem.input.source)
        if self.known is not None:
            self.ledger.count("edges_aggregated", self.edges[0].num_edges)

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        problem, comm = self.problem, self.problem.share.comm
        if first > 0:
            return
        key = derive(problem.seed, epoch, 0)
        logits = full_pass(problem.model, problem.share, problem.input, key, known=self.known, overlap=self.overlap)
        loss = problem.task.loss(logits, self.labels, problem.num_train, problem.train)
        torch.autograd.backward(loss)
        comm.sum_gradients(problem.model)
        for index, edges in enumerate(self.edges):
            if index > 0 or self.known is None:
                self.ledger.count("edges_aggregated", edges.num_edges)
            self.ledger.count("rows_computed", edges.num_dst)
        total = comm.sum_(loss.detach().double())
        yield Step(loss=total.item(), num_seeds=problem.num_train)

    def close(self) -> None:
        self.edges, self.known = [], None
        buffers.clear()
