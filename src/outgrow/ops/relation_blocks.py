"""The in-edges of each relation of a block, as blocks of their own between the rows that have such edges.

Letters: ``E`` edges of the block, ``e`` those of one relation, ``Us`` its sources, ``Ud`` its destinations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.relation_edges import validate_relations
from outgrow.ops.csc import destination, in_degree

_DENSE = 16
_DEGREE = "degree of the relation"


@dataclass(frozen=True, kw_only=True, eq=False)
class RelationEdges:
    """The edges of one relation.

    Attributes:
        edges: In-edges of ``Ud`` destinations from ``Us`` sources, in the order of the block.
        position: ``[e]`` int64, position of each edge in the block, ascending.
        src_rows: ``[Us]`` int64, the source rows of the block that have such an edge, ascending.
        dst_rows: ``[Ud]`` int64, the destination rows that have one, ascending; or the rows asked for.
    """

    edges: Edges
    position: Tensor
    src_rows: Tensor
    dst_rows: Tensor

    def with_destinations(self, rows: Tensor) -> RelationEdges:
        """Return the same edges at more destinations: ``[n]`` int64 rows, ascending, those of the edges among them."""
        counts = rows.new_zeros(len(rows))
        counts[torch.searchsorted(rows, self.dst_rows)] = self.edges.indptr.diff()
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return replace(self, edges=replace(self.edges, indptr=ends, cache={}), dst_rows=rows)

    def make_part(self, block: Block) -> Block:
        """Return these edges as a block of an aggregation: without degrees and samples, which only weights read."""
        ids = self.position + block.first_edge if block.edge_ids is None else block.edge_ids[self.position]
        return Block(
            edges=self.edges,
            src_nodes=block.src_nodes[self.src_rows],
            dst_nodes=block.dst_nodes[self.dst_rows],
            # Without values: those of sources, as GCN reads them, are not defined for edges between two types.
            src_degree=torch.empty(len(self.src_rows), dtype=torch.float64, device="meta"),
            dst_degree=torch.empty(len(self.dst_rows), dtype=torch.float64, device="meta"),
            edge_ids=ids,
            key=block.key,
        )

    def make_block(self, block: Block) -> Block:
        """Return these edges as a block of the graph that has no other relation, with the ids of ``block``.

        Degrees are those of this relation in the graph. Those of sources are not defined, and have no values.
        """
        sampled, degree_E, scores = (
            None if each is None else each[self.position]
            for each in (block.sample_weight, block.relation_degree, block.edge_scores)
        )
        known = self.edges.cache.get(_DEGREE)
        if not isinstance(known, Tensor):
            ends = self.edges.indptr
            if block.edges.relation is None:
                known = block.dst_degree[self.dst_rows]
            else:
                known = in_degree(ends, self.edges.weight) if degree_E is None else _first_of_rows(ends, degree_E)
            self.edges.cache[_DEGREE] = known
        return replace(
            self.make_part(block),
            dst_degree=known,
            sample_weight=sampled,
            relation_degree=degree_E,
            edge_scores=scores,
        )


def relation_edges(edges: Edges, num_relations: int) -> tuple[RelationEdges, ...]:
    """Return the edges of each of ``R`` relations; made once for the edges of a block.

    Raises:
        InputError: A relation is out of range.
    """
    slot = f"edges of {num_relations} relations"
    if slot not in edges.cache:
        edges.cache[slot] = tuple(_split(edges, num_relations))
    return cast(tuple[RelationEdges, ...], edges.cache[slot])


def _split(edges: Edges, num_relations: int) -> list[RelationEdges]:
    dst_E = destination(edges)
    if edges.relation is None:
        every = torch.arange(edges.num_edges, device=edges.indptr.device)
        return [_compact(edges, every, dst_E)]
    relation = validate_relations(edges, num_relations)
    # Stable: the edges of a relation stay in the order of the block, which is that of its destinations.
    order = relation.argsort(stable=True)
    counts = torch.bincount(relation.long(), minlength=num_relations).tolist()
    return [_compact(edges, position, dst_E[position]) for position in torch.split(order, counts)]


def _compact(edges: Edges, position: Tensor, dst_e: Tensor) -> RelationEdges:
    dst_rows, counts = torch.unique_consecutive(dst_e, return_counts=True)
    sources = edges.indices[position].long()
    if len(sources) * _DENSE < edges.num_src:
        src_rows, indices = torch.unique(sources, return_inverse=True)
    else:
        # Without sorting: a table of all sources is not much larger than the edges.
        found = torch.zeros(edges.num_src, dtype=torch.bool, device=sources.device)
        found[sources] = True
        src_rows = found.nonzero()[:, 0]
        indices = (found.cumsum(0) - 1)[sources]
    part = Edges(
        indptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        indices=indices.to(edges.indices.dtype),
        num_src=len(src_rows),
        weight=None if edges.weight is None else edges.weight[position],
        features=None if edges.features is None else edges.features[position],
        feature_sizes=edges.feature_sizes,
    )
    return RelationEdges(edges=part, position=position, src_rows=src_rows, dst_rows=dst_rows)


def _first_of_rows(indptr: Tensor, values_E: Tensor) -> Tensor:
    """Return the value of the first edge of each row; 0 for a row without edges."""
    first = indptr[:-1].clamp(max=max(0, len(values_E) - 1))
    if not len(values_E):
        return values_E.new_zeros(len(first))
    return values_E[first] * (indptr.diff() > 0)
