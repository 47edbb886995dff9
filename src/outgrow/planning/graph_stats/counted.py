"""Where the figures of a workload come from: a graph at hand, counted whole."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from outgrow.engine.batches import EVERYTHING, Batches
from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.graph.partition.partition_cache import partition_of
from outgrow.graph.partition.presampled import MetisByAccess
from outgrow.nn.model import Model
from outgrow.planning.graph_stats.chunk_waves import Cutter, Cutting
from outgrow.planning.graph_stats.sampled_batches import Draws, HotDraws
from outgrow.planning.sizes import graph_sizes, model_sizes
from outgrow.planning.workload import Chunked, Cut, Dealt, Drawing, Drawn, Halves, Together, Workload, cut_of, whole_cut
from outgrow.runtime.distributed.serialization import packed
from outgrow.strategies.offload.wave_plan import Techniques
from outgrow.strategies.split.partition import by_access
from outgrow.strategies.tensor.chunk_schedule import dealt


def workload_of(graph: Graph, model: Model, batches: Batches = EVERYTHING, seed: int = 0) -> Workload:
    """What is to be trained at hand; partitions are made, and batches are drawn, when they are asked for.

    Args:
        graph: It has features and labels.
        model: For this graph.
        batches: What batches are made of.
        seed: Seed of the run.
    """
    counted, sizes = Counted(graph), model_sizes(model, graph)
    return Workload(graph=graph_sizes(graph), model=sizes, shape=counted, sampling=counted, batches=batches, seed=seed)


class Counted:
    """A graph at hand; see `Shape` and `Sampling`. What was asked for is kept. Final.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.cut, self.dealt = cache(self._cut), cache(self._dealt)
        self.chunked, self.drawn, self.together = cache(self._chunked), cache(self._drawn), cache(self._together)
        self.halves = cache(self._halves)

    def _partition(self, method: str, parts: int, by: Drawing | None = None) -> Tensor:
        topology = self.graph.topology
        if method != MetisByAccess.name:
            return partition_of(topology, WITHOUT_CHUNKS[method], parts, store=self.graph.store).part
        assert by is not None
        views = [topology.view(self_loops=looped) for looped in by.views]
        found = by_access(views, self.graph.split.train, by.batches)
        return partition_of(topology, found, parts, store=self.graph.store).part

    def _cut(self, method: str, parts: int, by: Drawing | None = None) -> Cut:
        if parts == 1:
            return whole_cut(self.graph.num_nodes, self.graph.num_edges)
        return cut_of(self.graph.topology, self._partition(method, parts, by), parts)

    def _dealt(self, chunks: int, parts: int, *, self_loops: bool) -> Dealt:
        view = self.graph.topology.view(self_loops=self_loops)
        owner = dealt(view.indptr, view.indices, chunks, parts)
        nodes = torch.bincount(owner.long(), minlength=parts).numpy()
        return Dealt(nodes, bool((owner.diff() >= 0).all()), len(packed(owner)))

    def _chunked(self, cutting: Cutting, views: tuple[bool, ...], parts: int, techniques: Techniques) -> Chunked:
        owner = self._partition(cutting.partition, parts)
        own = [(owner == part).nonzero()[:, 0] for part in range(parts)]
        cutter = Cutter(self.graph.topology, views, own, cutting)
        return Chunked(len(packed(cutter.order)), {view: cutter.waves(view, techniques) for view in views})

    def _drawn(self, drawing: Drawing, parts: int) -> Drawn:
        return self._draws(drawing, parts).look()

    def _together(self, drawing: Drawing, parts: int) -> Together:
        return self._draws(drawing, parts).together()

    def _halves(self, drawing: Drawing, parts: int, hot_ratio: float, super_batch: int) -> Halves:
        return HotDraws(self._draws(drawing, parts), hot_ratio, super_batch).look()

    def _draws(self, drawing: Drawing, parts: int) -> Draws:
        return Draws(self.graph, self._partition(drawing.partition, parts, drawing), parts, drawing)
