"""Aggregations chunk by chunk are those of the whole graph, with the same exchanges, which the timeline shows."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline
from outgrow.engine.shard import PartitionShard
from outgrow.nn import Layer, NodeMessages
from outgrow.nn.convolution import SAGEMaxConv
from outgrow.nn.film import FiLMConv
from outgrow.nn.gated import GGCNConv
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.tensor.aggregation import SlicedAggregation
from outgrow.strategies.tensor.chunk_blocks import make_chunk_blocks
from outgrow.strategies.tensor.chunk_schedule import assign_owners, chunk_ends
from suites.checks import named, on_workers
from support import normal, random_topology
from thread_group import run_in_threads

GRAPH = random_topology(50, 400)
CHUNKS = 4


class Made(NamedTuple):
    """What a worker got: its rows, their gradients, the bytes that it sent, and the lanes of its timeline."""

    rows: Tensor
    gradients: list[Tensor]
    sent: int
    lanes: set[tuple[str, str]]


def aggregate(comm: Comm, layer: Layer, chunks: int) -> Made:
    """The aggregate of own nodes and the gradients of what it was made of."""
    owner = assign_owners(GRAPH.indptr, GRAPH.indices, CHUNKS, comm.size)
    shard = PartitionShard(GRAPH, owner, comm)
    timeline = Timeline()
    sums = SlicedAggregation(shard, timeline, chunks=chunks)
    own = shard.owned_nodes
    rows = [
        None if widths == (0, 0) else normal(50, *widths, seed=seed).double()[own].requires_grad_()
        for seed, widths in enumerate((layer.spec.source, layer.spec.target))
    ]
    given = [each for each in rows if each is not None]
    ends = [NodeMessages(each, None) for each in rows]
    before = sum(comm.ledger.bytes_by_link.values())
    out = sums.aggregate_rows(layer, None, ends[0], ends[1], Kind.ACTIVATIONS)
    probe = normal(50, *out.shape[1:], seed=9).double()[own]
    gradients = list(torch.autograd.grad(out, given, probe))
    sent = sum(comm.ledger.bytes_by_link.values()) - before
    return Made(out.detach(), gradients, sent, {(span.name, span.thread) for span in timeline.spans})


def require_pipeline(comm: Comm, layer: Layer) -> None:
    """Chunks change neither results nor bytes, and every chunk has a split and a gather beside aggregations."""
    layer = layer.double()
    whole, found = (aggregate(comm, layer, chunks) for chunks in (1, CHUNKS))
    torch.testing.assert_close(found.rows, whole.rows, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(found.gradients, whole.gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert found.sent == whole.sent
    for number in range(CHUNKS):
        assert {("split", f"split {number}"), ("gather", f"gather {number}")} <= found.lanes
    assert any(name == "aggregate" for name, _ in found.lanes)


def gates(comm: Comm) -> None:
    require_pipeline(comm, Layer(GGCNConv(6, 5)))


def film(comm: Comm) -> None:
    require_pipeline(comm, Layer(FiLMConv(6, 5)))


def maxima(comm: Comm) -> None:
    require_pipeline(comm, Layer(SAGEMaxConv(6, 5)))


CHECKS = named(gates, film, maxima)
test_two_workers = on_workers(CHECKS, 2, run_in_threads)


def test_chunks_read_what_their_edges_do() -> None:
    whole = GRAPH.block
    ends = chunk_ends(whole.edges.indptr, CHUNKS)
    found = make_chunk_blocks(whole, ends, None)
    assert [(chunk.first, chunk.last) for chunk in found] == list(pairwise(ends))
    for chunk in found:
        edges = chunk.block.edges
        low = chunk.block.first_edge
        assert torch.equal(chunk.sources, chunk.sources.unique())
        assert edges.num_src == len(chunk.sources)
        read = chunk.sources[edges.indices.long()]
        assert torch.equal(read, whole.edges.indices[low : low + edges.num_edges].long())
        assert torch.equal(chunk.block.src_degree, whole.src_degree[chunk.sources])
    assert sum(chunk.block.edges.num_edges for chunk in found) == whole.edges.num_edges
