"""Which nodes each layer must compute so that the last one can compute some: their k-hop neighbourhood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.shard import GraphShard, PartitionShard
from outgrow.nn.layer import Layer
from outgrow.ops.rows.gather import group_by_owner
from outgrow.ops.sampling.neighborhood import with_in_neighbors
from outgrow.runtime.distributed.async_exchange import SplitSizes


class LayerNodes(NamedTuple):
    """The own nodes that a worker computes in each layer.

    Attributes:
        outputs: For each layer ``[n]`` int64, ascending: the own nodes whose output is needed.
        num_edges: For each layer, the number of in-edges of these nodes, self-loops that the layer adds included.
        inputs: ``[n]`` int64, ascending: the own nodes whose features are needed.
    """

    outputs: list[Tensor]
    num_edges: list[int]
    inputs: Tensor


def find_layer_nodes(shard: GraphShard, layers: Sequence[Layer], nodes: Tensor) -> LayerNodes:
    """Return what each layer must compute for the output of some nodes. All workers together.

    Args:
        shard: The worker's shard of the graph.
        layers: The layers, the first one first.
        nodes: ``[n]`` int64, own nodes, ascending.
    """
    outputs: list[Tensor] = []
    num_edges: list[int] = []
    needed = nodes
    for layer in reversed(layers):
        outputs.append(needed)
        sources, edges = with_in_neighbors(needed, shard.topology.indptr, shard.topology.indices)
        num_edges.append(edges + len(needed) * layer.spec.self_loops)
        needed = _collect_own(shard, sources)
    return LayerNodes(outputs[::-1], num_edges[::-1], needed)


def all_layer_nodes(shard: GraphShard, layers: Sequence[Layer]) -> LayerNodes:
    """Return all own nodes for each layer."""
    own = shard.owned_nodes
    indptr = shard.topology.indptr
    edges = int((indptr[own + 1] - indptr[own]).sum())
    return LayerNodes([own] * len(layers), [edges + len(own) * layer.spec.self_loops for layer in layers], own)


def count_in_edges(shard: GraphShard, layer: Layer, nodes: Tensor) -> Tensor:
    """Return ``[n]`` int64: how many in-edges each node has in a layer; a self-loop that it has may count twice."""
    indptr = shard.topology.indptr
    return indptr[nodes + 1] - indptr[nodes] + layer.spec.self_loops


def _collect_own(shard: GraphShard, nodes: Tensor) -> Tensor:
    """Return the own nodes that this worker or another one needs, ascending."""
    if not isinstance(shard, PartitionShard):
        return nodes
    comm = shard.comm
    places, sizes = group_by_owner(nodes, shard.owner, comm.size)
    counts = [size if peer != comm.rank else 0 for peer, size in enumerate(sizes)]
    by_owner = torch.split(nodes[places], sizes)
    others = torch.cat([nodes[:0], *(part for peer, part in enumerate(by_owner) if peer != comm.rank)])
    asked = comm.all_to_all_counts(torch.tensor(counts), Kind.METRICS)
    received = comm.all_to_all(others, SplitSizes(tuple(counts), tuple(asked.tolist())), Kind.IDS).wait()
    own: Tensor = torch.unique(torch.cat([by_owner[comm.rank], received]))
    return own
