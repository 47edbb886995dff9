"""`split`: one mini-batch, split over workers: no feature loaded twice, no hidden feature computed twice.

Polisetty, Liu, Falus, Fung, Lim, Guan, Serafini: GSplit: scaling graph neural network training on large graphs via
split-parallelism, 2023. Every node of every layer of a batch belongs to the worker that owns it by a partition made
beforehand, which loads its features or keeps them on its device. Hidden features cross where edges do. Workers draw
later batches, each for its own nodes, while they compute one.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import NamedTuple, get_type_hints

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.validation import pick, require_positive, require_types
from outgrow.engine.batches import Batches, count_drawn
from outgrow.engine.features.cache import hotness_by, hottest_own, require_cache
from outgrow.engine.features.remote import row_type
from outgrow.engine.features.store import FeatureRequest, FeatureStore
from outgrow.engine.prefetch import BackgroundWorker
from outgrow.engine.shard import Part, view_of
from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS, Method
from outgrow.graph.partition.presampled import MetisByAccess
from outgrow.nn.layer import Layer
from outgrow.nn.model import Model, layer_key
from outgrow.ops import memory_pool
from outgrow.ops.kernels.numerics import is_half
from outgrow.ops.rng import derive
from outgrow.strategies.base import Execution, Problem, Step, Strategy, inference_after_batches
from outgrow.strategies.split.features import OwnFeatureStore
from outgrow.strategies.split.layers import Hop, RowBytes, cooperative, is_summed, summed_hop
from outgrow.strategies.split.partition import by_access
from outgrow.strategies.split.sampler import SplitHop, SplitSampler, drawn

BY_ACCESS = MetisByAccess.name
_BEFORE = 0  # epochs are numbered from 1
_SPARE = 0.5  # no two batches are of one size


@dataclass(frozen=True, kw_only=True)
class SplitParallel(Strategy):
    """Training on sampled mini-batches, each computed by all workers together. Hidden features move along cut edges.

    Attributes:
        partition: How nodes, and with them all work and all features, are dealt out to workers: see
            ``outgrow partition``; or ``metis-access``, METIS with parts that are even in the in-edges drawn in an epoch
            that is drawn first and not trained, and in seeds.
        ahead: Batches that are drawn, or being drawn, besides the one that is computed.
        cache: Size of a worker's cache, on its device, of rows of its own nodes, as bytes (``"64MiB"``) or as a share
            of all rows of the graph (0.1).
        cache_by: Which rows are cached: those of nodes with most out-edges (``"degree"``), or those that are asked for
            most in an epoch that is drawn first and not trained (``"presampling"``).
        partial: Whether parts of sums go to other workers instead of their sources, where that is fewer bytes.
    """

    name = "split"
    exact = True
    takes_batches = True

    partition: str = BY_ACCESS
    ahead: int = 4
    cache: str | float = 0.0
    cache_by: str = "degree"
    partial: bool = True

    def __post_init__(self) -> None:
        require_types(asdict(self), get_type_hints(SplitParallel))
        pick("partition", self.partition, dict.fromkeys((BY_ACCESS, *WITHOUT_CHUNKS)))
        require_cache(self.cache, "worker", self.cache_by)
        require_positive(self.name, ahead=self.ahead)

    def options(self) -> dict[str, object]:
        """See `Strategy.options`."""
        return asdict(self)

    def method(self, graph: Graph, model: Model, batches: Batches) -> Method:
        """See `Strategy.method`."""
        if self.partition != BY_ACCESS:
            return WITHOUT_CHUNKS[self.partition]
        views = [view_of(graph.topology, layer) for layer in model.stages()]
        return by_access(views, graph.split.train, batches)

    def prepare(self, problem: Problem) -> Execution:
        """See `Strategy.prepare`."""
        return _SplitExecution(problem, self)


class _Batch(NamedTuple):
    """A worker's part of one step.

    Attributes:
        step: Number of the step in the epoch.
        seeds: ``[n]`` int64, those that the worker owns.
        num_seeds: Number of seeds over all workers.
        hops: Its part of each layer.
        features: Those of its nodes.
    """

    step: int
    seeds: Tensor
    num_seeds: int
    hops: list[Hop]
    features: FeatureRequest


class _SplitExecution:
    in_memory = True

    def __init__(self, problem: Problem, options: SplitParallel) -> None:
        self.problem, self.share, self.comm, self.ahead = problem, problem.share, problem.share.comm, options.ahead
        self.turn = threading.Lock()
        self.layers, self.partial = problem.model.stages(), options.partial
        layers, topology = self.layers, self.share.topology
        self.sampler = SplitSampler(
            [view_of(topology, layer) for layer in layers],
            problem.batches.hops(len(layers)),
            problem.seed,
            owner=self.share.owner if isinstance(self.share, Part) else None,
            rank=self.comm.rank,
            size=self.comm.size,
            weighted=problem.batches.weighted,
        )
        kept = self._kept(options) if options.cache else None
        given = row_type(problem.model, problem.features)
        self.rows: FeatureStore = OwnFeatureStore(self.comm, problem.features, given, kept)
        self.costs = [_cost(problem.model, index, given) for index in range(len(layers))]

    def steps(self, epoch: int, first: int = 0) -> Generator[Step]:
        seeds = self.problem.seeds(epoch)
        memory_pool.keep_spare(_SPARE)

        timeline = self.comm.timeline

        def draw(step: int) -> _Batch:
            mine = self.share.mine(seeds[step])
            with timeline.span("draw"):
                hops = drawn(self.sampler, self.comm.aside, mine, epoch, step)
            with timeline.span("gather"):
                found = self.rows.prepare_request(hops[0].own)
            return _Batch(step, mine, len(seeds[step]), [*map(self._planned, self.layers, hops, self.costs)], found)

        numbers = range(first, len(seeds))
        with closing(BackgroundWorker(draw, numbers, max_ahead=self.ahead, lock=self.turn)) as batches:
            for batch in timeline.waiting("wait for batches", batches):
                yield self._step(epoch, batch)

    def inference(self) -> Iterator[tuple[int, Tensor]]:
        return inference_after_batches(self.problem)

    def close(self) -> None:
        memory_pool.clear()

    def _step(self, epoch: int, batch: _Batch) -> Step:
        problem, comm = self.problem, self.comm
        with comm.timeline.span("forward"):
            logits = self._logits(batch, derive(problem.seed, epoch, batch.step))
            loss = problem.batch_loss(logits, problem.own_labels(batch.seeds), batch.num_seeds)
        with comm.timeline.span("backward"):
            torch.autograd.backward(loss)
        comm.sum_gradients(problem.model)
        for hop in batch.hops:
            count_drawn(comm.ledger, hop.drawn.block.edges)
            comm.ledger.count("local_edges", hop.drawn.num_local_edges)
            comm.ledger.count("remote_rows", hop.remote_rows)
        return Step(loss=comm.sum_(loss.detach().double().cpu()).item(), num_seeds=batch.num_seeds)

    def _logits(self, batch: _Batch, key: int) -> Tensor:
        """``[n, C]`` of the worker's own seeds. All workers together."""
        model, comm = self.problem.model, self.comm
        own = batch.hops[0].drawn.own.to(comm.device)
        x = model.input(self.rows.send_request(batch.features).wait(), own, key)
        for index, (layer, hop) in enumerate(zip(self.layers, batch.hops, strict=True)):
            kind = Kind.FEATURES if index == 0 and model.passes_features_on else Kind.ACTIVATIONS
            x = cooperative(layer, hop.to(comm.device), x, layer_key(key, index), comm, kind)
        assert isinstance(x, Tensor)
        return x

    def _planned(self, layer: Layer, hop: SplitHop, cost: RowBytes) -> Hop:
        """All workers together, in the same order."""
        if self.comm.size == 1 or not is_summed(layer) or is_half(cost.dtype):
            return Hop(hop)
        return Hop(hop, summed_hop(layer, hop, cost, self.comm.aside, partial=self.partial))

    def _kept(self, options: SplitParallel) -> Tensor:
        """Nodes whose rows are kept on the device. All workers together."""
        hotness = hotness_by(options.cache_by, self.share.topology, self._asked_before)
        return hottest_own(hotness, self.share.own, options.cache, self.problem.features)

    def _asked_before(self) -> Iterator[Tensor]:
        """The nodes whose rows each batch of an epoch asks for that is not trained. All workers together."""
        for step, seeds in enumerate(self.problem.seeds(_BEFORE)):
            yield drawn(self.sampler, self.comm.aside, self.share.mine(seeds), _BEFORE, step)[0].own


def _cost(model: Model, index: int, given: torch.dtype) -> RowBytes:
    """What a row that layer ``index`` sends costs, of features of type ``given``."""
    widths, raw = model.stages()[index].widths, index == 0 and model.passes_features_on
    dtype = given if raw else next(model.parameters()).dtype
    return RowBytes(dtype=dtype, columns=widths.source[0] * widths.source[1], gradient=not raw)
