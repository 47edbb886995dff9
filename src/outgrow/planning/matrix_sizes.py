"""The numbers of the matrices that rows of nodes are multiplied by; types and relations may have their own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from outgrow.graph.graph import Graph
from outgrow.nn.hetero import HeteroConv
from outgrow.nn.hetero_encoder import HeteroEncoder
from outgrow.nn.relational import RGCNConv
from outgrow.nn.typed_linear import TypedLinear
from outgrow.ops.aggregation.relation_matmul import RelationMatmul
from outgrow.ops.aggregation.typed_attention import TypedAttention
from outgrow.planning.aggregation_sizes import count_pairs


def count_matrix_numbers(module: nn.Module, graph: Graph) -> int:
    """Return the numbers of the matrices that a row of a node is multiplied by, on average over the nodes.

    A node is multiplied by the matrices of its type, and by those of relations that it has edges of; a learned row is
    read, not multiplied.
    """
    shares = {kind.name: (kind.last - kind.first) / max(1, graph.num_nodes) for kind in graph.node_types}
    relations = max(1, graph.num_relations) * max(1, graph.num_nodes)
    # Of a graph that is not here it is known only that a node has no more sums than in-edges.
    pairs = count_pairs(graph) or min(relations, graph.num_edges)
    return round(_count(module, shares, pairs / relations))


def _count(module: nn.Module, shares: Mapping[str, float], of_relations: float) -> float:
    if isinstance(module, TypedLinear):
        return sum(shares.get(name, 1.0) * _own_numbers(module.projection_of(name)) for name in module.types)
    if isinstance(module, HeteroEncoder):
        return sum(shares.get(name, 1.0) * width for name, width in module.widths.items()) * module.out_features
    if isinstance(module, RGCNConv) and module.aggregation.sums_pairs:
        spec = module.spec
        return _own_numbers(module.itself) + of_relations * module.num_relations * spec.in_features * spec.out_features
    if isinstance(module, HeteroConv):
        return sum(_count_relation(module, number, shares, of_relations) for number in range(len(module.edge_types)))
    own = float(_own_numbers(module))
    if isinstance(module, TypedAttention) or (isinstance(module, RelationMatmul) and not module.project_first):
        return of_relations * (own + sum(_own_numbers(part) for part in module.children()))
    return own + sum(_count(part, shares, of_relations) for part in module.children())


def _count_relation(hetero: HeteroConv, number: int, shares: Mapping[str, float], of_relations: float) -> float:
    source, _, target = hetero.edge_types[number]
    conv = hetero.conv_of(hetero.edge_types[number])
    numbers = _count(conv, shares, of_relations)
    spec = conv.spec
    at_sources = 0.0 if spec.source_is_input else min(numbers, spec.in_features * spec.source[0] * spec.source[1])
    return shares.get(source, 1.0) * at_sources + shares.get(target, 1.0) * (numbers - at_sources)


def _own_numbers(module: nn.Module) -> int:
    # Vectors are biases and norms, which the epilogue's cost includes.
    return sum(parameter.numel() for parameter in module.parameters(recurse=False) if parameter.dim() > 1)
