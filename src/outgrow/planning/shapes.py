"""Where the figures of a workload come from: a graph at hand, counted whole."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from outgrow.engine.chunks.plan import Techniques
from outgrow.engine.slices.lane import dealt
from outgrow.graph.graph import Graph
from outgrow.graph.partition.cache import partition_of
from outgrow.graph.partition.method import WITHOUT_CHUNKS
from outgrow.nn.model import Model
from outgrow.planning.draws import Draws
from outgrow.planning.waves import Cutter, Cutting
from outgrow.planning.workload import Chunked, Cut, Dealt, Drawing, Drawn, Workload, cut_of, graph_sizes, model_sizes
from outgrow.runtime.packing import packed


def workload_of(graph: Graph, model: Model) -> Workload:
    """A graph with features and labels, and a model for it; partitions are made when they are asked for."""
    return Workload(graph=graph_sizes(graph), model=model_sizes(model, graph), shape=Counted(graph))


class Counted:
    """A graph at hand; see `Shape`. What was asked for is kept. Final.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.cut, self.dealt = cache(self._cut), cache(self._dealt)
        self.chunked, self.drawn = cache(self._chunked), cache(self._drawn)

    def _partition(self, method: str, parts: int) -> Tensor:
        topology = self.graph.topology
        return partition_of(topology, WITHOUT_CHUNKS[method], parts, store=self.graph.store).part

    def _cut(self, method: str, parts: int) -> Cut:
        topology = self.graph.topology
        return cut_of(topology.indptr, topology.indices, self._partition(method, parts), parts)

    def _dealt(self, chunks: int, parts: int, *, self_loops: bool) -> Dealt:
        topology = self.graph.topology
        view = topology.with_self_loops if self_loops else topology
        owner = dealt(view.indptr, view.indices, chunks, parts)
        nodes = torch.bincount(owner.long(), minlength=parts).numpy()
        return Dealt(nodes, bool((owner.diff() >= 0).all()), len(packed(owner)))

    def _chunked(self, cutting: Cutting, views: tuple[bool, ...], parts: int, techniques: Techniques) -> Chunked:
        owner = self._partition(cutting.partition, parts)
        own = [(owner == part).nonzero()[:, 0] for part in range(parts)]
        cutter = Cutter(self.graph.topology, views, own, cutting)
        return Chunked(len(packed(cutter.order)), {view: cutter.waves(view, techniques) for view in views})

    def _drawn(self, drawing: Drawing, parts: int) -> Drawn:
        owner = self._partition(drawing.partition, parts)
        return Draws(self.graph, owner, parts, drawing).look()
