"""Ways to run one layer on one graph. All must give what the plain way gives: that is what strategies stand on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Layer

Plan = Callable[[Layer, Topology, Tensor, int | None], Tensor]


def whole(layer: Layer, topology: Topology, x: Tensor, key: int | None) -> Tensor:
    """The reference: the whole graph at once."""
    return layer(topology.block.with_rng_key(key), x, x)


def chunks(layer: Layer, topology: Topology, x: Tensor, key: int | None) -> Tensor:
    """Ranges of destinations, the last one first; sources are computed once."""
    source = layer.source(x, topology.nodes)
    outs = []
    for first, last in reversed(ranges(topology.num_nodes)):
        block = topology.slice_destinations(first, last).with_rng_key(key)
        x_dst = x[first:last]
        outs.append(layer.update(x_dst, layer.aggregate(block, source, layer.target(x_dst, block.dst_nodes)), block))
    return torch.cat(outs[::-1])


def gathered(layer: Layer, topology: Topology, x: Tensor, key: int | None) -> Tensor:
    """Scattered destinations with only the sources that they need, renumbered, as mini-batches and workers see them."""
    parts = [torch.arange(topology.num_nodes)[start::3] for start in range(3)]
    outs = []
    for nodes in parts:
        block = gather_block(topology, nodes).with_rng_key(key)
        outs.append(layer(block, x[block.src_nodes], x[nodes]))
    return torch.cat(outs)[torch.cat(parts).argsort()]


def columns(layer: Layer, topology: Topology, x: Tensor, key: int | None) -> Tensor:
    """The aggregation alone, column slice by column slice; scores are whole."""
    block = topology.block.with_rng_key(key)
    source, target = layer.source(x, block.src_nodes), layer.target(x, block.dst_nodes)
    assert source.values is not None
    aggregates, weight = [], layer.conv.edge_weight(block, source, target)
    for first, last in ranges(source.values.shape[-1]):
        wide = None if target.values is None else target.values[..., first:last]
        aggregate = layer.conv.aggregation.restrict_to_columns(first, last)
        aggregates.append(aggregate(block, source.values[..., first:last], wide, weight))
    return layer.update(x, torch.cat(aggregates, -1), block)


def edge_parts(layer: Layer, topology: Topology, x: Tensor, key: int | None) -> Tensor:
    """Parts of the in-edges of every destination, weighed part by part with the graph's degrees, then summed."""
    block = topology.block.with_rng_key(key)
    source, target = layer.source(x, block.src_nodes), layer.target(x, block.dst_nodes)
    parts = [layer.aggregate(part, source, target) for part, _ in split_edges(block)]
    return layer.update(x, torch.stack(parts).sum(0), block)


def weighed_parts(layer: Layer, topology: Topology, x: Tensor, key: int | None) -> Tensor:
    """Edges are weighed on the whole in-neighbourhood, then aggregated in parts and summed."""
    block = topology.block.with_rng_key(key)
    source, target = layer.source(x, block.src_nodes), layer.target(x, block.dst_nodes)
    assert source.values is not None
    weight = layer.conv.edge_weight(block, source, target)
    parts = []
    for part, chosen in split_edges(block):
        of_part = None if weight is None else weight[chosen]
        parts.append(layer.conv.aggregation(part, source.values, target.values, of_part))
    return layer.update(x, torch.stack(parts).sum(0), block)


def plans_for(layer: Layer) -> list[Plan]:
    """The plans that a layer promises to run under."""
    aggregation = layer.conv.aggregation
    plans: list[Plan] = [chunks, gathered]
    if aggregation.sliceable:
        plans.append(columns)
    if aggregation.additive:
        plans.append(weighed_parts)
        if layer.spec.static_edge_weight and not layer.spec.needs_full_neighborhood:
            plans.append(edge_parts)
    return plans


def results(plan: Plan, layer: Layer, topology: Topology, x: Tensor, key: int | None) -> list[Tensor]:
    """Output, gradient of the input and of every parameter, for one fixed gradient of the output."""
    leaf = x.clone().requires_grad_()
    view = topology.with_self_loops if layer.spec.self_loops else topology
    out = plan(layer, view, leaf, key)
    probe = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).sin().view_as(out)
    leaves = [leaf, *layer.parameters()]
    return [out.detach(), *torch.autograd.grad((out * probe).sum(), leaves)]


def largest_difference(ours: list[Tensor], reference: list[Tensor]) -> float:
    """The largest difference between two results, relative to the largest number of each tensor (at least 1)."""
    differences = [0.0]
    for mine, other in zip(ours, reference, strict=True):
        if mine.numel():
            scale = max(1.0, other.abs().max().item())
            differences.append((mine - other).abs().max().item() / scale)
    return max(differences)


def ranges(count: int) -> list[tuple[int, int]]:
    """Uneven ranges that cover ``count`` things; the first is empty and the second holds one."""
    cuts = sorted({0, min(1, count), count // 3, count})
    return [(0, 0), *pairwise(cuts)]


def gather_block(topology: Topology, nodes: Tensor) -> Block:
    """The in-edges of ``nodes`` as a block of its own, with explicit edge ids."""
    spans = [torch.arange(int(topology.indptr[v]), int(topology.indptr[v + 1])) for v in nodes.tolist()]
    ids = torch.cat([torch.empty(0, dtype=torch.int64), *spans])
    src_nodes, local = topology.indices[ids].long().unique(return_inverse=True)
    sizes = torch.tensor([0, *(len(span) for span in spans)])
    edges = Edges(
        indptr=sizes.cumsum(0),
        indices=local.to(topology.indices.dtype),
        num_src=len(src_nodes),
        relation=None if topology.relation is None else topology.relation[ids],
        weight=None if topology.weight is None else topology.weight[ids],
        features=None if topology.edge_features is None else topology.edge_features[ids],
        feature_sizes=topology.feature_sizes,
    )
    return Block(
        edges=edges,
        src_nodes=src_nodes,
        dst_nodes=nodes,
        src_degree=topology.degree[src_nodes],
        dst_degree=topology.degree[nodes],
        edge_ids=ids,
    )


def split_edges(block: Block) -> Iterator[tuple[Block, Tensor]]:
    """Blocks of every third edge, all destinations in each, with the positions of their edges."""
    edges = block.edges
    owner = torch.repeat_interleave(torch.arange(edges.num_dst), edges.indptr.diff())
    for start in range(3):
        chosen = torch.arange(edges.num_edges)[start::3]
        counts = torch.bincount(owner[chosen], minlength=edges.num_dst)
        part = dataclasses.replace(
            edges,
            indptr=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
            indices=edges.indices[chosen],
            relation=None if edges.relation is None else edges.relation[chosen],
            weight=None if edges.weight is None else edges.weight[chosen],
            features=None if edges.features is None else edges.features[chosen],
            cache={},
        )
        yield dataclasses.replace(block, edges=part, edge_ids=chosen + block.first_edge), chosen
