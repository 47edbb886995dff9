"""Mutants of `split`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.features.store import FeatureRequest
from outgrow.graph.sampling.batch_numbers import BatchRows, NodeNumbers
from outgrow.graph.sampling.edge_sampler import SampledEdges
from outgrow.graph.sampling.layer_sampling import LayerSampling
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle, ProcessGroupComm
from outgrow.strategies.base import Step
from outgrow.strategies.split import layers, sampler
from outgrow.strategies.split.features import OwnFeatureStore
from outgrow.strategies.split.partial_sum_kernels import SplitEdges
from outgrow.strategies.split.sampler import RemoteRequest, SampledSplitBlock, SplitSampler
from outgrow.strategies.split.strategy import _SplitExecution
from suites.hits import Hits

HIDDEN = (Kind.ACTIVATIONS, Kind.FEATURES)


class _Rolled(NamedTuple):
    """Rows that arrive one place off."""

    arrival: ExchangeHandle

    def wait(self) -> Tensor:
        return self.arrival.wait().roll(1, 0)


@contextmanager
def rows_of_others_misplaced() -> Iterator[Hits]:
    """Rows and parts of sums that other workers send are one place off."""
    hits, right = Hits(), ProcessGroupComm.all_to_all

    def rows(self: ProcessGroupComm, rows: Tensor, route: Any, kind: Kind, **others: Any) -> ExchangeHandle:
        arrival = right(self, rows, route, kind, **others)
        if kind not in HIDDEN:
            return arrival
        hits.note(sum(route.receive) > 1)
        return _Rolled(arrival)

    with patch.object(ProcessGroupComm, "all_to_all", rows):
        yield hits


@contextmanager
def gradients_of_sent_rows_lost() -> Iterator[Hits]:
    """What a row earns at another worker comes back and is not added."""
    hits, right = Hits(), ProcessGroupComm.all_to_all

    def rows(self: ProcessGroupComm, rows: Tensor, route: Any, kind: Kind, **others: Any) -> ExchangeHandle:
        lost = kind in HIDDEN and rows.requires_grad
        hits.note(lost and len(rows) > 0)
        return right(self, rows.detach() + 0 * rows if lost else rows, route, kind, **others)

    with patch.object(ProcessGroupComm, "all_to_all", rows):
        yield hits


@contextmanager
def asked_rows_in_another_order() -> Iterator[Hits]:
    """A worker sends the right rows to the right workers, the last one first."""
    hits, right = Hits(), sampler._exchange_requests

    def passed_on(wish: RemoteRequest, line: Comm) -> RemoteRequest:
        asked = right(wish, line)
        hits.note(max(asked.sizes) > 1)
        parts = torch.split(asked.nodes, list(asked.sizes))
        return asked._replace(nodes=torch.cat([part.flip(0) for part in parts]))

    with patch.object(sampler, "_exchange_requests", passed_on):
        yield hits


@contextmanager
def _other_hops(change: Callable[[list[SampledSplitBlock]], list[SampledSplitBlock]]) -> Iterator[Hits]:
    hits, right = Hits(), SplitSampler.sample_hops

    def hops(self: SplitSampler, *given: Any) -> Generator[RemoteRequest, RemoteRequest, list[SampledSplitBlock]]:
        found = yield from right(self, *given)
        changed = change(found)
        hits.note(any(one is not other for one, other in zip(found, changed, strict=True)))
        return changed

    with patch.object(SplitSampler, "sample_hops", hops):
        yield hits


def _with_block(hop: SampledSplitBlock, **changed: Any) -> SampledSplitBlock:
    return hop._replace(block=replace(hop.block, **changed)) if hop.block.edges.num_edges else hop


def degrees_of_the_sample() -> AbstractContextManager[Hits]:
    """The degree of a source is how often it occurs in the worker's part of the block."""

    def changed(hop: SampledSplitBlock) -> SampledSplitBlock:
        edges = hop.block.edges
        return _with_block(hop, src_degree=edges.indices.bincount(minlength=edges.num_src).double())

    return _other_hops(lambda hops: [*map(changed, hops)])


def edge_numbers_of_the_part() -> AbstractContextManager[Hits]:
    """Edges are numbered within the worker's part of the block, so draws for edges differ."""
    return _other_hops(
        lambda hops: [_with_block(hop, edge_ids=torch.arange(hop.block.edges.num_edges)) for hop in hops]
    )


@contextmanager
def nothing_is_drawn_for_others() -> Iterator[Hits]:
    """Nodes that only other workers want draw no neighbours in the next hop: their owner goes on from its own."""
    hits, number_asked, choose = Hits(), NodeNumbers.add_rows, LayerSampling.sample_layer
    known = WeakKeyDictionary[LayerSampling, int]()

    def asked(self: NodeNumbers, wanted: BatchRows, own: BatchRows) -> Any:
        known[self._sampling] = len(own.nodes)
        return number_asked(self, wanted, own)

    def chosen(self: LayerSampling, layer: int, nodes: Any, *given: Any) -> SampledEdges:
        first = known.pop(self, len(nodes))
        first = len(nodes) if layer == self.hops_from_seeds[0] else first
        hits.note(first < len(nodes))
        found = choose(self, layer, nodes[:first], *given)
        return found._replace(indptr=np.pad(found.indptr, (0, len(nodes) - first), mode="edge"))

    with patch.object(NodeNumbers, "add_rows", asked), patch.object(LayerSampling, "sample_layer", chosen):
        yield hits


@contextmanager
def workers_draw_by_seeds_of_their_own() -> Iterator[Hits]:
    """Each worker draws neighbours by the seed of the run plus its rank."""
    hits, right = Hits(), SplitSampler.__init__

    def begin(self: Any, views: Any, fanout: Any, seed: int, *, rank: int, **options: Any) -> None:
        hits.note(rank > 0)
        right(self, views, fanout, seed + rank, rank=rank, **options)

    with patch.object(SplitSampler, "__init__", begin):
        yield hits


@contextmanager
def _other_sums(change: Callable[[SplitEdges], SplitEdges]) -> Iterator[Hits]:
    hits, right = Hits(), layers.split_in_edges

    def dealt(*given: Any) -> SplitEdges:
        found = right(*given)
        hits.note(len(found.sum_request_edge_ids) > 1)
        return change(found)

    with patch.object(layers, "split_in_edges", dealt):
        yield hits


def parts_counted_twice() -> AbstractContextManager[Hits]:
    """A part of a sum that another worker has taken is added twice."""

    def changed(found: SplitEdges) -> SplitEdges:
        times = 1 + (found.remote_edge_ids < 0).long()
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), times.cumsum(0)])[found.remote.indptr]
        far = replace(found.remote, indptr=ends, indices=found.remote.indices.repeat_interleave(times))
        return found._replace(remote=far, remote_edge_ids=found.remote_edge_ids.repeat_interleave(times))

    return _other_sums(changed)


def weights_of_other_edges() -> AbstractContextManager[Hits]:
    """The weights that are told for parts of sums are those of the edge before."""
    return _other_sums(lambda found: found._replace(sum_request_edge_ids=found.sum_request_edge_ids.roll(1)))


@contextmanager
def mean_over_own_seeds() -> Iterator[Hits]:
    """The loss is the mean over the worker's own seeds."""
    hits, right = Hits(), _SplitExecution._train_step

    def step(self: Any, epoch: int, batch: Any) -> Step:
        own = len(batch.seeds)
        hits.note(own not in (0, batch.num_seeds))
        return right(self, epoch, batch._replace(num_seeds=max(1, own)))

    with patch.object(_SplitExecution, "_train_step", step):
        yield hits


@contextmanager
def kept_rows_misplaced() -> Iterator[Hits]:
    """Rows of the cache are one place off."""
    hits, right = Hits(), OwnFeatureStore.prepare_request

    def prepare_request(self: OwnFeatureStore, nodes: Tensor) -> FeatureRequest:
        request = right(self, nodes)
        if request.lookup is None:
            return request
        hits.note(len(request.lookup.cached_slots) > 1)
        return replace(request, lookup=request.lookup._replace(cached_slots=request.lookup.cached_slots.roll(1)))

    with patch.object(OwnFeatureStore, "prepare_request", prepare_request):
        yield hits
